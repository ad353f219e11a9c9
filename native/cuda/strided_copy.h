// Copies between tensors of the same shape but different layouts, across devices or not.
#pragma once

#include <cstdint>
#include <span>

#include "tensor.h"

namespace pteron::cuda {

// Copies `src` to `dst` element by element, in the order of `stream`. Same sizes and item size.
// Returns before a copy between two places on a device is done; a copy to or from the host is
// complete when it returns.
void copy_tensor(const Tensor& dst, const Tensor& src, Stream stream);

// One copy of a layout: dimensions that both sides step through alike are merged, dimensions of
// size 1 dropped, the rest sorted so that the last one moves in the smallest steps of `dst`.
struct CopyPlan {
  static constexpr size_t kMaxDims = 64;
  size_t ndim = 0;
  int64_t sizes[kMaxDims];
  int64_t dst_strides[kMaxDims];  // bytes
  int64_t src_strides[kMaxDims];  // bytes
  size_t run = 0;                 // bytes that are contiguous on both sides

  CopyPlan(std::span<const int64_t> sizes, std::span<const int64_t> dst_strides,
           std::span<const int64_t> src_strides, size_t itemsize);
};

// The same in host memory.
void copy_strided_host(void* dst, const void* src, const CopyPlan& plan);

}  // namespace pteron::cuda

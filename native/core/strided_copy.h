// Copies between any two layouts of one tensor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pteron {

// Copies `ndim` axes of `shape` elements of `itemsize` bytes from `src` to `dst`. Strides are in
// bytes and may be negative or zero; the memories must not overlap. Any alignment.
void strided_copy(void* dst, const int64_t* dst_strides, const void* src,
                  const int64_t* src_strides, const int64_t* shape, int ndim, size_t itemsize);

}  // namespace pteron

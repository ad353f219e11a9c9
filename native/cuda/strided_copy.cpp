#include "strided_copy.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "context.h"
#include "memory.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

// Above this many rectangle copies, one trip through host memory is cheaper.
constexpr int64_t kMaxRectangles = 64;

bool same_layout(const Tensor& a, const Tensor& b) {
  for (size_t i = 0; i < a.ndim(); ++i) {
    if (a.sizes()[i] != 1 && a.strides()[i] != b.strides()[i]) return false;
  }
  return true;
}

// A stride of 0 on the written side, or rows that overlap, would make the result depend on the
// order of the writes.
bool is_dense(const Tensor& tensor) {
  return span_of(tensor.sizes(), tensor.strides()) == tensor.numel();
}

template <typename Copy>
void for_each_outer(const CopyPlan& plan, size_t outer, char* dst, const char* src, Copy&& copy) {
  std::vector<int64_t> index(outer, 0);
  while (true) {
    copy(dst, src);
    size_t d = outer;
    while (d > 0) {
      --d;
      dst += plan.dst_strides[d];
      src += plan.src_strides[d];
      if (++index[d] < plan.sizes[d]) break;
      dst -= plan.dst_strides[d] * plan.sizes[d];
      src -= plan.src_strides[d] * plan.sizes[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

int64_t rectangles(const CopyPlan& plan) {
  int64_t count = 1;
  for (size_t i = 0; i + 1 < plan.ndim; ++i) count *= plan.sizes[i];
  return count;
}

// Rows of a rectangle must not overlap and must step forward on both sides.
bool fits_rectangles(const CopyPlan& plan) {
  if (plan.ndim == 0) return true;
  const auto run = static_cast<int64_t>(plan.run);
  return plan.dst_strides[plan.ndim - 1] >= run && plan.src_strides[plan.ndim - 1] >= run &&
         rectangles(plan) <= kMaxRectangles;
}

void copy_rectangles(const CopyPlan& plan, void* dst, const void* src, int dst_type, int src_type,
                     Stream stream) {
  const size_t outer = plan.ndim == 0 ? 0 : plan.ndim - 1;
  Copy2D rectangle;
  rectangle.dst_type = dst_type;
  rectangle.src_type = src_type;
  rectangle.width = plan.run;
  rectangle.height = plan.ndim == 0 ? 1 : static_cast<size_t>(plan.sizes[outer]);
  rectangle.dst_pitch = plan.ndim == 0 ? plan.run : static_cast<size_t>(plan.dst_strides[outer]);
  rectangle.src_pitch = plan.ndim == 0 ? plan.run : static_cast<size_t>(plan.src_strides[outer]);
  for_each_outer(plan, outer, static_cast<char*>(dst), static_cast<const char*>(src),
                 [&](char* to, const char* from) {
                   rectangle.dst_host = to;
                   rectangle.dst_device = to_device_ptr(to);
                   rectangle.src_host = from;
                   rectangle.src_device = to_device_ptr(from);
                   check(driver().copy_2d_async(&rectangle, stream), "copy a strided tensor");
                 });
}

size_t span_bytes(const Tensor& tensor) {
  return static_cast<size_t>(span_of(tensor.sizes(), tensor.strides())) * tensor.itemsize();
}

// Everything that `tensor` spans, in host memory.
std::vector<char> download(const Tensor& tensor, Stream stream) {
  std::vector<char> host(span_bytes(tensor));
  copy(CopyKind::DeviceToHost, tensor.place().index, host.data(), tensor.data(), host.size(),
       stream);
  return host;
}

void copy_through_host(const Tensor& dst, const Tensor& src, const CopyPlan& plan, Stream stream) {
  std::vector<char> from;
  const void* src_data = src.data();
  if (src.place().on_device) {
    from = download(src, stream);
    src_data = from.data();
  }
  if (!dst.place().on_device) {
    copy_strided_host(dst.data(), src_data, plan);
    return;
  }
  // Holes between the elements keep what they hold.
  std::vector<char> to = is_dense(dst) ? std::vector<char>(span_bytes(dst)) : download(dst, stream);
  copy_strided_host(to.data(), src_data, plan);
  copy(CopyKind::HostToDevice, dst.place().index, dst.data(), to.data(), to.size(), stream);
}

}  // namespace

CopyPlan::CopyPlan(std::span<const int64_t> all_sizes, std::span<const int64_t> all_dst_strides,
                   std::span<const int64_t> all_src_strides, size_t itemsize)
    : run(itemsize) {
  if (all_sizes.size() > kMaxDims) {
    throw Failure(ErrorCode::NotSupported, "a tensor has more than 64 dimensions");
  }
  size_t order[kMaxDims];
  size_t kept = 0;
  for (size_t i = 0; i < all_sizes.size(); ++i) {
    if (all_sizes[i] != 1) order[kept++] = i;
  }
  std::stable_sort(order, order + kept,
                   [&](size_t a, size_t b) { return all_dst_strides[a] > all_dst_strides[b]; });
  const auto item = static_cast<int64_t>(itemsize);
  for (size_t k = 0; k < kept; ++k) {
    const size_t i = order[k];
    const int64_t dst_step = all_dst_strides[i] * item;
    const int64_t src_step = all_src_strides[i] * item;
    const bool merges = ndim > 0 && dst_strides[ndim - 1] == dst_step * all_sizes[i] &&
                        src_strides[ndim - 1] == src_step * all_sizes[i];
    if (merges) {
      sizes[ndim - 1] *= all_sizes[i];
    } else {
      sizes[ndim++] = all_sizes[i];
    }
    dst_strides[ndim - 1] = dst_step;
    src_strides[ndim - 1] = src_step;
  }
  if (ndim > 0 && dst_strides[ndim - 1] == item && src_strides[ndim - 1] == item) {
    --ndim;
    run = static_cast<size_t>(sizes[ndim]) * itemsize;
  }
}

void copy_strided_host(void* dst, const void* src, const CopyPlan& plan) {
  for_each_outer(plan, plan.ndim, static_cast<char*>(dst), static_cast<const char*>(src),
                 [&](char* to, const char* from) { std::memcpy(to, from, plan.run); });
}

void copy_tensor(const Tensor& dst, const Tensor& src, Stream stream) {
  if (!std::ranges::equal(dst.sizes(), src.sizes()) || dst.itemsize() != src.itemsize()) {
    throw Failure(ErrorCode::InvalidArgument, "cannot copy between tensors of different shapes");
  }
  if (src.numel() == 0) return;
  if (dst.data() == nullptr || src.data() == nullptr) {
    throw Failure(ErrorCode::InvalidArgument, "cannot copy a tensor that has no memory");
  }
  const Place to = dst.place();
  const Place from = src.place();
  if (!to.on_device && !from.on_device) {
    copy_strided_host(dst.data(), src.data(),
                      CopyPlan(dst.sizes(), dst.strides(), src.strides(), dst.itemsize()));
    return;
  }
  const int device = to.on_device ? to.index : from.index;
  ContextGuard guard(device);
  const CopyKind kind = !from.on_device ? CopyKind::HostToDevice
                        : to.on_device  ? CopyKind::DeviceToDevice
                                        : CopyKind::DeviceToHost;
  if (to.on_device && from.on_device && to.index != from.index) {
    // Peer access is not assumed: the driver stages such a copy by itself when asked this way.
    if (!(is_dense(src) && same_layout(dst, src))) {
      copy_through_host(
          dst, src, CopyPlan(dst.sizes(), dst.strides(), src.strides(), dst.itemsize()), stream);
      return;
    }
    check(driver().copy_async(to_device_ptr(dst.data()), to_device_ptr(src.data()), src.nbytes(),
                              stream),
          "copy between two devices");
    return;
  }
  if (same_layout(dst, src) && is_dense(src)) {
    copy(kind, device, dst.data(), src.data(), src.nbytes(), stream);
    return;
  }
  const CopyPlan plan(dst.sizes(), dst.strides(), src.strides(), dst.itemsize());
  if (!fits_rectangles(plan)) {
    copy_through_host(dst, src, plan, stream);
    return;
  }
  copy_rectangles(plan, dst.data(), src.data(), to.on_device ? kMemoryDevice : kMemoryHost,
                  from.on_device ? kMemoryDevice : kMemoryHost, stream);
  if (!to.on_device || !from.on_device) synchronize_stream(device, stream);
}

}  // namespace pteron::cuda

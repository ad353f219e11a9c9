#include "strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tensor_block.h"

namespace pteron {
namespace {

struct Axis {
  int64_t size, dst, src;  // elements, bytes, bytes
};

template <size_t N>
void copy_row(char* dst, const char* src, const Axis& axis) {
  for (int64_t i = 0; i < axis.size; ++i) {
    std::memcpy(dst + i * axis.dst, src + i * axis.src, N);  // one move of a constant size
  }
}

void copy_row(char* dst, const char* src, const Axis& axis, size_t itemsize) {
  const auto packed = static_cast<int64_t>(itemsize);
  if (axis.dst == packed && axis.src == packed) {
    std::memcpy(dst, src, static_cast<size_t>(axis.size) * itemsize);
    return;
  }
  switch (itemsize) {
    case 1:
      return copy_row<1>(dst, src, axis);
    case 2:
      return copy_row<2>(dst, src, axis);
    case 4:
      return copy_row<4>(dst, src, axis);
    case 8:
      return copy_row<8>(dst, src, axis);
    default:
      return copy_row<16>(dst, src, axis);
  }
}

}  // namespace

void strided_copy(void* dst, const int64_t* dst_strides, const void* src,
                  const int64_t* src_strides, const int64_t* shape, int ndim, size_t itemsize) {
  Axis axes[kMaxRank];
  int n = 0;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return;
    if (shape[i] != 1) axes[n++] = {shape[i], dst_strides[i], src_strides[i]};
  }
  // Write in memory order, and make one axis of neighbours that are packed on both sides.
  std::sort(axes, axes + n,
            [](const Axis& a, const Axis& b) { return std::abs(a.dst) > std::abs(b.dst); });
  int kept = 0;
  for (int i = 1; i < n; ++i) {
    Axis& outer = axes[kept];
    const Axis& inner = axes[i];
    if (outer.dst == inner.size * inner.dst && outer.src == inner.size * inner.src) {
      outer = {outer.size * inner.size, inner.dst, inner.src};
    } else {
      axes[++kept] = inner;
    }
  }
  n = n == 0 ? 0 : kept + 1;

  auto* to = static_cast<char*>(dst);
  auto* from = static_cast<const char*>(src);
  if (n == 0) {
    std::memcpy(to, from, itemsize);
    return;
  }
  const Axis row = axes[--n];
  int64_t index[kMaxRank] = {};
  for (;;) {
    copy_row(to, from, row, itemsize);
    int i = n - 1;
    for (; i >= 0; --i) {
      to += axes[i].dst;
      from += axes[i].src;
      if (++index[i] < axes[i].size) break;
      index[i] = 0;
      to -= axes[i].size * axes[i].dst;
      from -= axes[i].size * axes[i].src;
    }
    if (i < 0) return;
  }
}

}  // namespace pteron

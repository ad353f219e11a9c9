// Shims that move or read elements: clones, copies, fills, single items, scalars as tensors.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "context.h"
#include "memory.h"
#include "shims.h"
#include "stream.h"
#include "strided_copy.h"

namespace pteron::cuda {

namespace {

Stream stream_of(const Tensor& tensor) {
  return tensor.place().on_device ? current_stream(tensor.place().index) : nullptr;
}

std::unique_ptr<Tensor> clone_as(const Tensor& self, std::span<const int64_t> strides) {
  auto copy = Tensor::empty(self.place(), self.dtype(), self.sizes(), strides);
  copy_tensor(*copy, self, stream_of(self));
  return copy;
}

// Dense strides in the same order as the tensor's, which is how torch clones a tensor that has
// holes or overlaps; those of a dense tensor come out unchanged.
std::vector<int64_t> dense_strides(const Tensor& self) {
  std::vector<size_t> order(self.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return self.strides()[a] > self.strides()[b]; });
  std::vector<int64_t> strides(self.ndim());
  int64_t step = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = step;
    if (self.sizes()[order[k]] > 1) step *= self.sizes()[order[k]];
  }
  return strides;
}

// The only element, wherever it is. `width` is what the caller will read.
void read_item(const Tensor& self, DType dtype, void* out) {
  if (self.numel() != 1) {
    throw Failure(ErrorCode::InvalidArgument,
                  "the model reads one item of a tensor that has " + std::to_string(self.numel()));
  }
  if (self.dtype() != dtype) {
    throw Failure(ErrorCode::InvalidArgument, std::string("the model reads an item of a ") +
                                                  info(self.dtype()).name + " tensor as " +
                                                  info(dtype).name);
  }
  if (self.place().on_device) {
    copy(CopyKind::DeviceToHost, self.place().index, out, self.data(), itemsize(dtype),
         stream_of(self));
  } else {
    std::memcpy(out, self.data(), itemsize(dtype));
  }
}

}  // namespace

PTERON_SHIM int32_t aoti_torch_clone(Tensor* self, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    *out = clone_as(t, dense_strides(t)).release();
  });
}

// Keeps the strides as they are, holes and all. Generated code calls it when an input is not
// aligned to 16 bytes; new memory always is.
PTERON_SHIM int32_t aoti_torch_clone_preserve_strides(Tensor* self, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    *out = clone_as(t, t.strides()).release();
  });
}

PTERON_SHIM int32_t aoti_torch_copy_(Tensor* dst, Tensor* src, int32_t /*non_blocking*/) {
  return shim([&] {
    const Tensor& to = ref(dst);
    const Tensor& from = ref(src);
    if (to.dtype() != from.dtype()) {
      throw Failure(ErrorCode::NotSupported, "the model copies between two element types");
    }
    copy_tensor(to, from, to.place().on_device ? stream_of(to) : stream_of(from));
  });
}

PTERON_SHIM int32_t aoti_torch_assign_tensors(Tensor* src, Tensor* dst) {
  return aoti_torch_copy_(dst, src, 0);
}

PTERON_SHIM int32_t aoti_torch_zero_(Tensor* self) {
  return shim([&] {
    const Tensor& t = ref(self);
    if (t.numel() == 0) return;
    if (span_of(t.sizes(), t.strides()) != t.numel()) {
      throw Failure(ErrorCode::NotSupported, "the model zeroes a tensor that has holes");
    }
    if (!t.place().on_device) {
      std::memset(t.data(), 0, t.nbytes());
      return;
    }
    ContextGuard guard(t.place().index);
    check(driver().fill_async(to_device_ptr(t.data()), 0, t.nbytes(), stream_of(t)),
          "zero a tensor");
  });
}

// Name, dtype, C type of the same width (half precision travels as its bits).
#define PTERON_FORALL_ITEMS(_)    \
  _(bool, Bool, bool)             \
  _(uint8, UInt8, uint8_t)        \
  _(uint16, UInt16, uint16_t)     \
  _(uint32, UInt32, uint32_t)     \
  _(uint64, UInt64, uint64_t)     \
  _(int8, Int8, int8_t)           \
  _(int16, Int16, int16_t)        \
  _(int32, Int32, int32_t)        \
  _(int64, Int64, int64_t)        \
  _(float16, Float16, uint16_t)   \
  _(bfloat16, BFloat16, uint16_t) \
  _(float32, Float32, float)      \
  _(float64, Float64, double)

#define PTERON_SHIM_ITEM(suffix, dtype, type)                             \
  PTERON_SHIM int32_t aoti_torch_item_##suffix(Tensor* self, type* out) { \
    return shim([&] { read_item(ref(self), DType::dtype, out); });        \
  }
PTERON_FORALL_ITEMS(PTERON_SHIM_ITEM)
#undef PTERON_SHIM_ITEM

// The half types are passed by value as classes upstream, so their ABI is not an integer's; no
// exporter emits them.
#define PTERON_FORALL_SCALARS(_) \
  _(bool, Bool, bool)            \
  _(uint8, UInt8, uint8_t)       \
  _(uint16, UInt16, uint16_t)    \
  _(uint32, UInt32, uint32_t)    \
  _(uint64, UInt64, uint64_t)    \
  _(int8, Int8, int8_t)          \
  _(int16, Int16, int16_t)       \
  _(int32, Int32, int32_t)       \
  _(int64, Int64, int64_t)       \
  _(float32, Float32, float)     \
  _(float64, Float64, double)

// A scalar becomes a 0-dimensional host tensor.
#define PTERON_SHIM_SCALAR(suffix, dtype, type)                                        \
  PTERON_SHIM int32_t aoti_torch_scalar_to_tensor_##suffix(type value, Tensor** out) { \
    return shim([&] {                                                                  \
      auto tensor = Tensor::empty({}, DType::dtype, {}, {});                           \
      std::memcpy(tensor->data(), &value, sizeof(value));                              \
      *out = tensor.release();                                                         \
    });                                                                                \
  }
PTERON_FORALL_SCALARS(PTERON_SHIM_SCALAR)
#undef PTERON_SHIM_SCALAR

}  // namespace pteron::cuda

// Shims that make, share, describe and delete tensors.
#include <limits>

#include "context.h"
#include "memory.h"
#include "shims.h"
#include "stream.h"

namespace pteron::cuda {

Place checked_place(int32_t device_type, int32_t device_index) {
  if (device_type == kDeviceTypeCpu) return {};
  if (device_type == kDeviceTypeCuda) {
    return {true, device_index < 0 ? current_device() : device_index};
  }
  throw Failure(ErrorCode::NotSupported,
                "the model uses a device of type " + std::to_string(device_type));
}

namespace {

// Bytes of a storage that these dimensions reach, counted from its start.
size_t reach(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset,
             DType dtype) {
  const int64_t span = strides.empty() ? checked_numel(sizes) : span_of(sizes, strides);
  int64_t end = 0;
  int64_t nbytes = 0;
  if (offset < 0 || __builtin_add_overflow(span, offset, &end) ||
      __builtin_mul_overflow(end, static_cast<int64_t>(itemsize(dtype)), &nbytes)) {
    throw Failure(ErrorCode::InvalidArgument, "a tensor's offset or size overflows");
  }
  return static_cast<size_t>(nbytes);
}

std::unique_ptr<Tensor> from_blob(void* data, int64_t ndim, const int64_t* sizes,
                                  const int64_t* strides, int64_t offset, int32_t dtype,
                                  int32_t device_type, int32_t device_index) {
  const auto size_span = dims(sizes, ndim);
  const auto stride_span = dims(strides, ndim);
  const DType type = checked_dtype(dtype);
  const size_t nbytes = reach(size_span, stride_span, offset, type);
  Storage* storage = Storage::view(data, nbytes, checked_place(device_type, device_index));
  return std::make_unique<Tensor>(storage, type, size_span, stride_span, offset);
}

// A view must stay inside its storage: a bad one would read or write somebody else's memory.
std::unique_ptr<Tensor> checked_view(const Tensor& self, DType dtype,
                                     std::span<const int64_t> sizes,
                                     std::span<const int64_t> strides, int64_t offset) {
  if (checked_numel(sizes) > 0 && reach(sizes, strides, offset, dtype) > self.storage_nbytes()) {
    throw Failure(ErrorCode::InvalidArgument, "a view reaches past the end of its tensor's memory");
  }
  return self.view(dtype, sizes, strides, offset);
}

}  // namespace

PTERON_SHIM int32_t aoti_torch_create_tensor_from_blob(void* data, int64_t ndim,
                                                       const int64_t* sizes, const int64_t* strides,
                                                       int64_t offset, int32_t dtype,
                                                       int32_t device_type, int32_t device_index,
                                                       Tensor** out) {
  return shim([&] {
    *out =
        from_blob(data, ndim, sizes, strides, offset, dtype, device_type, device_index).release();
  });
}

PTERON_SHIM int32_t aoti_torch_create_tensor_from_blob_v2(
    void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset,
    int32_t dtype, int32_t device_type, int32_t device_index, Tensor** out, int32_t layout,
    const uint8_t* /*opaque_metadata*/, int64_t /*opaque_metadata_size*/) {
  return shim([&] {
    if (layout != 0)
      throw Failure(ErrorCode::NotSupported, "the model has a tensor that is not strided");
    *out =
        from_blob(data, ndim, sizes, strides, offset, dtype, device_type, device_index).release();
  });
}

PTERON_SHIM int32_t aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes,
                                             const int64_t* strides, int32_t dtype,
                                             int32_t device_type, int32_t device_index,
                                             Tensor** out) {
  return shim([&] {
    *out = Tensor::empty(checked_place(device_type, device_index), checked_dtype(dtype),
                         dims(sizes, ndim), dims(strides, ndim))
               .release();
  });
}

// Host memory that is not really pinned: right, only slower to copy from.
PTERON_SHIM int32_t aoti_torch_empty_strided_pinned(int64_t ndim, const int64_t* sizes,
                                                    const int64_t* strides, int32_t dtype,
                                                    int32_t device_type, int32_t device_index,
                                                    Tensor** out) {
  return aoti_torch_empty_strided(ndim, sizes, strides, dtype, device_type, device_index, out);
}

PTERON_SHIM int32_t aoti_torch_delete_tensor_object(Tensor* tensor) {
  return shim([&] { delete tensor; });
}

PTERON_SHIM int32_t aoti_torch_new_tensor_handle(Tensor* self, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    *out = t.view(t.dtype(), t.sizes(), t.strides(), t.offset()).release();
  });
}

PTERON_SHIM int32_t aoti_torch_assign_tensors_out(Tensor* self, Tensor** out) {
  return aoti_torch_new_tensor_handle(self, out);
}

PTERON_SHIM int32_t aoti_torch_new_uninitialized_tensor(Tensor** out) {
  return shim([&] {
    const int64_t nothing = 0;
    *out = Tensor::empty({}, DType::Float32, {&nothing, 1}, {}).release();
  });
}

// The offset counts from the tensor's own, as in torch.
PTERON_SHIM int32_t aoti_torch__reinterpret_tensor(Tensor* self, int64_t ndim, const int64_t* sizes,
                                                   const int64_t* strides, int64_t offset,
                                                   Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    int64_t from_start = 0;
    if (__builtin_add_overflow(t.offset(), offset, &from_start)) {
      throw Failure(ErrorCode::InvalidArgument, "a tensor's offset overflows");
    }
    *out = checked_view(t, t.dtype(), dims(sizes, ndim), dims(strides, ndim), from_start).release();
  });
}

PTERON_SHIM int32_t aoti_torch_as_strided(Tensor* self, const int64_t* sizes,
                                          const int64_t* strides, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    const auto ndim = static_cast<int64_t>(t.ndim());
    *out = checked_view(t, t.dtype(), dims(sizes, ndim), dims(strides, ndim), t.offset()).release();
  });
}

PTERON_SHIM int32_t aoti_torch__alloc_from_pool(Tensor* self, int64_t offset_bytes, int32_t dtype,
                                                int64_t ndim, const int64_t* sizes,
                                                const int64_t* strides, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    const DType type = checked_dtype(dtype);
    const auto item = static_cast<int64_t>(itemsize(type));
    const int64_t start = t.offset() * static_cast<int64_t>(t.itemsize()) + offset_bytes;
    if (start < 0 || start % item != 0) {
      throw Failure(ErrorCode::InvalidArgument, "a tensor's offset is not a multiple of its items");
    }
    *out = checked_view(t, type, dims(sizes, ndim), dims(strides, ndim), start / item).release();
  });
}

// Same bytes under another type of the same width.
PTERON_SHIM int32_t aoti_torch_cuda_view_dtype(Tensor* self, int32_t dtype, Tensor** out) {
  return shim([&] {
    const Tensor& t = ref(self);
    const DType type = checked_dtype(dtype);
    if (itemsize(type) != t.itemsize()) {
      throw Failure(ErrorCode::NotSupported, "the model views a tensor as a type of another width");
    }
    *out = t.view(type, t.sizes(), t.strides(), t.offset()).release();
  });
}

PTERON_SHIM int32_t aoti_torch_get_data_ptr(Tensor* self, void** out) {
  return shim([&] { *out = ref(self).data(); });
}
PTERON_SHIM int32_t aoti_torch_get_sizes(Tensor* self, int64_t** out) {
  return shim([&] {
    ref(self);
    *out = self->mutable_sizes();
  });
}
PTERON_SHIM int32_t aoti_torch_get_strides(Tensor* self, int64_t** out) {
  return shim([&] {
    ref(self);
    *out = self->mutable_strides();
  });
}
PTERON_SHIM int32_t aoti_torch_get_dim(Tensor* self, int64_t* out) {
  return shim([&] { *out = static_cast<int64_t>(ref(self).ndim()); });
}
PTERON_SHIM int32_t aoti_torch_get_numel(Tensor* self, int64_t* out) {
  return shim([&] { *out = ref(self).numel(); });
}
PTERON_SHIM int32_t aoti_torch_get_storage_offset(Tensor* self, int64_t* out) {
  return shim([&] { *out = ref(self).offset(); });
}
PTERON_SHIM int32_t aoti_torch_get_storage_size(Tensor* self, int64_t* out) {
  return shim([&] { *out = static_cast<int64_t>(ref(self).storage_nbytes()); });
}
PTERON_SHIM int32_t aoti_torch_get_storage_numel(Tensor* self, int64_t* out) {
  return shim(
      [&] { *out = static_cast<int64_t>(ref(self).storage_nbytes() / ref(self).itemsize()); });
}
PTERON_SHIM int32_t aoti_torch_get_dtype(Tensor* self, int32_t* out) {
  return shim([&] { *out = static_cast<int32_t>(ref(self).dtype()); });
}
PTERON_SHIM int32_t aoti_torch_get_device_type(Tensor* self, int32_t* out) {
  return shim([&] { *out = ref(self).place().on_device ? kDeviceTypeCuda : kDeviceTypeCpu; });
}
PTERON_SHIM int32_t aoti_torch_get_device_index(Tensor* self, int32_t* out) {
  return shim([&] { *out = ref(self).place().index; });
}
PTERON_SHIM int32_t aoti_torch_get_layout(Tensor* self, int32_t* out) {
  return shim([&] {
    ref(self);
    *out = 0;
  });
}
PTERON_SHIM int32_t aoti_torch_get_size(Tensor* self, int64_t d, int64_t* out) {
  return shim([&] {
    const Tensor& t = ref(self);
    const auto ndim = static_cast<int64_t>(t.ndim());
    if (d < -ndim || d >= ndim) throw Failure(ErrorCode::InvalidArgument, "no such dimension");
    *out = t.sizes()[static_cast<size_t>(d < 0 ? d + ndim : d)];
  });
}
PTERON_SHIM int32_t aoti_torch_get_stride(Tensor* self, int64_t d, int64_t* out) {
  return shim([&] {
    const Tensor& t = ref(self);
    const auto ndim = static_cast<int64_t>(t.ndim());
    if (d < -ndim || d >= ndim) throw Failure(ErrorCode::InvalidArgument, "no such dimension");
    *out = t.strides()[static_cast<size_t>(d < 0 ? d + ndim : d)];
  });
}
PTERON_SHIM int32_t aoti_torch_is_contiguous(Tensor* self, bool* out) {
  return shim([&] { *out = ref(self).is_contiguous(); });
}
PTERON_SHIM int32_t aoti_torch_is_defined(Tensor* self, bool* out) {
  return shim([&] { *out = self != nullptr; });
}

}  // namespace pteron::cuda

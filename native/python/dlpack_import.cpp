#include <cstring>

#include "dlpack.h"

namespace pteron::python {

TensorView read_dltensor(const DLTensor& tensor, bool readonly) {
  const auto refuse = [](const std::string& why) { throw Unreadable{Kind::Input, why}; };
  TensorView view;
  switch (tensor.device.type) {
    case kDLCPU:
    case kDLCUDAHost:  // pinned host memory: the CPU reads it like any other
    case kDLROCMHost:
      break;
    case kDLCUDA:
    case kDLCUDAManaged:
      if (tensor.device.id < 0 || tensor.device.id > INT8_MAX) {
        throw Unreadable{Kind::Device, "is on CUDA device " + std::to_string(tensor.device.id) +
                                           ", and only 0 to 127 are possible"};
      }
      view.device = {DeviceType::Cuda, static_cast<int8_t>(tensor.device.id)};
      break;
    default:
      throw Unreadable{Kind::Device, "is on DLPack device type " +
                                         std::to_string(tensor.device.type) +
                                         ", and only CPU and CUDA tensors can be passed"};
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    refuse("has " + std::to_string(tensor.ndim) + " dimensions, and at most " +
           std::to_string(kMaxRank) + " are possible");
  }
  const DLDataType type = tensor.dtype;
  const int dtype = type.lanes == 1 ? dtype_from_dlpack(type.code, type.bits) : -1;
  if (dtype < 0) {
    throw Unreadable{Kind::InputType, "has DLPack dtype code " + std::to_string(type.code) + ", " +
                                          std::to_string(type.bits) + " bits, " +
                                          std::to_string(type.lanes) +
                                          " lanes, which no program can take"};
  }
  view.dtype = static_cast<DType>(dtype);
  view.ndim = tensor.ndim;
  view.shape = tensor.shape;
  view.strides = tensor.strides;
  view.stride_unit = static_cast<int64_t>(itemsize(view.dtype));
  view.readonly = readonly;
  view.pinned = true;
  if (tensor.ndim > 0 && tensor.shape == nullptr) refuse("has dimensions but no shape");
  int64_t numel = 1;
  bool overflow = false;
  for (int i = 0; i < tensor.ndim; ++i) {
    const int64_t size = tensor.shape[i];
    if (size < 0) refuse("has a negative size, " + std::to_string(size));
    overflow = overflow || __builtin_mul_overflow(numel, size, &numel);
    if (size == 0) numel = 0, overflow = false;
    if (numel == 0) break;
  }
  for (int i = 0; numel == 0 && i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) refuse("has a negative size, " + std::to_string(tensor.shape[i]));
  }
  int64_t nbytes;
  if (overflow || __builtin_mul_overflow(numel, view.stride_unit, &nbytes)) {
    refuse("has a shape that no memory can hold");
  }
  if (numel > 0 && tensor.data == nullptr) {
    refuse("has no memory: a fake or meta tensor has a shape, but no data");
  }
  // Whether the memory is there only its owner knows; that it could be can be checked.
  int64_t before = 0, behind = numel > 0 ? view.stride_unit : 0;
  for (int i = 0; numel > 0 && tensor.strides != nullptr && i < tensor.ndim; ++i) {
    int64_t step;
    if (tensor.shape[i] == 1) continue;
    overflow =
        overflow || __builtin_mul_overflow(tensor.strides[i], view.stride_unit, &step) ||
        __builtin_mul_overflow(step, tensor.shape[i] - 1, &step) ||
        __builtin_add_overflow(step < 0 ? before : behind, step, step < 0 ? &before : &behind);
  }
  if (tensor.strides == nullptr) behind = nbytes;
  uintptr_t start, edge;
  overflow = overflow || tensor.byte_offset > INT64_MAX ||
             __builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor.data), tensor.byte_offset,
                                    &start) ||
             __builtin_add_overflow(start, behind, &edge) ||
             __builtin_add_overflow(start, before, &edge);
  if (overflow) refuse("has strides or an offset that lead out of any memory");
  view.data = reinterpret_cast<void*>(start);
  return view;
}

TensorView read_capsule(PyObject* capsule) {
  const char* name = PyCapsule_GetName(capsule);
  if (name != nullptr && std::strcmp(name, kCapsule) == 0) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
    return read_dltensor(managed->tensor, false);
  }
  if (name != nullptr && std::strcmp(name, kCapsuleVersioned) == 0) {
    auto* managed =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kCapsuleVersioned));
    // Of another major version only what stands before `flags` may be touched.
    if (managed->version.major != 1) {
      throw Unreadable{Kind::Input, "is a tensor of DLPack " +
                                        std::to_string(managed->version.major) + "." +
                                        std::to_string(managed->version.minor) +
                                        ", and only version 1 is known"};
    }
    TensorView view = read_dltensor(managed->tensor, (managed->flags & kDLReadOnly) != 0);
    view.pinned = (managed->flags & kDLIsCopied) == 0;  // a copy is made anew for each export
    return view;
  }
  if (name != nullptr && std::strncmp(name, "used_dltensor", 13) == 0) {
    throw Unreadable{Kind::Input,
                     "is a DLPack capsule that was used already: a capsule can be read once, call "
                     "__dlpack__() for a new one"};
  }
  throw Unreadable{Kind::InputType, std::string("is a capsule of the name '") + (name ? name : "") +
                                        "', which is not DLPack's"};
}

Managed consume_capsule(PyObject* capsule) noexcept {
  if (PyCapsule_IsValid(capsule, kCapsule)) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
    PyCapsule_SetName(capsule, kUsedCapsule);
    return Managed(managed);
  }
  if (PyCapsule_IsValid(capsule, kCapsuleVersioned)) {
    auto* managed =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kCapsuleVersioned));
    PyCapsule_SetName(capsule, kUsedCapsuleVersioned);
    return Managed(managed);
  }
  return Managed();
}

const DLPackExchangeAPI* exchange_api(PyTypeObject* type) noexcept {
  // Asked for with nearly every input, and most types have none. The interpreter's own cache of
  // type attributes answers in 4 ns, also with no; getattr would make an error of a no, in 370 ns.
  static PyObject* const name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
#ifdef Py_GIL_DISABLED
  const Ref capsule(_PyType_LookupRef(type, name));  // another thread may take it from the type
#else
  const Ref capsule = Ref::borrow(_PyType_Lookup(type, name));
#endif
  if (!capsule || !PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api")) return nullptr;
  auto* api =
      static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != 1) api = api->previous;
  const bool complete = api != nullptr && api->managed_tensor_from_py_object_no_sync != nullptr &&
                        api->managed_tensor_to_py_object_no_sync != nullptr;
  return complete ? api : nullptr;
}

}  // namespace pteron::python

// __dlpack__ of results (Python array API standard, 2025.12), and torch tensors out.
#include <cstdlib>
#include <new>

#include "core/cuda_library.h"
#include "result.h"

namespace pteron::python {
namespace {

constexpr DLVersion kVersion = {1, 1};  // nothing newer is used

// A fresh struct for each export, with shape and strides inside: consumers may keep pointing at it.
// Owned by malloc and the block's own count, so that deleters need no Python.
template <typename Struct>
struct Export {
  Struct managed;
  TensorRef block;
};

template <typename Struct>
void delete_export(Struct* managed) {
  auto* self = static_cast<Export<Struct>*>(managed->context);
  self->~Export<Struct>();
  std::free(self);
}

template <typename Struct>
Struct* new_export(const TensorRef& block) {
  const int ndim = block->ndim;
  const size_t size = sizeof(Export<Struct>) + 2 * static_cast<size_t>(ndim) * sizeof(int64_t);
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  auto* self = new (memory) Export<Struct>{{}, block};
  auto* shape = reinterpret_cast<int64_t*>(self + 1);
  for (int i = 0; i < ndim; ++i) {
    shape[i] = block->shape[i];
    shape[ndim + i] = block->strides[i];
  }
  const DTypeInfo& dtype = info(block->dtype);
  self->managed.context = self;
  self->managed.deleter = delete_export<Struct>;
  self->managed.tensor = {block->nbytes == 0 ? nullptr : block->data,
                          {dlpack_device_type(block->device.type), block->device.index},
                          ndim,
                          {dtype.dlpack_code, static_cast<uint8_t>(8 * dtype.itemsize), 1},
                          shape,
                          shape + ndim,
                          0};
  return &self->managed;
}

void destroy_capsule(PyObject* capsule) {
  // Only if nobody consumed it: a consumer renames the capsule and calls the deleter itself.
  consume_capsule(capsule);
}

struct Request {
  bool versioned = false;
  PyObject* stream = Py_None;
  PyObject* dl_device = Py_None;
  PyObject* copy = Py_None;
};

bool read_pair(PyObject* object, long (&pair)[2]) {
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) return false;
  for (int i = 0; i < 2; ++i) {
    pair[i] = PyLong_AsLong(PyTuple_GET_ITEM(object, i));
    if (pair[i] == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

[[noreturn]] void type_error(const char* text) {
  PyErr_SetString(PyExc_TypeError, text);
  throw PythonError{};
}

[[noreturn]] void cannot(const std::string& why) { throw Error(Kind::Export, Code::None, why); }

Request parse(PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  if (nargs != 0) type_error("__dlpack__() takes keyword arguments only");
  Request request;
  const Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    PyObject* value = args[i];
    if (PyUnicode_CompareWithASCIIString(name, "max_version") == 0) {
      long version[2];
      if (value == Py_None) continue;
      if (!read_pair(value, version)) type_error("max_version must be None or a pair of int");
      request.versioned = version[0] >= 1;
    } else if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
      request.stream = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "dl_device") == 0) {
      request.dl_device = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "copy") == 0) {
      if (value != Py_None && !PyBool_Check(value)) type_error("copy must be None or a bool");
      request.copy = value;
    } else {
      PyErr_Format(PyExc_TypeError, "__dlpack__() got an unexpected keyword argument '%U'", name);
      throw PythonError{};
    }
  }
  return request;
}

// Makes the consumer's stream wait for what is pending in the block. -1: it orders itself.
void order_on(const TensorBlock& block, PyObject* stream) {
  const bool none = stream == Py_None;
  if (!none && (!PyLong_Check(stream) || PyBool_Check(stream))) {
    type_error("stream must be None or an int");
  }
  long long value = none ? 1 : PyLong_AsLongLong(stream);
  const bool huge = value == -1 && PyErr_Occurred();
  if (huge) PyErr_Clear();
  if (!huge && value == -1) return;
  if (block.device.is_cpu()) {
    if (none) return;
    cannot("A result on the CPU has no stream: pass stream=None");
  }
  // 0 could be either default stream, which is why the standard forbids it.
  if (huge || value <= 0) {
    cannot(
        "stream must be None, -1, 1 (the legacy default stream), 2 (the per-thread one) or a "
        "handle");
  }
  cuda::wait(block, value == 1 ? nullptr : reinterpret_cast<void*>(static_cast<intptr_t>(value)));
}

// A copy on another device, through the host where both are CUDA's. Throws Error.
TensorRef copy_to(const TensorRef& block, Device target) {
  NoGil released;
  const TensorRef host = block->device.is_cpu() ? block : cuda::to_host(*block.get());
  return target.is_cpu() ? host : cuda::to_device(view_of(*host.get()), target);
}

// The block on the device that the consumer asked for: itself, or a copy.
TensorRef move_to(const TensorRef& block, PyObject* dl_device, bool may_copy, bool& copied) {
  long device[2];
  if (!read_pair(dl_device, device)) type_error("dl_device must be None or a pair of int");
  if (device[0] == dlpack_device_type(block->device.type) && device[1] == block->device.index) {
    return block;
  }
  const std::string from = block->device.is_cpu() ? "the CPU" : to_string(block->device);
  const std::string refusal = "The result is on " + from +
                              " and cannot be exported to DLPack device (" +
                              std::to_string(device[0]) + ", " + std::to_string(device[1]) + ")";
  const bool to_host = device[0] == kDLCPU && device[1] == 0;
  const bool to_cuda = device[0] == kDLCUDA && device[1] >= 0 && device[1] < 64;
  if (!to_host && !to_cuda) cannot(refusal);
  if (!may_copy)
    cannot("The result is on " + from + ": another device can have a copy, not its memory");
  copied = true;
  try {
    return copy_to(block,
                   to_host ? Device{} : Device{DeviceType::Cuda, static_cast<int8_t>(device[1])});
  } catch (const Error& error) {
    cannot(refusal + ": " + error.what());
  }
}

}  // namespace

DLManagedTensorVersioned* new_versioned(const TensorRef& block, uint64_t flags) {
  auto* managed = new_export<DLManagedTensorVersioned>(block);
  managed->version = kVersion;
  managed->flags = flags;
  return managed;
}

PyObject* result_dlpack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  return entry([&]() -> PyObject* {
    const Request request = parse(args, nargs, names);
    TensorBlock* own = block_of(self);
    require_fresh(*own);
    if (info(own->dtype).dlpack_code == kDLNone) {
      cannot(std::string("DLPack has no type for ") + info(own->dtype).name +
             ": use the buffer protocol, which shows its bits");
    }
    // Consumers such as torch ignore the read-only flag, so a constant is shared only with those
    // that say copy=False and can see the flag.
    const bool shared_only = request.copy == Py_False;
    bool copied = request.copy == Py_True || (own->readonly && !shared_only);
    if (own->readonly && shared_only && !request.versioned) {
      cannot(
          "A constant can be shared without a copy only through DLPack 1.0, which can mark it "
          "read-only: pass max_version=(1, 0)");
    }
    own->retain();
    TensorRef block(own);
    bool moved = false;
    if (request.dl_device != Py_None) {
      block = move_to(block, request.dl_device, !shared_only, moved);
    }
    if (copied && !moved) {
      block = own->device.is_cpu() ? copy_of(view_of(*own)) : cuda::copy_of(*own);
      if (!block) throw std::bad_alloc();
    }
    // A copy for the host is there.
    if (own->device.is_cpu() || !block->device.is_cpu()) order_on(*block.get(), request.stream);
    copied = copied || moved;
    uint64_t flags = 0;
    if (copied) flags |= kDLIsCopied;
    if (block->readonly) flags |= kDLReadOnly;
    PyObject* capsule;
    if (request.versioned) {
      auto* managed = new_versioned(block, flags);
      capsule = PyCapsule_New(managed, kCapsuleVersioned, destroy_capsule);
      if (capsule == nullptr) managed->deleter(managed);
    } else {
      auto* managed = new_export<DLManagedTensor>(block);
      capsule = PyCapsule_New(managed, kCapsule, destroy_capsule);
      if (capsule == nullptr) managed->deleter(managed);
    }
    return checked(capsule);
  });
}

const DLPackExchangeAPI* import_torch_api() {
  static const DLPackExchangeAPI* known = nullptr;  // torch's own, for the process
  if (known != nullptr) return known;
  Ref torch(checked(PyImport_ImportModule("torch")));
  Ref type(checked(PyObject_GetAttrString(torch.get(), "Tensor")));
  const DLPackExchangeAPI* api = exchange_api(reinterpret_cast<PyTypeObject*>(type.get()));
  if (api == nullptr) {
    throw Error(Kind::Export, Code::NotSupported,
                "This torch has no DLPack exchange API (2.10 and later have it): use "
                "torch.from_dlpack(result)");
  }
  return known = api;
}

PyObject* new_torch_tensor(TensorRef block, const DLPackExchangeAPI* api) {
  require_fresh(*block.get());
  if (info(block->dtype).dlpack_code == kDLNone) {
    cannot(std::string("torch cannot be given a ") + info(block->dtype).name +
           " tensor through DLPack: use the result itself");
  }
  if (block->readonly) {
    block = copy_of(view_of(*block.get()));
    if (!block) throw std::bad_alloc();
  }
  if (block->ready != nullptr && api->current_work_stream != nullptr) {
    void* current = nullptr;
    if (api->current_work_stream(kDLCUDA, block->device.index, &current) != 0) throw PythonError{};
    cuda::wait(*block.get(), current);
  }
  DLManagedTensorVersioned* managed = new_versioned(block, 0);
  void* tensor = nullptr;
  if (api->managed_tensor_to_py_object_no_sync(managed, &tensor) != 0) {
    managed->deleter(managed);  // torch leaves it to us when it fails
    throw PythonError{};
  }
  return static_cast<PyObject*>(tensor);
}

}  // namespace pteron::python

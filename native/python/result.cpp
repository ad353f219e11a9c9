#include "result.h"

#include <structmember.h>

#include <cstdlib>
#include <new>

#include "core/cuda_library.h"
#include "inputs.h"
#include "numpy_abi.h"

namespace pteron::python {

PyTypeObject* result_type = nullptr;

void require_fresh(const TensorBlock& block) {
  if (!block.stale()) return;
  throw Error(Kind::State, Code::InvalidState, std::string("This result ") + kStaleResult);
}

PyObject* new_result(TensorRef block) noexcept {
  auto* self = reinterpret_cast<ResultObject*>(result_type->tp_alloc(result_type, 0));
  if (self != nullptr) self->block = block.detach();
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_output(OutputValue& value, const DLPackExchangeAPI* torch) {
  switch (value.kind) {
    case ValueKind::None:
      return Py_NewRef(Py_None);
    case ValueKind::Int:
      return checked(PyLong_FromLongLong(value.int_value));
    case ValueKind::Bool:
      return PyBool_FromLong(value.int_value != 0);
    case ValueKind::Double:
      return checked(PyFloat_FromDouble(value.double_value));
    case ValueKind::String:
      return checked(PyUnicode_DecodeUTF8(value.string_value.data(),
                                          static_cast<Py_ssize_t>(value.string_value.size()),
                                          "replace"));
    default:
      if (torch != nullptr) return new_torch_tensor(std::move(value.tensor), torch);
      return checked(new_result(std::move(value.tensor)));
  }
}

namespace {

PyObject* int_tuple(const int64_t* values, int count) {
  Ref tuple(checked(PyTuple_New(count)));
  for (int i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, checked(PyLong_FromLongLong(values[i])));
  }
  return tuple.release();
}

TensorRef shared(PyObject* self) {
  TensorBlock* block = block_of(self);
  block->retain();
  return TensorRef(block);
}

// NumPy's number of the type that np.asarray shows: the type itself, or integers of its width.
int numpy_number(DType dtype) {
  switch (info(dtype).format[0]) {
    case '?':
      return 0;
    case 'b':
      return 1;
    case 'B':
      return 2;
    case 'h':
      return 3;
    case 'H':
      return 4;
    case 'i':
      return 5;
    case 'I':
      return 6;
    case 'q':
      return 7;
    case 'Q':
      return 8;
    case 'e':
      return 23;
    case 'f':
      return 11;
    case 'd':
      return 12;
    default:
      return info(dtype).format[1] == 'f' ? 14 : 15;  // Zf, Zd
  }
}

// Throws Error{Export} that says how to read a result in device memory.
void require_host(const TensorBlock& block) {
  require_fresh(block);
  if (block.device.is_cpu()) return;
  throw Error(Kind::Export, Code::NotSupported,
              "This result is on " + to_string(block.device) +
                  ": read a copy with to_host(), or give it to CuPy or torch with from_dlpack()");
}

PyObject* as_numpy(PyObject* self) {
  TensorBlock* block = block_of(self);
  require_host(*block);
  int64_t strides[kMaxRank];
  const auto width = static_cast<int64_t>(itemsize(block->dtype));
  for (int i = 0; i < block->ndim; ++i) strides[i] = block->strides[i] * width;
  return checked(numpy::new_array(numpy_number(block->dtype), block->ndim, block->shape, strides,
                                  block->data, !block->readonly, Py_NewRef(self)));
}

// Calls pteron._results.NAME(self, ...): what is not hot is written in Python.
template <typename... Args>
PyObject* in_python(const char* name, Args... args) {
  Ref module(checked(PyImport_ImportModule("pteron._results")));
  Ref function(checked(PyObject_GetAttrString(module.get(), name)));
  return checked(PyObject_CallFunctionObjArgs(function.get(), args..., nullptr));
}

void dealloc(PyObject* self) {
  auto* result = reinterpret_cast<ResultObject*>(self);
  if (result->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  if (result->block != nullptr) result->block->release();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_shape(PyObject* self, void*) {
  return entry([&] { return int_tuple(block_of(self)->shape, block_of(self)->ndim); });
}
PyObject* get_strides(PyObject* self, void*) {
  return entry([&] { return int_tuple(block_of(self)->strides, block_of(self)->ndim); });
}
PyObject* get_dtype(PyObject* self, void*) {
  static PyObject* names[kNumDTypes];  // interned, so that comparing is cheap
  PyObject*& name = names[static_cast<int>(block_of(self)->dtype)];
  if (name == nullptr) name = PyUnicode_InternFromString(info(block_of(self)->dtype).name);
  return Py_XNewRef(name);
}
PyObject* get_device(PyObject* self, void*) {
  return PyUnicode_FromString(to_string(block_of(self)->device).c_str());
}
PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromLong(block_of(self)->ndim); }
PyObject* get_size(PyObject* self, void*) { return PyLong_FromLongLong(block_of(self)->numel()); }
PyObject* get_itemsize(PyObject* self, void*) {
  return PyLong_FromSize_t(itemsize(block_of(self)->dtype));
}
PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromSize_t(block_of(self)->nbytes); }
PyObject* get_readonly(PyObject* self, void*) { return PyBool_FromLong(block_of(self)->readonly); }
PyObject* get_borrowed(PyObject* self, void*) { return PyBool_FromLong(block_of(self)->borrowed); }

PyObject* numpy(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  return entry([&]() -> PyObject* {
    const Py_ssize_t given = nargs + (names ? PyTuple_GET_SIZE(names) : 0);
    if (given > 1 || (names && PyTuple_GET_SIZE(names) == 1 &&
                      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "dtype") != 0)) {
      PyErr_SetString(PyExc_TypeError, "numpy() takes one argument, dtype");
      throw PythonError{};
    }
    if (given == 0 || args[0] == Py_None) return as_numpy(self);
    return in_python("to_numpy", self, args[0]);
  });
}

PyObject* array(PyObject* self, PyObject* args, PyObject* kwargs) {
  return entry([&]() -> PyObject* {
    static const char* keywords[] = {"dtype", "copy", nullptr};
    PyObject* dtype = Py_None;
    PyObject* copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", const_cast<char**>(keywords),
                                     &dtype, &copy)) {
      throw PythonError{};
    }
    Ref plain(as_numpy(self));
    if (dtype == Py_None && copy != Py_True) return plain.release();
    return in_python("to_array", plain.get(), dtype, copy);
  });
}

PyObject* dlpack_device(PyObject* self, PyObject*) {
  const Device device = block_of(self)->device;
  return Py_BuildValue("(ii)", dlpack_device_type(device.type), static_cast<int>(device.index));
}

PyObject* tobytes(PyObject* self, PyObject*) {
  return entry([&]() -> PyObject* {
    TensorBlock* block = block_of(self);
    require_host(*block);
    TensorRef packed = block->contiguous() ? shared(self) : copy_of(view_of(*block));
    if (!packed) throw std::bad_alloc();
    return checked(PyBytes_FromStringAndSize(static_cast<const char*>(packed->data),
                                             static_cast<Py_ssize_t>(block->nbytes)));
  });
}

PyObject* torch(PyObject* self, PyObject*) {
  return entry([&] { return new_torch_tensor(shared(self), import_torch_api()); });
}

PyObject* item(PyObject* self, PyObject*) {
  return entry([&] { return in_python("item", self); });
}
PyObject* as_float(PyObject* self) {
  return entry([&] {
    Ref value(in_python("item", self));
    return checked(PyNumber_Float(value.get()));
  });
}
PyObject* as_int(PyObject* self) {
  return entry([&] {
    Ref value(in_python("item", self));
    return checked(PyNumber_Long(value.get()));
  });
}
int as_bool(PyObject* self) {
  return entry(-1, [&] {
    Ref value(in_python("item", self));
    const int truth = PyObject_IsTrue(value.get());
    checked(truth);
    return truth;
  });
}

PyObject* reduce(PyObject* self, PyObject*) {
  return entry([&] { return in_python("reduce", self); });
}
PyObject* jax_array(PyObject* self, PyObject*) {
  return entry([&] { return in_python("to_jax", self); });
}
PyObject* repr(PyObject* self) {
  return entry([&] { return in_python("describe", self); });
}

PyObject* to_host(PyObject* self, PyObject*) {
  return entry([&]() -> PyObject* {
    TensorBlock* block = block_of(self);
    require_fresh(*block);
    if (block->device.is_cpu() && !block->borrowed) return Py_NewRef(self);
    TensorRef source = shared(self);
    TensorRef copy;
    {
      NoGil released;
      copy =
          source->device.is_cpu() ? copy_of(view_of(*source.get())) : cuda::to_host(*source.get());
    }
    if (!copy) throw std::bad_alloc();
    return checked(new_result(std::move(copy)));
  });
}

// The CUDA array interface, version 3.
PyObject* get_cuda_array_interface(PyObject* self, void*) {
  return entry([&]() -> PyObject* {
    const TensorBlock* block = block_of(self);
    require_fresh(*block);
    const DTypeInfo& dtype = info(block->dtype);
    if (block->device.is_cpu() || !dtype.numpy) {
      PyErr_SetString(PyExc_AttributeError, block->device.is_cpu()
                                                ? "a result on the CPU has no CUDA array interface"
                                                : "NumPy, and so the interface, has no such dtype");
      throw PythonError{};
    }
    const char kind = dtype.dlpack_code == kDLBool      ? 'b'
                      : dtype.dlpack_code == kDLInt     ? 'i'
                      : dtype.dlpack_code == kDLUInt    ? 'u'
                      : dtype.dlpack_code == kDLComplex ? 'c'
                                                        : 'f';
    const std::string type =
        std::string(dtype.itemsize == 1 ? "|" : "<") + kind + std::to_string(dtype.itemsize);
    int64_t strides[kMaxRank];
    for (int i = 0; i < block->ndim; ++i) strides[i] = block->strides[i] * dtype.itemsize;
    Ref shape(int_tuple(block->shape, block->ndim));
    Ref steps(int_tuple(strides, block->ndim));
    // None: ready. Else the stream to order on; 0 is not allowed, 1 is the default stream.
    const auto handle = reinterpret_cast<intptr_t>(block->stream);
    Ref stream = block->ready ? Ref(checked(PyLong_FromSsize_t(handle == 0 ? 1 : handle)))
                              : Ref::borrow(Py_None);
    return checked(Py_BuildValue(
        "{s:O,s:s,s:(nO),s:O,s:i,s:O}", "shape", shape.get(), "typestr", type.c_str(), "data",
        static_cast<Py_ssize_t>(block->nbytes ? reinterpret_cast<intptr_t>(block->data) : 0),
        block->readonly ? Py_True : Py_False, "strides", steps.get(), "version", 3, "stream",
        stream.get()));
  });
}

PyObject* from_host(PyObject*, PyObject* args, PyObject* kwargs) {
  return entry([&]() -> PyObject* {
    static const char* keywords[] = {"array", "device", nullptr};
    PyObject* object;
    const char* device = "cpu";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|s:from_host", const_cast<char**>(keywords),
                                     &object, &device)) {
      throw PythonError{};
    }
    const Device target = device_named(device);
    Held held;
    try {
      const TensorView view = read_tensor(object, held);
      if (!view.device.is_cpu()) {
        throw Error(Kind::Device, Code::NotSupported,
                    "The array is on device " + to_string(view.device) + ", not on the host");
      }
      TensorRef copy;
      {
        NoGil released;
        copy = target.is_cpu() ? copy_of(view) : cuda::to_device(view, target);
      }
      if (!copy) throw std::bad_alloc();
      held.consume();
      return checked(new_result(std::move(copy)));
    } catch (const Unreadable& refused) {
      throw Error(refused.kind, Code::InvalidArgument, "The array " + refused.why);
    }
  });
}

PyObject* compare(PyObject* self, PyObject* other, int op) {
  if (op != Py_EQ && op != Py_NE) return Py_NewRef(Py_NotImplemented);
  if (self == other) return PyBool_FromLong(op == Py_EQ);
  PyErr_SetString(PyExc_TypeError,
                  "results are not compared with ==, which could mean the object or its elements: "
                  "use np.array_equal(a, b), or a.numpy() == b.numpy()");
  return nullptr;
}

Py_hash_t identity_hash(PyObject* self) {
  return static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(self) >> 4);
}

// Whether the axes lie in memory from the first to the last.
bool fortran(const TensorBlock& block) {
  int64_t expected = 1;
  for (int i = 0; i < block.ndim; ++i) {
    if (block.shape[i] == 0) return true;
    if (block.shape[i] != 1 && block.strides[i] != expected) return false;
    expected *= block.shape[i];
  }
  return true;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  return entry(-1, [&] {
    TensorBlock* block = block_of(self);
    require_host(*block);
    const auto refuse = [](const char* why) {
      PyErr_SetString(PyExc_BufferError, why);
      throw PythonError{};
    };
    if ((flags & PyBUF_WRITABLE) && block->readonly) refuse("a constant is read-only");
    const bool contiguous = block->contiguous();
    const auto asks = [&](int what) { return (flags & what) == what; };
    if (!asks(PyBUF_STRIDES) && !contiguous) {
      refuse("the result is not C-contiguous: ask for strides");
    }
    if (asks(PyBUF_C_CONTIGUOUS) && !contiguous) refuse("the result is not C-contiguous");
    if (asks(PyBUF_F_CONTIGUOUS) && !fortran(*block))
      refuse("the result is not Fortran-contiguous");
    if (asks(PyBUF_ANY_CONTIGUOUS) && !contiguous && !fortran(*block)) {
      refuse("the result is not contiguous");
    }
    const auto width = static_cast<Py_ssize_t>(itemsize(block->dtype));
    // Strides in bytes, which the block does not keep; release_buffer frees them.
    auto* strides = static_cast<Py_ssize_t*>(
        std::malloc(sizeof(Py_ssize_t) * static_cast<size_t>(block->ndim > 0 ? block->ndim : 1)));
    if (strides == nullptr) throw std::bad_alloc();
    for (int i = 0; i < block->ndim; ++i) strides[i] = block->strides[i] * width;
    view->buf = block->data;
    view->len = static_cast<Py_ssize_t>(block->nbytes);
    view->itemsize = width;
    view->readonly = block->readonly;
    view->ndim = flags & PyBUF_ND ? block->ndim : 1;
    view->format = flags & PyBUF_FORMAT ? const_cast<char*>(info(block->dtype).format) : nullptr;
    view->shape = flags & PyBUF_ND ? block->shape : nullptr;
    view->strides = asks(PyBUF_STRIDES) ? strides : nullptr;
    view->suboffsets = nullptr;
    view->internal = strides;
    view->obj = Py_NewRef(self);
    return 0;
  });
}

void release_buffer(PyObject*, Py_buffer* view) { std::free(view->internal); }

PyMethodDef methods[] = {
    {"numpy", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(numpy)),
     METH_FASTCALL | METH_KEYWORDS,
     "numpy($self, dtype=None)\n--\n\n"
     "The result as a NumPy array.\n\n"
     "Without dtype it shares the result's memory (read-only for a constant). Types that NumPy\n"
     "lacks show as integers of the same width, their bits. With dtype the values are converted:\n"
     "'float32' from bfloat16 and float8, 'complex64' from complex32; 'bfloat16' and the float8\n"
     "names give the ml_dtypes type, without a copy, if ml_dtypes is installed.\n\n"
     "Raises:\n"
     "    ExportError: the dtype cannot be converted by value (quantized and bits types).\n"
     "    MethodStateError: a borrowed result whose method ran again."},
    {"torch", torch, METH_NOARGS,
     "torch($self)\n--\n\n"
     "The result as a torch tensor that shares its memory; a copy for a constant, since a torch\n"
     "tensor cannot be read-only. Imports torch (2.10 or later)."},
    {"tobytes", tobytes, METH_NOARGS,
     "tobytes($self)\n--\n\nA copy of the elements in C order, as bytes."},
    {"item", item, METH_NOARGS,
     "item($self)\n--\n\nThe only element, as a Python number, converted by value."},
    {"to_host", to_host, METH_NOARGS,
     "to_host($self)\n--\n\n"
     "The result in host memory of its own: itself if it is that already, else a copy."},
    {"from_host", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(from_host)),
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "from_host(array, device='cpu')\n--\n\n"
     "A result that holds a packed copy of any host array, for a method that takes device memory."},
    {"__array__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(array)),
     METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\n"
     "NumPy's conversion protocol: as numpy(), then NumPy's own cast."},
    {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(result_dlpack)),
     METH_FASTCALL | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule (Python array API standard). Shares the memory, which outlives the result,\n"
     "its method and its program; constants are copied unless copy=False and max_version >= (1, "
     "0).\n"
     "\n"
     "Raises:\n"
     "    ExportError: also a BufferError; the request cannot be met."},
    {"__dlpack_device__", dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nDLPack's device type and number, (1, 0) for the CPU."},
    {"__jax_array__", jax_array, METH_NOARGS,
     "__jax_array__($self)\n--\n\n"
     "JAX's conversion protocol, for jnp.asarray(r): the memory is shared, as by\n"
     "jnp.from_dlpack(r), unless the result is borrowed."},
    {"__reduce__", reduce, METH_NOARGS, "__reduce__($self)\n--\n\nPickles a copy on the host."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"shape", get_shape, nullptr, "Size of each axis, a tuple of int.", nullptr},
    {"strides", get_strides, nullptr, "Step of each axis in elements, a tuple of int.", nullptr},
    {"dtype", get_dtype, nullptr, "Name of the element type, a str: \"float32\", \"bfloat16\".",
     nullptr},
    {"device", get_device, nullptr, "Where the data is, a str: \"cpu\", \"cuda:0\".", nullptr},
    {"ndim", get_ndim, nullptr, "Number of axes.", nullptr},
    {"size", get_size, nullptr, "Number of elements.", nullptr},
    {"itemsize", get_itemsize, nullptr, "Bytes of one element.", nullptr},
    {"nbytes", get_nbytes, nullptr, "Bytes of all elements.", nullptr},
    {"readonly", get_readonly, nullptr, "Whether it is a constant of the program.", nullptr},
    {"borrowed", get_borrowed, nullptr,
     "Whether it shares its method's memory, which the next run overwrites.", nullptr},
    {"__cuda_array_interface__", get_cuda_array_interface, nullptr,
     "The CUDA array interface, version 3, of a result in device memory, a dict.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ResultObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "A tensor that a method returned.\n\n"
         "It owns its memory, which outlives the method and the program, unless it was borrowed\n"
         "with clone_outputs=False. Read it with np.asarray(r), r.numpy(), memoryview(r),\n"
         "np.from_dlpack(r), torch.from_dlpack(r) or r.torch(), all without a copy.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_richcompare, reinterpret_cast<void*>(compare)},
    {Py_tp_hash, reinterpret_cast<void*>(identity_hash)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_nb_float, reinterpret_cast<void*>(as_float)},
    {Py_nb_int, reinterpret_cast<void*>(as_int)},
    {Py_nb_bool, reinterpret_cast<void*>(as_bool)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
    {0, nullptr}};

PyType_Spec spec = {
    "pteron._core.ExecuTorchResult", sizeof(ResultObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void add_result_type(PyObject* module) {
  result_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(
      PyModule_AddObjectRef(module, "ExecuTorchResult", reinterpret_cast<PyObject*>(result_type)));
}

}  // namespace pteron::python

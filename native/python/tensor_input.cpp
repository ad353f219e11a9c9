// What stands for a tensor: one function a rung of the ladder in inputs.h.
#include <cstring>

#include "core/cuda_library.h"
#include "inputs.h"
#include "numpy_abi.h"
#include "result.h"

namespace pteron::python {
namespace {

// "a str", "an int".
std::string a_type(PyObject* object) {
  const std::string name = Py_TYPE(object)->tp_name;
  return (std::strchr("aeio", name[0]) ? "an " : "a ") + name;
}

[[noreturn]] void refuse(Kind kind, std::string why) { throw Unreadable{kind, std::move(why)}; }

void check_rank(int ndim) {
  if (ndim <= kMaxRank) return;
  refuse(Kind::Input, "has " + std::to_string(ndim) + " dimensions, and at most " +
                          std::to_string(kMaxRank) + " are possible");
}

// "bfloat16" of "ml_dtypes.bfloat16".
std::string_view last_part(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? dotted : dotted.substr(dot + 1);
}

TensorView read_result(const TensorBlock& block) {
  if (block.stale()) refuse(Kind::State, kStaleResult);
  return view_of(block);
}

// NumPy's type numbers; long and long long are both 64-bit on the platforms that we support.
int dtype_of_numpy(const numpy::DTypeFields& dtype) {
  constexpr int8_t kNumbers[] = {11, 1, 0, 2, 27, 3, 28, 4, 29, 4, 29, 6, 7, -1, 9, 10};
  static_assert(sizeof(long) == 8);
  if (dtype.number >= 0 && dtype.number < 16) return kNumbers[dtype.number];
  if (dtype.number == 23) return static_cast<int>(DType::Float16);
  if (dtype.number < 256) return -1;
  // A type of another package, such as ml_dtypes, goes by the name of its scalar. Only names that
  // are no type of NumPy's: whose "float32" is not NumPy's may be anything.
  const int number = dtype_from_name(last_part(dtype.scalar_type->tp_name));
  if (number < 0) return -1;
  const DTypeInfo& found = info(static_cast<DType>(number));
  return !found.numpy && found.dlpack_code != kDLNone ? number : -1;
}

TensorView read_ndarray(PyObject* object) {
  const auto& array = *reinterpret_cast<numpy::ArrayFields*>(object);
  const auto& dtype = *reinterpret_cast<numpy::DTypeFields*>(array.dtype);
  const int number = dtype_of_numpy(dtype);
  if (number < 0) {
    const Ref name(checked(PyObject_Str(array.dtype)));
    refuse(Kind::InputType,
           "is a NumPy array of " + checked_utf8(name.get()) + ", which no program can take");
  }
  if (dtype.byteorder == '>') {
    refuse(Kind::InputType, "is big-endian: pass x.astype(x.dtype.newbyteorder('=')) instead");
  }
  check_rank(array.ndim);
  return {.data = array.data,
          .shape = array.shape,
          .strides = array.strides,
          .ndim = array.ndim,
          .dtype = static_cast<DType>(number),
          .readonly = (array.flags & numpy::kWriteable) == 0,
          .pinned = true};
}

bool ask(PyObject* tensor, const char* question) {
  const Ref answer(checked(PyObject_CallMethod(tensor, question, nullptr)));
  const int truth = PyObject_IsTrue(answer.get());
  checked(truth);
  return truth != 0;
}

// Whether there are several elements, in C order without gaps.
bool packed(const TensorView& view) {
  int64_t step = 1;
  for (int i = view.ndim; i-- > 0;) {
    if (view.shape[i] != 1 && view.strides != nullptr && view.strides[i] != step) return false;
    step *= view.shape[i];
  }
  return step > 1;
}

// What a tensor must be asked for before its memory is its value, or null: conjugate and negative
// torch tensors are lazy, and exports carry the unresolved bits.
const char* resolving(PyObject* tensor, const TensorView& view) {
  const uint8_t code = info(view.dtype).dlpack_code;
  if (code == kDLComplex && ask(tensor, "is_conj")) return "resolve_conj";
  // A negative view is the imaginary part of a conjugate one, which is not packed.
  if ((code != kDLFloat && code != kDLComplex) || packed(view)) return nullptr;
  return ask(tensor, "is_neg") ? "resolve_neg" : nullptr;
}

std::string text_of(const Ref& object) {
  if (!object) return {};
  const Ref text(checked(PyObject_Str(object.get())));
  return checked_utf8(text.get());
}

// A torch tensor that is not in memory, such as those of the meta device. Returns with torch's
// error set when that is not why it could not be exported.
TensorView read_absent(PyObject* tensor, Held& held) {
  PendingError error;
  const Ref device = find_attribute(tensor, "device");
  const Ref kind = device ? find_attribute(device.get(), "type") : Ref();
  const std::string where = text_of(kind);
  if (where.empty() || where == "cpu" || where == "cuda") throw PythonError{};
  const Ref sizes(checked(PySequence_Tuple(find_attribute(tensor, "shape").get())));
  const int dtype = dtype_from_name(last_part(text_of(find_attribute(tensor, "dtype"))));
  error.forget();
  const auto ndim = static_cast<int>(PyTuple_GET_SIZE(sizes.get()));
  check_rank(ndim);
  bool empty = false;
  for (int d = 0; d < ndim; ++d) {
    held.scratch[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes.get(), d));
    empty = empty || held.scratch[d] == 0;
  }
  PyErr_Clear();              // a symbolic size
  if (empty && dtype >= 0) {  // nothing to read: whether it fits is for the shape to decide
    return {.shape = held.scratch, .ndim = ndim, .dtype = static_cast<DType>(dtype)};
  }
  refuse(Kind::Device, "is on device " + where + ", and only CPU and CUDA tensors can be passed");
}

TensorView read_exchange(const DLPackExchangeAPI& api, PyObject* object, Held& held) {
  DLTensor tensor;
  if (api.dltensor_from_py_object_no_sync(object, &tensor) != 0) return read_absent(object, held);
  // The struct is valid only until control goes back to Python: copy what it points to.
  TensorView view = read_dltensor(tensor, false);
  const auto ndim = static_cast<size_t>(view.ndim);
  if (ndim > 0) {
    std::memcpy(held.scratch, view.shape, ndim * sizeof(int64_t));
    view.shape = held.scratch;
    if (view.strides != nullptr) {
      std::memcpy(held.scratch + ndim, view.strides, ndim * sizeof(int64_t));
      view.strides = held.scratch + ndim;
    }
  }
  held.api = &api;
  if (const char* method = resolving(object, view)) {
    held.ran_code = true;
    Ref resolved(checked(PyObject_CallMethod(object, method, nullptr)));
    view = read_exchange(api, resolved.get(), held);
    view.pinned = false;  // made anew whenever it is asked for
    held.owner = std::move(resolved);
    return view;
  }
  held.direct = object;
  return view;
}

TensorView read_capsule_input(PyObject* capsule, Held& held) {
  const TensorView view = read_capsule(capsule);
  held.owner = Ref::borrow(capsule);
  held.capsule = capsule;
  return view;
}

// The dtype of a PEP 3118 format of one native element, or -1. Sizes come from the item: with a
// prefix, 'l' has another size than without.
int dtype_of_format(const char* format, Py_ssize_t itemsize) {
  const bool complex = *format == 'Z';
  if (complex) ++format;
  if (itemsize < 1 || itemsize > 16 || format[0] == '\0' || format[1] != '\0') return -1;
  const char* const all = complex ? "fd" : "?bhilqnBHILQNefd";
  const char* found = std::strchr(all, *format);
  if (found == nullptr) return -1;
  const auto bits = static_cast<uint8_t>(itemsize * 8);
  if (complex) return dtype_from_dlpack(kDLComplex, bits);
  if (*format == '?') return dtype_from_dlpack(kDLBool, bits);
  if (std::strchr("efd", *format)) return dtype_from_dlpack(kDLFloat, bits);
  return dtype_from_dlpack(std::strchr("bhilqn", *format) ? kDLInt : kDLUInt, bits);
}

bool is_byte(const char* format) {
  return (*format == 'B' || *format == 'b' || *format == 'c') && format[1] == '\0';
}

TensorView read_buffer(PyObject* object, Held& held) {
  if (PyObject_GetBuffer(object, &held.buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) {
    throw PythonError{};
  }
  held.has_buffer = true;
  held.ran_code = PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE);
  const Py_buffer& buffer = held.buffer;
  const char* const given = buffer.format ? buffer.format : "B";
  const bool swapped = (*given == '>' || *given == '!') && buffer.itemsize != 1;
  const char* const format = std::strchr("@=<>!", *given) && *given ? given + 1 : given;
  // Bytes without a meaning of their own.
  const bool raw = buffer.ndim == 1 && buffer.itemsize == 1 && is_byte(format) &&
                   PyBuffer_IsContiguous(&buffer, 'C');
  int dtype = swapped ? -1 : dtype_of_format(format, buffer.itemsize);
  if (dtype < 0 && raw) dtype = static_cast<int>(DType::UInt8);
  if (dtype < 0) {
    refuse(Kind::InputType, std::string("has the buffer format '") + given +
                                (swapped ? "', which is big-endian: swap its bytes first"
                                         : "', which no program can take"));
  }
  check_rank(buffer.ndim);
  return {.data = buffer.buf,
          .shape = buffer.shape,
          .strides = buffer.strides,
          .ndim = buffer.ndim,
          .dtype = static_cast<DType>(dtype),
          .readonly = buffer.readonly != 0,
          .pinned = true,
          .raw = raw};
}

// Whether the producer says that its memory is a CUDA device's: only then may a stream be passed.
bool is_on_cuda(PyObject* object) {
  const Ref method = find_attribute(object, "__dlpack_device__");
  if (!method) return false;
  const Ref pair(checked(PyObject_CallNoArgs(method.get())));
  if (!PyTuple_Check(pair.get()) || PyTuple_GET_SIZE(pair.get()) != 2) return false;
  const Ref number(checked(PyNumber_Long(PyTuple_GET_ITEM(pair.get(), 0))));
  const long type = PyLong_AsLong(number.get());
  return type == kDLCUDA || type == kDLCUDAManaged;
}

// Asks a producer's __dlpack__: DLPack 1 first, so that it can say when its memory is read-only.
// `stream` is passed unless it is 0.
Ref call_dlpack(PyObject* method, int64_t stream) {
  static PyObject* const keywords = Py_BuildValue("(s)", "max_version");
  static PyObject* const with_stream = Py_BuildValue("(ss)", "max_version", "stream");
  static PyObject* const version = Py_BuildValue("(ii)", 1, 3);
  const Ref number(stream ? checked(PyLong_FromLongLong(stream)) : nullptr);
  PyObject* arguments[] = {nullptr, version, number.get()};
  Ref capsule(PyObject_Vectorcall(method, arguments + 1, PY_VECTORCALL_ARGUMENTS_OFFSET,
                                  number ? with_stream : keywords));
  if (!capsule) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw PythonError{};
    PyErr_Clear();  // it may not know the keyword
    capsule = Ref(checked(PyObject_CallNoArgs(method)));
  }
  return capsule;
}

TensorView read_dlpack(PyObject* object, PyObject* method, Held& held) {
  held.ran_code = true;
  // Nothing can be on a device that was never started here.
  const bool cuda = cuda::loaded() != nullptr && is_on_cuda(object);
  const Ref capsule = call_dlpack(method, cuda ? held.stream : 0);
  if (!PyCapsule_CheckExact(capsule.get())) {
    refuse(Kind::InputType,
           "has a __dlpack__ that returns " + a_type(capsule.get()) + " instead of a capsule");
  }
  const TensorView view = read_capsule(capsule.get());
  held.managed = consume_capsule(capsule.get());
  return view;
}

TensorView read_converted(PyObject* object, Held& held) {
  held.ran_code = true;
  const Ref numpy(checked(PyImport_ImportModule("numpy")));
  Ref array(checked(PyObject_CallMethod(numpy.get(), "asarray", "O", object)));
  if (!numpy::is_array(array.get())) refuse(Kind::InputType, "cannot be made a NumPy array");
  TensorView view = read_ndarray(array.get());
  view.pinned = false;  // perhaps a copy, made anew whenever it is asked for
  held.owner = std::move(array);
  return view;
}

// The rungs that ask the object, from `__dlpack__` on. False if it has none of them.
bool read_protocols(PyObject* object, Held& held, TensorView& view) {
  static PyObject* const dlpack = PyUnicode_InternFromString("__dlpack__");
  if (const Ref method = find_attribute(object, dlpack)) {
    view = read_dlpack(object, method.get(), held);
  } else if (find_attribute(object, "__array__") || find_attribute(object, "__array_interface__")) {
    view = read_converted(object, held);  // images, series
  } else {
    return false;
  }
  return true;
}

}  // namespace

TensorView read_tensor(PyObject* object, Held& held) {
  if (is_result(object)) {
    held.direct = object;
    return read_result(*block_of(object));
  }
  if (numpy::is_array(object)) {
    held.direct = object;
    return read_ndarray(object);
  }
  const DLPackExchangeAPI* api = exchange_api(Py_TYPE(object));
  if (api != nullptr && api->dltensor_from_py_object_no_sync != nullptr) {
    return read_exchange(*api, object, held);
  }
  if (PyCapsule_CheckExact(object)) return read_capsule_input(object, held);

  TensorView view;
  if (PyObject_CheckBuffer(object)) {
    // A type without a buffer format, such as bfloat16, may still be had in another way.
    try {
      return read_buffer(object, held);
    } catch (const Unreadable&) {
      held.release();
      if (!read_protocols(object, held, view)) throw;
    } catch (const PythonError&) {
      if (!PyErr_ExceptionMatches(PyExc_Exception)) throw;
      PendingError error;
      try {
        if (!read_protocols(object, held, view)) throw;
      } catch (const PythonError&) {
        if (PyErr_Occurred()) error.forget();  // the last way's reason
        throw;
      }
      error.forget();
    }
    return view;
  }
  if (read_protocols(object, held, view)) return view;
  const bool sequence = PyList_Check(object) || PyTuple_Check(object);
  refuse(Kind::InputType,
         "is " + a_type(object) +
             (sequence ? ": pass np.asarray(x, dtype=...) of it, or any array"
                       : ", expected an array: NumPy, a buffer, or an object with __dlpack__"));
}

}  // namespace pteron::python

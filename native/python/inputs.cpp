#include "inputs.h"

#include <cmath>
#include <limits>

#include "core/cuda_library.h"
#include "numpy_abi.h"
#include "result.h"

namespace pteron::python {
namespace {

std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

[[noreturn]] void refuse(Kind kind, std::string why) { throw Unreadable{kind, std::move(why)}; }

long long to_int64(PyObject* number) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow != 0) refuse(Kind::Input, "is an int that does not fit into 64 bits");
  return value;
}

// torch's own exchange API, as opposed to that of another library.
bool is_torch(const DLPackExchangeAPI& api) {
  static const DLPackExchangeAPI* known = nullptr;
  if (known != nullptr) return known == &api;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");  // borrowed
  if (module == nullptr) return false;
  const Ref type = find_attribute(module, "Tensor");
  if (!type || !PyType_Check(type.get())) return false;
  known = exchange_api(reinterpret_cast<PyTypeObject*>(type.get()));
  return known == &api;
}

}  // namespace

Ref find_attribute(PyObject* object, PyObject* name) {
  Ref attribute(PyObject_GetAttr(object, name));
  if (!attribute) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
    PyErr_Clear();
  }
  return attribute;
}

Ref find_attribute(PyObject* object, const char* name) {
  const Ref text(checked(PyUnicode_FromString(name)));
  return find_attribute(object, text.get());
}

void Held::release() noexcept {
  direct = nullptr;
  capsule = nullptr;
  if (has_buffer) PyBuffer_Release(&buffer);
  has_buffer = false;
  if (managed) {
    // A deleter may run Python code, which must not find the error of a failed call set.
    const PendingError pending;
    managed = Managed();
  }
  owner = Ref();
}

bool Held::can_consume() const noexcept {
  return capsule == nullptr || PyCapsule_IsValid(capsule, kCapsule) ||
         PyCapsule_IsValid(capsule, kCapsuleVersioned);
}

void Held::consume() noexcept {
  if (capsule != nullptr) managed = consume_capsule(capsule);
  capsule = nullptr;
}

std::string checked_utf8(PyObject* text) {
  Py_ssize_t size;
  const char* bytes = PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes == nullptr) throw PythonError{};
  return {bytes, static_cast<size_t>(size)};
}

InputReader::InputReader(const Method& method, size_t count)
    : method_(method), count_(count), values_(inline_values_), held_(inline_held_) {
  if (count > kInline) {
    more_values_ = std::make_unique<InputValue[]>(count);
    more_held_ = std::make_unique<Held[]>(count);
    values_ = more_values_.get();
    held_ = more_held_.get();
  }
}

void InputReader::read(size_t i, PyObject* object, const char* origin) {
  try {
    read_value(i, object);
    method_.check_input(i, values_[i]);
  } catch (const Unreadable& refused) {
    throw Error(refused.kind, Code::InvalidArgument,
                method_.input_name(i) + origin + " " + refused.why + ", " +
                    code_text(Code::InvalidArgument));
  } catch (const PythonError&) {
    // The caller's own code failed. Say which input it was; interrupts pass as they are.
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    Ref text(PyObject_Str(error));
    std::string why = reinterpret_cast<PyTypeObject*>(type)->tp_name;
    if (text && PyUnicode_AsUTF8(text.get())) {
      // torch puts a C++ backtrace behind the first line.
      std::string_view said = PyUnicode_AsUTF8(text.get());
      why += ": " + std::string(said.substr(0, said.find('\n')));
    }
    PyErr_Clear();
    PyErr_Restore(type, error, traceback);
    set_chained_error(Error(Kind::Input, Code::InvalidArgument,
                            method_.input_name(i) + origin + " could not be read: " + why + ", " +
                                code_text(Code::InvalidArgument)));
    throw;
  }
}

void InputReader::set_stream(void* stream) noexcept {
  for (size_t i = 0; i < count_; ++i) {
    const auto handle = static_cast<int64_t>(reinterpret_cast<intptr_t>(stream));
    held_[i].stream = handle == 0 ? 1 : handle;  // DLPack's number of the default stream
  }
  stream_ = stream;
  has_stream_ = true;
}

bool InputReader::ran_code() const noexcept {
  for (size_t i = 0; i < count_; ++i) {
    if (held_[i].ran_code) return true;
  }
  return false;
}

void InputReader::commit(bool ran_code) {
  if (ran_code || this->ran_code()) [[unlikely]] {
    // The caller's code may have resized an array, or run the method that a result borrows from.
    for (size_t i = 0; i < count_; ++i) {
      if (held_[i].direct != nullptr) read(i, held_[i].direct);
    }
  }
  for (size_t i = 0; i < count_; ++i) {
    if (held_[i].can_consume()) continue;
    throw Error(Kind::Input, Code::InvalidArgument,
                method_.input_name(i) +
                    " is a DLPack capsule that was used while the other inputs were read, " +
                    code_text(Code::InvalidArgument));
  }
  for (size_t i = 0; i < count_; ++i) held_[i].consume();
}

void InputReader::read_value(size_t i, PyObject* object) {
  InputValue& value = values_[i];
  Held& held = held_[i];
  const ValueSpec& spec = method_.spec().input(i);
  value.kind = ValueKind::Tensor;
  if (spec.kind != ValueKind::Tensor) {
    read_scalar(spec, object, value, held);
    if (value.kind != ValueKind::Tensor) return;
  } else if (object == Py_None) {
    value.kind = ValueKind::None;
    return;
  } else if (spec.tensor.sizes.empty() &&
             read_python_scalar(spec.tensor, object, value.tensor, held)) {
    return;
  }
  value.tensor = read_tensor(object, held);
  if (has_stream_ && !value.tensor.device.is_cpu()) order(object, value.tensor, held);
  if (held.capsule != nullptr) refuse_second_use(i);
  if (held.api != nullptr && torch_api_ == nullptr && is_torch(*held.api)) torch_api_ = held.api;
}

// Makes the run's stream wait for what is pending in a CUDA tensor that was read without
// __dlpack__, which would have asked its producer to.
void InputReader::order(PyObject* object, const TensorView& view, Held& held) const {
  if (is_result(object)) {
    const TensorBlock& block = *block_of(object);
    cuda::wait(block, stream_);
    held.has_producer = true;
    held.producer = block.stream;
  } else if (held.api != nullptr && held.api->current_work_stream != nullptr &&
             cuda::loaded() != nullptr) {
    void* current = nullptr;
    if (held.api->current_work_stream(kDLCUDA, view.device.index, &current) != 0) {
      throw PythonError{};
    }
    held.has_producer = true;
    held.producer = current;
    if (current == stream_) return;
    const std::shared_ptr<void> event = cuda::record(view.device, current);
    cuda::check(cuda::api().event_wait(view.device.index, stream_, event.get()),
                "wait for an input");
  }
}

void InputReader::give_back() const {
  if (!has_stream_) return;
  std::shared_ptr<void> event;  // one for all inputs of a device
  Device of;
  for (size_t i = 0; i < count_; ++i) {
    if (!held_[i].has_producer || held_[i].producer == stream_) continue;
    const Device device = values_[i].tensor.device;
    if (event == nullptr || !(of == device)) {
      of = device;
      event = cuda::record(of, stream_);
    }
    cuda::check(cuda::api().event_wait(of.index, held_[i].producer, event.get()),
                "order the memory of an input");
  }
}

void InputReader::refuse_second_use(size_t i) const {
  for (size_t other = 0; other < i; ++other) {
    if (held_[other].capsule == held_[i].capsule) {
      refuse(Kind::Input, "is the same DLPack capsule as input " + std::to_string(other) +
                              ": a capsule can be read once");
    }
  }
}

// A value for an input that is no tensor: Python's own types, NumPy's scalars and 0-d arrays.
// Leaves kind Tensor when `object` is something else.
void InputReader::read_scalar(const ValueSpec& spec, PyObject* object, InputValue& value,
                              Held& held) {
  if (!PyBool_Check(object) && !PyLong_Check(object) && !PyFloat_CheckExact(object) &&
      !PyUnicode_Check(object) && object != Py_None) {
    // NumPy's scalars and tensors of no dimensions: the Python number that item() gives.
    value.kind = ValueKind::Tensor;
    if (numpy::is_array(object) && reinterpret_cast<numpy::ArrayFields*>(object)->ndim != 0) return;
    if (is_result(object) && block_of(object)->ndim != 0) return;
    const Ref item = find_attribute(object, "item");
    if (item) {
      held.ran_code = true;
      held.owner = Ref(checked(PyObject_CallNoArgs(item.get())));  // a str is read where it is
      object = held.owner.get();
    }
  }
  if (object == Py_None) {
    value.kind = ValueKind::None;
  } else if (PyBool_Check(object)) {
    value.kind = ValueKind::Bool;
    value.int_value = object == Py_True;
  } else if (PyLong_Check(object)) {
    // An int where a float is expected is that float, as everywhere in Python.
    value.kind = spec.kind == ValueKind::Double ? ValueKind::Double : ValueKind::Int;
    value.int_value = to_int64(object);
    value.double_value = static_cast<double>(value.int_value);
  } else if (PyFloat_Check(object)) {
    value.kind = ValueKind::Double;
    value.double_value = PyFloat_AS_DOUBLE(object);
  } else if (PyUnicode_Check(object)) {
    Py_ssize_t size;
    const char* bytes = PyUnicode_AsUTF8AndSize(object, &size);
    if (bytes == nullptr) throw PythonError{};
    value.kind = ValueKind::String;
    value.string_value = {bytes, static_cast<size_t>(size)};
  } else {
    value.kind = ValueKind::Tensor;
  }
}

namespace {

template <typename T>
void store(int64_t* scratch, double real, long long integer, bool is_float) {
  T number;
  if constexpr (std::is_floating_point_v<T>) {
    number = is_float ? static_cast<T>(real) : static_cast<T>(integer);
  } else {
    if (integer < 0 && !std::numeric_limits<T>::is_signed) refuse(Kind::Input, "is negative");
    number = static_cast<T>(integer);
    if (static_cast<long long>(number) != integer) {
      refuse(Kind::Input, "is " + std::to_string(integer) + ", which its dtype cannot hold");
    }
  }
  std::memcpy(scratch, &number, sizeof number);
}

}  // namespace

bool read_python_scalar(const TensorSpec& spec, PyObject* object, TensorView& view, Held& held) {
  const bool is_bool = PyBool_Check(object);
  const bool is_float = PyFloat_Check(object);  // np.float64 is one too
  if (!is_bool && !is_float && !PyLong_Check(object)) return false;
  if (is_bool != (spec.dtype == DType::Bool)) {
    refuse(Kind::InputType,
           "is a Python " + type_name(object) + ", expected " + info(spec.dtype).name);
  }
  double real = 0;
  long long integer = 0;
  if (is_float) {
    real = PyFloat_AS_DOUBLE(object);
  } else {
    integer = to_int64(object);
  }
  const auto integral = [&] {
    if (is_float) {
      refuse(Kind::InputType, std::string("is a Python float, expected ") + info(spec.dtype).name);
    }
  };
  int64_t* to = held.scratch;
  switch (spec.dtype) {
    case DType::Float32:
      store<float>(to, real, integer, is_float);
      break;
    case DType::Float64:
      store<double>(to, real, integer, is_float);
      break;
    case DType::Bool:
    case DType::UInt8:
      integral();
      store<uint8_t>(to, real, integer, is_float);
      break;
    case DType::Int8:
      integral();
      store<int8_t>(to, real, integer, is_float);
      break;
    case DType::Int16:
      integral();
      store<int16_t>(to, real, integer, is_float);
      break;
    case DType::UInt16:
      integral();
      store<uint16_t>(to, real, integer, is_float);
      break;
    case DType::Int32:
      integral();
      store<int32_t>(to, real, integer, is_float);
      break;
    case DType::UInt32:
      integral();
      store<uint32_t>(to, real, integer, is_float);
      break;
    case DType::Int64:
      integral();
      store<int64_t>(to, real, integer, is_float);
      break;
    default:
      refuse(Kind::InputType, "is a Python " + type_name(object) + ", which has no conversion to " +
                                  info(spec.dtype).name + ": pass an array of no dimensions");
  }
  view = {.data = held.scratch, .ndim = 0, .dtype = spec.dtype, .readonly = true};
  return true;
}

bool is_one_input(PyObject* object) noexcept {
  const auto has = [](PyObject* value, const char* name) {
    return PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), name);
  };
  if (PyList_Check(object) || PyTuple_Check(object)) return false;
  return is_result(object) || numpy::is_array(object) || PyObject_CheckBuffer(object) ||
         PyCapsule_CheckExact(object) || object == Py_None || PyBool_Check(object) ||
         PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_Check(object) ||
         exchange_api(Py_TYPE(object)) != nullptr || has(object, "__dlpack__") ||
         has(object, "__array__") || has(object, "__array_interface__");
}

}  // namespace pteron::python

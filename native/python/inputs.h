// From a Python value to what the core takes: the one ladder that every entry point uses.
//
// In order: results, NumPy arrays (their fields are read directly), torch tensors and other types
// with the DLPack C exchange API, bare capsules, Python scalars, buffers, objects with __dlpack__,
// objects that NumPy can convert. tensor_input.cpp has what stands for a tensor. Reading may run
// the caller's Python code, so no lock may be held.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/method.h"
#include "dlpack.h"
#include "python.h"

namespace pteron::python {

// Keeps alive what one read value borrows. Not movable while a view points at its scratch space.
struct Held {
  Held() noexcept {}
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void release() noexcept;

  // Whether the bare capsule that was read, if any, is still there to be taken; takes it over.
  bool can_consume() const noexcept;
  void consume() noexcept;

  Ref owner;
  Managed managed;
  PyObject* capsule = nullptr;  // a bare capsule, read but not yet consumed; `owner` holds it
  const DLPackExchangeAPI* api = nullptr;  // that it was read through
  PyObject* direct = nullptr;              // borrowed: what was read without running anybody's code
  int64_t stream = 1;  // that DLPack producers on a CUDA device order themselves before
  // The stream that a CUDA tensor read without __dlpack__ is used on, when it is known.
  bool has_producer = false;
  void* producer = nullptr;
  bool ran_code = false;  // reading ran code, which may have changed other inputs
  bool has_buffer = false;
  Py_buffer buffer;
  int64_t scratch[2 * kMaxRank];  // shape and strides, or the value of a scalar
};

// The inputs of one call.
class InputReader {
 public:
  InputReader(const Method& method, size_t count);

  // Reads and checks input `i`; throws Error or PythonError that names it, and `origin` behind the
  // name. `object` must outlive the reader.
  void read(size_t i, PyObject* object, const char* origin = "");

  // The CUDA stream that inputs must be ready on; without it the legacy default stream.
  void set_stream(void* stream) noexcept;

  // The stream of another reader, if it has one.
  void set_stream_of(const InputReader& other) noexcept {
    if (other.has_stream_) set_stream(other.stream_);
  }

  // After a run on the stream: makes the streams that the inputs come from wait for its end, so
  // that what they do with the memory once the inputs are let go does not come too early.
  void give_back() const;

  // Gives input `i` a value that another reader has read and holds.
  void assign(size_t i, const InputReader& from) noexcept {
    values_[i] = from.values_[i];
    held_[i].has_producer = from.held_[i].has_producer;
    held_[i].producer = from.held_[i].producer;
    if (torch_api_ == nullptr) torch_api_ = from.torch_api_;
  }
  void assign(size_t i, const TensorView& view) noexcept {
    values_[i].kind = ValueKind::Tensor;
    values_[i].tensor = view;
  }
  // The stream on which the memory of device input `i` is given back.
  void set_producer(size_t i, void* stream) noexcept {
    held_[i].has_producer = true;
    held_[i].producer = stream;
  }

  // Lets go of what input `i` borrows.
  void release(size_t i) noexcept { held_[i].release(); }

  // Called when all inputs are good: takes the bare capsules over, which a failed call leaves as
  // they were. Reads again what code that ran meanwhile may have changed: `ran_code` if there was
  // more of it than reading these inputs ran. Throws Error, PythonError.
  void commit(bool ran_code = false);
  // Whether reading ran code of the caller or a producer.
  bool ran_code() const noexcept;

  std::span<const InputValue> values() const noexcept { return {values_, count_}; }
  // The exchange API of the first torch tensor among the inputs, or null.
  const DLPackExchangeAPI* torch_api() const noexcept { return torch_api_; }

 private:
  void read_value(size_t i, PyObject* object);
  void order(PyObject* object, const TensorView& view, Held& held) const;
  void read_scalar(const ValueSpec& spec, PyObject* object, InputValue& value, Held& held);
  void refuse_second_use(size_t i) const;

  static constexpr size_t kInline = 8;
  const Method& method_;
  size_t count_;
  InputValue* values_;
  Held* held_;
  const DLPackExchangeAPI* torch_api_ = nullptr;
  void* stream_ = nullptr;
  bool has_stream_ = false;
  InputValue inline_values_[kInline];
  Held inline_held_[kInline];
  std::unique_ptr<InputValue[]> more_values_;
  std::unique_ptr<Held[]> more_held_;
};

// Reads anything that stands for a tensor, as its own dtype and on its own device; throws
// Unreadable or PythonError. A bare capsule is read but not consumed.
TensorView read_tensor(PyObject* object, Held& held);

// A Python number for a tensor of no dimensions takes its dtype, as a weak scalar does in NumPy:
// int where that is an integer, int or float where it is a float, bool where it is bool. False if
// `object` is no Python number; throws Unreadable.
bool read_python_scalar(const TensorSpec& spec, PyObject* object, TensorView& view, Held& held);

// The attribute, or nothing where there is none; throws PythonError when asking for it fails.
Ref find_attribute(PyObject* object, PyObject* name);
Ref find_attribute(PyObject* object, const char* name);

// The text of a str; throws PythonError.
std::string checked_utf8(PyObject* text);

// Whether `object` is one input rather than a sequence of inputs (M104).
bool is_one_input(PyObject* object) noexcept;

}  // namespace pteron::python

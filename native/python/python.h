// What every part of the binding needs of Python: owned references, and the frame of a native call.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"

namespace pteron::python {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) noexcept : object_(owned) {}
  static Ref borrow(PyObject* object) noexcept { return Ref(Py_XNewRef(object)); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// A Python error is set; unwinds to the edge of the C API without touching it.
struct PythonError {};

// Sets the Python error that is set, if any, aside for as long as it lives.
class PendingError {
 public:
  PendingError() noexcept { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~PendingError() {
    if (type_ != nullptr) PyErr_Restore(type_, value_, traceback_);
  }
  PendingError(const PendingError&) = delete;
  PendingError& operator=(const PendingError&) = delete;
  void forget() noexcept {
    Py_CLEAR(type_);
    Py_CLEAR(value_);
    Py_CLEAR(traceback_);
  }

 private:
  PyObject *type_, *value_, *traceback_;
};

// Throws PythonError if `object` is null, which is how the C API reports an error.
inline PyObject* checked(PyObject* object) {
  if (object == nullptr) throw PythonError{};
  return object;
}
inline void checked(int status) {
  if (status < 0) throw PythonError{};
}

// Sets the Python exception for the C++ exception in flight: one place for every entry point.
void set_python_error() noexcept;
void set_python_error(const Error& error) noexcept;

// Sets `error` with the Python error that is set now as its cause.
void set_chained_error(const Error& error) noexcept;

// Hands the runtime's queued log lines to logging.getLogger("pteron.native"). An error that is set
// stays set.
void drain_log() noexcept;

// Runs the body of a C API function: keeps the runtime's reasons, turns exceptions into Python's,
// passes the log on. `failed` is what the function returns with an error set.
template <typename Result, typename Body>
Result entry(Result failed, Body body) noexcept {
  Result result = failed;
  {
    CallScope scope;
    try {
      result = body();
    } catch (...) {
      set_python_error();
    }
  }
  if (has_log_lines()) [[unlikely]]
    drain_log();
  return result;
}
template <typename Body>
PyObject* entry(Body body) noexcept {
  return entry(static_cast<PyObject*>(nullptr), body);
}

// Releases the GIL for as long as it lives, for work of the runtime, which fork() waits for.
class NoGil {
 public:
  NoGil() = default;
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  struct Released {
    Released() noexcept : state(PyEval_SaveThread()) {}
    ~Released() { PyEval_RestoreThread(state); }
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    PyThreadState* state;
  };
  // In this order: a thread that forks has the GIL, so it must not be waited for inside.
  Released released_;
  InRuntime inside_;
};

}  // namespace pteron::python

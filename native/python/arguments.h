// The arguments of a Method's functions, for calls that are written by hand on the C API.
#pragma once

#include "core/method.h"
#include "python.h"

namespace pteron::python {

// The optional positional-or-keyword arguments of execute, set_inputs and get_outputs.
struct Arguments {
  PyObject* inputs = nullptr;  // null: not given
  bool clone_outputs = true;
  Method::Stream stream;
};

// A CUDA stream: None, its handle, or an object of torch or CuPy that has it. Throws PythonError,
// Error{Argument}.
Method::Stream read_stream(PyObject* object);

// Parses what `function` was called with (METH_FASTCALL | METH_KEYWORDS); one that takes both also
// takes a stream. Throws PythonError, Error.
Arguments parse_arguments(const char* function, bool takes_inputs, bool takes_clone,
                          PyObject* const* args, Py_ssize_t nargs, PyObject* names);

// The inputs as an array: a list or tuple of them, or one bare value.
class InputList {
 public:
  // Throws PythonError if `object` is neither.
  explicit InputList(PyObject* object);
  PyObject* const* data() const {
    return sequence_ ? reinterpret_cast<PyTupleObject*>(sequence_.get())->ob_item : &single_;
  }
  size_t size() const {
    return sequence_ ? static_cast<size_t>(PyTuple_GET_SIZE(sequence_.get())) : 1;
  }

 private:
  PyObject* single_ = nullptr;
  Ref sequence_;
};

}  // namespace pteron::python

#include "arguments.h"

#include <string>

#include "inputs.h"

namespace pteron::python {

Method::Stream read_stream(PyObject* object) {
  if (object == Py_None) return {};
  Ref handle = Ref::borrow(object);
  if (!PyLong_Check(object)) {
    handle = find_attribute(object, "cuda_stream");       // torch
    if (!handle) handle = find_attribute(object, "ptr");  // CuPy
    if (!handle || !PyLong_Check(handle.get())) {
      PyErr_Format(PyExc_TypeError,
                   "stream must be None, the handle of a CUDA stream, or a stream of torch or "
                   "CuPy, not %s",
                   Py_TYPE(object)->tp_name);
      throw PythonError{};
    }
  }
  const long long value = PyLong_AsLongLong(handle.get());
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  if (value < 0) {
    throw Error(Kind::Argument, Code::InvalidArgument,
                "stream is the handle of a CUDA stream, not " + std::to_string(value));
  }
  // 1 is another name of the legacy default stream.
  return {true, value == 1 ? nullptr : reinterpret_cast<void*>(static_cast<intptr_t>(value))};
}

Arguments parse_arguments(const char* function, bool takes_inputs, bool takes_clone,
                          PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  const char* const all[] = {takes_inputs ? "inputs" : "clone_outputs", "clone_outputs", "stream"};
  const Py_ssize_t most = takes_inputs && takes_clone ? 3 : 1;  // execute, or one of the others
  PyObject* values[3] = {};
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (nargs > most) {
    PyErr_Format(PyExc_TypeError,
                 "%s() takes at most %zd arguments, got %zd: pass the inputs as "
                 "one list",
                 function, most, nargs + named);
    throw PythonError{};
  }
  for (Py_ssize_t i = 0; i < nargs; ++i) values[i] = args[i];
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    Py_ssize_t k = 0;
    while (k < most && PyUnicode_CompareWithASCIIString(name, all[k]) != 0) ++k;
    if (k == most || values[k] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", function,
                   k == most ? "an unexpected keyword" : "twice the", name);
      throw PythonError{};
    }
    values[k] = args[nargs + i];
  }
  Arguments parsed;
  if (takes_inputs) parsed.inputs = values[0];
  if (values[2] != nullptr) parsed.stream = read_stream(values[2]);
  if (PyObject* clone = values[takes_inputs ? 1 : 0]; takes_clone && clone != nullptr) {
    const int truth = PyObject_IsTrue(clone);
    checked(truth);
    parsed.clone_outputs = truth != 0;
  }
  return parsed;
}

InputList::InputList(PyObject* object) {
  if (is_one_input(object)) {
    single_ = object;
    return;
  }
  if (PyDict_Check(object) || !PySequence_Check(object)) {
    PyErr_Format(PyExc_TypeError, "inputs must be a list or tuple of inputs, or one input, not %s",
                 Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  sequence_ = Ref(checked(PySequence_Tuple(object)));
}

}  // namespace pteron::python

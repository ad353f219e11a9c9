// pteron.Method: the object that a call goes through, by hand on the C API (vectorcall).
#pragma once

#include <memory>

#include "core/method.h"
#include "kept_inputs.h"
#include "python.h"

namespace pteron::python {

struct MethodObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<Method> method;  // null once closed
  PyObject* structure;             // pteron._structure.Structure: how calls and returns are shaped
  PyObject* metadata;              // MethodMeta, made when first asked for
  KeptInputs* kept;                // what set_inputs was given
  const DLPackExchangeAPI* outputs_api;  // how the outputs of the last run come out
  bool flat_inputs;                      // positional inputs are the flat list: no structure to ask
  bool names_stream;                     // an input is called "stream": then that is no CUDA stream
  char returns;  // '1' the only output, 't' tuple, 'l' list, 's' ask structure
  PyObject* weakrefs;
};

extern PyTypeObject* method_type;

// The method of a Method object, to be held for the whole of a call: the caller's code may close it
// in the middle of it. Throws Error{Closed}.
inline std::shared_ptr<Method> open_method(PyObject* self) {
  const auto& method = reinterpret_cast<MethodObject*>(self)->method;
  if (method) return method;
  throw Error(Kind::Closed, Code::InvalidState, "The method was closed: load it again");
}

// A new Method object. Throws PythonError.
PyObject* new_method(std::shared_ptr<Method> method, PyObject* structure);

// Throws PythonError.
void add_method_type(PyObject* module);

// How outputs come out: 0 torch tensors when the call was given torch tensors, 1 results always,
// 2 torch tensors always. Set once at import.
extern int output_mode;

}  // namespace pteron::python

// The mutable buffers of a Method object, for pteron.state: private methods of the type.
#pragma once

#include "method.h"
#include "python.h"

namespace pteron::python {

PyObject* get_state(PyObject* self, void*);                // Method.state
PyObject* get_state_names(PyObject* self, void*);          // Method._state_names
PyObject* state_view(PyObject* self, PyObject* index);     // Method._state_view(index)
PyObject* copy_state(PyObject* self, PyObject*);           // Method._copy_state()
PyObject* write_state(PyObject* self, PyObject* values);   // Method._write_state({index: value})
PyObject* reset_state(PyObject* self, PyObject* indices);  // Method._reset_state([index, ...])

}  // namespace pteron::python

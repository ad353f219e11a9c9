// The part of NumPy's ABI that pteron reads: the same in NumPy 1.x and 2.x.
//
// Layouts and table indices are those of NumPy's C API (ndarraytypes.h, numpy_api.py), which keeps
// them stable. Reading an array's fields costs 3 ns; NumPy is not needed to build, nor imported.
#pragma once

#include "python.h"

namespace pteron::python::numpy {

struct ArrayFields {
  PyObject_HEAD char* data;
  int ndim;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // bytes
  PyObject* base;
  PyObject* dtype;
  int flags;
};

struct DTypeFields {  // up to where 1.x and 2.x part
  PyObject_HEAD PyTypeObject* scalar_type;
  char kind;
  char type;
  char byteorder;
  char former_flags;
  int number;
};

enum Flags : int { kCContiguous = 0x1, kWriteable = 0x400 };

// np.ndarray if NumPy has been imported by anybody, else null. Borrowed.
PyTypeObject* array_type() noexcept;

inline bool is_array(PyObject* object) noexcept {
  PyTypeObject* type = array_type();
  return type != nullptr && (Py_TYPE(object) == type || PyType_IsSubtype(Py_TYPE(object), type));
}

// A new ndarray over `data` with `base` (stolen) as its owner; null with an error set. Strides in
// bytes. Imports NumPy. `type_number` is one of NumPy's.
PyObject* new_array(int type_number, int ndim, const int64_t* shape, const int64_t* strides,
                    void* data, bool writeable, PyObject* base) noexcept;

}  // namespace pteron::python::numpy

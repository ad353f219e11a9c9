#include "numpy_abi.h"

#include <cstring>

namespace pteron::python::numpy {
namespace {

// Indices into the C API table.
enum : int { kArrayType = 2, kDescrFromType = 45, kNewFromDescr = 94, kSetBaseObject = 282 };

void** table = nullptr;  // set once under the GIL, or to the same value by several threads

void** import_table() noexcept {
  if (table != nullptr) return table;
  // NumPy 2 moved the module and warns about the old name.
  Ref module(PyImport_ImportModule("numpy._core._multiarray_umath"));
  if (!module) {
    if (!PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) return nullptr;
    PyErr_Clear();
    module = Ref(PyImport_ImportModule("numpy.core._multiarray_umath"));
    if (!module) return nullptr;
  }
  Ref capsule(PyObject_GetAttrString(module.get(), "_ARRAY_API"));
  if (!capsule) return nullptr;
  table = static_cast<void**>(PyCapsule_GetPointer(capsule.get(), nullptr));
  return table;
}

}  // namespace

PyTypeObject* array_type() noexcept {
  static PyTypeObject* type = nullptr;
  if (type == nullptr) {
    PyObject* modules = PyImport_GetModuleDict();  // borrowed
    PyObject* module = PyDict_GetItemString(modules, "numpy");
    if (module == nullptr) return nullptr;
    // NumPy may be half imported: then there is no array to read yet.
    Ref found(PyObject_GetAttrString(module, "ndarray"));
    if (!found || !PyType_Check(found.get())) {
      PyErr_Clear();
      return nullptr;
    }
    type = reinterpret_cast<PyTypeObject*>(found.release());  // kept for the process
  }
  return type;
}

PyObject* new_array(int type_number, int ndim, const int64_t* shape, const int64_t* strides,
                    void* data, bool writeable, PyObject* base) noexcept {
  Ref owner(base);
  void** api = import_table();
  if (api == nullptr) return nullptr;
  using DescrFromType = PyObject* (*)(int);
  using NewFromDescr = PyObject* (*)(PyTypeObject*, PyObject*, int, const int64_t*, const int64_t*,
                                     void*, int, PyObject*);
  using SetBaseObject = int (*)(PyObject*, PyObject*);
  PyObject* dtype = reinterpret_cast<DescrFromType>(api[kDescrFromType])(type_number);
  if (dtype == nullptr) return nullptr;
  Ref array(reinterpret_cast<NewFromDescr>(api[kNewFromDescr])(  // steals dtype
      static_cast<PyTypeObject*>(api[kArrayType]), dtype, ndim, shape, strides, data,
      writeable ? kWriteable : 0, nullptr));
  if (!array) return nullptr;
  if (reinterpret_cast<SetBaseObject>(api[kSetBaseObject])(array.get(), owner.release()) < 0) {
    return nullptr;
  }
  return array.release();
}

}  // namespace pteron::python::numpy

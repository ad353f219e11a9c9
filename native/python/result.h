// ExecuTorchResult: a tensor that came out of a method, owned by C++ and shown to Python.
#pragma once

#include "core/method.h"
#include "dlpack.h"
#include "python.h"

namespace pteron::python {

struct ResultObject {
  PyObject_HEAD TensorBlock* block;  // owned
  PyObject* weakrefs;
};

extern PyTypeObject* result_type;

inline bool is_result(PyObject* object) noexcept { return Py_TYPE(object) == result_type; }
inline TensorBlock* block_of(PyObject* result) noexcept {
  return reinterpret_cast<ResultObject*>(result)->block;
}

// Why a borrowed result that a later run overwrote is not read.
inline constexpr char kStaleResult[] =
    "shared the memory of its method (clone_outputs=False), which has run again since: read "
    "results "
    "before the next run, or let them be copied";

// Throws Error{State} for such a result.
void require_fresh(const TensorBlock& block);

// A new result; takes the block over. Null with an error set when out of memory.
PyObject* new_result(TensorRef block) noexcept;

// The Python value of an output. With `torch`, tensors become torch tensors through its exchange
// API. Throws PythonError, Error.
PyObject* new_output(OutputValue& value, const DLPackExchangeAPI* torch);

// A torch tensor that shares the block (a copy if the block is read-only, which torch cannot be).
PyObject* new_torch_tensor(TensorRef block, const DLPackExchangeAPI* api);

// torch's exchange API: imports torch. Throws PythonError, Error when torch is too old.
const DLPackExchangeAPI* import_torch_api();

// DLPack export of `block` for PEP-style keywords: see dlpack_export.cpp.
PyObject* export_dlpack(const TensorRef& block, bool versioned, bool copied);
DLManagedTensorVersioned* new_versioned(const TensorRef& block, uint64_t flags);

PyObject* result_dlpack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names);

// Adds the type to the module. Throws PythonError.
void add_result_type(PyObject* module);

}  // namespace pteron::python

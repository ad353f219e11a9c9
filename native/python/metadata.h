// MethodMeta and TensorInfo: what the program file says, for Python. Nothing is loaded to ask.
#pragma once

#include <memory>

#include "core/program.h"
#include "python.h"

namespace pteron::python {

// A MethodMeta object that keeps the program alive. Throws PythonError.
PyObject* new_method_meta(std::shared_ptr<Program> program, const MethodSpec& spec);

}  // namespace pteron::python

// The topics of the extension module; module.cpp calls each once.
#pragma once

#include <nanobind/nanobind.h>

namespace pteron::python {

void bind_metadata(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_registry(nanobind::module_& m);

}  // namespace pteron::python

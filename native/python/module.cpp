// pteron._core: the native part of pteron.
#include <nanobind/nanobind.h>

#include "bind.h"
#include "core/fork.h"
#include "core/registry.h"
#include "method.h"
#include "python.h"
#include "result.h"

namespace nb = nanobind;
using namespace pteron::python;

NB_MODULE(core_of_main, m) {
  m.doc() = "The native part of pteron: the ExecuTorch runtime, its values and its errors.";
#ifndef NB_ABORT_ON_LEAK
  // What outlives the interpreter, as all that a daemon thread holds, is news for developers only.
  nb::set_leak_warnings(nb::cast<bool>(nb::module_::import_("sys").attr("flags").attr("dev_mode")));
#endif
  pteron::install_platform_hooks();
  pteron::install_fork_handlers();
  pteron::configure_backends();
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const pteron::Error& e) {
      set_python_error(e);
    } catch (const PythonError&) {
      // set already
    }
  });
  try {
    add_result_type(m.ptr());
    add_method_type(m.ptr());
  } catch (const PythonError&) {
    throw nb::python_error();
  }
  bind_metadata(m);
  bind_program(m);
  bind_registry(m);
}

// What Python calls first. A subinterpreter is refused before nanobind starts anew and forgets the
// types of the main one; the hooks and the types here are those of the process.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "pteron cannot be used in subinterpreters: import it in the main one");
    return nullptr;
  }
  return PyInit_core_of_main();
}

// From core errors and log lines to Python's exceptions and logging.
#include <new>
#include <string>

#include "python.h"

namespace pteron::python {
namespace {

const char* class_name(Kind kind) noexcept {
  switch (kind) {
#define PTERON_KIND(name, python_class) \
  case Kind::name:                      \
    return python_class;
    PTERON_FORALL_ERROR_KINDS(PTERON_KIND)
#undef PTERON_KIND
  }
  return "ExecuTorchError";
}

PyObject* to_str(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// The reasons as a tuple of lines.
PyObject* reason_lines(const std::string& reasons) {
  if (reasons.empty()) return PyTuple_New(0);
  Ref text(to_str(reasons));
  if (!text) return nullptr;
  Ref lines(PyUnicode_Splitlines(text.get(), 0));
  return lines ? PySequence_Tuple(lines.get()) : nullptr;
}

}  // namespace

void set_python_error(const Error& error) noexcept {
  Ref module(PyImport_ImportModule("pteron.errors"));
  if (!module) return;
  Ref type(PyObject_GetAttrString(module.get(), class_name(error.kind)));
  Ref message(to_str(error.what()));
  Ref code(PyLong_FromUnsignedLong(error.code));
  Ref name(PyUnicode_FromString(error.code == 0 ? "" : code_name(error.code)));
  Ref reasons(reason_lines(error.reasons));
  if (!type || !message || !code || !name || !reasons) return;
  Ref exception(PyObject_CallFunctionObjArgs(type.get(), message.get(), code.get(), name.get(),
                                             reasons.get(), nullptr));
  if (exception) PyErr_SetObject(type.get(), exception.get());
}

void set_chained_error(const Error& error) noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  set_python_error(error);
  PyObject *new_type, *new_value, *new_traceback;
  PyErr_Fetch(&new_type, &new_value, &new_traceback);
  PyErr_NormalizeException(&new_type, &new_value, &new_traceback);
  if (new_value != nullptr) {
    PyException_SetCause(new_value, Py_XNewRef(value));
    PyException_SetContext(new_value, Py_XNewRef(value));
  }
  PyErr_Restore(new_type, new_value, new_traceback);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (const PythonError&) {
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const std::bad_alloc&) {
    set_python_error(Error(Kind::Memory, Code::MemoryAllocationFailed, "Out of memory"));
  } catch (const Aborted&) {
    set_python_error(Error(Kind::Execution, static_cast<uint32_t>(Code::Internal),
                           "An assertion of the runtime failed"));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void drain_log() noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  try {
    const std::vector<LogLine> lines = take_log_lines();
    Ref module(checked(PyImport_ImportModule("pteron._log")));
    for (const LogLine& line : lines) {
      Ref text(checked(to_str(line.text)));
      Ref file(checked(to_str(line.file)));
      Ref done(checked(PyObject_CallMethod(module.get(), "emit", "COiO", line.level, file.get(),
                                           line.line, text.get())));
    }
  } catch (...) {
    PyErr_Clear();  // logging must not turn a good call into a failed one
  }
  PyErr_Restore(type, value, traceback);
}

}  // namespace pteron::python

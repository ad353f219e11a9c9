#include "core/program.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "core/trace.h"
#include "metadata.h"
#include "method.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pteron::python {
namespace {

// A buffer that is held until the last user of its bytes is gone, on whatever thread.
std::shared_ptr<void> hold(Py_buffer* view) {
  return {view, [](void* pointer) {
            auto* held = static_cast<Py_buffer*>(pointer);
#if PY_VERSION_HEX >= 0x030D0000
            const bool finalizing = Py_IsFinalizing();
#else
            const bool finalizing = !Py_IsInitialized();
#endif
            // When the interpreter ends, only the thread that ends it can still give it back.
            const bool ours = PyGILState_GetThisThreadState() != nullptr && PyGILState_Check() == 1;
            if (finalizing && !ours) return;
            const OutOfRuntime outside;  // a thread that forks has the GIL and waits for this one
            const PyGILState_STATE state = PyGILState_Ensure();
            PyBuffer_Release(held);
            PyMem_RawFree(held);
            PyGILState_Release(state);
          }};
}

// The bytes of any buffer. Read-only ones and memory maps are used in place and kept alive; those
// that the caller could write to are copied, since what was checked must stay as it is.
std::unique_ptr<DataSource> source_of(nb::handle object) {
  auto* view = static_cast<Py_buffer*>(PyMem_RawMalloc(sizeof(Py_buffer)));
  if (view == nullptr) throw std::bad_alloc();
  if (PyObject_GetBuffer(object.ptr(), view, PyBUF_SIMPLE) < 0) {
    PyMem_RawFree(view);
    throw PythonError{};
  }
  std::shared_ptr<void> owner = hold(view);
  const std::span bytes(static_cast<const std::byte*>(view->buf), static_cast<size_t>(view->len));
  const bool is_map = std::string_view(Py_TYPE(object.ptr())->tp_name) == "mmap.mmap";
  const NoGil released;  // it may be long
  if (!view->readonly && !is_map) return DataSource::copy(bytes);
  return DataSource::borrow(bytes, std::move(owner));
}

// A copy of bytes, made without the GIL: there may be many.
nb::bytes frozen(const void* data, size_t nbytes) {
  const nb::bytes copy = nb::steal<nb::bytes>(
      checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes))));
  const NoGil released;
  if (nbytes > 0) std::memcpy(PyBytes_AS_STRING(copy.ptr()), data, nbytes);
  return copy;
}

// The bytes of a buffer as they are now.
nb::bytes frozen(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) < 0) throw PythonError{};
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&view, PyBuffer_Release);
  return frozen(view.buf, static_cast<size_t>(view.len));
}

std::unique_ptr<DataSource> open_source(nb::handle data, bool mmap) {
  if (!PyUnicode_Check(data.ptr())) return source_of(data);
  nb::bytes path = nb::steal<nb::bytes>(checked(PyUnicode_EncodeFSDefault(data.ptr())));
  const std::string text(path.c_str(), path.size());
  if (text.find('\0') != std::string::npos) {
    throw Error(Kind::Argument, Code::InvalidArgument, "a path cannot hold a null character");
  }
  return mmap ? DataSource::map(text) : DataSource::open(text);
}

std::shared_ptr<Program> load(nb::handle data, const std::string& name,
                              const std::vector<std::pair<std::string, nb::object>>& data_files,
                              Verification verification, bool mmap, bool enable_etdump,
                              size_t debug_buffer_size) {
  std::vector<Program::NamedSource> sources;
  for (const auto& [file_name, file] : data_files) {
    sources.push_back({file_name, open_source(file, mmap)});
  }
  Program::NamedSource program{name, open_source(data, mmap)};
  const LoadOptions options{verification, enable_etdump, debug_buffer_size};
  const NoGil released;
  CallScope scope;
  return Program::load(std::move(program), std::move(sources), options);
}

// Turns every error into its Python class and passes the log on.
template <typename Body>
auto native(Body body) {
  struct Drain {
    ~Drain() {
      if (has_log_lines()) drain_log();
    }
  } drain;
  CallScope scope;
  try {
    return body();
  } catch (const PythonError&) {
    throw nb::python_error();
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    set_python_error();
    throw nb::python_error();
  }
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::enum_<Verification>(m, "Verification", "enum.Enum",
                          "How the runtime itself checks a program. pteron checks it in any case.")
      .value("Minimal", Verification::Minimal, "Only the header.")
      .value("InternalConsistency", Verification::InternalConsistency,
             "The consistency of the whole file.");

  m.def(
      "check_program",
      [](nb::handle data) {
        native([&] {
          const std::unique_ptr<DataSource> source = source_of(data);
          const NoGil released;
          Program::read_file(*source, "the program");
          return true;
        });
      },
      "data"_a, nb::sig("def check_program(data: Buffer) -> None"),
      "Only the check of a program's structure that a load begins with: to measure it.");
  m.def(
      "frozen", [](nb::handle data) { return native([&] { return frozen(data); }); }, "data"_a,
      nb::sig("def frozen(data: Buffer) -> bytes"), "A copy of a buffer, made without the GIL.");

  nb::class_<Program>(m, "Program", nb::is_weak_referenceable(), "A loaded program file.")
      .def_static(
          "load",
          [](nb::handle data, const std::string& name, nb::list data_files,
             Verification verification, bool mmap, bool enable_etdump, size_t debug_buffer_size) {
            return native([&] {
              std::vector<std::pair<std::string, nb::object>> files;
              for (nb::handle pair : data_files) {
                files.emplace_back(nb::cast<std::string>(pair[0]), nb::object(pair[1]));
              }
              return load(data, name, files, verification, mmap, enable_etdump, debug_buffer_size);
            });
          },
          "data"_a, "name"_a, nb::kw_only(), "data_files"_a, "verification"_a, "mmap"_a,
          "enable_etdump"_a, "debug_buffer_size"_a,
          nb::sig("def load(data: str | Buffer, name: str, *, data_files: list[tuple[str, str | "
                  "Buffer]], verification: Verification, mmap: bool, enable_etdump: bool, "
                  "debug_buffer_size: int) -> Program"),
          "Load from a path or from bytes; `name` is what messages call it.")
      .def_prop_ro("name", &Program::name)
      .def_prop_ro(
          "method_names",
          [](const Program& self) {
            std::vector<std::string> names;
            for (const MethodSpec& spec : self.file().methods) names.push_back(spec.name);
            return names;
          },
          "The names of its methods, in file order.")
      .def(
          "metadata",
          [](std::shared_ptr<Program> self, const std::string& method) {
            return native([&] {
              const MethodSpec& spec = self->spec(method);
              return nb::steal(new_method_meta(self, spec));
            });
          },
          "method"_a, nb::sig("def metadata(self, method: str) -> MethodMeta"))
      .def(
          "load_method",
          [](std::shared_ptr<Program> self, const std::string& name, nb::handle structure,
             bool cuda_graph) {
            return native([&] {
              std::shared_ptr<Method> method;
              {
                const NoGil released;
                CallScope scope;
                method = self->load_method(name, {.cuda_graph = cuda_graph});
              }
              return nb::steal(new_method(std::move(method), structure.ptr()));
            });
          },
          "name"_a, "structure"_a, nb::kw_only(), "cuda_graph"_a,
          nb::sig("def load_method(self, name: str, structure: object, *, cuda_graph: bool) -> "
                  "Method"),
          "A new method; `structure` shapes its calls and returns.")
      .def_prop_ro("has_etdump", [](const Program& self) { return self.trace() != nullptr; })
      .def(
          "take_etdump",
          [](std::shared_ptr<Program> self) {
            return native([&] {
              if (!self->trace()) {
                throw Error(Kind::State, Code::InvalidState,
                            "The program was loaded without an ETDump: pass enable_etdump=True");
              }
              Trace::Record record;
              {
                const NoGil released;
                CallScope scope;
                record = self->trace()->take();
              }
              return nb::make_tuple(frozen(record.etdump.data(), record.etdump.size()),
                                    frozen(record.debug_buffer.data(), record.debug_buffer.size()));
            });
          },
          nb::sig("def take_etdump(self) -> tuple[bytes, bytes]"),
          "The ETDump of the runs since the last call, and the debug buffer, empty without one.")
      .def_prop_ro(
          "nbytes", [](const Program& self) { return self.file().program_size; },
          "Bytes of the program without its segments.")
      .def_prop_ro(
          "named_data",
          [](const Program& self) {
            nb::dict data;
            for (const NamedData& entry : self.file().named_data) {
              data[entry.key.c_str()] = entry.nbytes;
            }
            return data;
          },
          nb::sig("def named_data(self) -> dict[str, int]"),
          "Data that backends look up by name, with its bytes.");
}

}  // namespace pteron::python

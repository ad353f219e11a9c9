#include "method.h"

#include <structmember.h>

#include <new>

#include "arguments.h"
#include "core/program.h"
#include "metadata.h"
#include "result.h"
#include "state.h"

namespace pteron::python {

PyTypeObject* method_type = nullptr;
int output_mode = 0;

namespace {

MethodObject* cast(PyObject* self) { return reinterpret_cast<MethodObject*>(self); }

// A few outputs without a heap allocation.
class OutputValues {
 public:
  explicit OutputValues(size_t count) : count_(count) {
    if (count > kInline) more_ = std::make_unique<OutputValue[]>(count);
  }
  std::span<OutputValue> span() noexcept { return {more_ ? more_.get() : inline_, count_}; }

 private:
  static constexpr size_t kInline = 4;
  size_t count_;
  OutputValue inline_[kInline];
  std::unique_ptr<OutputValue[]> more_;
};

// Which exchange API makes the outputs torch tensors; null: they stay results. `given` is that of
// the inputs.
const DLPackExchangeAPI* output_api(const DLPackExchangeAPI* given) {
  if (output_mode == 1) return nullptr;
  return output_mode == 2 ? import_torch_api() : given;
}

PyObject* output_list(std::span<OutputValue> values, const DLPackExchangeAPI* api) {
  Ref list(checked(PyList_New(static_cast<Py_ssize_t>(values.size()))));
  for (size_t j = 0; j < values.size(); ++j) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(j), new_output(values[j], api));
  }
  return list.release();
}

// What a call returns: the shape that the exported function returned.
PyObject* structured(MethodObject* self, std::span<OutputValue> values,
                     const DLPackExchangeAPI* api) {
  if (self->returns == '1') return new_output(values[0], api);
  Ref list(output_list(values, api));
  if (self->returns == 'l') return list.release();
  if (self->returns == 't') return checked(PyList_AsTuple(list.get()));
  return checked(PyObject_CallMethod(self->structure, "unflatten", "O", list.get()));
}

void run(Method& method, InputReader& reader, Method::Outputs mode, std::span<OutputValue> outputs,
         Method::Stream stream = {}) {
  reader.commit();
  const NoGil released;
  CallScope scope;
  method.run(reader.values(), mode, outputs, stream);
  reader.give_back();
}

// Before the inputs are read.
void set_stream(const Method& method, InputReader& reader, const Method::Stream& stream) {
  if (!stream.given) return;
  method.check_stream(stream);
  reader.set_stream(stream.handle);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
    Method::Stream stream;
    Ref named;  // inputs with names
    const Py_ssize_t named_count = names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < named_count; ++i) {
      PyObject* name = PyTuple_GET_ITEM(names, i);
      PyObject* value = args[count + static_cast<size_t>(i)];
      if (!cast(self)->names_stream && PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
        stream = read_stream(value);
        continue;
      }
      if (!named) named = Ref(checked(PyDict_New()));
      checked(PyDict_SetItem(named.get(), name, value));
    }
    Ref flat;
    if (named || !cast(self)->flat_inputs) {
      // Names and nested inputs are sorted into the flat list by the structure in the file.
      Ref positional(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
      for (size_t i = 0; i < count; ++i) {
        PyTuple_SET_ITEM(positional.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
      }
      if (!named) named = Ref(checked(PyDict_New()));
      flat = Ref(checked(PyObject_CallMethod(cast(self)->structure, "flatten", "OO",
                                             positional.get(), named.get())));
      if (!PyTuple_Check(flat.get())) {
        PyErr_SetString(PyExc_TypeError, "flatten() must return a tuple");
        throw PythonError{};
      }
      args = reinterpret_cast<PyTupleObject*>(flat.get())->ob_item;
      count = static_cast<size_t>(PyTuple_GET_SIZE(flat.get()));
    }
    method.check_count(count);
    InputReader reader(method, count);
    set_stream(method, reader, stream);
    for (size_t i = 0; i < count; ++i) reader.read(i, args[i]);
    OutputValues outputs(method.spec().outputs.size());
    run(method, reader, Method::Outputs::Owned, outputs.span(), stream);
    return structured(cast(self), outputs.span(), output_api(reader.torch_api()));
  });
}

// Runs so that get_outputs() can be asked, and hands the outputs out too.
PyObject* run_and_keep(PyObject* self, Method& method, InputReader& reader, bool clone,
                       std::span<OutputValue> outputs, Method::Stream stream = {}) {
  run(method, reader, clone ? Method::Outputs::Copied : Method::Outputs::Borrowed, outputs, stream);
  cast(self)->outputs_api = reader.torch_api();
  return output_list(outputs, output_api(reader.torch_api()));
}

PyObject* execute(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    const Arguments given = parse_arguments("execute", true, true, args, nargs, names);
    OutputValues outputs(method.spec().outputs.size());
    if (given.inputs != nullptr) {
      const InputList inputs(given.inputs);
      method.check_count(inputs.size());
      InputReader reader(method, inputs.size());
      set_stream(method, reader, given.stream);
      for (size_t i = 0; i < inputs.size(); ++i) reader.read(i, inputs.data()[i]);
      run(method, reader, given.clone_outputs ? Method::Outputs::Owned : Method::Outputs::Borrowed,
          outputs.span(), given.stream);
      cast(self)->outputs_api = reader.torch_api();
      return output_list(outputs.span(), output_api(reader.torch_api()));
    }
    InputReader reader(method, method.spec().inputs.size());
    set_stream(method, reader, given.stream);
    const KeptList inputs = cast(self)->kept->read(method, reader);
    return run_and_keep(self, method, reader, given.clone_outputs, outputs.span(), given.stream);
  });
}

PyObject* call_keeping(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    if (nargs != 3 && nargs != 4) {
      PyErr_SetString(PyExc_TypeError, "_call_keeping(inputs, clone_outputs, complete, stream)");
      throw PythonError{};
    }
    const Method::Stream stream = nargs == 4 ? read_stream(args[3]) : Method::Stream();
    const bool clone = args[1] == Py_True;
    const bool complete = args[2] == Py_True;
    const InputList given(args[0]);
    KeptInputs& kept = *cast(self)->kept;
    OutputValues outputs(method.spec().outputs.size());
    InputReader reader(method, method.spec().inputs.size());
    set_stream(method, reader, stream);
    if (complete) {
      const KeptList inputs = kept.set(method, given.data(), given.size(), reader);
      return run_and_keep(self, method, reader, clone, outputs.span(), stream);
    }
    const KeptList inputs = kept.merge(method, given.data(), given.size(), reader);
    run(method, reader, clone ? Method::Outputs::Owned : Method::Outputs::Borrowed, outputs.span(),
        stream);
    return output_list(outputs.span(), output_api(reader.torch_api()));
  });
}

PyObject* set_inputs(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    const Arguments given = parse_arguments("set_inputs", true, false, args, nargs, names);
    if (given.inputs == nullptr) {
      PyErr_SetString(PyExc_TypeError, "set_inputs() needs the inputs, a list");
      throw PythonError{};
    }
    const InputList inputs(given.inputs);
    InputReader reader(method, method.spec().inputs.size());
    cast(self)->kept->set(method, inputs.data(), inputs.size(), reader);
    return Py_NewRef(Py_None);
  });
}

PyObject* get_outputs(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    const Arguments given = parse_arguments("get_outputs", false, true, args, nargs, names);
    OutputValues outputs(method.spec().outputs.size());
    {
      const NoGil released;
      method.outputs(given.clone_outputs, outputs.span());
    }
    return output_list(outputs.span(), output_api(cast(self)->outputs_api));
  });
}

PyObject* get_attribute(PyObject* self, PyObject* name) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> held = open_method(self);
    Method& method = *held;
    if (!PyUnicode_Check(name)) {
      PyErr_Format(PyExc_TypeError, "the name of an attribute is a str, not %s",
                   Py_TYPE(name)->tp_name);
      throw PythonError{};
    }
    TensorRef attribute;
    const std::string text = checked_utf8(name);
    {
      const NoGil released;
      CallScope scope;
      attribute = method.attribute(text);
    }
    if (output_mode == 2) return new_torch_tensor(std::move(attribute), import_torch_api());
    return checked(new_result(std::move(attribute)));
  });
}

PyObject* close(PyObject* self, PyObject*) {
  return entry([&]() -> PyObject* {
    cast(self)->kept->clear();
    cast(self)->method.reset();
    return Py_NewRef(Py_None);
  });
}

PyObject* exit(PyObject* self, PyObject*) { return close(self, nullptr); }
PyObject* enter(PyObject* self, PyObject*) { return Py_NewRef(self); }

PyObject* get_metadata(PyObject* self, void*) {
  return entry([&]() -> PyObject* {
    MethodObject* object = cast(self);
    if (object->metadata == nullptr) {
      const std::shared_ptr<Method> method = open_method(self);
      object->metadata = new_method_meta(method->program(), method->spec());
    }
    return Py_NewRef(object->metadata);
  });
}

PyObject* get_name(PyObject* self, void*) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    const std::string& name = method->spec().name;
    return checked(PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  });
}

PyObject* get_copied(PyObject* self, void*) {
  return entry([&]() -> PyObject* {
    const std::shared_ptr<Method> method = open_method(self);
    const size_t count = method->spec().inputs.size();
    Ref tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
    for (size_t i = 0; i < count; ++i) {
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(method->copied(i)));
    }
    return tuple.release();
  });
}

PyObject* get_cuda_graph(PyObject* self, void*) {
  return entry([&] { return PyBool_FromLong(open_method(self)->is_graph()); });
}

PyObject* get_always_copy(PyObject* self, void*) {
  return entry([&] { return PyBool_FromLong(open_method(self)->always_copy()); });
}
int set_always_copy(PyObject* self, PyObject* value, void*) {
  return entry(-1, [&] {
    const int truth = value ? PyObject_IsTrue(value) : 0;
    checked(truth);
    open_method(self)->set_always_copy(truth != 0);
    return 0;
  });
}

PyObject* repr(PyObject* self) {
  return entry([&]() -> PyObject* {
    if (!cast(self)->method) return checked(PyUnicode_FromString("<Method, closed>"));
    Ref module(checked(PyImport_ImportModule("pteron._structure")));
    return checked(PyObject_CallMethod(module.get(), "describe_method", "O", self));
  });
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->structure);
  Py_VISIT(cast(self)->metadata);
  return cast(self)->kept ? cast(self)->kept->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  if (cast(self)->kept) cast(self)->kept->clear();
  Py_CLEAR(cast(self)->structure);
  Py_CLEAR(cast(self)->metadata);
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  MethodObject* object = cast(self);
  if (object->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  clear(self);
  delete object->kept;
  object->method.~shared_ptr();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename Function>
PyCFunction function(Function f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}

PyMethodDef methods[] = {
    {"execute", function(execute), METH_FASTCALL | METH_KEYWORDS,
     "execute($self, inputs=<those of set_inputs>, clone_outputs=True, stream=None)\n--\n\n"
     "Run on a list of inputs and return the list of outputs.\n\n"
     "Without inputs, runs on those that set_inputs was given, read again as they are now. A bare\n"
     "array counts as one input. Outputs are results that own their memory, torch tensors if "
     "torch\n"
     "tensors were passed, and plain Python values for outputs that are no tensors. With\n"
     "clone_outputs=False they may share the method's memory until the next run; reading one\n"
     "after that raises. The GIL is released meanwhile; a second thread waits for the first.\n\n"
     "Where inputs or outputs are on a CUDA device, a run waits for the whole device before and\n"
     "after, so that it is safe whatever stream the caller used. With stream, the handle of a "
     "CUDA\n"
     "stream or a stream of torch or CuPy, the program runs on it and nothing waits on the host:\n"
     "results and torch tensors are ordered by events, and other DLPack producers asked to order\n"
     "themselves; their memory must stay until the stream is done.\n\n"
     "Raises:\n"
     "    ArgumentError: stream is of another device than the method's inputs and outputs.\n"
     "    InputError: an input does not fit; the text names it. Nothing ran.\n"
     "    ExecutionError: the program failed; reasons has what the runtime said.\n"
     "    MethodStateError: a step is missing or was too early."},
    {"set_inputs", function(set_inputs), METH_FASTCALL | METH_KEYWORDS,
     "set_inputs($self, inputs)\n--\n\n"
     "Keep inputs for execute(). They are kept alive until others are set, and read at each run."},
    {"get_outputs", function(get_outputs), METH_FASTCALL | METH_KEYWORDS,
     "get_outputs($self, clone_outputs=True)\n--\n\n"
     "The outputs of the last execute() without inputs, once more."},
    {"_call_keeping", function(call_keeping), METH_FASTCALL,
     "_call_keeping($self, inputs, clone_outputs, complete, stream=None)\n--\n\n"
     "Run on inputs and keep them. With complete, the same as set_inputs(), execute() and\n"
     "get_outputs(). Without, there may be fewer inputs than the method takes: the others are "
     "those\n"
     "of earlier calls."},
    {"get_attribute", get_attribute, METH_O,
     "get_attribute($self, name)\n--\n\n"
     "A view of a tensor of the program by its fully qualified name: live and writable for a\n"
     "mutable buffer, read-only for a constant. It keeps the method's memory alive.\n\n"
     "Raises:\n"
     "    AttributeNotFoundError: also a KeyError; the program names no such tensor."},
    {"_state_view", state_view, METH_O, "_state_view($self, index)\n--\n\nA live view."},
    {"_copy_state", copy_state, METH_NOARGS,
     "_copy_state($self)\n--\n\nCopies of all state, on the host."},
    {"_write_state", write_state, METH_O,
     "_write_state($self, values)\n--\n\nWrite a dict of indices and values; all or nothing."},
    {"_reset_state", reset_state, METH_O, "_reset_state($self, indices)\n--\n\nReset some state."},
    {"close", close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Free the method now. Results that own their memory stay valid."},
    {"__enter__", enter, METH_NOARGS, "__enter__($self)\n--\n\nThe method itself."},
    {"__exit__", exit, METH_VARARGS, "__exit__($self, *args)\n--\n\nCloses the method."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"name", get_name, nullptr, "The method's name, a str.", nullptr},
    {"metadata", get_metadata, nullptr, "What the program says of the method, a MethodMeta.",
     nullptr},
    {"state", get_state, nullptr,
     "Its mutable buffers, which keep their values from run to run: a pteron.state.State.",
     nullptr},
    {"_state_names", get_state_names, nullptr, "The names of its mutable buffers.", nullptr},
    {"copied", get_copied, nullptr,
     "For each input, whether the last run copied it; False: it was read where it is.", nullptr},
    {"cuda_graph", get_cuda_graph, nullptr,
     "Whether it was loaded with cuda_graph=True: its device work is launched as a whole.",
     nullptr},
    {"always_copy", get_always_copy, set_always_copy,
     "Copy every input and output even where the program could use the caller's memory.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(MethodObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(MethodObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "A method of a program, ready to run, with memory of its own.\n\n"
         "m(x, y, mask=k) takes what the exported function took and returns what it returned: one\n"
         "result, a tuple, a dict. execute([x, y, k]) takes and returns flat lists. m(x, y, "
         "stream=s)\n"
         "runs on a CUDA stream: see execute().")},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {0, nullptr}};

PyType_Spec spec = {"pteron._core.Method", sizeof(MethodObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                        Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                    slots};

}  // namespace

PyObject* new_method(std::shared_ptr<Method> method, PyObject* structure) {
  Ref object(checked(method_type->tp_alloc(method_type, 0)));
  MethodObject* self = cast(object.get());
  new (&self->method) std::shared_ptr<Method>(std::move(method));
  self->vectorcall = call;
  self->kept = new KeptInputs;
  self->structure = Py_NewRef(structure);
  Ref flat(checked(PyObject_GetAttrString(structure, "flat_inputs")));
  Ref returns(checked(PyObject_GetAttrString(structure, "returns")));
  Ref stream(checked(PyObject_GetAttrString(structure, "names_stream")));
  self->flat_inputs = flat.get() == Py_True;
  self->names_stream = stream.get() == Py_True;
  self->returns = checked_utf8(returns.get())[0];
  return object.release();
}

void add_method_type(PyObject* module) {
  method_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddObjectRef(module, "Method", reinterpret_cast<PyObject*>(method_type)));
}

}  // namespace pteron::python

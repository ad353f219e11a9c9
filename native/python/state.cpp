#include "state.h"

#include <deque>

#include "result.h"

namespace pteron::python {
namespace {

size_t checked_index(const Method& method, PyObject* object) {
  const size_t index = PyLong_AsSize_t(object);
  if (PyErr_Occurred()) throw PythonError{};
  if (index < method.spec().state.size()) return index;
  PyErr_SetString(PyExc_IndexError, "no such state");
  throw PythonError{};
}

// Reads what stands for a tensor, or for a state of no dimensions a Python number.
TensorView read_value(const Method& method, size_t i, PyObject* object, Held& held) {
  try {
    const TensorSpec& spec = method.spec().values[method.spec().state[i].value].tensor;
    TensorView view;
    if (spec.sizes.empty() && read_python_scalar(spec, object, view, held)) return view;
    return read_tensor(object, held);
  } catch (const Unreadable& refused) {
    throw Error(refused.kind, Code::InvalidArgument,
                method.state_name(i) + " " + refused.why + ", " + code_text(Code::InvalidArgument));
  }
}

}  // namespace

PyObject* get_state(PyObject* self, void*) {
  return entry([&] {
    open_method(self);
    Ref module(checked(PyImport_ImportModule("pteron.state")));
    return checked(PyObject_CallMethod(module.get(), "State", "O", self));
  });
}

PyObject* get_state_names(PyObject* self, void*) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    const auto& state = method->spec().state;
    Ref names(checked(PyTuple_New(static_cast<Py_ssize_t>(state.size()))));
    for (size_t i = 0; i < state.size(); ++i) {
      PyTuple_SET_ITEM(
          names.get(), static_cast<Py_ssize_t>(i),
          checked(PyUnicode_DecodeUTF8(state[i].name.data(),
                                       static_cast<Py_ssize_t>(state[i].name.size()), "replace")));
    }
    return names.release();
  });
}

PyObject* state_view(PyObject* self, PyObject* index) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    return checked(new_result(method->state_view(checked_index(*method, index))));
  });
}

PyObject* copy_state(PyObject* self, PyObject*) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    std::vector<TensorRef> copies;
    {
      const NoGil released;
      CallScope scope;
      copies = method->copy_state();
    }
    Ref list(checked(PyList_New(static_cast<Py_ssize_t>(copies.size()))));
    for (size_t i = 0; i < copies.size(); ++i) {
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i),
                      checked(new_result(std::move(copies[i]))));
    }
    return list.release();
  });
}

PyObject* write_state(PyObject* self, PyObject* values) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    if (!PyDict_Check(values)) {
      PyErr_SetString(PyExc_TypeError, "_write_state({index: value})");
      throw PythonError{};
    }
    std::deque<Held> held;
    std::vector<TensorRef> copies;
    std::vector<Method::StateWrite> writes;
    // A copy of the dict: reading its values runs code of the caller, which may change it.
    const Ref items(checked(PyDict_Items(values)));
    const Py_ssize_t count = PyList_GET_SIZE(items.get());
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* item = PyList_GET_ITEM(items.get(), k);
      const size_t i = checked_index(*method, PyTuple_GET_ITEM(item, 0));
      held.emplace_back();
      TensorView view = read_value(*method, i, PyTuple_GET_ITEM(item, 1), held.back());
      method->check_state(i, view);
      held.back().consume();
      if (count > 1) {  // reading the next may change this one
        const bool raw = view.raw;
        copies.push_back(copy_of(view));
        if (!copies.back()) throw std::bad_alloc();
        view = view_of(*copies.back().get());
        view.raw = raw;
      }
      writes.push_back({i, view});
    }
    {
      const NoGil released;
      CallScope scope;
      method->write_state(writes);
    }
    return Py_NewRef(Py_None);
  });
}

PyObject* reset_state(PyObject* self, PyObject* indices) {
  return entry([&] {
    const std::shared_ptr<Method> method = open_method(self);
    const Ref tuple(checked(PySequence_Tuple(indices)));
    std::vector<size_t> list;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple.get()); ++k) {
      list.push_back(checked_index(*method, PyTuple_GET_ITEM(tuple.get(), k)));
    }
    {
      const NoGil released;
      CallScope scope;
      method->reset_state(list);
    }
    return Py_NewRef(Py_None);
  });
}

}  // namespace pteron::python

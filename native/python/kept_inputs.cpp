#include "kept_inputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/cuda_library.h"

namespace pteron::python {
namespace {

std::vector<int64_t> layout_of(const TensorView& view) {
  std::vector<int64_t> layout;
  for (int i = 0; i < view.ndim; ++i) {
    layout.push_back(view.shape[i]);
    layout.push_back(view.strides ? view.strides[i] * view.stride_unit : 0);
  }
  return layout;
}

// A copy that is ready on every stream.
TensorRef ready_copy(const TensorView& view) {
  if (view.device.is_cpu()) return copy_of(view);
  const NoGil released;
  cuda::synchronize(view.device);
  TensorRef copy = cuda::copy_of(view, nullptr);
  cuda::synchronize(view.device);
  return copy;
}

}  // namespace

// One input as it was passed. Shared by the lists that it is in; never changed.
class KeptInput {
 public:
  // `reader` has read `object` as input `i`.
  KeptInput(const Method& method, PyObject* object, std::shared_ptr<InputReader> reader, size_t i)
      : object_(Ref::borrow(object)), reader_(std::move(reader)), i_(i) {
    const InputValue& value = first();
    if (value.kind != ValueKind::Tensor) return;
    layout_ = layout_of(value.tensor);
    // A borrowed result of this method: every run would read what the run before left there.
    if (method.in_own_memory(value.tensor.data)) {
      copy_ = ready_copy(value.tensor);
      if (!copy_) throw std::bad_alloc();
    }
  }
  ~KeptInput() { reader_->release(i_); }
  KeptInput(const KeptInput&) = delete;
  KeptInput& operator=(const KeptInput&) = delete;

  // Gives `reader` what was read when the input was passed.
  void take(InputReader& reader) const {
    reader.assign(i_, *reader_);
    if (!copy_) return;
    TensorView view = view_of(*copy_.get());
    view.raw = first().tensor.raw;
    reader.assign(i_, view);
    if (!view.device.is_cpu()) reader.set_producer(i_, copy_->stream);
  }

  // Reads the object again. `origin` stands behind the input's name in messages.
  void read_again(const Method& method, InputReader& reader, const char* origin) const {
    const InputValue& before = first();
    if (copy_ || PyCapsule_CheckExact(object_.get()) || before.kind != ValueKind::Tensor) {
      return take(reader);
    }
    const auto changed = [&](const char* what) {
      throw Error(Kind::State, Code::InvalidState,
                  method.input_name(i_) + origin + " has another " + what +
                      " than when it was passed: pass the input again, " +
                      code_text(Code::InvalidState));
    };
    try {
      reader.read(i_, object_.get(), origin);
    } catch (const Error& error) {
      if (error.kind == Kind::Input || error.kind == Kind::InputType) changed("shape or dtype");
      throw;
    }
    const TensorView& now = reader.values()[i_].tensor;
    if (now.pinned && before.tensor.pinned && now.data != before.tensor.data) changed("storage");
    if (layout_of(now) != layout_) changed("shape");
  }

  PyObject* object() const noexcept { return object_.get(); }

 private:
  const InputValue& first() const noexcept { return reader_->values()[i_]; }

  Ref object_;
  TensorRef copy_;                       // of memory that runs of the method itself overwrite
  std::vector<int64_t> layout_;          // shape and byte strides when it was passed
  std::shared_ptr<InputReader> reader_;  // holds what was read then: buffers, capsules
  size_t i_;
};

namespace {

// What was passed, read but not yet committed.
struct Passed {
  // Ready on the stream of the reader `to` that they are for.
  Passed(const Method& method, PyObject* const* objects, size_t count, const InputReader& to)
      : reader(std::make_shared<InputReader>(method, count)) {
    reader->set_stream_of(to);
    for (size_t i = 0; i < count; ++i) reader->read(i, objects[i]);
    for (size_t i = 0; i < count; ++i) {
      inputs.push_back(std::make_shared<KeptInput>(method, objects[i], reader, i));
    }
  }
  std::shared_ptr<InputReader> reader;
  KeptList inputs;
};

}  // namespace

KeptList KeptInputs::set(const Method& method, PyObject* const* objects, size_t count,
                         InputReader& reader) {
  KeptList inputs;
  try {
    method.check_count(count);
    Passed passed(method, objects, count, reader);
    passed.reader->commit();
    inputs = std::move(passed.inputs);
  } catch (...) {
    // Releasing runs the caller's code, which must not see the error that is set.
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    replace({}, State::Failed);
    PyErr_Restore(type, error, traceback);
    throw;
  }
  for (const auto& input : inputs) input->take(reader);
  replace(inputs, State::Ready);
  return inputs;
}

KeptList KeptInputs::merge(const Method& method, PyObject* const* objects, size_t count,
                           InputReader& reader) {
  const size_t expected = method.spec().inputs.size();
  if (count > expected) method.check_count(count);
  const KeptList before = current().first;
  if (count < expected && before.size() < expected) {
    const size_t known = std::max(count, before.size());
    throw Error(Kind::Input, Code::InvalidArgument,
                method.input_name(known) + " was never passed: the first call must pass all " +
                    std::to_string(expected) + ", later ones may leave out the last ones, " +
                    code_text(Code::InvalidArgument));
  }
  Passed passed(method, objects, count, reader);
  KeptList& inputs = passed.inputs;
  for (size_t i = count; i < expected; ++i) {
    before[i]->read_again(method, reader, ", kept from an earlier call,");
  }
  passed.reader->commit(reader.ran_code());
  for (const auto& input : inputs) input->take(reader);
  for (size_t i = count; i < expected; ++i) inputs.push_back(before[i]);
  replace(inputs, State::Ready);
  return inputs;
}

KeptList KeptInputs::read(const Method& method, InputReader& reader) const {
  auto [inputs, state] = current();
  if (state != State::Ready && !method.spec().inputs.empty()) {
    const std::string name = "Method '" + method.spec().name + "'";
    throw Error(
        Kind::State, Code::InvalidState,
        state == State::Unset
            ? name + " has no inputs yet: call set_inputs() first, or pass them to execute()"
            : name + " has no inputs: the last set_inputs() failed; call it again");
  }
  for (const auto& input : inputs) input->read_again(method, reader, "");
  return inputs;
}

void KeptInputs::clear() noexcept { replace({}, State::Unset); }

void KeptInputs::replace(KeptList inputs, State state) noexcept {
  {
    std::lock_guard lock(mutex_);
    inputs_.swap(inputs);
    state_ = state;
  }
  // The old inputs go here: their owners' code runs without the lock.
}

std::pair<KeptList, KeptInputs::State> KeptInputs::current() const {
  std::lock_guard lock(mutex_);
  return {inputs_, state_};
}

int KeptInputs::traverse(visitproc visit, void* arg) const {
  // No lock: the collector stops every thread that could change the list.
  for (const auto& input : inputs_) Py_VISIT(input->object());
  return 0;
}

}  // namespace pteron::python

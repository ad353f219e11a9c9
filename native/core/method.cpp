#include "method.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/executor/program.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda_library.h"
#include "error.h"
#include "log.h"
#include "memory_limit.h"
#include "method_state.h"
#include "planned_memory.h"
#include "program.h"
#include "shared_state.h"
#include "strided_copy.h"
#include "threadpool.h"
#include "trace.h"

namespace rt = executorch::runtime;
using rt::etensor::TensorImpl;

namespace pteron {
namespace {

// Strides in bytes of a packed tensor whose axes lie in memory in the order `dim_order`.
void packed_strides(const TensorImpl& tensor, size_t itemsize, int64_t* strides) {
  const auto sizes = tensor.sizes();
  const auto order = tensor.dim_order();
  auto step = static_cast<int64_t>(itemsize);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= sizes[order[i]];
  }
}

// Strides in bytes of the caller's tensor; C order where it gave none.
void view_strides(const TensorView& view, int64_t* strides) {
  auto step = static_cast<int64_t>(itemsize(view.dtype));
  for (int i = view.ndim; i-- > 0;) {
    strides[i] = view.strides ? view.strides[i] * view.stride_unit : step;
    step *= view.shape[i];
  }
}

bool same_layout(const int64_t* a, const int64_t* b, const TensorImpl& tensor) {
  const auto sizes = tensor.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && a[i] != b[i]) return false;
  }
  return true;
}

// Whether kernels that read a few bytes past the end of [data, data + nbytes) stay on its last
// page.
bool tail_is_readable(const void* data, size_t nbytes) {
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kOverrun = 16;  // XNN_EXTRA_BYTES
  const uintptr_t into_page = (reinterpret_cast<uintptr_t>(data) + nbytes) % kPage;
  return into_page != 0 && into_page <= kPage - kOverrun;
}

bool aligned(const void* data, size_t itemsize) {
  return reinterpret_cast<uintptr_t>(data) % itemsize == 0;
}

bool shares_state(const MethodSpec& spec) {
  return std::any_of(spec.buffers.begin(), spec.buffers.end(),
                     [](const PlannedBuffer& buffer) { return buffer.shared; });
}

// Puts the state that a method shares back as it was: the runtime fills it with its initial values
// while the method is loaded, and another method may have changed it since.
class SharedBytes {
 public:
  SharedBytes(const MethodSpec& spec, const std::vector<rt::Span<uint8_t>>& spans) {
    for (const ValueSpec& value : spec.values) {
      const TensorSpec& tensor = value.tensor;
      if (!tensor.initialized || !spec.buffers[tensor.memory_id].shared) continue;
      uint8_t* bytes = spans[tensor.memory_id - 1].data() + tensor.offset;
      kept_.emplace_back(bytes, std::vector<uint8_t>(bytes, bytes + tensor.nbytes));
    }
  }
  ~SharedBytes() {
    for (const auto& [bytes, was] : kept_) std::copy(was.begin(), was.end(), bytes);
  }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;

 private:
  std::vector<std::pair<uint8_t*, std::vector<uint8_t>>> kept_;
};

}  // namespace

TensorView view_of(const TensorBlock& block) noexcept {
  return {.data = block.data,
          .shape = block.shape,
          .strides = block.strides,
          .stride_unit = static_cast<int64_t>(itemsize(block.dtype)),
          .ndim = block.ndim,
          .dtype = block.dtype,
          .device = block.device,
          .readonly = block.readonly,
          .pinned = true};
}

TensorRef copy_of(const TensorView& view) noexcept {
  int64_t numel = 1;
  for (int i = 0; i < view.ndim; ++i) numel *= view.shape[i];
  const size_t width = itemsize(view.dtype);
  TensorRef copy(TensorBlock::allocate(view.ndim, view.dtype, static_cast<size_t>(numel) * width));
  if (!copy) return copy;
  int64_t packed[kMaxRank];
  int64_t strides[kMaxRank];
  view_strides(view, strides);
  int64_t step = 1;
  for (int i = view.ndim; i-- > 0;) {
    copy->shape[i] = view.shape[i];
    copy->strides[i] = step;
    packed[i] = step * static_cast<int64_t>(width);
    step *= view.shape[i];
  }
  if (numel > 0) strided_copy(copy->data, packed, view.data, strides, view.shape, view.ndim, width);
  return copy;
}

#pragma GCC diagnostic push
// mutable_input() and mutable_output() are deprecated, and the only way to a value's tensor.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Method::Method(std::shared_ptr<Program> program, const MethodSpec& spec, const rt::Program& runtime,
               const rt::NamedDataMap& data, const MethodOptions& options)
    : program_(std::move(program)),
      spec_(spec),
      shared_(shares_state(spec) ? &program_->shared_state() : nullptr),
      state_(std::make_unique<State>()) {
  const auto doing = [&] { return "load method '" + spec_.name + "'"; };
  State& state = *state_;

  // What can be reached is allocated, not what the file asks for: it may ask for a petabyte.
  uint64_t total = 0;
  for (const PlannedBuffer& buffer : spec_.buffers) {
    const uint64_t nbytes = buffer.device.is_cpu() && !buffer.shared ? buffer.reachable : 0;
    if (__builtin_add_overflow(total, nbytes, &total)) total = UINT64_MAX;
  }
  require_memory(total, [&] { return "The planned memory of method '" + spec_.name + "'"; });
  std::optional<SharedState::Turn> turn;
  if (shared_ != nullptr) turn.emplace(*shared_, spec_.name);
  bool on_device = false;
  for (uint32_t i = 1; i < spec_.buffers.size(); ++i) {  // the format counts from 1
    const PlannedBuffer& buffer = spec_.buffers[i];
    on_device = on_device || !buffer.device.is_cpu();
    if (buffer.shared) {
      state.spans.push_back(shared_->memory(*program_, i));
    } else {
      state.arenas.push_back(
          Arena::create(buffer.device, buffer.reachable, doing(), options.cuda_graph));
      state.spans.push_back(state.arenas.back().span);
    }
    state.devices.emplace_back(static_cast<rt::etensor::DeviceType>(buffer.device.type),
                               buffer.device.index);
  }
  const SharedBytes shared(spec_, state.spans);
  if (on_device) {
    state.planned.emplace(
        rt::Span<rt::Span<uint8_t>>(state.spans.data(), state.spans.size()),
        rt::Span<const rt::etensor::Device>(state.devices.data(), state.devices.size()));
  } else {
    state.planned.emplace(rt::Span<rt::Span<uint8_t>>(state.spans.data(), state.spans.size()));
  }
  state.manager.emplace(&state.method_allocator, &*state.planned, &state.temp_allocator);

  Trace* trace = program_->trace().get();
  std::unique_lock<std::mutex> tracing;
  if (trace != nullptr) tracing = std::unique_lock(trace->mutex());
  if (trace != nullptr) trace->mark_used();
  guarded(doing, [&] {
    try {
      auto method = runtime.load_method(spec_.name.c_str(), &*state.manager,
                                        trace ? trace->tracer() : nullptr, &data);
      check(method.error(), doing);
      state.method.emplace(std::move(method.get()));
    } catch (const Aborted&) {
      if (trace != nullptr) trace->discard();
      throw;
    }
  });

  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    InputSlot slot;
    // Also tells the runtime that the input is set: inputs are installed by writing their tensors.
    rt::EValue& value = state.method->mutable_input(i);
    if (spec_.input(i).kind == ValueKind::Tensor && value.isTensor()) {
      slot.spec = &spec_.input(i).tensor;
      slot.value = &value;
      slot.impl = value.toTensor().unsafeGetTensorImpl();
      slot.planned = slot.impl->mutable_data();
      slot.placement = spec_.input_placement[i];
      on_device_ = on_device_ || !slot.spec->device.is_cpu();
    }
    state.inputs.push_back(std::move(slot));
  }
  for (size_t j = 0; j < spec_.outputs.size(); ++j) {
    OutputSlot slot;
    rt::EValue& value = state.method->mutable_output(j);
    if (spec_.output(j).kind == ValueKind::Tensor && value.isTensor()) {
      const Placement& placement = spec_.output_placement[j];
      slot.spec = &spec_.output(j).tensor;
      on_device_ = on_device_ || !slot.spec->device.is_cpu();
      slot.impl = value.toTensor().unsafeGetTensorImpl();
      slot.planned = slot.impl->mutable_data();
      slot.direct = placement.direct && slot.spec->device.is_cpu();
      slot.unplanned = slot.planned == nullptr && !placement.written && !slot.spec->constant;
      for (const OutputSlot& other : state.outputs) {
        if (other.impl == slot.impl) slot.direct = slot.unplanned = false;  // returned twice
      }
    }
    state.outputs.push_back(std::move(slot));
  }
  if (options.cuda_graph) record_graph();
}

#pragma GCC diagnostic pop

Method::~Method() = default;

void Method::require_usable() const {
  if (!stuck_) return;
  throw Error(Kind::State, Code::InvalidState,
              "Method '" + spec_.name +
                  "' broke off in the middle of an earlier run and cannot go on: load it again");
}

bool Method::in_own_memory(const void* data) const noexcept {
  for (const auto& span : state_->spans) {
    if (data >= span.data() && data < span.data() + span.size()) return true;
  }
  for (const State::Fixed& fixed : state_->fixed) {
    const auto* first = static_cast<const std::byte*>(fixed.memory.get());
    if (data >= first && data < first + fixed.nbytes) return true;
  }
  if (!state_->has_own) return false;
  for (const InputSlot& slot : state_->inputs) {
    if (slot.own && slot.own->holds(data)) return true;
  }
  return false;
}

bool Method::copied(size_t i) const noexcept { return state_->inputs[i].copied; }

void Method::install(size_t i, const TensorView& view) {
  InputSlot& slot = state_->inputs[i];
  TensorImpl& tensor = *slot.impl;
  if (slot.placement.rebound) {  // a move of the last run may have put another tensor in its place
    *slot.value = rt::EValue(executorch::aten::Tensor(slot.impl));
  }
  const size_t width = itemsize(slot.spec->dtype);
  if (slot.spec->dynamism != Dynamism::Static && !view.raw) {
    int32_t sizes[kMaxRank];
    bool same = true;
    for (int d = 0; d < view.ndim; ++d) {
      sizes[d] = static_cast<int32_t>(view.shape[d]);
      same = same && sizes[d] == tensor.sizes()[static_cast<size_t>(d)];
    }
    if (!same) {
      check(executorch::ET_RUNTIME_NAMESPACE::internal::resize_tensor_impl(
                &tensor, {sizes, static_cast<size_t>(view.ndim)}),
            [&] { return "resize " + input_name(i); });
    }
  }
  const size_t nbytes = static_cast<size_t>(tensor.numel()) * width;

  int64_t packed[kMaxRank];
  int64_t strides[kMaxRank];
  bool dense = true;
  if (!view.raw) {
    packed_strides(tensor, width, packed);
    view_strides(view, strides);
    dense = same_layout(packed, strides, tensor);
  }

  if (!slot.spec->device.is_cpu() && nbytes > 0) {
    install_on_device(i, view, nbytes);
    return;
  }
  const bool shareable = dense && nbytes > 0 && aligned(view.data, width) && !always_copy_ &&
                         (!slot.placement.delegate || tail_is_readable(view.data, nbytes));
  // A program that writes an input of dynamic shape may let it grow up to its bound.
  const bool may_write = slot.placement.written;
  const bool may_grow = may_write && slot.spec->dynamism != Dynamism::Static;
  const bool in_place = slot.planned != nullptr ? shareable && slot.placement.direct
                                                : shareable && view.pinned && !may_grow &&
                                                      !(may_write && view.readonly);
  slot.copied = !in_place;
  if (in_place) {
    tensor.set_data(view.data);
    return;
  }
  void* target = slot.planned;
  if (target == nullptr) {
    if (!slot.own) {
      require_memory(slot.spec->nbytes, [&] { return input_name(i); });
      slot.own = TensorRef(TensorBlock::allocate(0, slot.spec->dtype, slot.spec->nbytes));
      if (!slot.own) no_memory(input_name(i), slot.spec->nbytes);
      state_->has_own = true;
    }
    target = slot.own->data;
  }
  tensor.set_data(target);
  if (nbytes == 0) return;
  if (dense) {
    std::memcpy(target, view.data, nbytes);
  } else {
    strided_copy(target, packed, view.data, strides, view.shape, view.ndim, width);
  }
}

// What the program writes into an input without planned memory lands in the memory of the caller,
// also where the input had to be copied.
void Method::write_back(const InputSlot& slot, const TensorView& view) const {
  if (slot.spec == nullptr || view.readonly || !view.pinned || view.raw) return;
  if (in_own_memory(view.data)) return;
  const TensorImpl& tensor = *slot.impl;
  for (int d = 0; d < view.ndim; ++d) {
    if (tensor.sizes()[static_cast<size_t>(d)] != view.shape[d]) return;  // it grew to its bound
  }
  if (tensor.numel() == 0) return;
  const size_t width = itemsize(slot.spec->dtype);
  int64_t packed[kMaxRank];
  int64_t strides[kMaxRank];
  packed_strides(tensor, width, packed);
  view_strides(view, strides);
  strided_copy(view.data, strides, slot.own->data, packed, view.shape, view.ndim, width);
}

std::string Method::output_text() const { return "An output of method '" + spec_.name + "'"; }

void Method::place_outputs(bool direct) {
  for (OutputSlot& slot : state_->outputs) {
    if (slot.impl == nullptr) continue;
    slot.block = slot.rescued = TensorRef();
    const bool graph_copies = slot.port != DeviceGraph::kNoPort;
    if (graph_copies && !direct) state_->graph->connect(slot.port, nullptr);
    if (slot.unplanned || (direct && (graph_copies || (slot.direct && !always_copy_)))) {
      const TensorSpec& spec = *slot.spec;
      const auto ndim = static_cast<int>(spec.sizes.size());
      if (spec.device.is_cpu()) {
        require_memory(spec.nbytes, [&] { return output_text(); });
        slot.block = TensorRef(TensorBlock::allocate(ndim, spec.dtype, spec.nbytes));
        if (!slot.block) no_memory(output_text(), spec.nbytes);
      } else {
        slot.block = cuda::new_block(spec.device, ndim, spec.dtype, spec.nbytes, stream_.handle,
                                     output_text());
      }
      if (graph_copies) {
        state_->graph->connect(slot.port, slot.block->data);
      } else {
        slot.impl->set_data(slot.block->data);
      }
    } else if (slot.direct) {
      slot.impl->set_data(slot.planned);
    }
  }
}

void Method::execute() {
  const auto doing = [&] { return "execute method '" + spec_.name + "'"; };
  Trace* trace = program_->trace().get();
  std::unique_lock<std::mutex> tracing;
  if (trace != nullptr) {
    tracing = std::unique_lock(trace->mutex());
    trace->mark_used();
  }
  const PoolUse pool;
  try {
    // A kernel may fail with any number: whatever it is, it is the run that failed.
    if (const auto code = static_cast<uint32_t>(state_->method->execute()); code != 0) {
      fail(kind_of(code) == Kind::Memory ? Kind::Memory : Kind::Execution, code, doing());
    }
  } catch (const Aborted&) {
    stuck_ = true;
    if (trace != nullptr) trace->discard();
    fail(Kind::Execution, static_cast<uint32_t>(Code::Internal), doing());
  }
}

void Method::run(std::span<const InputValue> inputs, Outputs mode, std::span<OutputValue> results,
                 Stream stream) {
  Exclusive hold(*this);
  require_usable();
  has_outputs_ = false;
  generation_.fetch_add(1, std::memory_order_release);

  // An input may lie in this very method's memory (a borrowed result). Installing another input
  // could overwrite it, so it is moved out of the way first.
  State& state = *state_;
  stream_ = stream;
  DeviceTurn turn(*this, inputs);
  state.moved.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (state.inputs[i].spec == nullptr) continue;
    TensorView view = inputs[i].tensor;
    if (in_own_memory(view.data)) {
      TensorRef copy = view.device.is_cpu() ? copy_of(view) : cuda::copy_of(view, stream_.handle);
      if (!copy) no_memory("A copy of " + input_name(i), state.inputs[i].spec->nbytes);
      state.moved.push_back(std::move(copy));
    }
  }
  size_t next_moved = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (state.inputs[i].spec == nullptr) continue;
    TensorView view = inputs[i].tensor;
    if (in_own_memory(view.data)) {
      view = view_of(*state.moved[next_moved++].get());
      view.raw = inputs[i].tensor.raw;
    }
    install(i, view);
  }
  place_outputs(mode == Outputs::Owned);
  if (state.graph) {
    state.graph->launch(stream);
  } else {
    execute();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputSlot& slot = state.inputs[i];
    if (slot.copied && slot.placement.written && slot.planned == nullptr) {
      write_back(slot, inputs[i].tensor);
    }
  }
  has_outputs_ = mode != Outputs::Owned;
  if (has_outputs_) rescue_outputs();
  collect(mode != Outputs::Borrowed, results);
  turn.finish(results);
}

void Method::outputs(bool clone, std::span<OutputValue> results) {
  Exclusive hold(*this);
  require_usable();
  if (!has_outputs_) {
    throw Error(Kind::State, Code::InvalidState,
                "Method '" + spec_.name +
                    "' has no outputs to give: call execute() first. Results that a call returned "
                    "are the caller's and are not kept");
  }
  stream_ = Stream();
  DeviceTurn turn(*this, {});  // the run may have been on another stream
  collect(clone, results);
  turn.finish(results);
}

}  // namespace pteron

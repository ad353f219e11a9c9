// With cuda_graph, the device work of a method is recorded while it is loaded, and each run
// launches it as a whole. Inputs and outputs then have fixed places, as planned ones do anyway:
// device tensors are copied there and from there by the graph itself, host tensors by us.
#include "method_graph.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "log.h"
#include "method.h"
#include "method_state.h"
#include "program.h"

namespace pteron {
namespace {

// A device of its own for programs that name none: their parts are for the first.
constexpr Device kFirst{DeviceType::Cuda, 0};

// Calls `refuse` with the reason if work of this method cannot be recorded, as far as the file
// tells. Returns the device that it works on.
template <typename Refuse>
Device graph_device(const MethodSpec& spec, Refuse refuse) {
  uint32_t known = 0;
  bool cuda = false;
  for (const DelegateSpec& part : spec.delegates) {
    if (part.calls > 0 && part.id != "CudaBackend") {
      refuse("its part for " + part.id + " runs on the host");
    }
    cuda = cuda || part.calls > 0;
    known += part.calls;
  }
  if (!cuda) refuse("it has no part for CUDA");
  for (const OperatorSpec& op : spec.operators) {
    if (op.calls > 0 && !op.name.starts_with("et_copy::")) {
      refuse(op.full_name() + " runs on the host");
    }
    known += op.calls;
  }
  if (known != spec.instructions) refuse("it branches");
  const auto check_shapes = [&](const std::vector<uint32_t>& indices, const char* what) {
    for (size_t i = 0; i < indices.size(); ++i) {
      const ValueSpec& value = spec.values[indices[i]];
      if (value.kind != ValueKind::Tensor || value.tensor.dynamism == Dynamism::Static) continue;
      refuse(what + std::to_string(i) + " has a dynamic shape");
    }
  };
  check_shapes(spec.inputs, "input ");
  check_shapes(spec.outputs, "output ");

  std::set<int8_t> devices;
  for (const PlannedBuffer& buffer : spec.buffers) {
    if (!buffer.device.is_cpu()) devices.insert(buffer.device.index);
  }
  for (const ValueSpec& value : spec.values) {
    if (value.kind == ValueKind::Tensor && !value.tensor.device.is_cpu()) {
      devices.insert(value.tensor.device.index);
    }
  }
  if (devices.size() > 1) {
    refuse("it works on " + to_string({DeviceType::Cuda, *devices.begin()}) + " and on " +
           to_string({DeviceType::Cuda, *devices.rbegin()}));
  }
  return devices.empty() ? kFirst : Device{DeviceType::Cuda, *devices.begin()};
}

// The first line that the runtime logged, which is the cause; else what the error says.
std::string reason_of(const Error& error) {
  const std::string text = error.reasons.empty() ? error.what() : error.reasons;
  return text.substr(0, text.find('\n'));
}

}  // namespace

DeviceGraph::DeviceGraph(Device device) : device_(device) {
  cuda::check(cuda::api().shared_stream(device.index, &own_stream_), "use a stream");
  cuda::check(cuda::api().graph_begin(device.index, &graph_), "record");
}

DeviceGraph::~DeviceGraph() {
  const PteronCudaApi& api = *cuda::loaded();
  if (last_use_) api.event_synchronize(device_.index, last_use_.get());
  api.graph_destroy(graph_);
}

size_t DeviceGraph::port(void* to, const void* from, size_t nbytes, bool before) {
  size_t number = 0;
  cuda::check(cuda::api().graph_port(graph_, to, from, nbytes, before ? 1 : 0, &number),
              "record a copy");
  return number;
}
size_t DeviceGraph::input_port(void* to, const void* from, size_t nbytes) {
  return port(to, from, nbytes, true);
}
size_t DeviceGraph::output_port(void* to, const void* from, size_t nbytes) {
  return port(to, from, nbytes, false);
}

void DeviceGraph::end() {
  int32_t copies_host = 0;
  cuda::check(cuda::api().graph_end(graph_, &copies_host), "record");
  copies_host_ = copies_host != 0;
}

void DeviceGraph::connect(size_t port, void* to, const void* from) {
  cuda::check(cuda::api().graph_connect(graph_, port, to, from), "pass a tensor to the graph");
}

void DeviceGraph::launch(const Method::Stream& stream) {
  const PteronCudaApi& api = cuda::api();
  void* on = stream.given ? stream.handle : own_stream_;
  if (last_use_) {
    cuda::check(api.event_wait(device_.index, on, last_use_.get()), "wait for the last run");
  }
  cuda::check(api.graph_launch(graph_, on), "launch the graph");
  if (copies_host_) {
    cuda::check(api.synchronize_stream(device_.index, on), "wait for the graph");
  }
}

bool Method::is_graph() const noexcept { return state_->graph.has_value(); }

void Method::record_graph() {
  const std::string refusal = "Method '" + spec_.name + "' cannot run as a CUDA graph: ";
  const std::string advice = ". Load it without cuda_graph=True";
  const auto refuse = [&](const std::string& why) {
    throw Error(Kind::Argument, Code::NotSupported, refusal + why + advice);
  };
  if (program_->trace()) refuse("the program was loaded with enable_etdump=True");
  const Device device = graph_device(spec_, refuse);

  State& state = *state_;
  size_t largest = 0;  // of the device tensors that go through ports
  const auto give_place = [&](auto& slot, const std::string& what) {
    const TensorSpec& spec = *slot.spec;
    if (slot.planned == nullptr) {
      state.fixed.push_back({spec.device.is_cpu()
                                 ? cuda::allocate_pinned(spec.nbytes, what)
                                 : cuda::allocate(spec.device, spec.nbytes, nullptr, what),
                             spec.nbytes});
      slot.planned = state.fixed.back().memory.get();
      slot.impl->set_data(slot.planned);
    }
    if (!spec.device.is_cpu()) largest = std::max<size_t>(largest, spec.nbytes);
  };
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    if (state.inputs[i].spec == nullptr) continue;
    give_place(state.inputs[i], input_name(i));
    state.inputs[i].placement.direct = false;
  }
  for (OutputSlot& slot : state.outputs) {
    if (slot.spec == nullptr) continue;
    if (slot.unplanned) give_place(slot, "An output of method '" + spec_.name + "'");
    if (!slot.spec->device.is_cpu()) largest = std::max<size_t>(largest, slot.spec->nbytes);
    slot.direct = slot.unplanned = false;
  }

  // The other end of the ports until a run gives them one.
  const auto other = cuda::allocate(device, largest, nullptr, "A CUDA graph");
  cuda::synchronize(device);  // weights and state are there, and the memory above may be used

  // The first recording loads the kernels and shows where the models' outputs come from; only in
  // the second one they are written where they should be.
  for (int pass = 0; pass < 2; ++pass) {
    try {
      state.graph.reset();
      DeviceGraph& graph = state.graph.emplace(device);
      for (InputSlot& slot : state.inputs) {
        if (slot.spec == nullptr || slot.spec->device.is_cpu() || slot.spec->nbytes == 0) continue;
        slot.port = graph.input_port(slot.planned, other.get(), slot.spec->nbytes);
      }
      execute();
      for (OutputSlot& slot : state.outputs) {
        if (slot.spec == nullptr || slot.spec->device.is_cpu() || slot.spec->nbytes == 0) continue;
        slot.port = graph.output_port(other.get(), slot.impl->data(), slot.spec->nbytes);
      }
      graph.end();
    } catch (const Error& error) {
      if (error.kind == Kind::Memory) throw;
      throw Error(Kind::Argument, error.code, refusal + reason_of(error) + advice, error.reasons);
    }
  }
}

}  // namespace pteron

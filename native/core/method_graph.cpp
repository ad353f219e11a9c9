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

constexpr size_t kStep = 256;  // bytes, to which device memory is aligned

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

DeviceGraph::DeviceGraph(Device device, DeviceGraph* earlier) : device_(device) {
  cuda::check(cuda::api().shared_stream(device.index, &own_stream_), "use a stream");
  cuda::check(cuda::api().graph_begin(device.index, earlier ? earlier->graph_ : nullptr, &graph_),
              "record");
}

DeviceGraph::~DeviceGraph() {
  const PteronCudaApi& api = *cuda::loaded();
  if (last_use_) api.event_synchronize(device_.index, last_use_.get());
  api.graph_destroy(graph_);
}

size_t DeviceGraph::port(void* inner, void* outer, size_t nbytes, bool input, bool alone) {
  size_t port = 0;
  cuda::check(cuda::api().graph_port(graph_, input ? inner : outer, input ? outer : inner, nbytes,
                                     input, alone, &port),
              input ? "record an input" : "record an output");
  return port;
}

void DeviceGraph::end(const DeviceGraph* earlier) {
  int32_t copies_host = 0;
  cuda::check(cuda::api().graph_end(graph_, earlier ? earlier->graph_ : nullptr, &copies_host),
              "record");
  copies_host_ = copies_host != 0;
}

bool DeviceGraph::connect(size_t port, const void* outer) {
  int32_t copies = 0;
  cuda::check(cuda::api().graph_connect(graph_, port, outer, &copies),
              "pass a tensor to the graph");
  return copies != 0;
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

void DeviceGraph::record_last_use(const Method::Stream& stream) {
  if (copies_host_) return;  // launch() has waited
  last_use_ = cuda::record(device_, stream.given ? stream.handle : own_stream_);
}

bool Method::is_graph() const noexcept { return state_->graph != nullptr; }

void Method::record_graph() {
  const std::string refusal = "Method '" + spec_.name + "' cannot run as a CUDA graph: ";
  const std::string advice = ". Load it without cuda_graph=True";
  const auto refuse = [&](const std::string& why) {
    throw Error(Kind::Argument, Code::NotSupported, refusal + why + advice);
  };
  if (program_->trace()) refuse("the program was loaded with enable_etdump=True");
  const Device device = graph_device(spec_, refuse);

  State& state = *state_;
  struct Tensor {
    const TensorSpec* spec;
    executorch::runtime::etensor::TensorImpl* impl;
    void** planned;
    size_t* port;
    bool unplanned;
    std::string what;
    bool alone = false;  // unplanned, on the device, and nobody else's: its place may change

    bool goes_through_port() const { return !spec->device.is_cpu() && spec->nbytes > 0; }
  };
  std::vector<Tensor> tensors;  // inputs, then outputs
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    InputSlot& slot = state.inputs[i];
    if (slot.spec == nullptr) continue;
    tensors.push_back(
        {slot.spec, slot.impl, &slot.planned, &slot.port, slot.planned == nullptr, input_name(i)});
    slot.placement.direct = false;
  }
  const size_t num_inputs = tensors.size();
  for (OutputSlot& slot : state.outputs) {
    if (slot.spec == nullptr) continue;
    tensors.push_back(
        {slot.spec, slot.impl, &slot.planned, &slot.port, slot.unplanned, output_text()});
    slot.direct = slot.unplanned = false;
  }
  // `spare` bytes are left free in front.
  const auto give_place = [&](const Tensor& tensor, size_t spare) {
    const size_t nbytes = spare + tensor.spec->nbytes;
    const Device& where = tensor.spec->device;
    state.fixed.push_back({where.is_cpu() ? cuda::allocate_pinned(nbytes, tensor.what)
                                          : cuda::allocate(where, nbytes, nullptr, tensor.what),
                           nbytes});
    *tensor.planned = static_cast<std::byte*>(state.fixed.back().memory.get()) + spare;
    tensor.impl->set_data(*tensor.planned);
  };
  size_t largest = 0;
  for (Tensor& tensor : tensors) {
    const auto users = std::count_if(tensors.begin(), tensors.end(), [&](const Tensor& other) {
      return other.impl == tensor.impl;
    });
    tensor.alone = tensor.unplanned && tensor.goes_through_port() && users == 1;
    if (tensor.unplanned && !tensor.alone) give_place(tensor, 0);
    largest = std::max<size_t>(largest, tensor.spec->nbytes);
  }

  // Three recordings: one that loads the kernels and shows where the models' outputs come from, so
  // that in the others they are written where they should be; and two with the tensors that are
  // alone in different places, which tells where their addresses go.
  const auto caller = cuda::allocate(device, largest, nullptr, "A CUDA graph");
  const size_t fixed_before = state.fixed.size();
  std::unique_ptr<DeviceGraph> earlier;
  std::vector<State::Fixed> places;  // of the earlier recording
  for (int pass = 0; pass < 3; ++pass) {
    places.assign(state.fixed.begin() + static_cast<std::ptrdiff_t>(fixed_before),
                  state.fixed.end());
    state.fixed.resize(fixed_before);
    // Each moves by another distance than the others, which is what tells their addresses apart.
    size_t spare = 0;
    for (const Tensor& tensor : tensors) {
      if (tensor.alone) give_place(tensor, pass == 2 ? spare += kStep : 0);
    }
    cuda::synchronize(device);  // weights and state are there, and this memory may be used
    try {
      auto graph = std::make_unique<DeviceGraph>(device, earlier.get());
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (i == num_inputs) execute();
        const Tensor& tensor = tensors[i];
        if (!tensor.goes_through_port()) continue;
        *tensor.port = graph->port(tensor.impl->mutable_data(), caller.get(), tensor.spec->nbytes,
                                   i < num_inputs, tensor.alone);
      }
      if (tensors.size() == num_inputs) execute();
      graph->end(pass == 2 ? earlier.get() : nullptr);
      earlier = std::move(graph);
    } catch (const Error& error) {
      if (error.kind == Kind::Memory) throw;
      throw Error(Kind::Argument, error.code, refusal + reason_of(error) + advice, error.reasons);
    }
  }
  state.graph = std::move(earlier);
}

}  // namespace pteron

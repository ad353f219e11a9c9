// Inputs and outputs in device memory, and what a run waits for.
//
// By default a run waits for every device that holds one of its tensors, before and after: whatever
// stream the caller used, nothing is read too early or written too late. With a stream of the
// caller's, the program runs on it and nothing waits on the host; results carry an event.
#include <bit>

#include "cuda_library.h"
#include "method.h"
#include "method_state.h"
#include "planned_memory.h"

namespace rt = executorch::runtime;
using rt::etensor::TensorImpl;

namespace pteron {

// Puts the program's work on the caller's stream for as long as it lives.
Method::DeviceTurn::DeviceTurn(Method& method, std::span<const InputValue> inputs)
    : method_(method), stream_(method.stream_) {
  if (!method.on_device_ || cuda::loaded() == nullptr) return;
  const auto add = [&](Device device) {
    if (!device.is_cpu()) devices_ |= uint64_t{1} << (device.index & 63);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& view = inputs[i].tensor;
    bool empty = inputs[i].kind != ValueKind::Tensor;
    for (int d = 0; d < view.ndim; ++d) empty = empty || view.shape[d] == 0;
    if (!empty) add(view.device);
  }
  for (const OutputSlot& slot : method.state_->outputs) {
    if (slot.spec != nullptr && slot.spec->nbytes > 0) add(slot.spec->device);
  }
  if (!stream_.given) {
    wait();
    return;
  }
  for_each([&](Device device) {
    cuda::check(cuda::api().set_caller_stream(device.index, stream_.handle), "use the stream");
  });
}

Method::DeviceTurn::~DeviceTurn() {
  for_each([&](Device device) {
    if (stream_.given) cuda::loaded()->clear_caller_stream(device.index);
    // What a failed run has started may still read the inputs, which their owner takes back now.
    if (!finished_) cuda::loaded()->synchronize_device(device.index);
  });
}

template <typename Work>
void Method::DeviceTurn::for_each(Work work) const {
  for (uint64_t left = devices_; left != 0; left &= left - 1) {
    work(Device{DeviceType::Cuda, static_cast<int8_t>(std::countr_zero(left))});
  }
}

void Method::DeviceTurn::wait() const {
  for_each([](Device device) { cuda::synchronize(device); });
}

void Method::DeviceTurn::finish(std::span<OutputValue> results) {
  DeviceGraph* graph = method_.state_->graph.get();
  if (devices_ == 0) {
    if (graph) graph->record_last_use(stream_);
    return;
  }
  if (!stream_.given) {
    wait();
    if (graph) graph->set_last_use(nullptr);
    finished_ = true;
    return;
  }
  std::shared_ptr<void> event;  // one for all results of a device
  Device of;
  for (OutputValue& result : results) {
    if (!result.tensor || result.tensor->device.is_cpu()) continue;
    if (event == nullptr || !(of == result.tensor->device)) {
      of = result.tensor->device;
      event = cuda::record(of, stream_.handle);
    }
    result.tensor->ready = event;
    result.tensor->stream = stream_.handle;
  }
  if (graph) graph->set_last_use(event ? event : cuda::record(graph->device(), stream_.handle));
  finished_ = true;
}

// A stream is one device's. Only the default streams are there on each.
void Method::check_stream(const Stream& stream) const {
  if (!stream.given || reinterpret_cast<uintptr_t>(stream.handle) <= kPteronCudaPerThread) return;
  const Device* first = nullptr;
  const auto refuse = [&](const std::string& why) {
    throw Error(Kind::Argument, Code::InvalidArgument,
                "stream " + why + ", " + code_text(Code::InvalidArgument));
  };
  const auto look_at = [&](const TensorSpec* spec) {
    if (spec == nullptr || spec->device.is_cpu()) return;
    if (first == nullptr) first = &spec->device;
    if (*first == spec->device) return;
    refuse("belongs to one device, and method '" + spec_.name + "' works on " + to_string(*first) +
           " and on " + to_string(spec->device) + ": only the default streams, 0 and 2, will do");
  };
  for (const InputSlot& slot : state_->inputs) look_at(slot.spec);
  for (const OutputSlot& slot : state_->outputs) look_at(slot.spec);
  const Device graph = state_->graph ? state_->graph->device() : Device{};
  if (first == nullptr && state_->graph) first = &graph;
  if (first == nullptr) return;
  int32_t device = 0;
  cuda::check(cuda::api().stream_device(first->index, stream.handle, &device), "use the stream");
  if (device != first->index) {
    refuse("is a stream of " + to_string({DeviceType::Cuda, static_cast<int8_t>(device)}) +
           ", and method '" + spec_.name + "' works on " + to_string(*first));
  }
}

void Method::install_on_device(size_t i, const TensorView& view, size_t nbytes) {
  InputSlot& slot = state_->inputs[i];
  slot.copied = slot.planned != nullptr;
  if (slot.port != DeviceGraph::kNoPort) {
    slot.copied = state_->graph->connect(slot.port, view.data);
    return;
  }
  if (slot.planned == nullptr) {
    slot.impl->set_data(view.data);
    return;
  }
  // The runtime would copy with memcpy: planned memory of a device is filled here.
  slot.impl->set_data(slot.planned);
  cuda::copy(slot.spec->device, kPteronCudaDeviceToDevice, slot.planned, view.data, nbytes,
             stream_.handle);
}

}  // namespace pteron

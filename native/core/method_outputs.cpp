// From the runtime's values to results.
#include <cstring>

#include "cuda_library.h"
#include "error.h"
#include "method.h"
#include "method_state.h"

namespace rt = executorch::runtime;
using rt::etensor::TensorImpl;

namespace pteron {
namespace {

// Where a tensor is: where the program file says, since exporters up to 1.3 marked tensors as
// CUDA's that they planned on the host.
Device device_of(const TensorSpec* spec, const TensorImpl& tensor) {
  if (spec != nullptr) return spec->device;
  return {static_cast<DeviceType>(tensor.device_type()), tensor.device_index()};
}

void set_shape(TensorBlock& block, const TensorImpl& tensor, Device device) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    block.shape[i] = sizes[i];
    block.strides[i] = strides[i];
  }
  block.nbytes = tensor.nbytes();
  block.device = device;
}

TensorRef copy_of(const TensorImpl& tensor, Device device, void* stream) {
  const size_t nbytes = tensor.nbytes();
  const auto ndim = static_cast<int>(tensor.dim());
  const auto dtype = static_cast<DType>(tensor.scalar_type());
  if (!device.is_cpu()) {
    TensorRef copy = cuda::new_block(device, ndim, dtype, nbytes, stream, "An output");
    cuda::copy(device, kPteronCudaDeviceToDevice, copy->data, tensor.data(), nbytes, stream);
    set_shape(*copy.get(), tensor, device);
    return copy;
  }
  TensorRef copy(TensorBlock::allocate(ndim, dtype, nbytes));
  if (!copy) return copy;
  if (nbytes > 0) std::memcpy(copy->data, tensor.data(), nbytes);
  set_shape(*copy.get(), tensor, device);
  return copy;
}

}  // namespace

// An output that is also an input without planned memory lies in the memory of the caller, which
// may be gone when outputs() is asked, or before a borrowed result is. One that is shared state may
// have been changed by another method.
void Method::rescue_outputs() {
  for (size_t j = 0; j < state_->outputs.size(); ++j) {
    const rt::EValue& value = state_->method->get_output(j);
    if (!value.isTensor()) continue;
    const TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
    const auto* data = static_cast<const std::byte*>(tensor.data());
    bool rescue = false;
    for (uint32_t i = 1; i < spec_.buffers.size(); ++i) {
      const auto& span = state_->spans[i - 1];
      const auto* first = reinterpret_cast<const std::byte*>(span.data());
      if (spec_.buffers[i].shared && data >= first && data < first + span.size()) rescue = true;
    }
    for (const InputSlot& slot : state_->inputs) {
      if (slot.spec == nullptr || slot.planned != nullptr || slot.copied) continue;
      const auto* first = static_cast<const std::byte*>(slot.impl->data());
      if (data >= first && data < first + slot.impl->nbytes()) rescue = true;
    }
    if (!rescue) continue;
    OutputSlot& slot = state_->outputs[j];
    slot.rescued = copy_of(tensor, device_of(slot.spec, tensor), stream_.handle);
    if (!slot.rescued) no_output_memory(j, tensor.nbytes());
  }
}

void Method::collect(bool clone, std::span<OutputValue> results) {
  for (size_t j = 0; j < results.size(); ++j) {
    OutputValue& result = results[j];
    const rt::EValue& value = state_->method->get_output(j);
    switch (value.tag) {
      case rt::Tag::None:
        result.kind = ValueKind::None;
        continue;
      case rt::Tag::Int:
        result.kind = ValueKind::Int;
        result.int_value = value.toInt();
        continue;
      case rt::Tag::Bool:
        result.kind = ValueKind::Bool;
        result.int_value = value.toBool();
        continue;
      case rt::Tag::Double:
        result.kind = ValueKind::Double;
        result.double_value = value.toDouble();
        continue;
      case rt::Tag::String: {
        const auto text = value.toString();
        result.kind = ValueKind::String;
        result.string_value.assign(text.data(), text.size());
        continue;
      }
      case rt::Tag::Tensor:
        break;
      default:
        throw Error(Kind::Execution, Code::NotSupported,
                    "Output " + std::to_string(j) + " of method '" + spec_.name +
                        "' is a list, which cannot be returned");
    }
    result.kind = ValueKind::Tensor;
    const TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
    OutputSlot& slot = state_->outputs[j];
    const bool in_block = slot.block && &tensor == slot.impl;
    // A block that the method must keep for outputs() can be given away only as a copy.
    if (in_block && !(clone && has_outputs_)) {
      result.tensor = slot.block;
      if (clone) slot.block = TensorRef();
      set_shape(*result.tensor.get(), tensor, device_of(slot.spec, tensor));
      continue;
    }
    if (slot.rescued) {
      const TensorView view = view_of(*slot.rescued.get());
      result.tensor = !clone                 ? slot.rescued
                      : view.device.is_cpu() ? pteron::copy_of(view)
                                             : cuda::copy_of(view, stream_.handle);
    } else if (clone) {
      result.tensor = copy_of(tensor, device_of(slot.spec, tensor), stream_.handle);
    } else {
      result.tensor = borrow(tensor, slot.spec);
    }
    if (!result.tensor) no_output_memory(j, tensor.nbytes());
  }
}

// A view of memory that is the method's or the program's; of what the run left there.
TensorRef Method::borrow(const TensorImpl& tensor, const TensorSpec* spec) {
  TensorRef view(TensorBlock::borrow(static_cast<int>(tensor.dim()),
                                     static_cast<DType>(tensor.scalar_type()),
                                     tensor.mutable_data(), tensor.nbytes(), shared_from_this()));
  if (!view) return view;
  set_shape(*view.get(), tensor, device_of(spec, tensor));
  view->generation = &generation_;
  view->written_in = generation_.load(std::memory_order_relaxed);
  // Anything else is a constant or a view of one, which may be in read-only pages.
  view->readonly = view->device.is_cpu() && view->nbytes > 0 && !in_own_memory(view->data);
  return view;
}

void Method::no_output_memory(size_t output, size_t nbytes) const {
  throw Error(Kind::Memory, Code::MemoryAllocationFailed,
              "No memory for output " + std::to_string(output) + " of method '" + spec_.name +
                  "': " + std::to_string(nbytes) + " bytes");
}

TensorRef Method::attribute(const std::string& name) {
  Exclusive hold(*this);
  const TensorSpec* spec = nullptr;
  for (uint32_t index : spec_.attributes) {
    if (spec_.values[index].tensor.name == name) spec = &spec_.values[index].tensor;
  }
  auto found = state_->method->get_attribute(name);
  if (spec == nullptr || !found.ok()) {
    std::string known;
    for (uint32_t index : spec_.attributes) {
      known += (known.empty() ? "'" : ", '") + spec_.values[index].tensor.name + "'";
    }
    fail(Kind::AttributeNotFound, static_cast<uint32_t>(Code::NotFound),
         "find attribute '" + name + "' of method '" + spec_.name + "', which has " +
             (known.empty() ? "no named attributes" : known));
  }
  const TensorImpl& tensor = *found->unsafeGetTensorImpl();
  TensorRef view(TensorBlock::borrow(static_cast<int>(tensor.dim()), spec->dtype,
                                     tensor.mutable_data(), tensor.nbytes(), shared_from_this()));
  if (!view) throw std::bad_alloc();
  set_shape(*view.get(), tensor, device_of(spec, tensor));
  view->readonly = !spec->planned;  // state lives in planned memory, constants do not
  return view;
}

}  // namespace pteron

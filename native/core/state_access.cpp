// The mutable buffers of a method from outside: views, copies, writing and resetting them.
#include <cstring>

#include "error.h"
#include "method.h"
#include "method_state.h"
#include "program.h"
#include "strided_copy.h"

namespace pteron {
namespace {

// Strides in elements of a packed tensor whose axes lie in memory in the order `dim_order`.
void set_layout(TensorBlock& block, const TensorSpec& tensor) {
  int64_t step = 1;
  for (size_t i = tensor.dim_order.size(); i-- > 0;) {
    const size_t axis = tensor.dim_order[i];
    block.shape[axis] = tensor.sizes[axis];
    block.strides[axis] = step;
    step *= tensor.sizes[axis];
  }
}

// Fills a packed block with a value of its shape and dtype, or with its plain bytes.
void copy_into(TensorBlock& packed, const TensorView& value) {
  if (packed.nbytes == 0) return;
  if (value.raw) {
    std::memcpy(packed.data, value.data, packed.nbytes);
    return;
  }
  const auto width = static_cast<int64_t>(itemsize(packed.dtype));
  int64_t to[kMaxRank];
  int64_t from[kMaxRank];
  int64_t step = width;
  for (int i = packed.ndim; i-- > 0;) {
    to[i] = packed.strides[i] * width;
    from[i] = value.strides ? value.strides[i] * value.stride_unit : step;
    step *= packed.shape[i];
  }
  strided_copy(packed.data, to, value.data, from, packed.shape, packed.ndim,
               static_cast<size_t>(width));
}

}  // namespace

std::string Method::state_name(size_t i) const {
  return "State '" + spec_.state[i].name + "' of method '" + spec_.name + "'";
}

const TensorSpec& Method::state_tensor(size_t i) const {
  return spec_.values[spec_.state[i].value].tensor;
}

void* Method::state_data(size_t i) const {
  const TensorSpec& tensor = state_tensor(i);
  return state_->spans[tensor.memory_id - 1].data() + tensor.offset;
}

TensorRef Method::state_view(size_t i) {
  const TensorSpec& tensor = state_tensor(i);
  TensorRef view(TensorBlock::borrow(static_cast<int>(tensor.sizes.size()), tensor.dtype,
                                     state_data(i), tensor.nbytes, shared_from_this()));
  if (!view) throw std::bad_alloc();
  set_layout(*view.get(), tensor);
  view->device = spec_.buffers[tensor.memory_id].device;
  return view;
}

std::vector<TensorRef> Method::copy_state() {
  std::vector<TensorRef> copies;
  Exclusive hold(*this);
  for (size_t i = 0; i < spec_.state.size(); ++i) {
    const TensorSpec& tensor = state_tensor(i);
    TensorRef copy(
        TensorBlock::allocate(static_cast<int>(tensor.sizes.size()), tensor.dtype, tensor.nbytes));
    if (!copy) no_memory("A copy of " + state_name(i), tensor.nbytes);
    set_layout(*copy.get(), tensor);
    read_planned(spec_.buffers[tensor.memory_id].device, copy->data, state_data(i), tensor.nbytes);
    copies.push_back(std::move(copy));
  }
  return copies;
}

void Method::write_state(std::span<const StateWrite> writes) {
  for (const auto& [i, value] : writes) check_state(i, value);
  Exclusive hold(*this);
  for (const auto& [i, value] : writes) {
    const TensorSpec& tensor = state_tensor(i);
    // Packed first: the value may be a view of the very memory that it goes to.
    TensorRef packed(
        TensorBlock::allocate(static_cast<int>(tensor.sizes.size()), tensor.dtype, tensor.nbytes));
    if (!packed) no_memory("A copy of " + state_name(i), tensor.nbytes);
    set_layout(*packed.get(), tensor);
    copy_into(*packed.get(), value);
    write_planned(spec_.buffers[tensor.memory_id].device, state_data(i), packed->data,
                  tensor.nbytes);
  }
}

void Method::reset_state(std::span<const size_t> indices) {
  Exclusive hold(*this);
  for (const size_t i : indices) {
    const TensorSpec& tensor = state_tensor(i);
    const Device& device = spec_.buffers[tensor.memory_id].device;
    if (device.is_cpu()) {
      if (tensor.nbytes != 0) std::memset(state_data(i), 0, tensor.nbytes);
      program_->load_initial(spec_.state[i], state_data(i));
      continue;
    }
    std::vector<std::byte> start(tensor.nbytes);
    program_->load_initial(spec_.state[i], start.data());
    write_planned(device, state_data(i), start.data(), start.size());
  }
}

}  // namespace pteron

#include "tensor_reader.h"

#include <algorithm>
#include <string>

#include "program_schema.h"

namespace pteron {
namespace {

using flatbuffer::Place;
using flatbuffer::Table;

constexpr uint32_t kMaxRank = 16;

void read_shape(const Table& table, TensorSpec& tensor, const Place& place) {
  const auto dtype = table.get<int8_t>(schema::tensor::scalar_type);
  if (!is_dtype(dtype)) place.fail("it has the unknown dtype number " + std::to_string(dtype));
  tensor.dtype = static_cast<DType>(dtype);
  if (table.get<int32_t>(schema::tensor::storage_offset) != 0) {
    place.fail("it has a storage offset, which the runtime does not support");
  }
  const auto dynamism = table.get<int8_t>(schema::tensor::shape_dynamism);
  if (dynamism == static_cast<int8_t>(Dynamism::DynamicUnbound)) {
    place.fail("its shape has no upper bound, which the runtime does not support");
  }
  if (dynamism < 0 || dynamism > static_cast<int8_t>(Dynamism::DynamicUnbound)) {
    place.fail("its shape is of unknown kind " + std::to_string(dynamism));
  }
  tensor.dynamism = static_cast<Dynamism>(dynamism);

  const auto sizes = table.vector<int32_t>(schema::tensor::sizes);
  const auto order = table.vector<uint8_t>(schema::tensor::dim_order);
  if (!sizes.present() || !order.present()) place.fail("its shape or dim order is missing");
  if (sizes.size() > kMaxRank) {
    place.fail("it has " + std::to_string(sizes.size()) + " axes, and the runtime's limit is 16");
  }
  if (order.size() != sizes.size()) {
    place.fail("its dim order names " + std::to_string(order.size()) + " axes of " +
               std::to_string(sizes.size()));
  }
  tensor.sizes.reserve(sizes.size());
  tensor.dim_order.reserve(sizes.size());
  uint32_t seen = 0;
  // Strides count an axis of size 0 as 1, so they can overflow where the size does not.
  uint64_t span = itemsize(tensor.dtype);
  bool empty = false;
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    const int32_t size = sizes[i];
    if (size < 0) {
      place.fail("axis " + std::to_string(i) + " has the negative size " + std::to_string(size));
    }
    if (order[i] >= sizes.size() || (seen >> order[i] & 1) != 0) {
      place.fail("its dim order is not a permutation of its axes");
    }
    seen |= 1u << order[i];
    tensor.sizes.push_back(size);
    tensor.dim_order.push_back(order[i]);
    empty = empty || size == 0;
    if (__builtin_mul_overflow(span, static_cast<uint64_t>(std::max(size, 1)), &span) ||
        span > INT64_MAX) {
      place.fail("its size overflows");
    }
  }
  tensor.nbytes = empty ? 0 : static_cast<size_t>(span);
}

// Kernels are compiled for elements at multiples of their size.
void check_aligned(uint64_t at, const TensorSpec& tensor, const Place& place) {
  if (at % std::min<size_t>(itemsize(tensor.dtype), 8) != 0) {
    place.fail("it begins at byte " + std::to_string(at) + ", which is no place for " +
               info(tensor.dtype).name);
  }
}

void read_plan(const Table& allocation, const std::vector<PlannedBuffer>& buffers,
               TensorSpec& tensor, const Place& place) {
  tensor.planned = true;
  tensor.memory_id = allocation.get<uint32_t>(schema::allocation::memory_id);
  tensor.offset = allocation.get<uint32_t>(schema::allocation::offset_low) |
                  uint64_t{allocation.get<uint32_t>(schema::allocation::offset_high)} << 32;
  if (tensor.memory_id == 0 || tensor.memory_id >= buffers.size()) {
    place.fail("it is planned in buffer " + std::to_string(tensor.memory_id) +
               ", but there are buffers 1 to " + std::to_string(buffers.size() - 1));
  }
  check_aligned(tensor.offset, tensor, place);
  const PlannedBuffer& buffer = buffers[tensor.memory_id];
  if (tensor.offset > buffer.declared || tensor.nbytes > buffer.declared - tensor.offset) {
    place.fail("its " + std::to_string(tensor.nbytes) + " bytes at byte " +
               std::to_string(tensor.offset) + " do not fit into planned buffer " +
               std::to_string(tensor.memory_id) + " of " + std::to_string(buffer.declared) +
               " bytes");
  }
  if (tensor.device.is_cpu() && !buffer.device.is_cpu()) {
    place.fail("it is a host tensor in the planned memory of a device");
  }
  // Exporters up to 1.3 marked tensors as a device's that they planned on the host.
  tensor.device = buffer.device;
}

void check_data(const Subsegments& segment, uint32_t index, const TensorSpec& tensor,
                const char* what, const Place& place) {
  if (index >= segment.offsets.size()) {
    place.fail(std::string("its ") + what + " has number " + std::to_string(index) + " of " +
               std::to_string(segment.offsets.size()));
  }
  const uint64_t offset = segment.offsets[index];
  if (offset > segment.nbytes || tensor.nbytes > segment.nbytes - offset) {
    place.fail(std::string("its ") + what + " (" + std::to_string(tensor.nbytes) +
               " bytes) reaches past the end of its segment");
  }
}

void check_constant(const ProgramData& data, uint32_t index, const TensorSpec& tensor,
                    const Place& place) {
  if (data.constants.offsets.size() > 1) {
    check_data(data.constants, index, tensor, "constant", place);
    return check_aligned(data.constants.offsets[index], tensor, place);
  }
  if (index >= data.constant_buffers.size()) {
    place.fail("its constant has number " + std::to_string(index) + " of " +
               std::to_string(data.constant_buffers.size()));
  }
  const Table table = data.program.element(data.constant_buffers, index);
  const auto bytes = table.unvisited<uint8_t>(schema::buffer::bytes);
  if (bytes.size() < tensor.nbytes) {
    place.fail("its constant is shorter than its " + std::to_string(tensor.nbytes) + " bytes");
  }
  if (tensor.nbytes != 0) check_aligned(bytes.start(), tensor, place);
}

}  // namespace

Device read_device(int8_t type, int8_t index, const Place& place) {
  if (type != static_cast<int8_t>(DeviceType::Cpu) &&
      type != static_cast<int8_t>(DeviceType::Cuda)) {
    place.fail("it is on a device of unknown type " + std::to_string(type));
  }
  if (index < 0) place.fail("its device index is negative (" + std::to_string(index) + ")");
  return {static_cast<DeviceType>(type), index};
}

TensorSpec read_tensor(const Table& table, const ProgramData& data,
                       const std::vector<PlannedBuffer>& buffers, const Place& place) {
  TensorSpec tensor;
  read_shape(table, tensor, place);

  uint64_t initial = 0;  // the mutable data segment
  const Table extra = table.table(schema::tensor::extra);
  if (extra.present()) {
    initial = extra.get<uint64_t>(schema::extra::mutable_segment);
    tensor.name = extra.string(schema::extra::name);
    if (tensor.name.find('\0') != std::string::npos) place.fail("its name holds a zero byte");
    const auto location = extra.get<int8_t>(schema::extra::location);
    if (location != 0 && location != 1) {
      place.fail("its data is at unknown location " + std::to_string(location));
    }
    tensor.external = location == 1;
    tensor.device = read_device(extra.get<int8_t>(schema::extra::device_type),
                                extra.get<int8_t>(schema::extra::device_index), place);
  }

  const Table allocation = table.table(schema::tensor::allocation_info);
  if (allocation.present()) read_plan(allocation, buffers, tensor, place);
  const auto data_index = table.get<uint32_t>(schema::tensor::data_buffer_idx);
  if (tensor.external) {
    if (tensor.name.empty()) place.fail("its data is in a data file, but it has no name");
    tensor.initialized = tensor.planned;
  } else if (data_index != 0 && !tensor.planned) {
    tensor.constant = true;
    check_constant(data, data_index, tensor, place);
  } else if (data_index != 0) {
    tensor.initialized = true;
    if (initial >= data.initial.size()) {
      place.fail("its initial value is in mutable data segment " + std::to_string(initial) +
                 " of " + std::to_string(data.initial.size()));
    }
    check_data(data.initial[initial], data_index, tensor, "initial value", place);
    const Subsegments& segment = data.initial[initial];
    tensor.initial_offset = segment.start + segment.offsets[data_index];
  }
  return tensor;
}

}  // namespace pteron

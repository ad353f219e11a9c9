#include "method_reader.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "code_reader.h"
#include "mutable_state.h"
#include "placement.h"
#include "program_schema.h"
#include "tensor_reader.h"
#include "validate.h"
#include "xnnpack_payload.h"

namespace pteron {
namespace {

using flatbuffer::Place;
using flatbuffer::Table;
using flatbuffer::Vector;

constexpr size_t kMaxOperatorName = 100;

enum class Empty { Refused, Allowed };

// The runtime takes what comes before the first zero byte, which would be another name.
std::string read_name(const Table& table, flatbuffer::Field field, Empty empty,
                      const Place& place) {
  bool present = false;
  const std::string_view text = table.string(field, &present);
  if (!present || (text.empty() && empty == Empty::Refused)) {
    place.fail(std::string("its '") + field.name + "' is missing");
  }
  if (text.find('\0') != text.npos) {
    place.fail(std::string("its '") + field.name + "' holds a zero byte");
  }
  return std::string(text);
}

void read_buffers(const Table& plan, MethodSpec& method, Place& place) {
  const auto sizes = plan.required<int64_t>(schema::plan::non_const_buffer_sizes);
  if (sizes.size() == 0) place.fail("its 'non_const_buffer_sizes' is empty");
  method.buffers.resize(sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    place.at("planned buffer", i);
    if (sizes[i] < 0) place.fail("its size is negative (" + std::to_string(sizes[i]) + ")");
    method.buffers[i].declared = static_cast<uint64_t>(sizes[i]);
  }
  const auto devices = plan.vector<uint32_t>(schema::plan::non_const_buffer_device);
  std::vector<bool> seen(sizes.size());
  for (uint32_t i = 0; i < devices.size(); ++i) {
    place.at("device of a planned buffer, entry", i);
    const Table entry = plan.element(devices, i);
    const auto index = entry.get<int32_t>(schema::buffer_device::index);
    if (index < 0 || static_cast<size_t>(index) >= seen.size()) {
      place.fail("it is for buffer " + std::to_string(index) + " of " +
                 std::to_string(seen.size()));
    }
    const auto buffer = static_cast<size_t>(index);
    if (seen[buffer]) place.fail("buffer " + std::to_string(index) + " has two devices");
    seen[buffer] = true;
    method.buffers[buffer].device =
        read_device(entry.get<int8_t>(schema::buffer_device::type),
                    entry.get<int8_t>(schema::buffer_device::device), place);
  }
}

std::vector<int32_t> read_items(const Table& table) {
  const auto items = table.required<int32_t>(schema::list::items);
  std::vector<int32_t> result(items.size());
  for (uint32_t i = 0; i < items.size(); ++i) result[i] = items[i];
  return result;
}

// IntList holds int64, all of them indices of values.
std::vector<int32_t> read_int_items(const Table& table, size_t num_values, const Place& place) {
  const auto items = table.required<int64_t>(schema::list::items);
  std::vector<int32_t> result(items.size());
  for (uint32_t i = 0; i < items.size(); ++i) {
    const int64_t item = items[i];
    if (item < 0 || static_cast<uint64_t>(item) >= num_values) {
      place.fail("item " + std::to_string(i) + " is value " + std::to_string(item) +
                 ", but there are " + std::to_string(num_values) + " values");
    }
    result[i] = static_cast<int32_t>(item);
  }
  return result;
}

ValueSpec read_value(const Table& evalue, const ProgramData& data, const MethodSpec& method,
                     size_t num_values, const Place& place) {
  ValueSpec value;
  const auto type = evalue.get<uint8_t>(schema::evalue::type);
  if (type < static_cast<uint8_t>(ValueKind::None) ||
      type > static_cast<uint8_t>(ValueKind::OptionalTensorList)) {
    place.fail("it is of unknown kind " + std::to_string(type));
  }
  value.kind = static_cast<ValueKind>(type);
  const Table content = evalue.table(schema::evalue::val);
  if (value.kind == ValueKind::None) return value;
  if (!content.present()) place.fail(std::string("its ") + to_string(value.kind) + " is missing");
  switch (value.kind) {
    case ValueKind::None:
      break;
    case ValueKind::Int:
      value.int_value = content.get<int64_t>(schema::scalar::value);
      break;
    case ValueKind::Bool:
      value.int_value = content.get<uint8_t>(schema::scalar::value) != 0;
      break;
    case ValueKind::Double:
      value.double_value = content.get<double>(schema::scalar::value);
      break;
    case ValueKind::Tensor:
      value.tensor = read_tensor(content, data, method.buffers, place);
      break;
    case ValueKind::String: {
      bool present = false;
      value.string_value = content.string(schema::scalar::value, &present);
      if (!present) place.fail("its text is missing");
      break;
    }
    case ValueKind::IntList:
      value.items = read_int_items(content, num_values, place);
      break;
    case ValueKind::DoubleList:
      content.required<double>(schema::list::items);
      break;
    case ValueKind::BoolList:
      content.required<uint8_t>(schema::list::items);
      break;
    case ValueKind::TensorList:
    case ValueKind::OptionalTensorList:
      value.items = read_items(content);
      break;
  }
  return value;
}

void check_items(const MethodSpec& method, Place& place) {
  for (uint32_t i = 0; i < method.values.size(); ++i) {
    const ValueSpec& list = method.values[i];
    const bool ints = list.kind == ValueKind::IntList;
    place.at("value", i);
    for (const int32_t item : list.items) {
      if (item == -1 && list.kind == ValueKind::OptionalTensorList) continue;
      const uint32_t index = value_index(item, method, "an item of the list", place);
      const ValueKind kind = method.values[index].kind;
      if (kind == (ints ? ValueKind::Int : ValueKind::Tensor) ||
          (kind == ValueKind::None && list.kind == ValueKind::OptionalTensorList)) {
        // The runtime fills tensor lists while it goes through the values.
        if (ints || index < i) continue;
        place.fail("the list comes before its item, value " + std::to_string(index));
      }
      place.fail(std::string("a ") + to_string(list.kind) + " holds value " +
                 std::to_string(index) + ", which is of kind " + to_string(kind));
    }
  }
}

void read_values(const Table& plan, const ProgramData& data, MethodSpec& method, Place& place) {
  const auto evalues = plan.required<uint32_t>(schema::plan::values);
  method.values.reserve(std::min<size_t>(evalues.size(), data.program.buffer_size() / 24));
  for (uint32_t i = 0; i < evalues.size(); ++i) {
    place.at("value", i);
    method.values.push_back(
        read_value(plan.element(evalues, i), data, method, evalues.size(), place));
    const TensorSpec& tensor = method.values.back().tensor;
    if (!tensor.name.empty()) method.attributes.push_back(i);
    if (tensor.planned) {
      uint64_t& reachable = method.buffers[tensor.memory_id].reachable;
      reachable = std::max<uint64_t>(reachable, tensor.offset + tensor.nbytes);
    }
  }
  check_items(method, place);
}

std::vector<uint32_t> read_signature(const Table& plan, flatbuffer::Field field,
                                     const MethodSpec& method, const char* role, Place& place) {
  place.at_file();
  const auto indices = plan.required<int32_t>(field);
  std::vector<uint32_t> result(indices.size());
  for (uint32_t i = 0; i < indices.size(); ++i) {
    place.at(role, i);
    result[i] = value_index(indices[i], method, "it", place);
    const ValueKind kind = method.values[result[i]].kind;
    if (kind > ValueKind::String) {
      place.fail("it is value " + std::to_string(result[i]) + ", a " + to_string(kind) +
                 ", which cannot be passed");
    }
  }
  return result;
}

void check_inputs(const MethodSpec& method, Place& place) {
  std::vector<bool> seen(method.values.size());
  for (uint32_t i = 0; i < method.inputs.size(); ++i) {
    place.at("input", i);
    const uint32_t index = method.inputs[i];
    if (seen[index]) place.fail("value " + std::to_string(index) + " is an input twice");
    seen[index] = true;
    const TensorSpec& tensor = method.values[index].tensor;
    if (tensor.constant || tensor.external) place.fail("it is a constant");
  }
}

void read_operators(const Table& plan, MethodSpec& method, Place& place) {
  place.at_file();
  const auto tables = plan.required<uint32_t>(schema::plan::operators);
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("operator", i);
    const Table table = plan.element(tables, i);
    OperatorSpec op;
    op.name = read_name(table, schema::oper::name, Empty::Refused, place);
    // The runtime prints both when a kernel fails, and leaves the kernel of a longer name unset.
    op.overload = read_name(table, schema::oper::overload, Empty::Allowed, place);
    if (op.full_name().size() >= kMaxOperatorName) place.fail("its name is too long");
    method.operators.push_back(std::move(op));
  }
}

Segment read_payload(const Table& delegate, const ProgramData& data, const Place& place) {
  const Table processed = delegate.table(schema::delegate::processed);
  if (!processed.present()) place.fail("its 'processed' data is missing");
  const auto location = processed.get<int8_t>(schema::processed::location);
  const auto index = processed.get<uint32_t>(schema::processed::index);
  const bool inside = location == 0;
  const size_t count = inside ? data.payloads.size() : data.segments.size();
  if (location != 0 && location != 1) {
    place.fail("its data is at unknown location " + std::to_string(location));
  }
  if (index >= count) {
    place.fail("its data is in " + std::string(inside ? "blob " : "segment ") +
               std::to_string(index) + " of " + std::to_string(count));
  }
  if (!inside) return data.segments[index];
  const auto bytes =
      data.program.element(data.payloads, index).unvisited<uint8_t>(schema::buffer::bytes);
  if (!bytes.present()) place.fail("its data is missing");
  return {bytes.start(), bytes.size()};
}

DelegateArgs look_at_payload(const Segment& payload, ProgramData& data, const ReadAt& read) {
  const auto [entry, is_new] = data.known_payloads.try_emplace(payload.offset);
  if (is_new && payload.nbytes <= data.may_read) {
    entry->second = read_xnnpack_payload(payload.offset, payload.nbytes, read);
    data.may_read -= payload.nbytes;
  }
  return entry->second;
}

std::vector<DelegateArgs> read_delegates(const Table& plan, ProgramData& data, const ReadAt& read,
                                         MethodSpec& method, Place& place) {
  place.at_file();
  const auto tables = plan.required<uint32_t>(schema::plan::delegates);
  std::vector<DelegateArgs> result;
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("delegate", i);
    const Table table = plan.element(tables, i);
    DelegateSpec delegate;
    delegate.id = read_name(table, schema::delegate::id, Empty::Refused, place);
    const Segment payload = read_payload(table, data, place);
    delegate.offset = payload.offset;
    delegate.nbytes = payload.nbytes;
    const auto specs = table.required<uint32_t>(schema::delegate::compile_specs);
    for (uint32_t k = 0; k < specs.size(); ++k) {
      const Table spec = table.element(specs, k);
      bool has_key = false;
      spec.string(schema::compile_spec::key, &has_key);
      if (!has_key || !spec.unvisited<uint8_t>(schema::compile_spec::value).present()) {
        place.fail("compile spec " + std::to_string(k) + " has no key or no value");
      }
    }
    result.push_back(delegate.id == "XnnpackBackend" ? look_at_payload(payload, data, read)
                                                     : DelegateArgs{});
    method.delegates.push_back(std::move(delegate));
  }
  return result;
}

}  // namespace

MethodSpec read_method(const Table& plan, ProgramData& data, const ReadAt& read, Place& place) {
  MethodSpec method;
  method.name = read_name(plan, schema::plan::name, Empty::Refused, place);
  place.enter(method.name);
  place.at_file();
  const Table container = plan.table(schema::plan::container_meta_type);
  if (container.present()) {
    method.input_tree = container.string(schema::container::inputs);
    method.output_tree = container.string(schema::container::outputs);
  }
  read_buffers(plan, method, place);
  read_values(plan, data, method, place);
  method.inputs = read_signature(plan, schema::plan::inputs, method, "input", place);
  method.outputs = read_signature(plan, schema::plan::outputs, method, "output", place);
  check_inputs(method, place);
  read_operators(plan, method, place);
  std::vector<DelegateArgs> delegates = read_delegates(plan, data, read, method, place);
  MethodCode code = read_code(plan, method, place);
  code.delegates = std::move(delegates);
  validate(method, code, data.effort, place);
  pteron::place(method, code);
  find_state(method, code);
  return method;
}

}  // namespace pteron

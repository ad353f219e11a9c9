#include "program_file.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "flatbuffer.h"
#include "method_reader.h"
#include "mutable_state.h"
#include "program_head.h"
#include "program_schema.h"

namespace pteron {
namespace {

using flatbuffer::Buffer;
using flatbuffer::Place;
using flatbuffer::Table;

// Weights are used where they are, so they must lie where any element may.
constexpr uint64_t kSegmentAlignment = 8;

std::vector<Segment> read_segments(const Table& program, const ProgramHead& head,
                                   uint64_t file_size, Place& place) {
  const auto tables = program.vector<uint32_t>(schema::program::segments);
  std::vector<Segment> segments(tables.size());
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("segment", i);
    const Table table = program.element(tables, i);
    Segment& segment = segments[i];
    const auto offset = table.get<uint64_t>(schema::segment::offset);
    segment.nbytes = table.get<uint64_t>(schema::segment::size);
    // Programs without weights have an empty segment and no place for it.
    if (head.segment_base == 0 && segment.nbytes != 0) {
      place.fail("it has " + std::to_string(segment.nbytes) +
                 " bytes, but the file says that it has no segments");
    }
    const uint64_t room = file_size - head.segment_base;
    if (offset > room || segment.nbytes > room - offset) {
      place.fail("it lies beyond the end of the file (" + std::to_string(file_size) +
                 " bytes): the file is cut short or damaged");
    }
    segment.offset = head.segment_base + offset;
    if (segment.nbytes != 0 && segment.offset % kSegmentAlignment != 0) {
      place.fail("it begins at byte " + std::to_string(segment.offset) +
                 " of the file, not a multiple of 8");
    }
  }
  place.at_file();
  return segments;
}

const Segment& segment_at(const std::vector<Segment>& segments, uint64_t index, const char* whose,
                          const Place& place) {
  if (index >= segments.size()) {
    place.fail(std::string(whose) + " are in segment " + std::to_string(index) + " of " +
               std::to_string(segments.size()));
  }
  return segments[index];
}

// Constants are in one segment, or in the flatbuffer itself (exporters of 2023 and 2024).
void read_constants(const Table& program, ProgramData& data, Place& place) {
  data.constant_buffers = program.vector<uint32_t>(schema::program::constant_buffer);
  const Table table = program.table(schema::program::constant_segment);
  if (!table.present()) return;
  data.constants.offsets = table.vector<uint64_t>(schema::subsegment::offsets);
  // One entry stands for "no data": the segment is not used then.
  if (data.constants.offsets.size() <= 1) return;
  if (data.constant_buffers.size() != 0) {
    place.fail("it keeps constants both in a segment and in the program itself");
  }
  const auto index = table.get<uint32_t>(schema::subsegment::segment_index);
  data.constants.nbytes = segment_at(data.segments, index, "its constants", place).nbytes;
}

void read_mutable_segments(const Table& program, ProgramData& data, Place& place) {
  const auto tables = program.vector<uint32_t>(schema::program::mutable_data_segments);
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("mutable data segment", i);
    const Table table = program.element(tables, i);
    const auto index = table.get<uint32_t>(schema::subsegment::segment_index);
    const Segment& segment = segment_at(data.segments, index, "initial values", place);
    data.initial.push_back(
        {table.vector<uint64_t>(schema::subsegment::offsets), segment.nbytes, segment.offset});
  }
  place.at_file();
}

void read_named_data(const Table& program, const ProgramData& data, Place& place,
                     std::vector<NamedData>& result) {
  const auto tables = program.vector<uint32_t>(schema::program::named_data);
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("named data entry", i);
    const Table table = program.element(tables, i);
    const std::string_view key = table.string(schema::named_data::key);
    if (key.empty()) place.fail("it has no name");
    const auto index = table.get<uint32_t>(schema::named_data::segment_index);
    const Segment& segment = segment_at(data.segments, index, "its bytes", place);
    result.push_back({std::string(key), segment.nbytes});
  }
  place.at_file();
}

}  // namespace

const char* to_string(ValueKind kind) noexcept {
  switch (kind) {
    case ValueKind::None:
      return "None";
    case ValueKind::Int:
      return "int";
    case ValueKind::Bool:
      return "bool";
    case ValueKind::Double:
      return "float";
    case ValueKind::Tensor:
      return "tensor";
    case ValueKind::String:
      return "string";
    case ValueKind::IntList:
      return "list of ints";
    case ValueKind::DoubleList:
      return "list of floats";
    case ValueKind::BoolList:
      return "list of bools";
    case ValueKind::TensorList:
      return "list of tensors";
    case ValueKind::OptionalTensorList:
      return "list of optional tensors";
  }
  return "unknown value";
}

uint64_t ProgramFile::flatbuffer_size(std::span<const std::byte> head, uint64_t file_size,
                                      std::string_view what) {
  return read_head(head, file_size, Place(what)).program_size;
}

ProgramFile ProgramFile::parse(std::span<const std::byte> data, uint64_t file_size,
                               std::string_view what, const ReadAt& read) {
  constexpr uint32_t kSchemaVersion = 0;  // the newest that the runtime of this build reads
  Place place(what);
  const ProgramHead head = read_head(data, file_size, place);
  if (data.size() < head.program_size) place.fail("only a part of the program was read");
  data = data.first(static_cast<size_t>(head.program_size));

  Buffer buffer(data, place);
  const Table program(buffer, flatbuffer::follow(buffer, 0, "program"), "program");
  ProgramFile file;
  file.version = program.get<uint32_t>(schema::program::version);
  if (file.version > kSchemaVersion) {
    place.fail("it is of version " + std::to_string(file.version) +
               " of the format, newer than this pteron can read: use a newer pteron");
  }
  file.program_size = head.program_size;
  file.segment_base = head.segment_base;

  ProgramData inside;
  inside.program = program;
  inside.segments = read_segments(program, head, file_size, place);
  read_constants(program, inside, place);
  read_mutable_segments(program, inside, place);
  inside.may_read = 2 * file_size;
  inside.effort.left = 16 * uint64_t{data.size()} + (1u << 24);
  inside.payloads = program.vector<uint32_t>(schema::program::backend_delegate_data);
  read_named_data(program, inside, place, file.named_data);

  file.constant_nbytes = inside.constants.nbytes;
  for (uint32_t i = 0; i < inside.constant_buffers.size(); ++i) {
    place.at("constant", i);
    const Table table = program.element(inside.constant_buffers, i);
    file.constant_nbytes += table.unvisited<uint8_t>(schema::buffer::bytes).size();
  }
  place.at_file();

  const ReadAt read_any = [&](uint64_t offset, std::span<std::byte> into) {
    if (buffer.holds(offset, into.size())) {
      std::copy_n(data.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
      return true;
    }
    return read && read(offset, into);
  };
  const auto plans = program.vector<uint32_t>(schema::program::execution_plan);
  if (plans.size() == 0) place.fail("it has no methods");
  std::unordered_set<std::string> names;
  for (uint32_t i = 0; i < plans.size(); ++i) {
    place.at("method", i);
    file.methods.push_back(read_method(program.element(plans, i), inside, read_any, place));
    place.at_file();
    if (!names.insert(file.methods.back().name).second) {
      place.fail("two methods have the same name");
    }
    place.enter({});
  }
  share_state(file.methods);
  return file;
}

const MethodSpec* ProgramFile::find(std::string_view method) const noexcept {
  for (const MethodSpec& spec : methods) {
    if (spec.name == method) return &spec;
  }
  return nullptr;
}

}  // namespace pteron

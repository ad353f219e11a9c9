// Reads one method (an ExecutionPlan of program.fbs) and checks it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "flatbuffer.h"
#include "program_file.h"
#include "validate.h"

namespace pteron {

struct Segment {
  uint64_t offset = 0;  // from the start of the file
  uint64_t nbytes = 0;
};

// Offsets of tensors' data in a segment of `nbytes`.
struct Subsegments {
  flatbuffer::Vector<uint64_t> offsets;
  uint64_t nbytes = 0;
  uint64_t start = 0;  // of the segment in the file
};

// What the methods of a program refer to outside themselves.
struct ProgramData {
  flatbuffer::Table program;
  std::vector<Segment> segments;
  Subsegments constants;                          // used with more than one offset, else:
  flatbuffer::Vector<uint32_t> constant_buffers;  // tables of constants in the flatbuffer
  std::vector<Subsegments> initial;               // of mutable tensors
  flatbuffer::Vector<uint32_t> payloads;          // tables of delegates' data in the flatbuffer
  // Delegates of several methods may share a payload, which is looked at once, by its offset.
  std::unordered_map<uint64_t, DelegateArgs> known_payloads;
  uint64_t may_read = 0;  // bytes of payloads
  Effort effort;
};

// Throws Error{InvalidProgram}. `place` is left inside the method.
MethodSpec read_method(const flatbuffer::Table& plan, ProgramData& data, const ReadAt& read,
                       flatbuffer::Place& place);

}  // namespace pteron

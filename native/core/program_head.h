// The first bytes of a program file: the extended header, or what the file is instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flatbuffer.h"

namespace pteron {

inline constexpr size_t kHeadSize = 64;  // what the runtime wants to see before it looks further

struct ProgramHead {
  uint64_t program_size = 0;    // bytes of the flatbuffer; the whole file without extended header
  uint64_t segment_base = 0;    // 0: no segments
  uint64_t segment_nbytes = 0;  // 0: none, or an exporter that does not say
};

// `head` holds at least the first min(kHeadSize, file_size) bytes.
ProgramHead read_head(std::span<const std::byte> head, uint64_t file_size,
                      const flatbuffer::Place& place);

}  // namespace pteron

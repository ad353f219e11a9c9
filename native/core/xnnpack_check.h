// What XNNPACK takes on trust in a payload.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "flatbuffer.h"
#include "program_file.h"

namespace pteron {

// Bytes of the named data of that key, 0 if there is none.
using NamedSize = std::function<uint64_t(std::string_view key)>;

// Sees to it that weights, biases and scales are as long as what XNNPACK will read of them. Throws
// what `place` says. A payload that is no graph is left to XNNPACK, which refuses it.
void check_xnnpack_payload(uint64_t offset, uint64_t nbytes, const ReadAt& read,
                           const NamedSize& named, const flatbuffer::Place& place);

}  // namespace pteron

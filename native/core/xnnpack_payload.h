// What an XNNPACK delegate does to its arguments.
#pragma once

#include <cstdint>

#include "program_file.h"
#include "validate.h"

namespace pteron {

// Reads the graph in the payload at `offset` of the file. Nothing is known about a payload that
// cannot be read.
DelegateArgs read_xnnpack_payload(uint64_t offset, uint64_t nbytes, const ReadAt& read);

}  // namespace pteron

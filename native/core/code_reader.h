// Reads the instructions of a method.
#pragma once

#include <cstdint>

#include "flatbuffer.h"
#include "program_file.h"
#include "validate.h"

namespace pteron {

// `index` if the method has such a value; `role` says what it is for, in a message.
uint32_t value_index(int32_t index, const MethodSpec& method, const char* role,
                     const flatbuffer::Place& place);

// The method's values, operators and delegates have been read; their calls are counted here.
MethodCode read_code(const flatbuffer::Table& plan, MethodSpec& method, flatbuffer::Place& place);

}  // namespace pteron

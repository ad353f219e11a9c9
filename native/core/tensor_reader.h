// Reads one tensor of a program file: its shape, its type and where its bytes are.
#pragma once

#include <cstdint>
#include <vector>

#include "device.h"
#include "flatbuffer.h"
#include "method_reader.h"
#include "program_file.h"

namespace pteron {

Device read_device(int8_t type, int8_t index, const flatbuffer::Place& place);

TensorSpec read_tensor(const flatbuffer::Table& table, const ProgramData& data,
                       const std::vector<PlannedBuffer>& buffers, const flatbuffer::Place& place);

}  // namespace pteron

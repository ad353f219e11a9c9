// Which tensors of a method keep their value from run to run: the mutable buffers of the model.
#pragma once

#include <vector>

#include "program_file.h"
#include "validate.h"

namespace pteron {

// Fills `state` of a validated method, in the order of planned memory. Names are given later.
void find_state(MethodSpec& method, const MethodCode& code);

// Decides which planned buffers the methods share (PlannedBuffer::shared), and gives every state a
// name and the place of its initial value.
void share_state(std::vector<MethodSpec>& methods);

}  // namespace pteron

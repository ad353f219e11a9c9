// Which inputs and outputs may live in the caller's memory while a method runs.
#pragma once

#include "program_file.h"
#include "validate.h"

namespace pteron {

// Fills input_placement and output_placement of a validated method.
void place(MethodSpec& method, const MethodCode& code);

}  // namespace pteron

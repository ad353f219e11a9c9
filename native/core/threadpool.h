// The thread pool of the runtime, one for the process.
#pragma once

#include <cstdint>

namespace pteron {

int64_t num_threads();

// Throws Error{Argument} for a count below 1 or above what could make sense here.
void set_num_threads(int64_t count);

// Starts the threads of the pool again, which a forked child does not have.
void restart_pool();

}  // namespace pteron

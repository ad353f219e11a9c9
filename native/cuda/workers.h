// A few threads that help with large host copies: one core copies far slower than the bus.
#pragma once

#include <cstddef>
#include <functional>

namespace pteron::cuda {

// Helpers beside the caller; 0 on a machine with one core. They start at the first use, sleep when
// there is nothing to do, and live as long as the process.
size_t num_workers();

// Calls body(item, worker) once for every item below `items`, in any order, on the calling thread
// (worker 0) and on helpers (1 and up). While another thread uses the helpers the caller works
// alone. Throws what `body` threw first; the remaining items are then skipped.
void for_each_parallel(size_t items, const std::function<void(size_t item, size_t worker)>& body);

}  // namespace pteron::cuda

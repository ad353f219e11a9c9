// Pinned host memory: copies to and from it run at the full speed of the bus, without staging.
#pragma once

#include <cstddef>

namespace pteron::cuda {

// From a pool, usable with every device. Blocks are kept for reuse: pinning costs milliseconds.
void* allocate_host(size_t nbytes);
void free_host(void* pointer) noexcept;

// Pins memory of the caller's until it is unpinned, which must come before it is freed.
void pin_host(void* pointer, size_t nbytes);
void unpin_host(void* pointer) noexcept;

}  // namespace pteron::cuda

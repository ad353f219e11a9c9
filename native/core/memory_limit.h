// How much memory a program may ask for.
//
// Files say how large their tensors are, so a small one may ask for everything that the machine
// has. What one of them wants at a time (the planned memory of a method, shared state, an input, an
// output) is held against a limit for the process before it is allocated.
#pragma once

#include <cstdint>
#include <string>

namespace pteron {

// Bytes of the machine, or of the control group where that has less. `root` stands before the paths
// of the system, for tests.
uint64_t default_memory_limit(const std::string& root = "");

uint64_t memory_limit() noexcept;
void set_memory_limit(int64_t nbytes);  // throws Error{Argument} unless it is 1 or more

// "<what> needs 12 bytes, and the memory limit is 10 bytes: ...".
[[noreturn]] void over_memory_limit(const std::string& what, uint64_t nbytes);

// `what` is a callable, so that what fits costs no text. Throws Error{Memory}.
template <typename What>
void require_memory(uint64_t nbytes, What what) {
  if (nbytes > memory_limit()) [[unlikely]]
    over_memory_limit(what(), nbytes);
}

}  // namespace pteron

// A library that holds nothing but a list of libraries that it needs.
//
// Opening it with RTLD_LOCAL gives all of them one search list, so a model library finds our shims
// without anything becoming global to the process.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pteron::cuda {

// For the machine of this process. `needed` are names or paths, in search order.
std::vector<std::byte> make_wrapper(std::span<const std::string> needed);

// Checks that the bytes are a shared library that this machine can load: throws Failure that says
// what they are instead.
void check_library(std::span<const std::byte> library);

// File offset of the flags of the PT_GNU_STACK header if they ask for an executable stack, else 0.
// Model libraries ask by accident (an assembled blob without a note), and current C libraries then
// refuse to load them.
size_t executable_stack_flag(std::span<const std::byte> library);

}  // namespace pteron::cuda

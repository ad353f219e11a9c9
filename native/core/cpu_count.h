// How many processors this process may use.
#pragma once

#include <cstddef>
#include <string>

namespace pteron {

// The processors of its CPU set, or fewer where the quota of its control group (cgroup v1 or v2) or
// of one above it is less; a part of one counts as one. At least 1. `root` is where /proc and /sys
// are.
size_t available_cpus(const std::string& root = "");

}  // namespace pteron

// The control groups that this process is in, which limit what it may use.
#pragma once

#include <functional>
#include <string>

namespace pteron {

// Calls `visit` with each folder that may have files of `controller` ("cpu", "memory") for this
// process, in cgroup v1 and v2: that of its group and all above it, since each may set a limit. A
// container may see its group's files at the top and its path from outside: some of the folders may
// not be there. `root` is where /proc and /sys are.
void visit_control_groups(const std::string& root, const std::string& controller,
                          const std::function<void(const std::string& folder)>& visit);

}  // namespace pteron

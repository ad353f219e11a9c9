// What this process can run: the kernels and backends registered with pteron's copy of the runtime.
#pragma once

#include <string>
#include <vector>

namespace pteron {

std::vector<std::string> operator_names();
bool has_operator(const std::string& full_name);

std::vector<std::string> backend_names();
// Registered, and able to run here. Throws nothing: an unknown backend is not available.
bool is_backend_available(const std::string& id);

// Gives each method a workspace of its own in XNNPACK, whose default is one for the process: all
// methods with parts on XNNPACK would wait for each other. For methods that are loaded after.
void configure_backends();

}  // namespace pteron

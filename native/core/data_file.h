// Data files (.ptd, flat_tensor.fbs), checked before the runtime sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "data_source.h"

namespace executorch::runtime {
class NamedDataMap;
}

namespace pteron {

// Bytes of what files hold under a name.
using NamedBytes = std::unordered_map<std::string, uint64_t>;

// Reads the whole structure, which stays as it was read, and opens the file with the runtime, which
// keeps a reference to `source`. Adds its names to `bytes`. Throws Error{InvalidData} that names
// the entry.
std::unique_ptr<executorch::runtime::NamedDataMap> open_data_file(DataSource& source,
                                                                  const std::string& name,
                                                                  NamedBytes& bytes);

}  // namespace pteron

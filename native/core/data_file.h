// Data files (.ptd, flat_tensor.fbs), checked before the runtime sees them.
#pragma once

#include <memory>
#include <string>

#include "data_source.h"

namespace executorch::runtime {
class NamedDataMap;
}

namespace pteron {

// Reads the whole structure, which stays as it was read, and opens the file with the runtime, which
// keeps a reference to `source`. Throws Error{InvalidData} that names the entry.
std::unique_ptr<executorch::runtime::NamedDataMap> open_data_file(DataSource& source,
                                                                  const std::string& name);

}  // namespace pteron

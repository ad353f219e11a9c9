// What a CUDA delegate's payload says: which library to load and which weights to give it.
//
// Exporters wrote four forms. 1.1 to 1.3: nothing; the keys follow from the method's name. 1.4: two
// keys as text. 1.5.1: a manifest, magic ETCUDAFQN3. Newer: ETCUDAFQN0, which lists libraries for
// several GPU generations. The parser trusts no byte and never reads outside of its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../core/dtype.h"
#include "failure.h"

namespace pteron::cuda {

struct LibraryVariant {
  uint32_t target_sm = 0;    // 0: any
  uint32_t ptx_compute = 0;  // 0: holds no PTX
  bool fallback_only = false;
  std::string key;  // named data entry that holds the library
};

struct WeightEntry {
  std::string fqn;
  std::string storage_key;  // named data entry that holds the bytes
  uint64_t storage_nbytes = 0;
  DType dtype = DType::Float32;
  bool on_device = true;
  int64_t offset = 0;  // elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

struct Manifest {
  std::vector<LibraryVariant> libraries;  // never empty
  std::vector<WeightEntry> weights;       // the forms with a manifest
  std::string blob_key;                   // all weights in one entry: the older forms
};

// Throws Failure{InvalidProgram} that says what is wrong, or {NotSupported} for a newer form.
Manifest parse_payload(std::span<const std::byte> payload, std::string_view method);

// The library for a GPU of this compute capability (90: sm_90). Throws Failure{NotSupported}.
const LibraryVariant& select_library(const Manifest& manifest, uint32_t sm);

}  // namespace pteron::cuda

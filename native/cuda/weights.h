// Weights of CUDA programs, shared by the methods of one program.
//
// Lifetime: Handle > WeightStorage. A storage lives as long as a delegate handle that uses it; the
// map here holds it weakly. The scope of sharing is one loaded program: entries are keyed by the
// address of the key string that the program's data map owns, which is stable while it lives.
//
// Parameters are shared by everything in the scope. Mutable buffers (a KV cache) are shared by
// different methods, but two loads of one method get a state each: the n-th living load of a method
// shares with the n-th loads of the others.
#pragma once

#include <executorch/runtime/core/named_data_map.h>

#include <memory>
#include <string>
#include <vector>

#include "container.h"
#include "payload.h"

namespace pteron::cuda {

using NamedDataMap = ::executorch::runtime::NamedDataMap;

class WeightStorage {
 public:
  // Copies what the data map has under `key` to where the weight belongs.
  WeightStorage(const NamedDataMap& data, const std::string& key, size_t nbytes, Place place);
  ~WeightStorage();
  WeightStorage(const WeightStorage&) = delete;
  WeightStorage& operator=(const WeightStorage&) = delete;

  void* data() const noexcept { return data_; }
  size_t nbytes() const noexcept { return nbytes_; }

 private:
  Place place_;
  size_t nbytes_;
  void* data_ = nullptr;
};

// Everything that one delegate handle holds of its weights.
class Weights {
 public:
  Weights() = default;
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Loads and binds what the container asks for. `library_key` and `method` tell two loads of one
  // method from two parts of it. Throws Failure; {NotFound} names the missing entry.
  void load(Container& container, const Manifest& manifest, const NamedDataMap* data,
            std::string_view method, std::string_view library_key, int device);

 private:
  void load_entries(Container& container, const Manifest& manifest, const NamedDataMap* data,
                    std::string_view method, std::string_view library_key, int device);
  Tensor* load_weight(const NamedDataMap& data, const void* address, const WeightEntry& entry,
                      int generation, int device);
  void load_blob(Container& container, const std::string& key, const NamedDataMap* data);

  std::vector<std::shared_ptr<WeightStorage>> storages_;
  std::vector<std::unique_ptr<Tensor>> tensors_;  // views of the storages, not owning
  TensorScope handles_;                           // what the container made of them
  const void* scope_ = nullptr;
  std::string load_name_;
  int generation_ = -1;
};

// Reads an entry of the data map; {NotFound} names the key.
::executorch::runtime::FreeableBuffer read_named_data(const NamedDataMap* data,
                                                      const std::string& key, const char* what);

}  // namespace pteron::cuda

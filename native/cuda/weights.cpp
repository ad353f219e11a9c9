#include "weights.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>

#include "memory.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

namespace et = ::executorch::runtime;

constexpr int kShared = -1;  // the generation of what every load shares

// Address of the key in the program's data map, key, device (-1: host), generation.
using StorageKey = std::tuple<const void*, std::string, int, int>;

struct Cache {
  std::mutex mutex;
  std::map<StorageKey, std::weak_ptr<WeightStorage>> storages;
  // Living loads of a method: (scope, method and library) -> generations in use.
  std::map<std::pair<const void*, std::string>, std::set<int>> generations;
};

Cache& cache() {
  static Cache* const instance = new Cache;
  return *instance;
}

// The data map's own copies of its keys. It may list thousands, so it is walked once per load.
std::unordered_map<std::string_view, const char*> addresses_of_keys(const NamedDataMap& data) {
  std::unordered_map<std::string_view, const char*> addresses;
  const auto count = data.get_num_keys();
  if (!count.ok()) return addresses;
  for (uint32_t i = 0; i < *count; ++i) {
    const auto key = data.get_key(i);
    if (key.ok() && *key != nullptr) addresses.emplace(*key, *key);
  }
  return addresses;
}

int lowest_free(const std::set<int>& used) {
  int generation = 0;
  while (used.contains(generation)) ++generation;
  return generation;
}

}  // namespace

et::FreeableBuffer read_named_data(const NamedDataMap* data, const std::string& key,
                                   const char* what) {
  if (data == nullptr) {
    throw Failure(ErrorCode::NotFound, "no data entry '" + key + "' (" + what +
                                           "): the program came without its data file (.ptd)");
  }
  auto buffer = data->get_data(key);
  if (!buffer.ok()) {
    throw Failure(buffer.error(), "no data entry '" + key + "' (" + what +
                                      "): is the data file (.ptd) the one of this program?");
  }
  return std::move(*buffer);
}

WeightStorage::WeightStorage(const NamedDataMap& data, const std::string& key, size_t nbytes,
                             Place place)
    : place_(place), nbytes_(nbytes) {
  et::FreeableBuffer bytes = read_named_data(&data, key, "a weight");
  if (bytes.size() < nbytes) {
    throw Failure(ErrorCode::InvalidExternalData,
                  "data entry '" + key + "' has " + std::to_string(bytes.size()) +
                      " bytes, the program wants " + std::to_string(nbytes));
  }
  if (!place.on_device) {
    const size_t rounded = (nbytes + 64) / 64 * 64;
    data_ = std::aligned_alloc(64, rounded);
    if (data_ == nullptr) throw std::bad_alloc();
    std::memcpy(data_, bytes.data(), nbytes);
    return;
  }
  data_ = allocate(place.index, nbytes);
  try {
    copy(CopyKind::HostToDevice, place.index, data_, bytes.data(), nbytes,
         shared_stream(place.index));
  } catch (...) {
    cuda::free(place.index, data_);
    throw;
  }
}

WeightStorage::~WeightStorage() {
  if (place_.on_device) {
    cuda::free(place_.index, data_);
  } else {
    std::free(data_);
  }
}

Weights::~Weights() {
  if (generation_ < 0) return;
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  auto found = c.generations.find({scope_, load_name_});
  if (found == c.generations.end()) return;
  found->second.erase(generation_);
  if (found->second.empty()) c.generations.erase(found);
}

void Weights::load(Container& container, const Manifest& manifest, const NamedDataMap* data,
                   std::string_view method, std::string_view library_key, int device) {
  if (manifest.blob_key.empty()) {
    load_entries(container, manifest, data, method, library_key, device);
  } else {
    load_blob(container, manifest.blob_key, data);
  }
}

void Weights::load_blob(Container& container, const std::string& key, const NamedDataMap* data) {
  bool wants_weights = false;
  for (const Constant& constant : container.constants()) {
    wants_weights = wants_weights || !constant.folded;
  }
  if (!wants_weights) return;  // such programs have no entry, and may come without a data file
  const et::FreeableBuffer bytes = read_named_data(data, key, "the weights");
  container.load_blob(bytes.data());
}

void Weights::load_entries(Container& container, const Manifest& manifest, const NamedDataMap* data,
                           std::string_view method, std::string_view library_key, int device) {
  std::unordered_map<std::string_view, const WeightEntry*> entries;
  for (const WeightEntry& entry : manifest.weights) entries.emplace(entry.fqn, &entry);
  if (!entries.empty() && data == nullptr) {
    read_named_data(data, manifest.weights[0].storage_key, "a weight");
  }
  const auto addresses = data != nullptr ? addresses_of_keys(*data)
                                         : std::unordered_map<std::string_view, const char*>{};
  auto address_of = [&](const std::string& key) -> const void* {
    auto found = addresses.find(key);
    if (found != addresses.end()) return found->second;
    read_named_data(data, key, "a weight");  // says that it is missing
    return data;
  };

  const std::vector<Constant> constants = container.constants();
  if (!manifest.weights.empty()) {
    Cache& c = cache();
    const void* scope = address_of(manifest.weights[0].storage_key);
    std::string name = std::string(method) + '\n' + std::string(library_key);
    std::lock_guard lock(c.mutex);
    std::erase_if(c.storages, [](const auto& item) { return item.second.expired(); });
    std::set<int>& used = c.generations[{scope, name}];
    const int generation = lowest_free(used);
    used.insert(generation);
    scope_ = scope;
    load_name_ = std::move(name);
    generation_ = generation;
  }

  // A weight may have several internal names: each is bound.
  std::vector<Container::Binding> bindings;
  std::unordered_map<std::string_view, Tensor*> views;
  for (const Constant& constant : constants) {
    if (constant.folded) continue;
    auto found = entries.find(constant.fqn);
    if (found == entries.end()) {
      throw Failure(ErrorCode::InvalidProgram,
                    "the model wants a weight '" + constant.fqn + "' that the payload lacks");
    }
    const WeightEntry& entry = *found->second;
    if (constant.dtype >= 0 && constant.dtype != static_cast<int32_t>(entry.dtype)) {
      throw Failure(ErrorCode::InvalidProgram,
                    "weight '" + constant.fqn + "' is " + info(entry.dtype).name +
                        " in the payload and of type " + std::to_string(constant.dtype) +
                        " in the model");
    }
    Tensor*& view = views[entry.fqn];
    if (view == nullptr) {
      const int generation = constant.kind == ConstantKind::Buffer ? generation_ : kShared;
      view = load_weight(*data, address_of(entry.storage_key), entry, generation, device);
    }
    bindings.push_back({constant.internal_name.c_str(), view});
  }
  if (bindings.empty()) return;
  TensorScope::Active active(handles_);
  container.bind(bindings);
}

// The lock is held while the bytes are read and uploaded: two methods that load at once must not
// both do it.
Tensor* Weights::load_weight(const NamedDataMap& data, const void* address,
                             const WeightEntry& entry, int generation, int device) {
  const Place place = entry.on_device ? Place{true, device} : Place{};
  std::shared_ptr<WeightStorage> storage;
  {
    Cache& c = cache();
    std::lock_guard lock(c.mutex);
    auto& slot =
        c.storages[{address, entry.storage_key, entry.on_device ? device : -1, generation}];
    storage = slot.lock();
    if (storage == nullptr || storage->nbytes() < entry.storage_nbytes) {
      storage =
          std::make_shared<WeightStorage>(data, entry.storage_key, entry.storage_nbytes, place);
      slot = storage;
    }
  }
  tensors_.push_back(
      std::make_unique<Tensor>(Storage::view(storage->data(), storage->nbytes(), place),
                               entry.dtype, entry.sizes, entry.strides, entry.offset));
  storages_.push_back(std::move(storage));
  return tensors_.back().get();
}

}  // namespace pteron::cuda

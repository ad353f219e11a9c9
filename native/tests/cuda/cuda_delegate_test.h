// What the files of the delegate test share: programs by name, bare delegates, their arguments, and
// a check that nothing is left behind.
#pragma once

#include <executorch/runtime/backend/interface.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cuda_test.h"
#include "fake_control.h"
#include "golden.h"

namespace pteron::testing {

inline const PteronCudaApi* api = nullptr;
inline std::string programs_folder;
inline std::string models_folder;

inline std::string folder(const std::string& name) { return programs_folder + "/" + name; }

inline std::unique_ptr<Method> load(const std::string& name, const char* method = "forward") {
  return std::make_unique<Method>(api, Program::from_folder(folder(name)), method);
}

inline void expect_close(const std::string& name, const std::vector<HostTensor>& got,
                         const std::vector<HostTensor>& wanted) {
  EXPECT(got.size() == wanted.size());
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    const double d = difference(got[i], wanted[i]);
    expect(d <= 1e-5, "difference", name.c_str(), static_cast<int>(i), std::to_string(d));
  }
}

inline std::vector<std::string> program_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(programs_folder)) {
    const std::string name = entry.path().filename();
    if (!needs_two_devices(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Clean {
 public:
  Clean() : use_(api->use()) {
    fake->fail(nullptr, 0, 0);
    fake->reset_counters();
    before_ = fake->counters();
  }
  ~Clean() {
    fake->fail(nullptr, 0, 0);
    fake->defer(0);
    const PteronCudaUse use = api->use();
    const FakeCudaCounters now = fake->counters();
    EXPECT(use.blocks == use_.blocks && use.nbytes == use_.nbytes && use.tensors == use_.tensors);
    EXPECT(use.handles == use_.handles && use.events == use_.events);
    EXPECT(now.live_blocks == before_.live_blocks && now.live_modules == before_.live_modules);
    EXPECT(now.bad_pointers == 0 && now.bad_contexts == 0);
  }

 private:
  PteronCudaUse use_;
  FakeCudaCounters before_{};
};

// A delegate on its own: payload and data map in memory, tensors by hand.
class OneEntryMap final : public et::NamedDataMap {
 public:
  void add(std::string key, std::vector<char> bytes) {
    entries_.push_back({std::move(key), std::move(bytes)});
  }
  et::Result<const et::TensorLayout> get_tensor_layout(std::string_view) const override {
    return et::Error::NotFound;
  }
  et::Result<et::FreeableBuffer> get_data(std::string_view key) const override {
    for (const auto& [name, bytes] : entries_) {
      if (name == key) return et::FreeableBuffer(bytes.data(), bytes.size(), nullptr);
    }
    return et::Error::NotFound;
  }
  et::Error load_data_into(std::string_view, void*, size_t) const override {
    return et::Error::NotSupported;
  }
  et::Result<uint32_t> get_num_keys() const override {
    return static_cast<uint32_t>(entries_.size());
  }
  et::Result<const char*> get_key(uint32_t i) const override { return entries_[i].first.c_str(); }

 private:
  std::vector<std::pair<std::string, std::vector<char>>> entries_;
};

// Output or input of a bare delegate, in device memory.
struct Argument {
  std::vector<executorch::aten::SizesType> sizes;
  std::vector<executorch::aten::DimOrderType> order;
  std::vector<executorch::aten::StridesType> strides;
  std::unique_ptr<DeviceBytes> memory;
  std::unique_ptr<executorch::aten::TensorImpl> impl;
  et::EValue value;

  Argument(std::vector<executorch::aten::SizesType> s, std::vector<float> contents = {})
      : sizes(std::move(s)) {
    size_t n = 1;
    int step = 1;
    strides.resize(sizes.size());
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = step;
      step *= sizes[i];
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      order.push_back(static_cast<executorch::aten::DimOrderType>(i));
      n *= static_cast<size_t>(sizes[i]);
    }
    memory = std::make_unique<DeviceBytes>(api, n * 4);
    if (!contents.empty()) {
      check(api->copy(0, kPteronCudaHostToDevice, memory->get(), contents.data(), n * 4, nullptr));
    }
    impl = std::make_unique<executorch::aten::TensorImpl>(
        executorch::aten::ScalarType::Float, static_cast<ssize_t>(sizes.size()), sizes.data(),
        memory->get(), order.data(), strides.data(), executorch::aten::TensorShapeDynamism::STATIC,
        et::etensor::DeviceType::CUDA, et::etensor::DeviceIndex{0});
    value = et::EValue(executorch::aten::Tensor(impl.get()));
  }

  std::vector<float> read() const {
    std::vector<float> out(static_cast<size_t>(impl->numel()));
    check(api->copy(0, kPteronCudaDeviceToHost, out.data(), impl->data(), out.size() * 4, nullptr));
    return out;
  }
};

class Delegate {
 public:
  explicit Delegate(const std::string& model) {
    map_.add("so_key", read_file(models_folder + "/libfake_" + model + ".so"));
    const uint32_t none = 0;
    const uint32_t length = 6;
    payload_ = std::string("ETCUDAFQN3") + std::string(reinterpret_cast<const char*>(&length), 4) +
               "so_key" + std::string(reinterpret_cast<const char*>(&none), 4);
  }
  ~Delegate() {
    if (handle_ != nullptr) backend()->destroy(handle_);
  }

  static et::BackendInterface* backend() { return et::get_backend_class("CudaBackend"); }

  et::Error init(const char* device = "cuda:0") {
    et::FreeableBuffer processed(payload_.data(), payload_.size(), nullptr);
    char target[] = "target_device";
    const std::string text = device;
    et::CompileSpec spec{target, {const_cast<char*>(text.data()), text.size()}};
    et::BackendInitContext context(nullptr, nullptr, "forward", &map_);
    auto handle = backend()->init(context, &processed, {&spec, 1});
    if (handle.ok()) handle_ = *handle;
    return handle.error();
  }
  et::Error execute(std::vector<et::EValue*> args) {
    et::BackendExecutionContext context(nullptr, nullptr, "forward");
    return backend()->execute(context, handle_, {args.data(), args.size()});
  }

  std::string payload_;
  OneEntryMap map_;

 private:
  et::DelegateHandle* handle_ = nullptr;
};

// Error lines that the runtime logged since the last call.
std::string take_log();

}  // namespace pteron::testing

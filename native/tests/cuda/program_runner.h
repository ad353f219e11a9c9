// Loads and runs a program with the C++ runtime alone, the way the binding does: planned buffers by
// device, a data map, inputs and outputs placed where the program wants them. For tests.
#pragma once

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../cuda/api.h"

namespace pteron::testing {

namespace et = ::executorch::runtime;
namespace ext = ::executorch::extension;

struct HostTensor {
  int dtype = 6;
  std::vector<int32_t> sizes;
  std::vector<char> bytes;

  size_t numel() const {
    size_t n = 1;
    for (int32_t size : sizes) n *= static_cast<size_t>(size);
    return n;
  }
};

inline std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void check(et::Error error, const std::string& doing) {
  if (error == et::Error::Ok) return;
  char code[16];
  snprintf(code, sizeof(code), "0x%x", static_cast<unsigned>(error));
  throw std::runtime_error(doing + ": error " + code);
}

inline void check(const char* error) {
  if (error != nullptr) throw std::runtime_error(error);
}

// A device buffer of the test, freed with its owner.
class DeviceBytes {
 public:
  DeviceBytes(const PteronCudaApi* api, size_t nbytes) : api_(api) {
    check(api->allocate(0, nbytes, nullptr, &data_));
    check(api->synchronize_stream(0, nullptr));
  }
  ~DeviceBytes() { api_->free(0, data_, nullptr); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* get() const { return data_; }

 private:
  const PteronCudaApi* api_;
  void* data_ = nullptr;
};

// The bytes of a program and its data file; Methods of it must go first.
class Program {
 public:
  Program(std::vector<char> pte, std::optional<std::vector<char>> ptd)
      : pte_(std::move(pte)), ptd_(std::move(ptd)), loader_(pte_.data(), pte_.size()) {
    auto program = et::Program::load(&loader_, et::Program::Verification::InternalConsistency);
    check(program.error(), "load the program");
    program_ = std::make_unique<et::Program>(std::move(*program));
    if (!ptd_) return;
    ptd_loader_ = std::make_unique<ext::BufferDataLoader>(ptd_->data(), ptd_->size());
    auto map = ext::FlatTensorDataMap::load(ptd_loader_.get());
    check(map.error(), "load the data file");
    map_ = std::make_unique<ext::FlatTensorDataMap>(std::move(*map));
  }

  static std::shared_ptr<Program> from_folder(const std::string& folder, bool with_data = true) {
    std::optional<std::vector<char>> ptd;
    if (with_data) ptd = read_file(folder + "/aoti_cuda_blob.ptd");
    return std::make_shared<Program>(read_file(folder + "/model.pte"), std::move(ptd));
  }

  const et::Program& get() const { return *program_; }
  const et::NamedDataMap* map() const { return map_.get(); }

 private:
  std::vector<char> pte_;
  std::optional<std::vector<char>> ptd_;
  ext::BufferDataLoader loader_;
  std::unique_ptr<et::Program> program_;
  std::unique_ptr<ext::BufferDataLoader> ptd_loader_;
  std::unique_ptr<ext::FlatTensorDataMap> map_;
};

class Method {
 public:
  Method(const PteronCudaApi* api, std::shared_ptr<Program> program, const char* name = "forward")
      : api_(api), program_(std::move(program)) {
    auto meta = program_->get().method_meta(name);
    check(meta.error(), "describe the method");
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
      const auto nbytes = static_cast<size_t>(*meta->memory_planned_buffer_size(i));
      const et::etensor::Device device = *meta->memory_planned_buffer_device(i);
      devices_.push_back(device);
      if (device.is_cpu()) {
        host_.emplace_back(nbytes + 16);
        spans_.push_back({host_.back().data(), nbytes});
      } else {
        auto buffer = et::DeviceMemoryBuffer::create(nbytes, device.type(), device.index());
        check(buffer.error(), "allocate a planned device buffer");
        device_.push_back(std::move(*buffer));
        spans_.push_back(device_.back().as_span());
      }
    }
    planned_.emplace(et::Span<et::Span<uint8_t>>{spans_.data(), spans_.size()},
                     et::Span<const et::etensor::Device>{devices_.data(), devices_.size()});
    manager_.emplace(&method_memory_, &*planned_, &temp_memory_);
    auto method = program_->get().load_method(name, &*manager_, nullptr, program_->map());
    check(method.error(), "load method");
    method_.emplace(std::move(*method));
    for (size_t i = 0; i < meta->num_inputs(); ++i) {
      input_planned_.push_back(meta->input_tensor_meta(i)->is_memory_planned());
    }
    own_.resize(meta->num_inputs());
    own_device_.resize(meta->num_inputs());
    for (size_t i = 0; i < meta->num_outputs(); ++i) {
      auto info = meta->output_tensor_meta(i);
      out_host_.emplace_back();
      out_device_.emplace_back();
      if (info->is_memory_planned()) continue;
      if (on_cuda(method_->get_output(i).toTensor())) {
        out_device_[i] = std::make_unique<DeviceBytes>(api_, info->nbytes());
        check(method_->set_output_data_ptr(out_device_[i]->get(), info->nbytes(), i), "set output");
      } else {
        out_host_[i].resize(info->nbytes());
        check(method_->set_output_data_ptr(out_host_[i].data(), info->nbytes(), i), "set output");
      }
    }
  }

  static bool on_cuda(const executorch::aten::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->device_type() == et::etensor::DeviceType::CUDA;
  }

  void set_inputs(const std::vector<HostTensor>& inputs) {
    std::vector<et::EValue> values(method_->inputs_size());
    // Deprecated, but the only way to the tensors of planned inputs.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    check(method_->get_inputs(values.data(), values.size()), "get inputs");
#pragma GCC diagnostic pop
    for (size_t i = 0; i < inputs.size(); ++i) set_input(i, inputs[i], values[i].toTensor());
  }

  et::Error try_execute() { return method_->execute(); }
  void execute() { check(method_->execute(), "execute"); }

  std::vector<HostTensor> outputs() {
    std::vector<HostTensor> all;
    for (size_t i = 0; i < method_->outputs_size(); ++i) {
      const auto& tensor = method_->get_output(i).toTensor();
      HostTensor out;
      out.dtype = static_cast<int>(tensor.scalar_type());
      out.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
      out.bytes.resize(tensor.nbytes());
      read(out.bytes.data(), tensor.const_data_ptr(), tensor.nbytes());
      all.push_back(std::move(out));
    }
    return all;
  }

  std::vector<HostTensor> run(const std::vector<HostTensor>& inputs) {
    set_inputs(inputs);
    execute();
    return outputs();
  }

  et::Method& get() { return *method_; }
  void* device_input(size_t i) const { return own_device_[i] ? own_device_[i]->get() : nullptr; }

 private:
  void read(void* dst, const void* src, size_t nbytes) {
    if (nbytes == 0) return;
    int32_t kind = 0;
    int32_t device = 0;
    check(api_->pointer_query(src, &kind, &device));
    if (kind == kPteronCudaDevice) {
      check(api_->copy(0, kPteronCudaDeviceToHost, dst, src, nbytes, nullptr));
    } else {
      std::memcpy(dst, src, nbytes);
    }
  }

  void set_input(size_t i, const HostTensor& in, executorch::aten::Tensor& tensor) {
    check(et::resize_tensor(tensor, {in.sizes.data(), in.sizes.size()}), "resize input");
    if (tensor.nbytes() != in.bytes.size()) throw std::runtime_error("input size differs");
    if (in.bytes.empty()) return;
    if (input_planned_[i]) {
      int32_t kind = 0;
      int32_t device = 0;
      check(api_->pointer_query(tensor.const_data_ptr(), &kind, &device));
      if (kind == kPteronCudaDevice) {
        check(api_->copy(0, kPteronCudaHostToDevice, tensor.mutable_data_ptr(), in.bytes.data(),
                         in.bytes.size(), nullptr));
      } else {
        std::memcpy(tensor.mutable_data_ptr(), in.bytes.data(), in.bytes.size());
      }
      return;
    }
    if (on_cuda(tensor)) {
      own_device_[i] = std::make_unique<DeviceBytes>(api_, in.bytes.size());
      check(api_->copy(0, kPteronCudaHostToDevice, own_device_[i]->get(), in.bytes.data(),
                       in.bytes.size(), nullptr));
      tensor.unsafeGetTensorImpl()->set_data(own_device_[i]->get());
    } else {
      own_[i] = in.bytes;
      tensor.unsafeGetTensorImpl()->set_data(own_[i].data());
    }
  }

  const PteronCudaApi* api_;
  std::shared_ptr<Program> program_;
  std::vector<std::vector<uint8_t>> host_;
  std::vector<et::DeviceMemoryBuffer> device_;
  std::vector<et::etensor::Device> devices_;
  std::vector<et::Span<uint8_t>> spans_;
  std::optional<et::HierarchicalAllocator> planned_;
  ext::MallocMemoryAllocator method_memory_;
  ext::MallocMemoryAllocator temp_memory_;
  std::optional<et::MemoryManager> manager_;
  std::vector<bool> input_planned_;
  std::vector<std::vector<char>> own_;
  std::vector<std::unique_ptr<DeviceBytes>> own_device_;
  std::vector<std::vector<char>> out_host_;
  std::vector<std::unique_ptr<DeviceBytes>> out_device_;
  std::optional<et::Method> method_;
};

}  // namespace pteron::testing

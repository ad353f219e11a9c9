#include "cuda_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "error.h"

namespace pteron::cuda {
namespace {

std::atomic<const PteronCudaApi*> table{nullptr};

// Whether the handle means another stream on each thread.
bool is_per_thread(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) == kPteronCudaPerThread;
}

const PteronCudaApi* open() {
  // Found by the run path of the library that this code is in: the folder of bundled libraries.
  void* library = ::dlopen("libpteron_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(Kind::Device, Code::NotSupported,
                std::string("The CUDA part of pteron cannot be opened: ") + (why ? why : ""));
  }
  using Entry = const PteronCudaApi* (*)(uint32_t);
  auto entry = reinterpret_cast<Entry>(::dlsym(library, "pteron_cuda_api"));
  const PteronCudaApi* api = entry ? entry(kPteronCudaApiVersion) : nullptr;
  if (api == nullptr) {
    throw Error(Kind::Device, Code::NotSupported,
                "libpteron_cuda.so is of another version than this pteron: install it anew");
  }
  return api;
}

}  // namespace

const PteronCudaApi* loaded() noexcept { return table.load(std::memory_order_acquire); }

const PteronCudaApi& api() {
  if (const PteronCudaApi* ready = loaded()) return *ready;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (const PteronCudaApi* ready = loaded()) return *ready;
  const PteronCudaApi* opened = open();
  if (const char* why = opened->ensure_loaded()) {
    throw Error(Kind::Device, Code::NotSupported, std::string("CUDA is not available: ") + why);
  }
  table.store(opened, std::memory_order_release);
  return *opened;
}

void check(const char* text, const std::string& doing) {
  if (text == nullptr) return;
  throw Error(Kind::Device, Code::Internal, "Failed to " + doing + ": " + text);
}

bool is_needed_by(const MethodSpec& spec) noexcept {
  const auto on_device = [](const auto& part) { return !part.device.is_cpu(); };
  return std::any_of(spec.buffers.begin(), spec.buffers.end(), on_device) ||
         std::any_of(spec.values.begin(), spec.values.end(),
                     [&](const ValueSpec& value) {
                       return value.kind == ValueKind::Tensor && on_device(value.tensor);
                     }) ||
         std::any_of(spec.delegates.begin(), spec.delegates.end(),
                     [](const DelegateSpec& delegate) { return delegate.id == "CudaBackend"; });
}

std::shared_ptr<void> allocate(Device device, size_t nbytes, void* stream,
                               const std::string& what) {
  void* memory = nullptr;
  if (nbytes > 0) {
    if (const char* why = api().allocate(device.index, nbytes, stream, &memory)) {
      throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                  what + " needs " + std::to_string(nbytes) + " bytes on " + to_string(device) +
                      ", which are not to be had: " + why);
    }
  }
  // The memory outlives interpreters and threads: nothing here may throw or report.
  const auto thread = std::this_thread::get_id();
  return {memory, [index = device.index, stream, thread](void* pointer) {
            const PteronCudaApi* ready = loaded();
            if (pointer == nullptr || ready == nullptr) return;
            if (is_per_thread(stream) && thread != std::this_thread::get_id()) {
              ready->synchronize_device(index);  // the stream cannot be named here
            }
            ready->free(index, pointer, stream);
          }};
}

std::shared_ptr<void> allocate_pinned(size_t nbytes, const std::string& what) {
  void* memory = nullptr;
  if (const char* why = api().allocate_host(std::max<size_t>(nbytes, 1), &memory)) {
    throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                what + " needs " + std::to_string(nbytes) +
                    " bytes of pinned host memory, which are not to be had: " + why);
  }
  return {memory, [](void* pointer) {
            if (const PteronCudaApi* ready = loaded()) ready->free_host(pointer);
          }};
}

void copy(Device device, PteronCudaCopy kind, void* to, const void* from, size_t nbytes,
          void* stream) {
  if (nbytes == 0) return;
  check(api().copy(device.index, kind, to, from, nbytes, stream),
        "copy " + std::to_string(nbytes) + " bytes to or from " + to_string(device));
}

TensorRef new_block(Device device, int ndim, DType dtype, size_t nbytes, void* stream,
                    const std::string& what) {
  std::shared_ptr<void> memory = allocate(device, nbytes, stream, what);
  void* data = memory.get();
  TensorRef block(TensorBlock::borrow(ndim, dtype, data, nbytes, std::move(memory)));
  if (!block) throw std::bad_alloc();
  block->borrowed = false;
  block->device = device;
  return block;
}

std::shared_ptr<void> record(Device device, void* stream) {
  void* event = nullptr;
  check(api().event_record(device.index, stream, &event), "record an event");
  return {event, [index = device.index](void* pointer) {
            if (const PteronCudaApi* ready = loaded()) ready->event_release(index, pointer);
          }};
}

void wait(const TensorBlock& block, void* stream) {
  const bool same = block.stream == stream && !is_per_thread(stream);
  if (block.ready == nullptr || same) return;
  check(api().event_wait(block.device.index, stream, block.ready.get()), "wait for a result");
}

void wait_here(const TensorBlock& block) {
  if (block.ready == nullptr) return;
  check(api().event_synchronize(block.device.index, block.ready.get()), "wait for a result");
}

TensorRef to_host(const TensorBlock& block) {
  TensorRef host(TensorBlock::allocate(block.ndim, block.dtype, block.nbytes));
  if (!host) throw std::bad_alloc();
  std::copy_n(block.shape, block.ndim, host->shape);
  std::copy_n(block.strides, block.ndim, host->strides);
  wait_here(block);
  copy(block.device, kPteronCudaDeviceToHost, host->data, block.data, block.nbytes, block.stream);
  return host;
}

TensorRef copy_of(const TensorView& view, void* stream) {
  size_t nbytes = itemsize(view.dtype);
  for (int i = 0; i < view.ndim; ++i) nbytes *= static_cast<size_t>(view.shape[i]);
  TensorRef block = new_block(view.device, view.ndim, view.dtype, nbytes, stream, "A copy");
  // Without gaps, whatever the order of the axes: the copy is laid out as the original.
  for (int i = 0; i < view.ndim; ++i) block->shape[i] = view.shape[i];
  int64_t step = 1;
  const auto width = static_cast<int64_t>(itemsize(view.dtype));
  for (int i = view.ndim; i-- > 0;) {
    block->strides[i] = view.strides ? view.strides[i] * view.stride_unit / width : step;
    step *= view.shape[i];
  }
  copy(view.device, kPteronCudaDeviceToDevice, block->data, view.data, nbytes, stream);
  return block;
}

TensorRef copy_of(const TensorBlock& block) {
  TensorRef copy = copy_of(view_of(block), block.stream);
  copy->stream = block.stream;
  copy->ready = record(block.device, block.stream);
  return copy;
}

namespace {

// In C order without gaps.
bool is_packed(const TensorView& view) noexcept {
  auto step = static_cast<int64_t>(itemsize(view.dtype));
  for (int i = view.ndim; i-- > 0;) {
    if (view.strides && view.shape[i] != 1 && view.strides[i] * view.stride_unit != step) {
      return false;
    }
    step *= view.shape[i];
  }
  return true;
}

}  // namespace

TensorRef to_device(const TensorView& view, Device device) {
  int32_t devices = 0;
  check(api().device_count(&devices), "count the devices");
  if (device.index >= devices) {
    throw Error(Kind::Device, Code::InvalidArgument,
                "There is no device " + to_string(device) + ": this machine has " +
                    std::to_string(devices));
  }
  // Packed memory is read where it is: the call returns when the source may be changed.
  TensorRef packed;
  TensorView source = view;
  if (!is_packed(view)) {
    packed = pteron::copy_of(view);
    if (!packed) throw std::bad_alloc();
    source = view_of(*packed.get());
  }
  size_t nbytes = itemsize(view.dtype);
  for (int i = 0; i < view.ndim; ++i) nbytes *= static_cast<size_t>(view.shape[i]);
  TensorRef block = new_block(device, view.ndim, view.dtype, nbytes, nullptr, "The array");
  int64_t step = 1;
  for (int i = view.ndim; i-- > 0;) {
    block->shape[i] = view.shape[i];
    block->strides[i] = step;
    step *= view.shape[i];
  }
  copy(device, kPteronCudaHostToDevice, block->data, source.data, nbytes, nullptr);
  block->ready = record(device, nullptr);  // the source may be let go before the copy is done
  return block;
}

void synchronize(Device device) {
  check(api().synchronize_device(device.index), "wait for " + to_string(device));
}

}  // namespace pteron::cuda

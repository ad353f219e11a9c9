// Shims about devices, streams and raw memory.
#include <memory>

#include "context.h"
#include "memory.h"
#include "shims.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

// Sets the device for a scope; unlike StreamGuard it can move to another device on the way.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) { set(device); }

  void set(int device) {
    inner_.reset();
    inner_ = std::make_unique<ContextGuard>(device);
  }

 private:
  std::unique_ptr<ContextGuard> inner_;
};

struct DeviceStreamGuard {
  DeviceStreamGuard(int device, Stream stream) : context(device), stream(device, stream) {}

  ContextGuard context;
  StreamGuard stream;
};

int checked_index(int32_t index) { return index < 0 ? current_device() : index; }

}  // namespace

PTERON_SHIM int32_t aoti_torch_create_cuda_stream_guard(void* stream, int32_t index,
                                                        DeviceStreamGuard** out) {
  return shim(
      [&] { *out = new DeviceStreamGuard(checked_index(index), static_cast<Stream>(stream)); });
}

PTERON_SHIM int32_t aoti_torch_delete_cuda_stream_guard(DeviceStreamGuard* guard) {
  return shim([&] { delete guard; });
}

PTERON_SHIM int32_t aoti_torch_create_cuda_guard(int32_t index, DeviceGuard** out) {
  return shim([&] { *out = new DeviceGuard(checked_index(index)); });
}

PTERON_SHIM int32_t aoti_torch_delete_cuda_guard(DeviceGuard* guard) {
  return shim([&] { delete guard; });
}

PTERON_SHIM int32_t aoti_torch_cuda_guard_set_index(DeviceGuard* guard, int32_t index) {
  return shim([&] { guard->set(checked_index(index)); });
}

PTERON_SHIM int32_t aoti_torch_get_current_cuda_stream(int32_t index, void** out) {
  return shim([&] { *out = current_stream(checked_index(index)); });
}

PTERON_SHIM int32_t aoti_torch_get_current_device_index(int32_t* out) {
  return shim([&] { *out = current_device(); });
}

PTERON_SHIM int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t nbytes, void** out) {
  return shim([&] {
    const int device = current_device();
    *out = allocate_async(device, nbytes, current_stream(device));
  });
}

PTERON_SHIM int32_t aoti_torch_cuda_caching_allocator_raw_delete(void* pointer) {
  return shim([&] {
    const int device = current_device();
    free_async(device, pointer, current_stream(device));
  });
}

}  // namespace pteron::cuda

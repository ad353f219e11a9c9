#include "context.h"

#include <atomic>
#include <mutex>
#include <vector>

namespace pteron::cuda {

namespace {

struct Waits {
  std::mutex gate;  // who holds waits off is not overtaken by ever more of them
  std::shared_mutex mutex;
};

struct Devices {
  explicit Devices(int count)
      : contexts(static_cast<size_t>(count)), waits(static_cast<size_t>(count)) {}
  std::mutex mutex;
  std::vector<std::atomic<Context>> contexts;
  std::vector<Waits> waits;
};

Devices& devices() {
  static Devices* const instance = [] {
    int count = 0;
    check(driver().device_count(&count), "count CUDA devices");
    return new Devices(count);
  }();
  return *instance;
}

DeviceHandle handle_of(int device) {
  DeviceHandle handle = 0;
  check(driver().device_get(&handle, device), "look up a CUDA device");
  return handle;
}

size_t checked_index(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    throw Failure(ErrorCode::NotFound, "there is no cuda:" + std::to_string(device) +
                                           " here (devices: " + std::to_string(count) + ")");
  }
  return static_cast<size_t>(device);
}

}  // namespace

int device_count() { return static_cast<int>(devices().contexts.size()); }

std::string device_name(int device) {
  checked_index(device);
  char name[256] = {};
  check(driver().device_name(name, sizeof(name) - 1, handle_of(device)), "name a CUDA device");
  return name;
}

int compute_capability(int device) {
  checked_index(device);
  int major = 0;
  int minor = 0;
  const DeviceHandle handle = handle_of(device);
  check(driver().device_attribute(&major, kAttributeComputeMajor, handle), "query a CUDA device");
  check(driver().device_attribute(&minor, kAttributeComputeMinor, handle), "query a CUDA device");
  return major * 10 + minor;
}

Context primary_context(int device) {
  std::atomic<Context>& slot = devices().contexts[checked_index(device)];
  if (Context context = slot.load(std::memory_order_acquire)) return context;
  std::lock_guard lock(devices().mutex);
  if (Context context = slot.load(std::memory_order_acquire)) return context;
  Context context = nullptr;
  check(driver().primary_context_retain(&context, handle_of(device)), "start a CUDA context");
  slot.store(context, std::memory_order_release);
  return context;
}

int current_device() {
  DeviceHandle handle = 0;
  return driver().context_device(&handle) == kSuccess ? handle : 0;
}

ContextGuard::ContextGuard(int device) {
  const Context wanted = primary_context(device);
  Context current = nullptr;
  check(driver().context_get_current(&current), "read the current CUDA context");
  if (current == wanted) return;
  check(driver().context_push(wanted), "enter a CUDA context");
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  if (!pushed_) return;
  Context ignored = nullptr;
  driver().context_pop(&ignored);
}

void synchronize_device(int device) {
  ContextGuard guard(device);
  Waits& waits = devices().waits[checked_index(device)];
  std::unique_lock gate(waits.gate);
  std::shared_lock lock(waits.mutex);
  gate.unlock();
  check(driver().context_synchronize(), "wait for a CUDA device");
}

std::unique_lock<std::shared_mutex> hold_off_waits(int device) {
  Waits& waits = devices().waits[checked_index(device)];
  std::lock_guard gate(waits.gate);
  return std::unique_lock(waits.mutex);
}

PointerInfo pointer_info(const void* pointer) {
  PointerInfo info;
  if (pointer == nullptr) return info;
  // The plural call answers for plain host memory too, where the singular one is an error.
  unsigned memory_type = 0;
  unsigned managed = 0;
  int ordinal = -1;
  int attributes[] = {2 /* memory type */, 8 /* is managed */, 9 /* device ordinal */};
  void* values[] = {&memory_type, &managed, &ordinal};
  const Result result = driver().pointer_attributes(3, attributes, values, to_device_ptr(pointer));
  if (result == kInvalidValue) return info;
  check(result, "look up a pointer");
  if (managed != 0) {
    info.kind = PointerInfo::Kind::Managed;
    info.device = ordinal;
  } else if (memory_type == kMemoryDevice) {
    info.kind = PointerInfo::Kind::Device;
    info.device = ordinal;
  } else if (memory_type == kMemoryHost) {
    info.kind = PointerInfo::Kind::Pinned;
  }
  return info;
}

}  // namespace pteron::cuda

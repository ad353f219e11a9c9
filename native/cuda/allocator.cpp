#include "allocator.h"

#include <executorch/runtime/platform/log.h>

#include <mutex>

#include "context.h"
#include "memory.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

namespace et = ::executorch::runtime;

constexpr size_t kDeviceAlignment = 256;  // what cuMemAlloc guarantees

int device_of(CudaAllocator::DeviceIndex index) { return index < 0 ? current_device() : index; }

// Planned copies run where the program's own work runs: on the caller's stream, else on the shared
// one. Either way they wait for what was submitted before them and nothing else.
Stream stream_of(int device) {
  const auto chosen = caller_stream(device);
  return chosen ? *chosen : shared_stream(device);
}

template <typename Body>
et::Error logged(Body&& body) {
  const et::Error error = to_code(std::forward<Body>(body));
  if (error != et::Error::Ok) ET_LOG(Error, "%s", take_last_error().c_str());
  return error;
}

}  // namespace

et::Result<void*> CudaAllocator::allocate(size_t nbytes, DeviceIndex index, size_t alignment) {
  void* pointer = nullptr;
  const et::Error error = logged([&] {
    if (alignment > kDeviceAlignment) {
      throw Failure(et::Error::NotSupported,
                    "cannot allocate device memory aligned to " + std::to_string(alignment));
    }
    pointer = cuda::allocate(device_of(index), nbytes);
  });
  if (error != et::Error::Ok) return error;
  return pointer;
}

void CudaAllocator::deallocate(void* ptr, DeviceIndex index) {
  if (ptr == nullptr) return;
  to_code([&] { cuda::free(device_of(index), ptr); });
}

et::Error CudaAllocator::copy_host_to_device(void* dst, const void* src, size_t nbytes,
                                             DeviceIndex index) {
  if (nbytes == 0) return et::Error::Ok;
  return logged([&] {
    const int device = device_of(index);
    copy_border(CopyKind::HostToDevice, device, dst, src, nbytes, stream_of(device));
  });
}

et::Error CudaAllocator::copy_device_to_host(void* dst, const void* src, size_t nbytes,
                                             DeviceIndex index) {
  if (nbytes == 0) return et::Error::Ok;
  return logged([&] {
    const int device = device_of(index);
    copy_border(CopyKind::DeviceToHost, device, dst, src, nbytes, stream_of(device));
  });
}

et::etensor::DeviceType CudaAllocator::device_type() const { return et::etensor::DeviceType::CUDA; }

void register_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (et::get_device_allocator(et::etensor::DeviceType::CUDA) != nullptr) return;
    // Never destroyed: the registry keeps the pointer for good.
    et::register_device_allocator(new CudaAllocator);
  });
}

}  // namespace pteron::cuda

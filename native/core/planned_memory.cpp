#include "planned_memory.h"

#include <executorch/runtime/core/device_allocator.h>

#include <cstdlib>
#include <cstring>

#include "cuda_library.h"
#include "error.h"
#include "tensor_block.h"

namespace rt = executorch::runtime;

namespace pteron {
namespace {

rt::etensor::DeviceType runtime_type(const Device& device) {
  return static_cast<rt::etensor::DeviceType>(device.type);
}

rt::DeviceAllocator& allocator_of(const Device& device) {
  rt::DeviceAllocator* allocator = rt::get_device_allocator(runtime_type(device));
  if (allocator != nullptr) return *allocator;
  throw Error(Kind::Device, Code::NotFound, "Nothing here can reach device " + to_string(device));
}

}  // namespace

Arena Arena::create(const Device& device, uint64_t size, const std::string& what, bool pinned) {
  Arena arena;
  const auto nbytes = static_cast<size_t>(size);
  if (!device.is_cpu()) {
    auto memory = rt::DeviceMemoryBuffer::create(nbytes, runtime_type(device), device.index);
    if (!memory.ok()) {
      fail(Kind::Device, static_cast<uint32_t>(memory.error()),
           what + ": it keeps values on device " + to_string(device) +
               ", where memory could not be had");
    }
    arena.device_memory = std::move(memory.get());
    arena.span = arena.device_memory.as_span();
    return arena;
  }
  const size_t padded = nbytes + kDataAlignment + kDataPadding;
  if (pinned) {
    arena.memory = cuda::allocate_pinned(padded, "Planned memory to " + what);
    std::memset(arena.memory.get(), 0, padded);
  } else {  // calloc: untouched pages cost nothing
    arena.memory = {std::calloc(1, padded), [](void* p) { std::free(p); }};
    if (arena.memory == nullptr) no_memory("Planned memory to " + what, size);
  }
  const auto start = (reinterpret_cast<uintptr_t>(arena.memory.get()) + kDataAlignment - 1) &
                     ~(kDataAlignment - 1);
  arena.span = {reinterpret_cast<uint8_t*>(start), nbytes};
  return arena;
}

void read_planned(const Device& device, void* to, const void* planned, size_t nbytes) {
  if (nbytes == 0) return;
  if (device.is_cpu()) {
    std::memcpy(to, planned, nbytes);
    return;
  }
  check(allocator_of(device).copy_device_to_host(to, planned, nbytes, device.index),
        [&] { return "copy from device " + to_string(device); });
}

void write_planned(const Device& device, void* planned, const void* from, size_t nbytes) {
  if (nbytes == 0) return;
  if (device.is_cpu()) {
    std::memmove(planned, from, nbytes);
    return;
  }
  check(allocator_of(device).copy_host_to_device(planned, from, nbytes, device.index),
        [&] { return "copy to device " + to_string(device); });
}

void no_memory(const std::string& what, uint64_t nbytes) {
  throw Error(Kind::Memory, Code::MemoryAllocationFailed,
              what + " needs " + std::to_string(nbytes) + " bytes, which are not to be had, " +
                  code_text(Code::MemoryAllocationFailed));
}

}  // namespace pteron

// The memory of planned buffers: one arena each, on the host or on a device.
#pragma once

#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/core/span.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device.h"

namespace pteron {

struct Arena {
  std::shared_ptr<void> memory;
  executorch::runtime::DeviceMemoryBuffer device_memory;
  executorch::runtime::Span<uint8_t> span;

  // On the host it holds zeros: state without initial values starts there. With `pinned` CUDA
  // devices copy from and to it at full speed. `what` is for messages. Throws Error{Memory,
  // Device}.
  static Arena create(const Device& device, uint64_t size, const std::string& what,
                      bool pinned = false);
};

// Copies between the host and planned memory on `device`, which may be the host too. Throws
// Error{Device}.
void read_planned(const Device& device, void* to, const void* planned, size_t nbytes);
void write_planned(const Device& device, void* planned, const void* from, size_t nbytes);

// "<what> needs 12 bytes, which are not to be had, error: 0x21 (MemoryAllocationFailed)".
[[noreturn]] void no_memory(const std::string& what, uint64_t nbytes);

}  // namespace pteron

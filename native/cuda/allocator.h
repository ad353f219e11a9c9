// The runtime's DeviceAllocator for CUDA: planned device buffers, and the copies that programs make
// at the border (et_copy::_h2d_copy, _d2h_copy).
#pragma once

#include <executorch/runtime/core/device_allocator.h>

namespace pteron::cuda {

class CudaAllocator final : public ::executorch::runtime::DeviceAllocator {
 public:
  using DeviceIndex = ::executorch::runtime::etensor::DeviceIndex;
  using Error = ::executorch::runtime::Error;

  ::executorch::runtime::Result<void*> allocate(size_t nbytes, DeviceIndex index,
                                                size_t alignment) override;
  void deallocate(void* ptr, DeviceIndex index) override;
  Error copy_host_to_device(void* dst, const void* src, size_t nbytes, DeviceIndex index) override;
  Error copy_device_to_host(void* dst, const void* src, size_t nbytes, DeviceIndex index) override;
  ::executorch::runtime::etensor::DeviceType device_type() const override;
};

// Registers the one allocator of the process, unless somebody's is there already: a second
// registration would end the process.
void register_allocator();

}  // namespace pteron::cuda

// Device memory and copies.
//
// Short-lived memory (what a model allocates while it runs, uploaded inputs, results) comes from a
// stream-ordered pool of our own per device, so that torch's and CuPy's pools stay untouched; where
// the device has no pools it comes from cuMemAlloc, which is slower and waits at every free.
// Long-lived memory (planned buffers, weights) always comes from cuMemAlloc.
#pragma once

#include "driver.h"

namespace pteron::cuda {

// Usable by work on `stream`. 0 bytes gives a valid pointer too.
void* allocate_async(int device, size_t nbytes, Stream stream);
// Given back once the work that is on `stream` now is done. Null is allowed.
void free_async(int device, void* pointer, Stream stream) noexcept;

void* allocate(int device, size_t nbytes);
void free(int device, void* pointer) noexcept;

// Gives what the pool holds and nobody uses back to the device.
void trim_pool(int device) noexcept;

enum class CopyKind { HostToDevice, DeviceToHost, DeviceToDevice };

// In the order of `stream`; returns when the copy is done (a download) or when the source may be
// changed (an upload). A device-to-device copy returns at once.
void copy(CopyKind kind, int device, void* dst, const void* src, size_t nbytes, Stream stream);

// The same, but may return at once in every case. The caller keeps host memory alive and unchanged.
void copy_async(CopyKind kind, int device, void* dst, const void* src, size_t nbytes,
                Stream stream);

// copy() of a value at the border of a program: it is in the method's own memory, so that a graph
// may record the copy.
void copy_border(CopyKind kind, int device, void* dst, const void* src, size_t nbytes,
                 Stream stream);

struct MemoryUse {
  size_t blocks = 0;  // live allocations of this library, all devices
  size_t nbytes = 0;
};
MemoryUse memory_use() noexcept;

}  // namespace pteron::cuda

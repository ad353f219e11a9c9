// The CUDA part of pteron, a library of its own that is opened when something first needs it.
//
// `import pteron`, and programs for the CPU, touch neither it nor the driver.
#pragma once

#include <memory>
#include <string>

#include "cuda/api.h"
#include "device.h"
#include "method.h"
#include "program_file.h"
#include "tensor_block.h"

namespace pteron::cuda {

// Opens the library and starts the driver. Throws Error{Device} with the reason and what to do.
const PteronCudaApi& api();

// The table if api() succeeded before, else null.
const PteronCudaApi* loaded() noexcept;

// Throws Error{Device} "Failed to <doing>: <text>" unless `text`, a result of the API, is null.
void check(const char* text, const std::string& doing);

// Whether a method keeps values on a CUDA device or has parts for CudaBackend.
bool is_needed_by(const MethodSpec& spec) noexcept;

// The copy is complete on return but for one from device to device, which is ordered on the stream.
void copy(Device device, PteronCudaCopy kind, void* to, const void* from, size_t nbytes,
          void* stream);

// A block in device memory of its own, with shape and strides to be filled. Throws Error{Memory}.
TensorRef new_block(Device device, int ndim, DType dtype, size_t nbytes, void* stream,
                    const std::string& what);

// An event recorded on `stream` now; released with its last owner.
std::shared_ptr<void> record(Device device, void* stream);
// Makes `stream` wait for what is pending in `block`; on the host with wait_here. No-ops where
// nothing is pending.
void wait(const TensorBlock& block, void* stream);
void wait_here(const TensorBlock& block);

// A copy on the same device of a packed device tensor, made on `stream`, where the tensor must be
// ready. Nothing waits: the copy is ready after what `stream` does now. Throws Error{Memory,
// Device}.
TensorRef copy_of(const TensorView& view, void* stream);
// The same of a result, on the stream that it is ready on; the copy has an event.
TensorRef copy_of(const TensorBlock& block);

// A copy of a device tensor in host memory, and of a packed host tensor on the device. Call without
// the GIL. Throws Error{Memory, Device}.
TensorRef to_host(const TensorBlock& block);
TensorRef to_device(const TensorView& view, Device device);

// Device memory of its own, freed on `stream` when the last owner is gone. Throws Error{Memory}.
std::shared_ptr<void> allocate(Device device, size_t nbytes, void* stream, const std::string& what);

// Host memory that the devices copy from and to at full speed. Throws Error{Memory}.
std::shared_ptr<void> allocate_pinned(size_t nbytes, const std::string& what);

// Everything submitted to the device so far is done when it returns. Call without the GIL.
void synchronize(Device device);

}  // namespace pteron::cuda

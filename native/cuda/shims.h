// What the files of shims share. A shim is a C function that a model library expects in the process
// (the AOTInductor ABI: names aoti_torch_*, 0 for success). They are the only symbols that this
// library exports beside the CUDA runtime calls and its API; the loader makes them visible to model
// libraries and to nobody else. A missing one fails the load, naming the symbol.
#pragma once

#include <cstdint>
#include <span>

#include "tensor.h"

#define PTERON_SHIM extern "C" __attribute__((visibility("default")))

namespace pteron::cuda {

// Runs a shim's body; a failure becomes 1 and its text this thread's last error.
template <typename Body>
int32_t shim(Body&& body) noexcept {
  return to_code(static_cast<Body&&>(body)) == ErrorCode::Ok ? 0 : 1;
}

inline const Tensor& ref(const Tensor* tensor) {
  if (tensor == nullptr) {
    throw Failure(ErrorCode::InvalidArgument, "the model passed a null tensor");
  }
  return *tensor;
}

inline std::span<const int64_t> dims(const int64_t* values, int64_t count) {
  if (count < 0 || count > 64) {
    throw Failure(ErrorCode::InvalidArgument,
                  "a tensor has " + std::to_string(count) + " dimensions");
  }
  if (values == nullptr) return {};
  return {values, static_cast<size_t>(count)};
}

// Numbers of torch's DeviceType.
constexpr int32_t kDeviceTypeCpu = 0;
constexpr int32_t kDeviceTypeCuda = 1;

Place checked_place(int32_t device_type, int32_t device_index);

}  // namespace pteron::cuda

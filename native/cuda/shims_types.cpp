// Shims that answer with a constant, and the few that report.
#include <executorch/runtime/platform/log.h>

#include <stdexcept>

#include "shims.h"

namespace pteron::cuda {

PTERON_SHIM int32_t aoti_torch_device_type_cpu() { return kDeviceTypeCpu; }
PTERON_SHIM int32_t aoti_torch_device_type_cuda() { return kDeviceTypeCuda; }
PTERON_SHIM int32_t aoti_torch_device_type_meta() { return 17; }
PTERON_SHIM int32_t aoti_torch_device_type_mps() { return 13; }
PTERON_SHIM int32_t aoti_torch_device_type_xpu() { return 12; }
PTERON_SHIM int32_t aoti_torch_device_type_privateuse1() { return 20; }

// Every dtype that torch has a name for here: an export uses more of them than its own tensors
// have.
#define PTERON_SHIM_DTYPE(suffix, dtype) \
  PTERON_SHIM int32_t aoti_torch_dtype_##suffix() { return static_cast<int32_t>(DType::dtype); }
PTERON_SHIM_DTYPE(uint8, UInt8)
PTERON_SHIM_DTYPE(int8, Int8)
PTERON_SHIM_DTYPE(int16, Int16)
PTERON_SHIM_DTYPE(int32, Int32)
PTERON_SHIM_DTYPE(int64, Int64)
PTERON_SHIM_DTYPE(uint16, UInt16)
PTERON_SHIM_DTYPE(uint32, UInt32)
PTERON_SHIM_DTYPE(uint64, UInt64)
PTERON_SHIM_DTYPE(float16, Float16)
PTERON_SHIM_DTYPE(bfloat16, BFloat16)
PTERON_SHIM_DTYPE(float32, Float32)
PTERON_SHIM_DTYPE(float64, Float64)
PTERON_SHIM_DTYPE(complex32, Complex32)
PTERON_SHIM_DTYPE(complex64, Complex64)
PTERON_SHIM_DTYPE(complex128, Complex128)
PTERON_SHIM_DTYPE(bool, Bool)
PTERON_SHIM_DTYPE(float8_e5m2, Float8_e5m2)
PTERON_SHIM_DTYPE(float8_e4m3fn, Float8_e4m3fn)
PTERON_SHIM_DTYPE(float8_e5m2fnuz, Float8_e5m2fnuz)
PTERON_SHIM_DTYPE(float8_e4m3fnuz, Float8_e4m3fnuz)
#undef PTERON_SHIM_DTYPE

PTERON_SHIM size_t aoti_torch_dtype_element_size(int32_t dtype) {
  return is_dtype(dtype) ? itemsize(static_cast<DType>(dtype)) : 0;
}

PTERON_SHIM int32_t aoti_torch_layout_strided() { return 0; }

PTERON_SHIM int32_t aoti_torch_memory_format_contiguous_format() { return 0; }
PTERON_SHIM int32_t aoti_torch_memory_format_preserve_format() { return 1; }
PTERON_SHIM int32_t aoti_torch_memory_format_channels_last() { return 2; }
PTERON_SHIM int32_t aoti_torch_memory_format_channels_last_3d() { return 3; }

// Nothing here records gradients.
PTERON_SHIM bool aoti_torch_grad_mode_is_enabled() { return false; }
PTERON_SHIM void aoti_torch_grad_mode_set_enabled(bool /*enabled*/) {}

// The one shim that throws: the model library catches it where it was called, and reports that the
// run failed. The reason is left for the delegate.
PTERON_SHIM void aoti_torch_check(bool condition, const char* function, const char* file,
                                  uint32_t line, const char* message) {
  if (condition) return;
  std::string text = message != nullptr ? message : "a check in the model failed";
  if (function != nullptr && file != nullptr) {
    text += std::string(" (") + function + ", " + file + ":" + std::to_string(line) + ")";
  }
  set_last_error(text);
  throw std::runtime_error(text);
}

PTERON_SHIM void aoti_torch_warn(const char* /*function*/, const char* /*file*/, uint32_t /*line*/,
                                 const char* message) {
  ET_LOG(Info, "model: %s", message != nullptr ? message : "");
}

}  // namespace pteron::cuda

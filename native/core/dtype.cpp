#include "dtype.h"

namespace pteron {

int dtype_from_dlpack(uint8_t code, uint8_t bits) noexcept {
  if (code == kDLNone) return -1;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kDTypes[i].dlpack_code == code && kDTypes[i].itemsize * 8 == bits) return i;
  }
  return -1;
}

int dtype_from_name(std::string_view name) noexcept {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == kDTypes[i].name) return i;
  }
  return -1;
}

}  // namespace pteron

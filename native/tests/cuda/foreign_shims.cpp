// Shims that are not ours: whoever calls one gets a failure.
#include <cstdint>

extern "C" __attribute__((visibility("default"))) int32_t aoti_torch_new_tensor_handle(void*,
                                                                                       void**) {
  return 1;
}
extern "C" __attribute__((visibility("default"))) int32_t aoti_torch_empty_strided(
    int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**) {
  return 1;
}

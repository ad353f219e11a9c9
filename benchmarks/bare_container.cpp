// One run of an AOTInductor container without pteron around it: inputs are wrapped, the container
// runs, its outputs are let go. bare_container.py fills the struct.
#include <cstdint>

extern "C" {

struct BareView {
  void* data;
  int64_t ndim;
  const int64_t* sizes;
  const int64_t* strides;
};

struct BareContainer {
  void* container;
  int32_t (*view)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                  int32_t, void**);
  int32_t (*run)(void*, void**, uint64_t, void**, uint64_t, void*, void*);
  int32_t (*release)(void*);
  const BareView* inputs;
  uint64_t num_inputs, num_outputs;
};

int32_t bare_run(const BareContainer* bare, void* stream) {
  constexpr int32_t kFloat32 = 6, kCuda = 1;
  void* inputs[8] = {};  // the container takes them
  void* outputs[8] = {};
  for (uint64_t i = 0; i < bare->num_inputs; ++i) {
    const BareView& x = bare->inputs[i];
    if (bare->view(x.data, x.ndim, x.sizes, x.strides, 0, kFloat32, kCuda, 0, &inputs[i])) return 1;
  }
  if (bare->run(bare->container, inputs, bare->num_inputs, outputs, bare->num_outputs, stream,
                nullptr)) {
    return 2;
  }
  for (uint64_t i = 0; i < bare->num_outputs; ++i) bare->release(outputs[i]);
  return 0;
}

}  // extern "C"

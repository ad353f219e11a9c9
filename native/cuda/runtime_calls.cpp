// The CUDA runtime calls that model libraries make, over the driver. No exporter links libcudart on
// Linux, and pteron needs none: both APIs share the primary context, and their error numbers agree
// for everything that the driver can return. cuModuleLoadData and cuModuleUnload are here as well:
// libraries written by torch 2.11 never unload their kernels, so the modules that a handle loaded
// are remembered (modules.h) and unloaded with it.
#include "context.h"
#include "graph.h"
#include "memory.h"
#include "modules.h"
#include "shims.h"

namespace pteron::cuda {

namespace {

thread_local Result last_result = kSuccess;

// What the runtime API returns and remembers. No driver at all reads as "no device".
template <typename Body>
Result runtime_call(Body&& body) noexcept {
  Result result = kNoDevice;
  if (to_code([&] { result = body(driver()); }) != ErrorCode::Ok && result == kSuccess) {
    result = kInvalidValue;
  }
  if (result != kSuccess && result != kNotReady) last_result = result;
  return result;
}

// These calls are done at once: a launch of the graph would not repeat them.
void refuse_while_recording() {
  if (!Graph::is_recording()) return;
  throw Failure(ErrorCode::NotSupported, "the model needs the host in the middle of its run");
}

// The runtime API makes the primary context current by itself.
void ensure_context() {
  Context current = nullptr;
  check(driver().context_get_current(&current), "read the current CUDA context");
  if (current == nullptr) {
    check(driver().context_set_current(primary_context(0)), "enter a CUDA context");
  }
}

}  // namespace

PTERON_SHIM int cudaMalloc(void** out, size_t nbytes) {
  return runtime_call([&](const Driver& d) {
    refuse_while_recording();
    ensure_context();
    DevicePtr pointer = 0;
    const Result result = nbytes == 0 ? kSuccess : d.memory_alloc(&pointer, nbytes);
    *out = to_pointer(pointer);
    return result;
  });
}

PTERON_SHIM int cudaFree(void* pointer) {
  return runtime_call([&](const Driver& d) {
    if (pointer == nullptr) return Result{kSuccess};
    refuse_while_recording();
    ensure_context();
    const Result result = d.memory_free(to_device_ptr(pointer));
    return is_shut_down(result) ? Result{kSuccess} : result;
  });
}

// The kind is a hint: the driver tells from the addresses.
PTERON_SHIM int cudaMemcpy(void* dst, const void* src, size_t nbytes, int kind) {
  return runtime_call([&](const Driver& d) {
    if (nbytes == 0) return Result{kSuccess};
    refuse_while_recording();
    ensure_context();
    switch (kind) {
      case 1:
        return d.copy_htod(to_device_ptr(dst), src, nbytes);
      case 2:
        return d.copy_dtoh(dst, to_device_ptr(src), nbytes);
      default:
        return d.copy(to_device_ptr(dst), to_device_ptr(src), nbytes);
    }
  });
}

PTERON_SHIM int cudaGetDevice(int* out) {
  return runtime_call([&](const Driver&) {
    *out = current_device();
    return Result{kSuccess};
  });
}

PTERON_SHIM int cudaSetDevice(int device) {
  return runtime_call([&](const Driver& d) {
    if (device < 0 || device >= device_count()) return Result{kInvalidDevice};
    return d.context_set_current(primary_context(device));
  });
}

PTERON_SHIM const char* cudaGetErrorString(int error) {
  const char* text = nullptr;
  to_code([&] { driver().error_string(error, &text); });
  return text != nullptr ? text : "CUDA error";
}

PTERON_SHIM int cudaGetLastError() {
  const Result result = last_result;
  last_result = kSuccess;
  return result;
}

PTERON_SHIM int cudaPeekAtLastError() { return last_result; }

PTERON_SHIM int cudaEventCreate(Event* out) {
  return runtime_call([&](const Driver& d) {
    ensure_context();
    return d.event_create(out, 0);
  });
}

PTERON_SHIM int cudaEventDestroy(Event event) {
  return runtime_call([&](const Driver& d) {
    const Result result = d.event_destroy(event);
    return is_shut_down(result) ? Result{kSuccess} : result;
  });
}

PTERON_SHIM int cudaEventRecord(Event event, Stream stream) {
  return runtime_call([&](const Driver& d) { return d.event_record(event, stream); });
}

PTERON_SHIM int cudaEventQuery(Event event) {
  return runtime_call([&](const Driver& d) { return d.event_query(event); });
}

PTERON_SHIM int cudaEventSynchronize(Event event) {
  return runtime_call([&](const Driver& d) { return d.event_synchronize(event); });
}

PTERON_SHIM int cuModuleLoadData(Module* out, const void* image) {
  return runtime_call([&](const Driver& d) {
    const Result result = d.module_load(out, image);
    if (result == kSuccess) ModuleScope::remember(*out);
    return result;
  });
}

PTERON_SHIM int cuModuleUnload(Module module) {
  return runtime_call([&](const Driver& d) {
    ModuleScope::forget(module);
    const Result result = d.module_unload(module);
    return is_shut_down(result) ? Result{kSuccess} : result;
  });
}

}  // namespace pteron::cuda

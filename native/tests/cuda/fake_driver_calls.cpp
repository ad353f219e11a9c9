// The cu* functions of the fake driver.
#include <cstdlib>
#include <cstring>

#include "fake_driver_state.h"

using namespace fake_cuda;  // NOLINT: this file is the library's border

namespace {

void* context_of(int device) {
  return reinterpret_cast<void*>(uintptr_t{0xC000} + static_cast<unsigned>(device));
}
int device_of(void* context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0xC000);
}
}  // namespace

FAKE Result cuInit(unsigned) {
  std::lock_guard lock(fake().mutex);
  if (const Result failure = injected("cuInit"); failure != kOk) return failure;
  fake().initialized = true;
  return kOk;
}
FAKE Result cuDriverGetVersion(int* out) {
  *out = fake().version;
  return kOk;
}
FAKE Result cuGetErrorName(Result r, const char** out) {
  *out = r == kOutOfMemory    ? "CUDA_ERROR_OUT_OF_MEMORY"
         : r == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
                              : "CUDA_ERROR_FAKE";
  return kOk;
}
FAKE Result cuGetErrorString(Result r, const char** out) {
  *out = r == kOutOfMemory    ? "out of memory"
         : r == kInvalidValue ? "invalid argument"
                              : "a fake error";
  return kOk;
}
FAKE Result cuDeviceGetCount(int* out) {
  ENTER(cuDeviceGetCount);
  *out = fake().devices;
  return kOk;
}
FAKE Result cuDeviceGet(int* out, int index) {
  ENTER(cuDeviceGet);
  if (index < 0 || index >= fake().devices) return kInvalidDevice;
  *out = index;
  return kOk;
}
FAKE Result cuDeviceGetName(char* out, int size, int) {
  std::strncpy(out, "Fake GPU", static_cast<size_t>(size));
  return kOk;
}
FAKE Result cuDeviceGetAttribute(int* out, int attribute, int) {
  ENTER(cuDeviceGetAttribute);
  *out = attribute == 75 ? 9 : attribute == 115 ? fake().pools : 0;
  return kOk;
}
FAKE Result cuDevicePrimaryCtxRetain(void** out, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  *out = context_of(device);
  return kOk;
}
FAKE Result cuCtxGetCurrent(void** out) {
  *out = thread_contexts().empty() ? nullptr : context_of(thread_contexts().back());
  return kOk;
}
FAKE Result cuCtxSetCurrent(void* context) {
  ENTER(cuCtxSetCurrent);
  if (!thread_contexts().empty()) thread_contexts().pop_back();
  if (context != nullptr) thread_contexts().push_back(device_of(context));
  return kOk;
}
FAKE Result cuCtxPushCurrent_v2(void* context) {
  ENTER(cuCtxPushCurrent_v2);
  thread_contexts().push_back(device_of(context));
  return kOk;
}
FAKE Result cuCtxPopCurrent_v2(void** out) {
  NEED_CONTEXT();
  *out = context_of(thread_contexts().back());
  thread_contexts().pop_back();
  return kOk;
}
FAKE Result cuCtxGetDevice(int* out) {
  if (thread_contexts().empty()) return kInvalidContext;  // a question, not a mistake
  *out = thread_contexts().back();
  return kOk;
}
FAKE Result cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  NEED_CONTEXT();
  if (break_recordings(current_device(), false)) return kNotWhileRecording;
  ++fake().counters.device_waits;
  ++fake().device_waits[current_device()];
  run_device(current_device());
  return kOk;
}

FAKE Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  ENTER(cuMemGetInfo_v2);
  *total = fake().memory;
  *free_bytes = fake().memory - fake().counters.live_bytes;
  return kOk;
}
FAKE Result cuMemAlloc_v2(Pointer* out, size_t nbytes) {
  ENTER(cuMemAlloc_v2);
  return allocate(out, nbytes, false);
}
// Waits for the device, but not where the memory is a pool's.
FAKE Result cuMemFree_v2(Pointer p) {
  ENTER(cuMemFree_v2);
  if (!on_current_device(pointer(p))) return bad_context();
  auto found = fake().blocks.find(address(p));
  if (found != fake().blocks.end() && !found->second.pooled) run_device(current_device());
  return release(p);
}
FAKE Result cuMemHostAlloc(void** out, size_t nbytes, unsigned) {
  ENTER(cuMemHostAlloc);
  *out = std::malloc(nbytes);
  fake().pinned[reinterpret_cast<uintptr_t>(*out)] = nbytes;
  return kOk;
}
FAKE Result cuMemFreeHost(void* p) {
  ENTER(cuMemFreeHost);
  if (fake().pinned.erase(reinterpret_cast<uintptr_t>(p)) == 0) return bad_pointer();
  std::free(p);
  return kOk;
}
FAKE Result cuMemHostRegister_v2(void* p, size_t nbytes, unsigned) {
  ENTER(cuMemHostRegister_v2);
  fake().pinned[reinterpret_cast<uintptr_t>(p)] = nbytes;
  return kOk;
}
FAKE Result cuMemHostUnregister(void* p) {
  ENTER(cuMemHostUnregister);
  return fake().pinned.erase(reinterpret_cast<uintptr_t>(p)) == 0 ? bad_pointer() : kOk;
}
FAKE Result cuMemPoolCreate(void** out, const int* properties) {
  ENTER(cuMemPoolCreate);
  *out = std::malloc(1);
  fake().pool_handles[*out] = properties[3];  // location.id
  ++fake().counters.live_pools;
  return kOk;
}
FAKE Result cuMemPoolSetAttribute(void*, int, void*) { return kOk; }
FAKE Result cuMemPoolTrimTo(void* pool, size_t) {
  ENTER(cuMemPoolTrimTo);
  NEED_DEVICE(fake().pool_handles[pool]);
  return kOk;
}
FAKE Result cuMemAllocFromPoolAsync(Pointer* out, size_t nbytes, void* pool, void* stream) {
  ENTER(cuMemAllocFromPoolAsync);
  if (!fake().pool_handles.contains(pool)) return kInvalidHandle;
  NEED_DEVICE(fake().pool_handles[pool]);
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  return allocate(out, nbytes, true);
}
FAKE Result cuMemFreeAsync(Pointer p, void* stream) {
  ENTER(cuMemFreeAsync);
  NEED_CONTEXT();
  if (!fake().blocks.contains(address(p))) return bad_pointer();
  if (!on_current_device(pointer(p))) return bad_context();
  return submit(stream, [p] { release(p); });
}

FAKE Result cuMemcpyHtoDAsync_v2(Pointer dst, const void* src, size_t n, void* stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  return copy(pointer(dst), Side::Device, src, Side::Host, n, stream);
}
FAKE Result cuMemcpyDtoHAsync_v2(void* dst, Pointer src, size_t n, void* stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  return copy(dst, Side::Host, pointer(src), Side::Device, n, stream);
}
FAKE Result cuMemcpyDtoDAsync_v2(Pointer dst, Pointer src, size_t n, void* stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  return copy(pointer(dst), Side::Device, pointer(src), Side::Device, n, stream);
}
FAKE Result cuMemcpyAsync(Pointer dst, Pointer src, size_t n, void* stream) {
  ENTER(cuMemcpyAsync);
  return copy(pointer(dst), side_of(pointer(dst)), pointer(src), side_of(pointer(src)), n, stream);
}
FAKE Result cuMemcpyHtoD_v2(Pointer dst, const void* src, size_t n) {
  ENTER(cuMemcpyHtoD_v2);
  const Result result = copy(pointer(dst), Side::Device, src, Side::Host, n, nullptr);
  run_stream(legacy_of(current_device()));
  return result;
}
FAKE Result cuMemcpyDtoH_v2(void* dst, Pointer src, size_t n) {
  ENTER(cuMemcpyDtoH_v2);
  const Result result = copy(dst, Side::Host, pointer(src), Side::Device, n, nullptr);
  run_stream(legacy_of(current_device()));
  return result;
}
FAKE Result cuMemcpy(Pointer dst, Pointer src, size_t n) {
  ENTER(cuMemcpy);
  const Result result =
      copy(pointer(dst), side_of(pointer(dst)), pointer(src), side_of(pointer(src)), n, nullptr);
  run_stream(legacy_of(current_device()));
  return result;
}

namespace {
struct Copy2D {
  size_t src_x, src_y;
  int src_type;
  const void* src_host;
  Pointer src_device;
  void* src_array;
  size_t src_pitch, dst_x, dst_y;
  int dst_type;
  void* dst_host;
  Pointer dst_device;
  void* dst_array;
  size_t dst_pitch, width, height;
};
}  // namespace

FAKE Result cuMemcpy2DAsync_v2(const Copy2D* c, void* stream) {
  ENTER(cuMemcpy2DAsync_v2);
  const bool from_device = c->src_type == 2;
  const bool to_device = c->dst_type == 2;
  const char* src = from_device ? static_cast<const char*>(pointer(c->src_device))
                                : static_cast<const char*>(c->src_host);
  char* dst =
      to_device ? static_cast<char*>(pointer(c->dst_device)) : static_cast<char*>(c->dst_host);
  if (c->height == 0) return kOk;
  if (c->src_pitch < c->width || c->dst_pitch < c->width) return kInvalidValue;
  const size_t src_span = (c->height - 1) * c->src_pitch + c->width;
  const size_t dst_span = (c->height - 1) * c->dst_pitch + c->width;
  if ((from_device && !inside(src, src_span)) || (to_device && !inside(dst, dst_span)))
    return bad_pointer();
  if (!on_current_device(src) || !on_current_device(dst)) return bad_context();
  ++fake().counters.device_copies;
  const Copy2D copy = *c;
  return submit(stream, [=] {
    for (size_t row = 0; row < copy.height; ++row) {
      std::memcpy(dst + row * copy.dst_pitch, src + row * copy.src_pitch, copy.width);
    }
  });
}
FAKE Result cuMemsetD8Async(Pointer dst, unsigned char value, size_t n, void* stream) {
  ENTER(cuMemsetD8Async);
  if (!inside(pointer(dst), n)) return bad_pointer();
  if (!on_current_device(pointer(dst))) return bad_context();
  return submit(stream, [=] { std::memset(pointer(dst), value, n); });
}
FAKE Result cuPointerGetAttributes(unsigned count, int* attributes, void** values, Pointer p) {
  ENTER(cuPointerGetAttributes);
  const int owner = fake_cuda_device_of(pointer(p));
  const bool device = owner >= 0;
  const bool pinned = is_pinned(pointer(p));
  for (unsigned i = 0; i < count; ++i) {
    const unsigned type = device ? 2 : pinned ? 1 : 0;
    switch (attributes[i]) {
      case 2:
        *static_cast<unsigned*>(values[i]) = type;
        break;
      case 8:
        *static_cast<unsigned*>(values[i]) = 0;
        break;
      case 9:
        *static_cast<int*>(values[i]) = device ? owner : -2;
        break;
      default:
        return kInvalidValue;
    }
  }
  return kOk;
}

FAKE Result cuStreamCreate(void** out, unsigned flags) {
  ENTER(cuStreamCreate);
  *out = std::malloc(1);
  fake().streams[*out] = {.device = current_device(), .blocking = (flags & 1U) == 0};
  ++fake().counters.live_streams;
  return kOk;
}
FAKE Result cuStreamGetCtx(void* stream, void** out) {
  ENTER(cuStreamGetCtx);
  auto found = fake().streams.find(resolve(stream));
  if (found == fake().streams.end()) return kInvalidHandle;
  *out = context_of(found->second.device);
  return kOk;
}
FAKE Result cuStreamDestroy_v2(void* stream) {
  ENTER(cuStreamDestroy_v2);
  if (stream == nullptr || resolve(stream) != stream) return kInvalidHandle;
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  run_stream(stream);
  delete fake().streams[stream].recording;
  fake().streams.erase(stream);
  std::free(stream);
  --fake().counters.live_streams;
  return kOk;
}
FAKE Result cuStreamSynchronize(void* stream) {
  ENTER(cuStreamSynchronize);
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  if (fake().streams[stream].recording != nullptr) {
    fake().streams[stream].broken = true;
    return kNotWhileRecording;
  }
  if (stream == legacy_of(current_device()) && break_recordings(current_device(), true)) {
    return kLegacyWhileRecording;
  }
  ++fake().counters.stream_waits;
  run_stream(stream);
  return kOk;
}
FAKE Result cuStreamWaitEvent(void* stream, Event* event, unsigned) {
  ENTER(cuStreamWaitEvent);
  if (!fake().events.contains(event)) return kInvalidHandle;  // of any device
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  Stream& waiting = fake().streams[stream];
  if (event->recorded || waiting.recording != nullptr) {  // no graph of ours has events
    waiting.broken = waiting.recording != nullptr;
    return kNotRecorded;
  }
  ++fake().counters.stream_wait_events;
  if (event->ticket != 0 && fake().deferred) {
    fake().streams[stream].queue.push_back({++fake().tickets, event->ticket, event->stream, {}});
  }
  return kOk;
}
FAKE Result cuEventCreate(Event** out, unsigned) {
  ENTER(cuEventCreate);
  *out = new Event{.device = current_device()};
  fake().events.insert(*out);
  ++fake().counters.live_events;
  return kOk;
}
FAKE Result cuEventDestroy_v2(Event* event) {
  ENTER(cuEventDestroy_v2);
  if (!fake().events.contains(event)) return kInvalidHandle;
  NEED_DEVICE(event->device);
  fake().events.erase(event);
  delete event;
  --fake().counters.live_events;
  return kOk;
}
FAKE Result cuEventRecord(Event* event, void* stream) {
  ENTER(cuEventRecord);
  if (!fake().events.contains(event)) return kInvalidHandle;
  NEED_DEVICE(event->device);
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  event->recorded = fake().streams[stream].recording != nullptr;
  if (event->recorded) return kOk;
  ++fake().counters.event_records;
  event->ticket = ++fake().tickets;
  event->stream = stream;
  // An entry without a body, so that the legacy stream's rule applies to the record as well.
  if (fake().deferred) fake().streams[stream].queue.push_back({event->ticket, 0, nullptr, {}});
  return kOk;
}
FAKE Result cuEventQuery(Event* event) {
  ENTER(cuEventQuery);
  if (!fake().events.contains(event)) return kInvalidHandle;
  NEED_DEVICE(event->device);
  if (event->recorded) return kRecordedEvent;
  auto found = fake().streams.find(event->stream);
  if (event->ticket == 0 || found == fake().streams.end()) return kOk;
  for (const Work& work : found->second.queue) {
    if (work.ticket <= event->ticket) return kNotReady;
  }
  return kOk;
}
FAKE Result cuEventSynchronize(Event* event) {
  ENTER(cuEventSynchronize);
  if (!fake().events.contains(event)) return kInvalidHandle;
  NEED_DEVICE(event->device);
  if (event->recorded) return kRecordedEvent;
  ++fake().counters.event_waits;
  if (event->ticket != 0) run_until(event->stream, event->ticket);
  return kOk;
}

FAKE Result cuModuleLoadData(void** out, const void*) {
  ENTER(cuModuleLoadData);
  NEED_CONTEXT();
  *out = std::malloc(1);
  fake().modules[*out] = current_device();
  ++fake().counters.live_modules;
  return kOk;
}
FAKE Result cuModuleUnload(void* module) {
  ENTER(cuModuleUnload);
  NEED_CONTEXT();
  auto found = fake().modules.find(module);
  if (found == fake().modules.end()) return kInvalidHandle;
  NEED_DEVICE(found->second);
  fake().modules.erase(found);
  std::free(module);
  --fake().counters.live_modules;
  return kOk;
}

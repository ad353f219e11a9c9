#include "api.h"

#include <memory>

#include "allocator.h"
#include "context.h"
#include "delegate.h"
#include "graph.h"
#include "host_memory.h"
#include "memory.h"
#include "stream.h"
#include "tensor.h"

namespace pteron::cuda {

namespace {

thread_local std::string reply;

// Null, or the text of what `body` threw.
template <typename Body>
const char* call(Body&& body) noexcept {
  if (to_code(std::forward<Body>(body)) == ErrorCode::Ok) return nullptr;
  try {
    reply = take_last_error();
  } catch (const std::bad_alloc&) {
    return "out of host memory";
  }
  return reply.empty() ? "unknown CUDA error" : reply.c_str();
}

const char* give(const std::string& text) {
  thread_local std::string kept;
  kept = text;
  return kept.c_str();
}

Stream as_stream(void* stream) { return static_cast<Stream>(stream); }
Event as_event(void* event) { return static_cast<Event>(event); }

std::string version_text(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CopyKind checked_kind(int32_t kind) {
  switch (kind) {
    case kPteronCudaHostToDevice:
      return CopyKind::HostToDevice;
    case kPteronCudaDeviceToHost:
      return CopyKind::DeviceToHost;
    case kPteronCudaDeviceToDevice:
      return CopyKind::DeviceToDevice;
    default:
      throw Failure(ErrorCode::InvalidArgument, "no such kind of copy");
  }
}

int32_t memory_kind(PointerInfo::Kind kind) {
  switch (kind) {
    case PointerInfo::Kind::Host:
      return kPteronCudaHost;
    case PointerInfo::Kind::Pinned:
      return kPteronCudaPinned;
    case PointerInfo::Kind::Device:
      return kPteronCudaDevice;
    case PointerInfo::Kind::Managed:
      return kPteronCudaManaged;
  }
  return kPteronCudaHost;
}

constexpr PteronCudaApi kApi = {
    .version = kPteronCudaApiVersion,
    .size = sizeof(PteronCudaApi),
    .set_driver_path =
        [](const char* path) {
          return call([&] {
            if (!cuda::set_driver_path(path)) {
              throw Failure(ErrorCode::InvalidState, "the CUDA driver is already open");
            }
          });
        },
    .ensure_loaded =
        []() {
          return call([] {
            register_allocator();
            register_backend();
            driver();
          });
        },
    .driver_text =
        [](const char** out) {
          return call([&] { *out = give(version_text(driver().version) + ", " + driver().path); });
        },
    .device_count = [](int32_t* out) { return call([&] { *out = cuda::device_count(); }); },
    .device_text =
        [](int32_t device, const char** out) {
          return call([&] {
            *out = give(device_name(device) + " (sm_" + std::to_string(compute_capability(device)) +
                        ")");
          });
        },
    .memory_info =
        [](int32_t device, size_t* free_bytes, size_t* total_bytes) {
          return call([&] {
            ContextGuard guard(device);
            check(driver().memory_info(free_bytes, total_bytes), "read the free device memory");
          });
        },
    .allocate =
        [](int32_t device, size_t nbytes, void* stream, void** out) {
          return call([&] { *out = allocate_async(device, nbytes, as_stream(stream)); });
        },
    .free =
        [](int32_t device, void* pointer, void* stream) {
          return call([&] { free_async(device, pointer, as_stream(stream)); });
        },
    .allocate_host = [](size_t nbytes,
                        void** out) { return call([&] { *out = cuda::allocate_host(nbytes); }); },
    .free_host = [](void* pointer) { cuda::free_host(pointer); },
    .pin_host = [](void* pointer,
                   size_t nbytes) { return call([&] { cuda::pin_host(pointer, nbytes); }); },
    .unpin_host = [](void* pointer) { cuda::unpin_host(pointer); },
    .copy =
        [](int32_t device, int32_t kind, void* dst, const void* src, size_t nbytes, void* stream) {
          return call(
              [&] { cuda::copy(checked_kind(kind), device, dst, src, nbytes, as_stream(stream)); });
        },
    .pointer_query =
        [](const void* pointer, int32_t* kind, int32_t* device) {
          return call([&] {
            const PointerInfo info = pointer_info(pointer);
            *kind = memory_kind(info.kind);
            *device = info.device;
          });
        },
    .stream_create =
        [](int32_t device, void** out) {
          return call([&] {
            ContextGuard guard(device);
            Stream stream = nullptr;
            check(driver().stream_create(&stream, 0), "create a CUDA stream");
            *out = stream;
          });
        },
    .stream_destroy =
        [](int32_t device, void* stream) {
          to_code([&] {
            ContextGuard guard(device);
            driver().stream_destroy(as_stream(stream));
          });
        },
    .synchronize_device =
        [](int32_t device) { return call([&] { cuda::synchronize_device(device); }); },
    .synchronize_stream =
        [](int32_t device, void* stream) {
          return call([&] { cuda::synchronize_stream(device, as_stream(stream)); });
        },
    .event_record =
        [](int32_t device, void* stream, void** out) {
          return call([&] {
            ContextGuard guard(device);
            *out = record_event(device, as_stream(stream));
          });
        },
    .event_wait =
        [](int32_t device, void* stream, void* event) {
          return call([&] {
            ContextGuard guard(device);
            check(driver().stream_wait_event(as_stream(stream), as_event(event), 0),
                  "order two CUDA streams");
          });
        },
    .event_synchronize =
        [](int32_t device, void* event) {
          return call([&] {
            ContextGuard guard(device);
            check(driver().event_synchronize(as_event(event)), "wait for a CUDA event");
          });
        },
    .event_query =
        [](int32_t device, void* event, int32_t* done) {
          return call([&] {
            ContextGuard guard(device);
            const Result result = driver().event_query(as_event(event));
            if (result != kNotReady) check(result, "ask a CUDA event");
            *done = result == kSuccess ? 1 : 0;
          });
        },
    .event_release = [](int32_t device, void* event) { release_event(device, as_event(event)); },
    .set_caller_stream =
        [](int32_t device, void* stream) {
          return call([&] { cuda::set_caller_stream(device, as_stream(stream)); });
        },
    .clear_caller_stream = [](int32_t device) { cuda::clear_caller_stream(device); },
    .stream_device =
        [](int32_t device, void* stream, int32_t* out) {
          return call([&] { *out = cuda::stream_device(device, as_stream(stream)); });
        },
    .shared_stream = [](int32_t device,
                        void** out) { return call([&] { *out = cuda::shared_stream(device); }); },
    .graph_begin =
        [](int32_t device, void* earlier, void** out) {
          return call([&] {
            auto graph = std::make_unique<Graph>(device);
            graph->begin(static_cast<Graph*>(earlier));
            *out = graph.release();
          });
        },
    .graph_port =
        [](void* graph, void* dst, const void* src, size_t nbytes, int32_t before, int32_t alone,
           size_t* out) {
          return call([&] {
            *out = static_cast<Graph*>(graph)->port(dst, src, nbytes, before != 0, alone != 0);
          });
        },
    .graph_end =
        [](void* graph, const void* earlier, int32_t* copies_host) {
          return call([&] {
            static_cast<Graph*>(graph)->end(static_cast<const Graph*>(earlier));
            *copies_host = static_cast<Graph*>(graph)->copies_host() ? 1 : 0;
          });
        },
    .graph_connect =
        [](void* graph, size_t port, const void* outer, int32_t* copies) {
          return call([&] { *copies = static_cast<Graph*>(graph)->connect(port, outer) ? 1 : 0; });
        },
    .graph_launch =
        [](void* graph, void* stream) {
          return call([&] { static_cast<Graph*>(graph)->launch(as_stream(stream)); });
        },
    .graph_destroy = [](void* graph) { delete static_cast<Graph*>(graph); },
    .use =
        []() {
          const MemoryUse memory = memory_use();
          return PteronCudaUse{memory.blocks, memory.nbytes, Tensor::live(), live_handles(),
                               live_events()};
        },
};

}  // namespace

}  // namespace pteron::cuda

extern "C" __attribute__((visibility("default"))) const PteronCudaApi* pteron_cuda_api(
    uint32_t version) {
  return version == kPteronCudaApiVersion ? &pteron::cuda::kApi : nullptr;
}

// What the binding's core uses of libpteron_cuda.so, which it opens on first need.
//
// One exported function gives a table. Nothing here throws across the library's border: a call that
// can fail returns null for success, else a text that stays valid until the thread's next call. A
// stream is the driver's handle (cudaStream_t is the same); null is the legacy default stream.
//
// How the binding runs a method on stream S: set_caller_stream(device, S), execute, then
// event_record(device, S) once for all results of the call, clear_caller_stream(device).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The handle of the stream that each thread has for itself. It and those below it, which mean the
// legacy stream, exist on every device.
constexpr uintptr_t kPteronCudaPerThread = 2;

constexpr uint32_t kPteronCudaApiVersion = 2;

enum PteronCudaCopy : int32_t {
  kPteronCudaHostToDevice = 0,
  kPteronCudaDeviceToHost = 1,
  kPteronCudaDeviceToDevice = 2,
};

enum PteronCudaMemory : int32_t {
  kPteronCudaHost = 0,    // plain host memory, or unknown to the driver
  kPteronCudaPinned = 1,  // host memory that the driver knows
  kPteronCudaDevice = 2,
  kPteronCudaManaged = 3,
};

// For leak checks: what this library holds now, all devices.
struct PteronCudaUse {
  size_t blocks;
  size_t nbytes;
  int64_t tensors;
  int32_t handles;
  int32_t events;
};

struct PteronCudaApi {
  uint32_t version;
  uint32_t size;  // of this struct, in bytes

  // Before the first use only: opens this file instead of libcuda.so.1. For tests.
  const char* (*set_driver_path)(const char* path);

  // Starts the driver and registers the device allocator and "CudaBackend" with the runtime. Safe
  // to call again. Fails without a driver or a device; the backend is registered even then, so that
  // the runtime says that it is unavailable and why, not that it is unknown.
  const char* (*ensure_loaded)();

  // "CUDA 13.0, /usr/lib/x86_64-linux-gnu/libcuda.so.1".
  const char* (*driver_text)(const char** out);
  const char* (*device_count)(int32_t* out);
  const char* (*device_text)(int32_t device, const char** out);  // "NVIDIA H200 (sm_90)"
  const char* (*memory_info)(int32_t device, size_t* free_bytes, size_t* total_bytes);

  // Memory for results: ordered on the stream, from pteron's own pool. free may be called from any
  // thread; what was submitted to `stream` before it is still safe. The stream must be alive: where
  // that is not certain, let the shared stream wait for an event and free on that one.
  const char* (*allocate)(int32_t device, size_t nbytes, void* stream, void** out);
  const char* (*free)(int32_t device, void* pointer, void* stream);

  // Pinned host memory from a pool, for results that a program copies to the host, and pinning of
  // the caller's own (planned buffers of programs with copies): such copies run at the bus's speed.
  const char* (*allocate_host)(size_t nbytes, void** out);
  void (*free_host)(void* pointer);
  const char* (*pin_host)(void* pointer, size_t nbytes);
  void (*unpin_host)(void* pointer);

  // Ordered on the stream. A download is complete on return; an upload's source may be changed on
  // return; a device copy returns at once.
  const char* (*copy)(int32_t device, int32_t kind, void* dst, const void* src, size_t nbytes,
                      void* stream);

  // Where memory is: one of PteronCudaMemory, and the device (-1 for host memory).
  const char* (*pointer_query)(const void* pointer, int32_t* kind, int32_t* device);

  // Blocking streams for the binding's threads: ordered with the legacy stream, not with each
  // other.
  const char* (*stream_create)(int32_t device, void** out);
  void (*stream_destroy)(int32_t device, void* stream);  // its work is still done

  const char* (*synchronize_device)(int32_t device);
  const char* (*synchronize_stream)(int32_t device, void* stream);

  // Pooled events without timing.
  const char* (*event_record)(int32_t device, void* stream, void** out);
  const char* (*event_wait)(int32_t device, void* stream, void* event);  // on the device
  const char* (*event_synchronize)(int32_t device, void* event);         // on the host
  const char* (*event_query)(int32_t device, void* event, int32_t* done);
  void (*event_release)(int32_t device, void* event);

  // The stream that programs run on, on this thread and device, until it is cleared. The copies
  // that a program makes at its border go there too.
  const char* (*set_caller_stream)(int32_t device, void* stream);
  void (*clear_caller_stream)(int32_t device);
  // The device of a caller's stream; `device` itself where it cannot be told, and for the default
  // streams, which every device has.
  const char* (*stream_device)(int32_t device, void* stream, int32_t* out);
  // The stream that is used when none is set: blocking, one per device, owned by the library.
  const char* (*shared_stream)(int32_t device, void** out);

  // A CUDA graph of what this thread's programs do on the device between begin and end, which is
  // recorded and not done. Ports are inputs and outputs: each launch reads and writes the memory
  // that it was last given for them (connect; null for an output: it stays in the graph's). `alone`
  // says that nothing else is ever in the graph's memory of it. With `earlier`, a recording of the
  // same work in which the ports that are alone were elsewhere, launches may use the given memory
  // directly. Destroy a graph in every case, and only when its work is done; the memory of its
  // ports must be there until then.
  const char* (*graph_begin)(int32_t device, void* earlier, void** out);
  const char* (*graph_port)(void* graph, void* dst, const void* src, size_t nbytes, int32_t before,
                            int32_t alone, size_t* out);
  const char* (*graph_end)(void* graph, const void* earlier, int32_t* copies_host);
  const char* (*graph_connect)(void* graph, size_t port, const void* outer, int32_t* copies);
  const char* (*graph_launch)(void* graph, void* stream);
  void (*graph_destroy)(void* graph);

  PteronCudaUse (*use)();
};

// Null for a version that this library does not have.
const PteronCudaApi* pteron_cuda_api(uint32_t version);

}  // extern "C"

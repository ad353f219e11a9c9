// Control of the fake CUDA driver, by C functions that it exports (dlsym, or ctypes from Python).
//
// The fake is a library with the soname libcuda.so.1 that keeps "device" memory in host memory and
// checks every pointer's side. Work on streams runs at once, or, when deferred, as late as CUDA's
// rules allow: at a wait, in the order that streams, events and the legacy stream's rule give. Code
// that forgets to order or to wait then reads stale bytes.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct FakeCudaCounters {
  uint64_t live_blocks, live_bytes;  // device memory
  uint64_t live_streams, live_events, live_modules;
  uint64_t live_pools, live_graphs;
  uint64_t allocations, launches, graph_launches;
  uint64_t device_waits, stream_waits, event_waits;  // on the host
  uint64_t event_records, stream_wait_events;        // on the device
  uint64_t uploads, downloads, device_copies;
  uint64_t bad_pointers;  // calls that were given a pointer of the wrong side or size
  // Calls that need a current context and had none, or that of another device than their stream,
  // event, memory, pool or module is of.
  uint64_t bad_contexts;
};

void fake_cuda_counters(FakeCudaCounters* out);
void fake_cuda_reset_counters();  // the ones that only grow

// The call `symbol` fails with `result` after `after` more good ones; null clears all.
void fake_cuda_fail(const char* symbol, int result, int after);

uint64_t fake_cuda_device_waits(int device);   // of device_waits
int fake_cuda_device_of(const void* pointer);  // -1 for host memory

void fake_cuda_set_devices(int count);       // before cuInit
void fake_cuda_set_pools(int supported);     // before the first allocation
void fake_cuda_set_version(int version);     // before cuInit
void fake_cuda_set_memory(uint64_t nbytes);  // per device
void fake_cuda_defer(int deferred);

// Host memory that cuPointerGetAttributes calls pinned.
void fake_cuda_pin(void* pointer, size_t nbytes);
void fake_cuda_unpin(void* pointer);

// A kernel: runs on the host, in stream order, when its stream gets to it, on a copy of its
// arguments, words of 8 bytes. A graph that recorded it tells them, and may be told others.
typedef void (*FakeKernel)(void* arguments);
void fake_cuda_launch(void* stream, FakeKernel kernel, const void* arguments, size_t num_words);

}  // extern "C"

// The CUDA driver, opened with dlopen: pteron links no CUDA library, so the same build runs on
// machines without a GPU. One table of function pointers; everything else here goes through it.
//
// Types are declared here, not taken from cuda.h: only the driver's public binary interface is
// used, and that never changes for a symbol of a given version suffix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "failure.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUmemPoolHandle_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace pteron::cuda {

using Result = int;  // CUresult
using DeviceHandle = int;
using DevicePtr = unsigned long long;
using Context = ::CUctx_st*;
using Stream = ::CUstream_st*;  // null is the legacy default stream
using Event = ::CUevent_st*;
using Module = ::CUmod_st*;
using Function = ::CUfunc_st*;
using Pool = ::CUmemPoolHandle_st*;
using GraphHandle = ::CUgraph_st*;
using GraphExec = ::CUgraphExec_st*;
using GraphNode = ::CUgraphNode_st*;

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotReady = 600,
  kContextDestroyed = 709,
  kNotSupported = 801,
};

enum : int {
  kAttributeComputeMajor = 75,
  kAttributeComputeMinor = 76,
  kAttributeMemoryPools = 115,
};

constexpr unsigned kEventNoTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureRelaxed = 2;  // loading kernels and allocating memory go on meanwhile

struct PoolProperties {     // CUmemPoolProps
  int allocation_type = 1;  // pinned, the only one
  int handle_types = 0;
  int location_type = 1;  // device
  int location_id = 0;
  void* security_attributes = nullptr;
  size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};
static_assert(sizeof(PoolProperties) == 88);

enum : int { kMemoryHost = 1, kMemoryDevice = 2, kMemoryUnified = 4 };

struct Copy2D {  // CUDA_MEMCPY2D
  size_t src_x = 0, src_y = 0;
  int src_type = kMemoryUnified;
  const void* src_host = nullptr;
  DevicePtr src_device = 0;
  void* src_array = nullptr;
  size_t src_pitch = 0;
  size_t dst_x = 0, dst_y = 0;
  int dst_type = kMemoryUnified;
  void* dst_host = nullptr;
  DevicePtr dst_device = 0;
  void* dst_array = nullptr;
  size_t dst_pitch = 0;
  size_t width = 0, height = 0;
};
static_assert(sizeof(Copy2D) == 128);

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS
  Function function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_nbytes = 0;
  void** arguments = nullptr;
  void** extra = nullptr;
};
static_assert(sizeof(KernelNode) == 56);

struct Copy3D {  // CUDA_MEMCPY3D
  size_t src_offsets[4];
  int src_type;
  const void* src_host;
  DevicePtr src_device;
  void* src_array[2];
  size_t src_pitch[2];
  size_t dst_offsets[4];
  int dst_type;
  void* dst_host;
  DevicePtr dst_device;
  void* dst_array[2];
  size_t dst_pitch[2];
  size_t size[3];
};
static_assert(sizeof(Copy3D) == 200);

struct FillNode {  // CUDA_MEMSET_NODE_PARAMS
  DevicePtr dst;
  size_t pitch;
  unsigned value, element_size;
  size_t width, height;
};
static_assert(sizeof(FillNode) == 40);

// Member, symbol, arguments. Required: without one of them the driver is too old for us.
#define PTERON_FORALL_DRIVER_CALLS(_)                                                \
  _(init, cuInit, (unsigned))                                                        \
  _(driver_version, cuDriverGetVersion, (int*))                                      \
  _(error_name, cuGetErrorName, (Result, const char**))                              \
  _(error_string, cuGetErrorString, (Result, const char**))                          \
  _(device_count, cuDeviceGetCount, (int*))                                          \
  _(device_get, cuDeviceGet, (DeviceHandle*, int))                                   \
  _(device_name, cuDeviceGetName, (char*, int, DeviceHandle))                        \
  _(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceHandle))               \
  _(primary_context_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceHandle))      \
  _(context_get_current, cuCtxGetCurrent, (Context*))                                \
  _(context_set_current, cuCtxSetCurrent, (Context))                                 \
  _(context_push, cuCtxPushCurrent_v2, (Context))                                    \
  _(context_pop, cuCtxPopCurrent_v2, (Context*))                                     \
  _(context_device, cuCtxGetDevice, (DeviceHandle*))                                 \
  _(context_synchronize, cuCtxSynchronize, ())                                       \
  _(memory_info, cuMemGetInfo_v2, (size_t*, size_t*))                                \
  _(memory_alloc, cuMemAlloc_v2, (DevicePtr*, size_t))                               \
  _(memory_free, cuMemFree_v2, (DevicePtr))                                          \
  _(copy, cuMemcpy, (DevicePtr, DevicePtr, size_t))                                  \
  _(copy_async, cuMemcpyAsync, (DevicePtr, DevicePtr, size_t, Stream))               \
  _(copy_htod, cuMemcpyHtoD_v2, (DevicePtr, const void*, size_t))                    \
  _(copy_dtoh, cuMemcpyDtoH_v2, (void*, DevicePtr, size_t))                          \
  _(copy_htod_async, cuMemcpyHtoDAsync_v2, (DevicePtr, const void*, size_t, Stream)) \
  _(copy_dtoh_async, cuMemcpyDtoHAsync_v2, (void*, DevicePtr, size_t, Stream))       \
  _(copy_dtod_async, cuMemcpyDtoDAsync_v2, (DevicePtr, DevicePtr, size_t, Stream))   \
  _(copy_2d_async, cuMemcpy2DAsync_v2, (const Copy2D*, Stream))                      \
  _(fill_async, cuMemsetD8Async, (DevicePtr, unsigned char, size_t, Stream))         \
  _(pointer_attributes, cuPointerGetAttributes, (unsigned, int*, void**, DevicePtr)) \
  _(stream_create, cuStreamCreate, (Stream*, unsigned))                              \
  _(stream_destroy, cuStreamDestroy_v2, (Stream))                                    \
  _(stream_synchronize, cuStreamSynchronize, (Stream))                               \
  _(stream_wait_event, cuStreamWaitEvent, (Stream, Event, unsigned))                 \
  _(event_create, cuEventCreate, (Event*, unsigned))                                 \
  _(event_destroy, cuEventDestroy_v2, (Event))                                       \
  _(event_record, cuEventRecord, (Event, Stream))                                    \
  _(event_query, cuEventQuery, (Event))                                              \
  _(event_synchronize, cuEventSynchronize, (Event))                                  \
  _(module_load, cuModuleLoadData, (Module*, const void*))                           \
  _(module_unload, cuModuleUnload, (Module))

// What we can do without: null where the driver lacks it. Stream-ordered pools came with CUDA 11.2,
// what graphs need with 11.6, and what tells a kernel's arguments with 12.4.
#define PTERON_FORALL_OPTIONAL_DRIVER_CALLS(_)                                                     \
  _(stream_context, cuStreamGetCtx, (Stream, Context*))                                            \
  _(host_alloc, cuMemHostAlloc, (void**, size_t, unsigned))                                        \
  _(host_free, cuMemFreeHost, (void*))                                                             \
  _(host_register, cuMemHostRegister_v2, (void*, size_t, unsigned))                                \
  _(host_unregister, cuMemHostUnregister, (void*))                                                 \
  _(pool_create, cuMemPoolCreate, (Pool*, const PoolProperties*))                                  \
  _(pool_set_attribute, cuMemPoolSetAttribute, (Pool, int, void*))                                 \
  _(pool_trim, cuMemPoolTrimTo, (Pool, size_t))                                                    \
  _(pool_alloc_async, cuMemAllocFromPoolAsync, (DevicePtr*, size_t, Pool, Stream))                 \
  _(free_async, cuMemFreeAsync, (DevicePtr, Stream))                                               \
  _(capture_begin, cuStreamBeginCapture_v2, (Stream, int))                                         \
  _(capture_end, cuStreamEndCapture, (Stream, GraphHandle*))                                       \
  _(capture_info, cuStreamGetCaptureInfo_v2,                                                       \
    (Stream, int*, unsigned long long*, GraphHandle*, const GraphNode**, size_t*))                 \
  _(graph_instantiate, cuGraphInstantiateWithFlags, (GraphExec*, GraphHandle, unsigned long long)) \
  _(graph_nodes, cuGraphGetNodes, (GraphHandle, GraphNode*, size_t*))                              \
  _(graph_node_type, cuGraphNodeGetType, (GraphNode, int*))                                        \
  _(graph_kernel, cuGraphKernelNodeGetParams, (GraphNode, KernelNode*))                            \
  _(graph_copy, cuGraphMemcpyNodeGetParams, (GraphNode, Copy3D*))                                  \
  _(graph_fill, cuGraphMemsetNodeGetParams, (GraphNode, FillNode*))                                \
  _(argument_info, cuFuncGetParamInfo, (Function, size_t, size_t*, size_t*))                       \
  _(graph_set_kernel, cuGraphExecKernelNodeSetParams, (GraphExec, GraphNode, const KernelNode*))   \
  _(module_function, cuModuleGetFunction, (Function*, Module, const char*))                        \
  _(launch, cuLaunchKernel,                                                                        \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,       \
     void**, void**))                                                                              \
  _(graph_set_enabled, cuGraphNodeSetEnabled, (GraphExec, GraphNode, unsigned))                    \
  _(graph_launch, cuGraphLaunch, (GraphExec, Stream))                                              \
  _(graph_exec_destroy, cuGraphExecDestroy, (GraphExec))                                           \
  _(graph_destroy, cuGraphDestroy, (GraphHandle))

struct Driver {
#define PTERON_DRIVER_MEMBER(member, symbol, arguments) Result(*member) arguments = nullptr;
  PTERON_FORALL_DRIVER_CALLS(PTERON_DRIVER_MEMBER)
  PTERON_FORALL_OPTIONAL_DRIVER_CALLS(PTERON_DRIVER_MEMBER)
#undef PTERON_DRIVER_MEMBER
  int version = 0;   // 13000 for CUDA 13.0
  std::string path;  // the file that the symbols came from
};

// The one driver of the process, opened and initialised at the first call. Throws Failure that says
// why there is none: no library, too old, no device. A failure is remembered, not retried.
const Driver& driver();

// The same, as a question that never throws. `reason` may be null.
bool driver_available(std::string* reason) noexcept;

// Opens this file instead of libcuda.so.1, which is how tests install a fake driver. Must come
// before the first use; returns false when it is too late. The environment variable
// PTERON_CUDA_DRIVER does the same.
bool set_driver_path(const std::string& path);

// "out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
std::string result_text(Result result);

// The runtime's code that says the same.
ErrorCode result_code(Result result) noexcept;

[[noreturn]] void fail(Result result, const char* doing);

inline void check(Result result, const char* doing) {
  if (result != kSuccess) [[unlikely]]
    fail(result, doing);
}

// Frees that run while the process ends find the driver gone; that is not an error.
inline bool is_shut_down(Result result) noexcept {
  return result == kDeinitialized || result == kContextDestroyed;
}

inline DevicePtr to_device_ptr(const void* pointer) noexcept {
  return static_cast<DevicePtr>(reinterpret_cast<uintptr_t>(pointer));
}
inline void* to_pointer(DevicePtr pointer) noexcept {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
}

}  // namespace pteron::cuda

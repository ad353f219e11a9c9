#include "copy_kernel.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "context.h"

namespace pteron::cuda {

namespace {

// Sixteen bytes at a time where both ends are aligned, the rest byte by byte. The driver compiles
// it for whatever device there is.
constexpr const char* kSource = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry pteron_copy(.param .u64 dst, .param .u64 src, .param .u64 nbytes)
{
  .reg .pred %unaligned, %done;
  .reg .b16 %byte;
  .reg .b32 %block, %width, %thread, %blocks, %a, %b, %c, %d;
  .reg .b64 %to, %from, %size, %first, %step, %i, %vectors, %tail, %at, %low;

  ld.param.u64 %to, [dst];
  ld.param.u64 %from, [src];
  ld.param.u64 %size, [nbytes];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  cvt.u64.u32 %first, %thread;
  mad.wide.u32 %first, %block, %width, %first;
  mul.wide.u32 %step, %blocks, %width;

  or.b64 %low, %to, %from;
  and.b64 %low, %low, 15;
  setp.ne.u64 %unaligned, %low, 0;
  shr.u64 %vectors, %size, 4;
  @%unaligned mov.u64 %vectors, 0;
  mov.u64 %i, %first;
copy_vectors:
  setp.ge.u64 %done, %i, %vectors;
  @%done bra copy_rest;
  shl.b64 %at, %i, 4;
  add.u64 %low, %from, %at;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%low];
  add.u64 %low, %to, %at;
  st.global.v4.u32 [%low], {%a, %b, %c, %d};
  add.u64 %i, %i, %step;
  bra copy_vectors;
copy_rest:
  shl.b64 %tail, %vectors, 4;
  add.u64 %i, %first, %tail;
copy_bytes:
  setp.ge.u64 %done, %i, %size;
  @%done bra copied;
  add.u64 %low, %from, %i;
  ld.global.u8 %byte, [%low];
  add.u64 %low, %to, %i;
  st.global.u8 [%low], %byte;
  add.u64 %i, %i, %step;
  bra copy_bytes;
copied:
  ret;
}
)";

constexpr unsigned kThreads = 256;
constexpr unsigned kMostBlocks = 1024;

CopyKernel load(int device) {
  CopyKernel kernel;
  const Driver& d = driver();
  ContextGuard guard(device);
  Module module = nullptr;
  if (d.module_function == nullptr || d.launch == nullptr ||
      d.module_load(&module, kSource) != kSuccess) {
    return kernel;
  }
  if (d.module_function(&kernel.function, module, "pteron_copy") != kSuccess) {
    kernel.function = nullptr;
    d.module_unload(module);
  }
  return kernel;
}

}  // namespace

CopyKernel::Call::Call(const CopyKernel& kernel, void* to, const void* from, size_t size)
    : dst(to_device_ptr(to)), src(to_device_ptr(from)), nbytes(size) {
  const size_t blocks = (size / 16 + kThreads) / kThreads;
  node.function = kernel.function;
  node.grid_x = static_cast<unsigned>(std::min<size_t>(blocks, kMostBlocks));
  node.block_x = kThreads;
  node.arguments = arguments;
}

const CopyKernel& copy_kernel(int device) {
  static std::mutex mutex;
  static auto* const all = new std::map<int, CopyKernel>;
  std::lock_guard lock(mutex);
  if (auto found = all->find(device); found != all->end()) return found->second;
  return all->emplace(device, load(device)).first->second;
}

}  // namespace pteron::cuda

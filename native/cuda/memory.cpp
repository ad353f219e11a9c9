#include "memory.h"

#include <map>
#include <mutex>
#include <unordered_map>

#include "block_cache.h"
#include "context.h"
#include "graph.h"
#include "staging.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

struct Block {
  size_t nbytes = 0;
  bool pooled = false;
};

struct State {
  std::mutex mutex;
  std::unordered_map<void*, Block> blocks;
  size_t nbytes = 0;
  std::map<int, Pool> pools;  // null: the device has none
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

constexpr int kPoolReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

// The device's pool, or null. The context must be current, the mutex held.
Pool pool_of(State& s, int device) {
  if (auto found = s.pools.find(device); found != s.pools.end()) return found->second;
  const Driver& d = driver();
  Pool pool = nullptr;
  int supported = 0;
  DeviceHandle handle = 0;
  if (d.pool_create != nullptr && d.pool_set_attribute != nullptr && d.pool_trim != nullptr &&
      d.pool_alloc_async != nullptr && d.free_async != nullptr &&
      d.device_get(&handle, device) == kSuccess &&
      d.device_attribute(&supported, kAttributeMemoryPools, handle) == kSuccess && supported != 0) {
    PoolProperties properties;
    properties.location_id = handle;
    if (d.pool_create(&pool, &properties) == kSuccess) {
      // Keep freed memory: giving it back at every synchronisation would undo the pool's point.
      unsigned long long keep_everything = ~0ULL;
      d.pool_set_attribute(pool, kPoolReleaseThreshold, &keep_everything);
    } else {
      pool = nullptr;
    }
  }
  s.pools.emplace(device, pool);
  return pool;
}

void remember(void* pointer, size_t nbytes, bool pooled) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.blocks[pointer] = {nbytes, pooled};
  s.nbytes += nbytes;
}

// What is known of a block. A pointer that is not ours is freed like cuMemAlloc's.
Block forget(void* pointer) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto found = s.blocks.find(pointer);
  if (found == s.blocks.end()) return {};
  const Block block = found->second;
  s.nbytes -= block.nbytes;
  s.blocks.erase(found);
  return block;
}

// Gives back to the device what the pool holds and nobody uses. The context must be current.
void trim(int device, Pool pool) {
  // Not with memory_free(), which waits for the device but not where the memory is a pool's.
  for (void* pointer : block_cache(device).clear(nullptr)) {
    driver().free_async(to_device_ptr(pointer), nullptr);
  }
  synchronize_device(device);  // blocks may still wait for their streams
  driver().pool_trim(pool, 0);
}

[[noreturn]] void out_of_memory(Result result, size_t nbytes, int device) {
  throw Failure(result_code(result), "cannot allocate " + std::to_string(nbytes) +
                                         " bytes on cuda:" + std::to_string(device) + ": " +
                                         result_text(result));
}

void free_block(int device, void* pointer, Stream stream, bool ordered) noexcept {
  if (pointer == nullptr) return;
  to_code([&] {
    const Block block = forget(pointer);
    ContextGuard guard(device);
    if (block.pooled && ordered) {
      bool kept = false;
      to_code([&] { kept = block_cache(device).put(pointer, block.nbytes, stream); });
      if (kept || driver().free_async(to_device_ptr(pointer), stream) == kSuccess) return;
      if (!Graph::is_recording()) synchronize_device(device);  // the stream is of no use any more
    }
    driver().memory_free(to_device_ptr(pointer));
  });
}

}  // namespace

void* allocate_async(int device, size_t nbytes, Stream stream) {
  if (Graph* graph = Graph::recording(device)) return graph->allocate(nbytes);
  ContextGuard guard(device);
  Pool pool = nullptr;
  {
    State& s = state();
    std::lock_guard lock(s.mutex);
    pool = pool_of(s, device);
  }
  if (pool == nullptr) return allocate(device, nbytes);
  if (void* pointer = block_cache(device).take(nbytes, stream)) {
    remember(pointer, nbytes, true);
    return pointer;
  }
  DevicePtr pointer = 0;
  const size_t size = BlockCache::rounded(nbytes);
  Result result = driver().pool_alloc_async(&pointer, size, pool, stream);
  if (result == kOutOfMemory) {
    trim(device, pool);
    result = driver().pool_alloc_async(&pointer, size, pool, stream);
  }
  if (result != kSuccess) out_of_memory(result, nbytes, device);
  remember(to_pointer(pointer), nbytes, true);
  return to_pointer(pointer);
}

void free_async(int device, void* pointer, Stream stream) noexcept {
  bool released = false;
  to_code([&] {
    Graph* graph = Graph::recording(device);
    if (graph == nullptr) return;
    released = graph->release(pointer);
    stream = shared_stream(device);  // nothing real is ordered by what is recorded
  });
  if (!released) free_block(device, pointer, stream, true);
}

void* allocate(int device, size_t nbytes) {
  ContextGuard guard(device);
  DevicePtr pointer = 0;
  const size_t size = nbytes == 0 ? 1 : nbytes;
  Result result = driver().memory_alloc(&pointer, size);
  if (result == kOutOfMemory) {
    trim_pool(device);
    result = driver().memory_alloc(&pointer, size);
  }
  if (result != kSuccess) out_of_memory(result, nbytes, device);
  remember(to_pointer(pointer), nbytes, false);
  return to_pointer(pointer);
}

void free(int device, void* pointer) noexcept { free_block(device, pointer, nullptr, false); }

void trim_pool(int device) noexcept {
  to_code([device] {
    Pool pool = nullptr;
    {
      State& s = state();
      std::lock_guard lock(s.mutex);
      if (auto found = s.pools.find(device); found != s.pools.end()) pool = found->second;
    }
    // A wait would end what this thread records.
    if (pool == nullptr || Graph::is_recording()) return;
    ContextGuard guard(device);
    trim(device, pool);
  });
}

void copy_async(CopyKind kind, int device, void* dst, const void* src, size_t nbytes,
                Stream stream) {
  if (nbytes == 0 || dst == src) return;
  if (dst == nullptr || src == nullptr) {
    throw Failure(ErrorCode::InvalidArgument,
                  "cannot copy " + std::to_string(nbytes) + " bytes: no memory at one end");
  }
  ContextGuard guard(device);
  switch (kind) {
    case CopyKind::HostToDevice:
      check(driver().copy_htod_async(to_device_ptr(dst), src, nbytes, stream),
            "copy host memory to the device");
      return;
    case CopyKind::DeviceToHost:
      check(driver().copy_dtoh_async(dst, to_device_ptr(src), nbytes, stream),
            "copy device memory to the host");
      return;
    case CopyKind::DeviceToDevice:
      check(driver().copy_dtod_async(to_device_ptr(dst), to_device_ptr(src), nbytes, stream),
            "copy device memory");
      return;
  }
}

void copy(CopyKind kind, int device, void* dst, const void* src, size_t nbytes, Stream stream) {
  if (nbytes == 0 || dst == src) return;
  if (kind == CopyKind::DeviceToDevice || dst == nullptr || src == nullptr) {
    copy_async(kind, device, dst, src, nbytes, stream);
    return;
  }
  if (Graph::recording(device) != nullptr) {
    throw Failure(ErrorCode::NotSupported, "the model needs the host in the middle of its run");
  }
  ContextGuard guard(device);
  const bool up = kind == CopyKind::HostToDevice;
  const bool pageable = pointer_info(up ? src : dst).kind == PointerInfo::Kind::Host;
  if (pageable && nbytes >= kStagingThreshold &&
      (up ? upload_staged(device, dst, src, nbytes, stream)
          : download_staged(device, dst, src, nbytes, stream))) {
    return;
  }
  copy_async(kind, device, dst, src, nbytes, stream);
  // An upload from pageable memory has been staged when the call returns; one from pinned memory
  // reads it later.
  if (!up || !pageable) synchronize_stream(device, stream);
}

void copy_border(CopyKind kind, int device, void* dst, const void* src, size_t nbytes,
                 Stream stream) {
  Graph* graph = Graph::recording(device);
  if (graph == nullptr) {
    copy(kind, device, dst, src, nbytes, stream);
    return;
  }
  if (kind != CopyKind::DeviceToDevice) graph->note_host_copy();
  copy_async(kind, device, dst, src, nbytes, stream);
}

MemoryUse memory_use() noexcept {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return {s.blocks.size(), s.nbytes};
}

}  // namespace pteron::cuda

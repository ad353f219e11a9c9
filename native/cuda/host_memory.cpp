#include "host_memory.h"

#include <bit>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "context.h"
#include "driver.h"

namespace pteron::cuda {

namespace {

constexpr unsigned kPortable = 1;  // pinned for every context
constexpr size_t kSmallestBlock = 4096;
constexpr size_t kMaxKept = size_t{256} << 20;

struct HostPool {
  std::mutex mutex;
  std::unordered_map<void*, size_t> sizes;    // of all blocks, given out or kept
  std::map<size_t, std::vector<void*>> kept;  // by size
  size_t kept_bytes = 0;
};

HostPool& pool() {
  static auto* const instance = new HostPool;
  return *instance;
}

[[noreturn]] void unsupported() {
  throw Failure(ErrorCode::NotSupported, "the CUDA driver cannot pin host memory");
}

}  // namespace

void* allocate_host(size_t nbytes) {
  const size_t size = nbytes <= kSmallestBlock ? kSmallestBlock : std::bit_ceil(nbytes);
  HostPool& p = pool();
  {
    std::lock_guard lock(p.mutex);
    if (auto found = p.kept.find(size); found != p.kept.end() && !found->second.empty()) {
      void* pointer = found->second.back();
      found->second.pop_back();
      p.kept_bytes -= size;
      return pointer;
    }
  }
  if (driver().host_alloc == nullptr) unsupported();
  ContextGuard guard(0);
  void* pointer = nullptr;
  check(driver().host_alloc(&pointer, size, kPortable), "allocate pinned host memory");
  std::lock_guard lock(p.mutex);
  p.sizes.emplace(pointer, size);
  return pointer;
}

void free_host(void* pointer) noexcept {
  if (pointer == nullptr) return;
  to_code([pointer] {
    HostPool& p = pool();
    {
      std::lock_guard lock(p.mutex);
      auto found = p.sizes.find(pointer);
      if (found == p.sizes.end()) return;
      const size_t size = found->second;
      if (p.kept_bytes + size <= kMaxKept) {
        p.kept[size].push_back(pointer);
        p.kept_bytes += size;
        return;
      }
      p.sizes.erase(found);
    }
    ContextGuard guard(0);
    if (driver().host_free != nullptr) driver().host_free(pointer);
  });
}

void pin_host(void* pointer, size_t nbytes) {
  if (driver().host_register == nullptr) unsupported();
  ContextGuard guard(0);
  check(driver().host_register(pointer, nbytes, kPortable), "pin host memory");
}

void unpin_host(void* pointer) noexcept {
  to_code([pointer] {
    ContextGuard guard(0);
    if (driver().host_unregister != nullptr) driver().host_unregister(pointer);
  });
}

}  // namespace pteron::cuda

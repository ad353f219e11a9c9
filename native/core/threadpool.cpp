#include "threadpool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>

#include "cpu_count.h"
#include "error.h"
#include "fork.h"

struct pthreadpool;

// The SDK exports the pool and has no header for it. Only functions are called, never anything that
// depends on the layout.
namespace executorch::extension::threadpool {

class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t num_threads);
};

ThreadPool* get_threadpool();

class NoThreadPoolGuard {
 public:
  static bool is_enabled();
  static void set_enabled(bool enabled);
};

}  // namespace executorch::extension::threadpool

extern "C" pthreadpool* pthreadpool_create_v2(void* executor, void* context, size_t threads);

namespace pteron {
namespace {

struct Pool {
  pthreadpool* pool;
  size_t threads;
  const Pool* next;
};

std::atomic<size_t> count{0};  // 0: not decided yet
// All pools, one of each size that was asked for. Never freed: methods keep pointers to them, and
// may run while the process exits.
std::atomic<const Pool*> pools{nullptr};

size_t decided_count() {
  size_t found = count.load();
  if (found != 0) return found;
  const size_t ours = available_cpus();
  // Another thread may have been first, with another number if the CPU set has just changed.
  return count.compare_exchange_strong(found, ours) ? ours : found;
}

pthreadpool* pool_of(size_t threads) {
  static std::mutex making;
  const std::lock_guard lock(making);
  for (const Pool* each = pools.load(); each != nullptr; each = each->next) {
    if (each->threads == threads) return each->pool;
  }
  pthreadpool* pool = pthreadpool_create_v2(nullptr, nullptr, threads);
  if (pool != nullptr) pools.store(new Pool{pool, threads, pools.load()});
  return pool;
}

size_t size_of(const pthreadpool* pool) {
  if (pool == nullptr) return 1;
  for (const Pool* each = pools.load(); each != nullptr; each = each->next) {
    if (each->pool == pool) return each->threads;
  }
  return 1;  // the parent's, which has no threads here
}

}  // namespace

int64_t num_threads() { return static_cast<int64_t>(decided_count()); }

void set_num_threads(int64_t threads) {
  // More threads than this only cost memory: each has a stack, and they wait for each other.
  const int64_t most = std::max<int64_t>(64, 4 * sysconf(_SC_NPROCESSORS_CONF));
  if (threads < 1 || threads > most) {
    throw Error(Kind::Argument, Code::InvalidArgument,
                "The number of threads must be 1 to " + std::to_string(most) + ", not " +
                    std::to_string(threads));
  }
  const InRuntime inside;
  static std::mutex setting;
  const std::lock_guard one_at_a_time(setting);
  const size_t before = count.exchange(static_cast<size_t>(threads));
  if (pools.load() == nullptr) return;  // it will be made with that number
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool_of(static_cast<size_t>(threads)) == nullptr) {
    count.store(before);
    throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                "There is no memory for " + std::to_string(threads) + " threads");
  }
  pool->_unsafe_reset_threadpool(static_cast<uint32_t>(threads));
}

PoolUse::PoolUse()
    : past_pool_(count.load(std::memory_order_relaxed) == 1 &&
                 !executorch::extension::threadpool::NoThreadPoolGuard::is_enabled()) {
  if (past_pool_) executorch::extension::threadpool::NoThreadPoolGuard::set_enabled(true);
}

PoolUse::~PoolUse() {
  if (past_pool_) executorch::extension::threadpool::NoThreadPoolGuard::set_enabled(false);
}

void restart_pool() {
  if (pools.exchange(nullptr) == nullptr) return;
  executorch::extension::threadpool::get_threadpool();  // which sees the fork and makes a new pool
}

}  // namespace pteron

// These take the place of the functions of the same names in the runtime's libraries, which look
// here first: this library is what loads them.
#define PTERON_REPLACES extern "C" __attribute__((visibility("default")))

// The runtime asks for its pool when it first needs one, with all processors of the machine, and
// when the number is set.
PTERON_REPLACES pthreadpool* pthreadpool_create(size_t) {
  for (;;) {
    const size_t threads = pteron::decided_count();
    pthreadpool* pool = pteron::pool_of(threads);
    // Whoever sets the number in between either sees that there is a pool or is seen here.
    if (pool == nullptr || threads == pteron::decided_count()) return pool;
  }
}

PTERON_REPLACES void pthreadpool_destroy(pthreadpool*) {}

// XNNPACK makes room for as many threads before a run. The original tells how many work on the job
// that is under way, which may be another method's and fewer than will work on this one's.
PTERON_REPLACES size_t pthreadpool_get_threads_count(pthreadpool* pool) {
  return pteron::size_of(pool);
}

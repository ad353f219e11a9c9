#include "threadpool.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "error.h"
#include "fork.h"

struct pthreadpool;

// The SDK exports the pool and has no header for it. Only the two member functions are called,
// never anything that depends on the layout.
namespace executorch::extension::threadpool {

class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t num_threads);
};

ThreadPool* get_threadpool();

}  // namespace executorch::extension::threadpool

namespace pteron {

int64_t num_threads() {
  const InRuntime inside;
  return static_cast<int64_t>(
      executorch::extension::threadpool::get_threadpool()->get_thread_count());
}

void set_num_threads(int64_t count) {
  // More threads than this only cost memory: each has a stack, and they wait for each other.
  const int64_t most = std::max<int64_t>(64, 4 * sysconf(_SC_NPROCESSORS_CONF));
  if (count < 1 || count > most) {
    throw Error(Kind::Argument, Code::InvalidArgument,
                "The number of threads must be 1 to " + std::to_string(most) + ", not " +
                    std::to_string(count));
  }
  const InRuntime inside;
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (!pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count))) {
    throw Error(Kind::Argument, Code::Internal,
                "The thread pool could not be set to " + std::to_string(count) + " threads");
  }
}

void restart_pool() {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  const auto count = static_cast<uint32_t>(pool->get_thread_count());
  if (count < 2) return;
  pool->_unsafe_reset_threadpool(1);  // the same number again would change nothing
  pool->_unsafe_reset_threadpool(count);
}

}  // namespace pteron

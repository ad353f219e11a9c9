// The thread pool of the runtime, one for the process and each number of threads.
//
// XNNPACK's parts of a method keep a pointer to the pool that was there when the method was loaded,
// and the runtime would destroy that pool to change the number of threads. Here no pool is ever
// destroyed: kernels use one of the new size at once, XNNPACK's parts of methods that are loaded
// from then on. (pthreadpool_set_threads_count() is no way: with fewer threads than a pool was made
// with, it does parts of a job twice and others never.)
//
// A pool does one job at a time: the parallel parts of methods that run at once take turns.
#pragma once

#include <cstdint>

namespace pteron {

// How many threads work on a job. Until it is set: available_cpus(), when first asked for.
int64_t num_threads();

// Safe at any time: a run that is under way goes on with one number or the other. Starts no threads
// before a run needs them. Throws Error{Memory}, and Error{Argument} for a count below 1 or above
// what could make sense here.
void set_num_threads(int64_t count);

// With one thread, a run goes past the pool: else it would wait for the jobs of other methods.
class PoolUse {
 public:
  PoolUse();
  ~PoolUse();
  PoolUse(const PoolUse&) = delete;
  PoolUse& operator=(const PoolUse&) = delete;

 private:
  bool past_pool_;
};

// Starts the threads of the pool again, which a forked child does not have. Methods of the parent
// with parts on XNNPACK keep the pool without threads: the calling thread does its jobs alone.
void restart_pool();

}  // namespace pteron

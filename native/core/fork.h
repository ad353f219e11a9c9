// What fork() would break: locks of the runtime that another thread holds are held for ever in the
// child, and the threads of the pool are not there.
//
// All work of the runtime that other threads could be in the middle of happens in an InRuntime.
// fork() waits until none is left, so that the child finds every lock free; a child that uses the
// runtime starts the pool anew.
#pragma once

#include <chrono>

namespace pteron {

class InRuntime {
 public:
  // Waits while another thread forks. Throws Error{State} in a child that was forked in the middle
  // of a run after all, since fork() does not wait for ever.
  InRuntime();
  ~InRuntime();
  InRuntime(const InRuntime&) = delete;
  InRuntime& operator=(const InRuntime&) = delete;
};

// Steps out of this thread's InRuntime, if any, for something that a forking thread may hold.
class OutOfRuntime {
 public:
  OutOfRuntime() noexcept;
  ~OutOfRuntime();
  OutOfRuntime(const OutOfRuntime&) = delete;
  OutOfRuntime& operator=(const OutOfRuntime&) = delete;

 private:
  int depth_;
};

// How long fork() waits for runs to end, 10 s at first. A run that takes longer, or that waits for
// the forking thread itself, does not hold a fork up.
void set_fork_patience(std::chrono::milliseconds time) noexcept;

// Idempotent; called once when the extension is loaded.
void install_fork_handlers();

}  // namespace pteron

#include "fork.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "error.h"
#include "threadpool.h"

namespace pteron {
namespace {

constexpr std::chrono::microseconds kPause{20};

std::atomic<std::chrono::milliseconds> patience{std::chrono::seconds{10}};

thread_local int depth = 0;          // of InRuntime on this thread
std::atomic<int> inside{0};          // threads that have one
std::atomic<bool> forking{false};    // a thread is about to fork
std::atomic<bool> lost_pool{false};  // in a child: its threads are not
bool gave_up = false;                // before_fork() did not see the other threads leave
bool broken = false;                 // in a child of such a fork

void enter() noexcept {
  inside.fetch_add(1);
  while (forking.load()) [[unlikely]] {
    inside.fetch_sub(1);
    std::this_thread::sleep_for(kPause);
    inside.fetch_add(1);
  }
}

void before_fork() noexcept {
  const int own = depth > 0 ? 1 : 0;
  while (forking.exchange(true)) std::this_thread::sleep_for(kPause);  // one fork at a time
  const auto limit = std::chrono::steady_clock::now() + patience.load();
  // A thread that comes now looks at `forking` and leaves again: once is enough to see.
  gave_up = false;
  while (inside.load() > own && !gave_up) {
    std::this_thread::sleep_for(kPause);
    gave_up = inside.load() > own && std::chrono::steady_clock::now() > limit;
  }
}

void in_parent() noexcept { forking.store(false); }

void in_child() noexcept {
  broken = broken || gave_up;
  inside.store(depth > 0 ? 1 : 0);
  lost_pool.store(true);
  forking.store(false);
}

}  // namespace

InRuntime::InRuntime() {
  if (depth > 0) {
    ++depth;
    return;
  }
  if (broken) {
    throw Error(Kind::State, Code::InvalidState,
                "This process was forked while another thread was running a method for a long "
                "time, and cannot use pteron: fork between runs, or start processes with 'spawn'");
  }
  enter();
  depth = 1;
  if (lost_pool.load()) [[unlikely]] {
    static std::mutex restarting;
    const std::lock_guard lock(restarting);
    if (lost_pool.load()) restart_pool();
    lost_pool.store(false);
  }
}

InRuntime::~InRuntime() {
  if (--depth == 0) inside.fetch_sub(1);
}

OutOfRuntime::OutOfRuntime() noexcept : depth_(depth) {
  if (depth_ > 0) inside.fetch_sub(1);
  depth = 0;
}

OutOfRuntime::~OutOfRuntime() {
  if (depth_ > 0) enter();
  depth = depth_;
}

void set_fork_patience(std::chrono::milliseconds time) noexcept { patience.store(time); }

void install_fork_handlers() {
  static const int installed = pthread_atfork(before_fork, in_parent, in_child);
  (void)installed;
}

}  // namespace pteron

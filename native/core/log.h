// What the runtime logs, and what becomes of its assertions.
//
// The runtime reports why it refused something only by logging it. `install_platform_hooks` takes
// its log over: error lines that a thread logs inside a call are kept for the exception of that
// call, and every line is queued for Python's logging, which needs the GIL and so waits until the
// call is over. The hooks themselves touch no Python.
//
// A failed assertion of the runtime ends in its abort hook. Inside a call the hook throws Aborted,
// which unwinds through the runtime (its libraries carry unwind tables). Outside, and on threads of
// the pool, there is nobody to catch it and the process ends.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "error.h"

namespace pteron {

struct Aborted {};  // thrown by the abort hook; the object being used is in an unknown state

class CallScope {
 public:
  static constexpr size_t kMaxReasons = 1024;  // bytes of reasons kept: the last lines

  CallScope() noexcept : outer_(current_) { current_ = this; }
  ~CallScope() { current_ = outer_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // The error lines of this thread's innermost call, one a line; empty outside of calls.
  static std::string current_reasons();

  static CallScope* current() noexcept { return current_; }
  void add_reason(std::string line);

 private:
  static thread_local CallScope* current_;
  CallScope* outer_;
  std::string reasons_;
  bool cut_ = false;
};

struct LogLine {
  char level;  // 'D', 'I', 'E', 'F'
  std::string file;
  int line;
  std::string text;  // UTF-8
};

// Runs `work`; an assertion of the runtime that fails in it becomes "Failed to <doing>, ...".
template <typename Doing, typename Work>
void guarded(Doing doing, Work work) {
  try {
    work();
  } catch (const Aborted&) {
    fail(Kind::Execution, static_cast<uint32_t>(Code::Internal), doing());
  }
}

// Idempotent; called once when the extension is loaded.
void install_platform_hooks();

// Whether lines wait for take_log_lines(): one relaxed load.
bool has_log_lines() noexcept;

// The queued lines of all threads, oldest first. At most 256 are kept between two calls.
std::vector<LogLine> take_log_lines();

}  // namespace pteron

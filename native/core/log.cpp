#include "log.h"

#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "utf8.h"

namespace pteron {
namespace {

constexpr size_t kMaxQueued = 256;
constexpr const char* kCutMark = "[...] ";

// Leaked on purpose: threads of the runtime's pool may log while the process exits.
struct Queue {
  std::mutex mutex;
  std::vector<LogLine> lines;
  std::atomic<bool> waiting{false};
};
Queue& queue() {
  static Queue* instance = new Queue;
  return *instance;
}

void emit(et_timestamp_t, et_pal_log_level_t level, const char* file, const char*, size_t line,
          const char* message, size_t length) {
  std::string text = to_utf8(message, length);
  const bool serious = level == kError || level == kFatal;
  if (CallScope* scope = CallScope::current(); scope != nullptr && serious) {
    scope->add_reason(text);
  }
  Queue& q = queue();
  std::lock_guard lock(q.mutex);
  if (q.lines.size() >= kMaxQueued) q.lines.erase(q.lines.begin());
  q.lines.push_back({static_cast<char>(level), to_utf8(file, std::strlen(file)),
                     static_cast<int>(line), std::move(text)});
  q.waiting.store(true, std::memory_order_relaxed);
}

// "arg 3 with type id 1": after each failed kernel the runtime logs a line for each argument, which
// would push the cause out and names nothing that can be looked up.
bool describes_argument(std::string_view line) {
  return line.starts_with("arg ") && line.find(" with type id ") != std::string_view::npos;
}

[[noreturn]] void on_abort() {
  if (CallScope::current() != nullptr) throw Aborted{};
  std::abort();
}

}  // namespace

thread_local CallScope* CallScope::current_ = nullptr;

std::string CallScope::current_reasons() {
  if (current_ == nullptr || current_->reasons_.empty()) return {};
  return current_->cut_ ? kCutMark + current_->reasons_ : current_->reasons_;
}

void CallScope::add_reason(std::string line) {
  // The last lines name the cause; an early error that the runtime recovered from must not push
  // them out.
  if (describes_argument(line)) return;
  constexpr size_t room = kMaxReasons - 6;  // the mark
  if (line.size() > room) line.resize(utf8_prefix(line, room));
  if (!reasons_.empty()) reasons_ += '\n';
  reasons_ += line;
  while (reasons_.size() > room) {
    reasons_.erase(0, reasons_.find('\n') + 1);
    cut_ = true;
  }
}

void install_platform_hooks() {
  static const bool installed = [] {
    executorch::runtime::runtime_init();
    return executorch::runtime::register_pal(executorch::runtime::PalImpl::create(
        nullptr, on_abort, nullptr, nullptr, emit, nullptr, nullptr, __FILE__));
  }();
  (void)installed;
}

bool has_log_lines() noexcept { return queue().waiting.load(std::memory_order_relaxed); }

std::vector<LogLine> take_log_lines() {
  Queue& q = queue();
  std::vector<LogLine> lines;
  std::lock_guard lock(q.mutex);
  lines.swap(q.lines);
  q.waiting.store(false, std::memory_order_relaxed);
  return lines;
}

}  // namespace pteron

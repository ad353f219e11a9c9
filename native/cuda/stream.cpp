#include "stream.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "api.h"
#include "context.h"

namespace pteron::cuda {

namespace {

thread_local std::vector<std::pair<int, Stream>> caller_streams;
thread_local int guarded_device = -1;
thread_local Stream guarded_stream = nullptr;

struct Pools {
  std::mutex mutex;
  std::map<int, Stream> streams;
  std::map<int, std::vector<Event>> events;
  std::atomic<int> live{0};
};

Pools& pools() {
  static Pools* const instance = new Pools;
  return *instance;
}

constexpr size_t kMaxPooledEvents = 256;  // a device

}  // namespace

std::optional<Stream> caller_stream(int device) noexcept {
  for (const auto& [index, stream] : caller_streams) {
    if (index == device) return stream;
  }
  return std::nullopt;
}

void set_caller_stream(int device, Stream stream) {
  for (auto& [index, current] : caller_streams) {
    if (index == device) {
      current = stream;
      return;
    }
  }
  caller_streams.emplace_back(device, stream);
}

void clear_caller_stream(int device) noexcept {
  std::erase_if(caller_streams, [device](const auto& entry) { return entry.first == device; });
}

Stream shared_stream(int device) {
  Pools& p = pools();
  std::lock_guard lock(p.mutex);
  Stream& stream = p.streams[device];
  if (stream == nullptr) {
    ContextGuard guard(device);
    check(driver().stream_create(&stream, 0), "create a CUDA stream");
  }
  return stream;
}

int stream_device(int device, Stream stream) {
  Context context = nullptr;
  if (reinterpret_cast<uintptr_t>(stream) <= kPteronCudaPerThread ||
      driver().stream_context == nullptr || driver().stream_context(stream, &context) != kSuccess ||
      context == primary_context(device)) {
    return device;
  }
  for (int other = 0; other < device_count(); ++other) {
    if (context == primary_context(other)) return other;
  }
  return device;  // in a context of somebody's own
}

Stream current_stream(int device) noexcept {
  if (guarded_device == device) return guarded_stream;
  return caller_stream(device).value_or(nullptr);
}

StreamGuard::StreamGuard(int device, Stream stream) noexcept
    : previous_device_(std::exchange(guarded_device, device)),
      previous_stream_(std::exchange(guarded_stream, stream)) {}

StreamGuard::~StreamGuard() {
  guarded_device = previous_device_;
  guarded_stream = previous_stream_;
}

void synchronize_stream(int device, Stream stream) {
  ContextGuard guard(device);
  check(driver().stream_synchronize(stream), "wait for a CUDA stream");
}

Event acquire_event(int device) {
  Pools& p = pools();
  {
    std::lock_guard lock(p.mutex);
    auto& free = p.events[device];
    if (!free.empty()) {
      Event event = free.back();
      free.pop_back();
      p.live.fetch_add(1, std::memory_order_relaxed);
      return event;
    }
  }
  ContextGuard guard(device);
  Event event = nullptr;
  check(driver().event_create(&event, kEventNoTiming), "create a CUDA event");
  p.live.fetch_add(1, std::memory_order_relaxed);
  return event;
}

Event record_event(int device, Stream stream) {
  Event event = acquire_event(device);
  const Result result = driver().event_record(event, stream);
  if (result != kSuccess) release_event(device, event);
  check(result, "record a CUDA event");
  return event;
}

void release_event(int device, Event event) noexcept {
  if (event == nullptr) return;
  to_code([device, event] {
    Pools& p = pools();
    p.live.fetch_sub(1, std::memory_order_relaxed);
    {
      std::lock_guard lock(p.mutex);
      auto& free = p.events[device];
      if (free.size() < kMaxPooledEvents) {
        free.push_back(event);
        return;
      }
    }
    ContextGuard guard(device);
    driver().event_destroy(event);
  });
}

int live_events() noexcept { return pools().live.load(std::memory_order_relaxed); }

LastUse::~LastUse() {
  wait();
  release_event(device_, event_);
}

void LastUse::order(Stream stream, bool own) {
  if (!used_ || (own && stream == own_stream_)) return;
  check(driver().stream_wait_event(stream, event_, 0), "order two CUDA streams");
}

void LastUse::record(Stream stream, bool own) {
  if (event_ == nullptr) event_ = acquire_event(device_);
  check(driver().event_record(event_, stream), "record a CUDA event");
  own_stream_ = own ? stream : nullptr;
  used_ = true;
}

void LastUse::wait() noexcept {
  if (!std::exchange(used_, false)) return;
  to_code([this] {
    ContextGuard guard(device_);
    driver().event_synchronize(event_);
  });
}

}  // namespace pteron::cuda

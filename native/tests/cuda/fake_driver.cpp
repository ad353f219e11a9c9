#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "fake_driver_state.h"

namespace fake_cuda {

State& fake() {
  static State* const instance = [] {
    auto* f = new State;
    if (const char* text = std::getenv("FAKE_CUDA_DEVICES")) f->devices = std::atoi(text);
    return f;
  }();
  return *instance;
}

std::vector<int>& thread_contexts() {
  thread_local std::vector<int> devices;
  return devices;
}

int current_device() { return thread_contexts().empty() ? 0 : thread_contexts().back(); }

namespace {

constexpr uintptr_t kLegacy = 0x100, kPerThread = 0x1000;  // no allocated handle is as low

// Each thread has a stream of its own.
uintptr_t per_thread() {
  static std::atomic<uintptr_t> threads{0};
  thread_local const uintptr_t number = threads++;
  return kPerThread + 0x100 * number;
}

void* special(uintptr_t base, int device) {
  void* handle = reinterpret_cast<void*>(base + static_cast<unsigned>(device));
  fake().streams.try_emplace(handle, Stream{.device = device});
  return handle;
}

}  // namespace

void* legacy_of(int device) { return special(kLegacy, device); }

void* resolve(void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) return legacy_of(current_device());
  return number == 2 ? special(per_thread(), current_device()) : handle;
}

Result own_stream(void* handle, void** resolved) {
  *resolved = resolve(handle);
  auto found = fake().streams.find(*resolved);
  if (found == fake().streams.end()) return kInvalidHandle;
  NEED_DEVICE(found->second.device);
  return kOk;
}

Result bad_context() {
  ++fake().counters.bad_contexts;
  return kInvalidContext;
}

Result injected(const char* symbol) {
  auto found = fake().failures.find(symbol);
  if (found == fake().failures.end()) return kOk;
  if (found->second.second-- > 0) return kOk;
  const Result result = found->second.first;
  fake().failures.erase(found);
  return result;
}

bool inside(const void* p, size_t nbytes) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto& blocks = fake().blocks;
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return false;
  const auto& [start, block] = *std::prev(next);
  return at - start <= block.nbytes && nbytes <= block.nbytes - (at - start);
}

bool on_device(const void* p) { return inside(p, 0) && inside(p, 1); }

bool on_current_device(const void* p) {
  const int device = fake_cuda_device_of(p);
  return device < 0 || device == current_device();
}

Result bad_pointer() {
  ++fake().counters.bad_pointers;
  return kInvalidValue;
}

static void run_front(Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.after != 0) run_until(work.after_stream, work.after);
  if (work.body) work.body();
}

// A device's blocking streams, which its legacy stream waits for.
static void run_blocking(int device, uint64_t ticket) {
  for (auto& [handle, stream] : fake().streams) {
    const bool of_device = stream.device == device && handle != legacy_of(device);
    if (of_device && stream.blocking) run_until(handle, ticket);
  }
}

void run_until(void* handle, uint64_t ticket) {
  auto found = fake().streams.find(handle);
  if (found == fake().streams.end()) return;
  Stream& stream = found->second;
  void* const legacy = legacy_of(stream.device);
  while (!stream.queue.empty() && stream.queue.front().ticket <= ticket) {
    const uint64_t own = stream.queue.front().ticket;
    if (handle == legacy) {
      run_blocking(stream.device, own);
    } else if (stream.blocking) {
      const auto& waiting = fake().streams[legacy].queue;
      if (!waiting.empty() && waiting.front().ticket < own) run_until(legacy, own);
    }
    if (!stream.queue.empty() && stream.queue.front().ticket <= own) run_front(stream);
  }
}

void run_stream(void* handle) {
  run_until(handle, fake().tickets);
  // The legacy stream waits for blocking streams even when it has no work of its own.
  const int device = fake().streams[handle].device;
  if (handle == legacy_of(device)) run_blocking(device, fake().tickets);
}

void run_device(int device) {
  for (auto& [handle, stream] : fake().streams) {
    if (stream.device == device) run_until(handle, fake().tickets);
  }
}

void run_everything() {
  for (auto& [handle, stream] : fake().streams) run_until(handle, fake().tickets);
}

bool break_recordings(int device, bool only_blocking) {
  bool any = false;
  for (auto& [handle, stream] : fake().streams) {
    if (stream.device != device || stream.recording == nullptr) continue;
    if (only_blocking && !stream.blocking) continue;
    any = stream.broken = true;
  }
  return any;
}

Result submit(void* handle, Node node) {
  void* stream = nullptr;
  if (const Result wrong = own_stream(handle, &stream); wrong != kOk) return wrong;
  if (Graph* graph = fake().streams[stream].recording) {
    if (fake().streams[stream].broken) return kRecordingBroken;
    graph->nodes.push_back(std::move(node));
    return kOk;
  }
  if (stream == legacy_of(current_device()) && break_recordings(current_device(), true)) {
    return kLegacyWhileRecording;
  }
  const uint64_t ticket = ++fake().tickets;
  if (!fake().deferred) {
    node.run();
    return kOk;
  }
  auto run = [node = std::move(node)] { node.run(); };
  fake().streams[stream].queue.push_back({ticket, 0, nullptr, std::move(run)});
  return kOk;
}

Result submit(void* stream, std::function<void()> body) {
  return submit(stream, Node{.body = std::move(body)});
}

Result allocate(Pointer* out, size_t nbytes, bool pooled) {
  NEED_CONTEXT();
  if (nbytes == 0) return kInvalidValue;
  if (fake().counters.live_bytes + nbytes > fake().memory) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
  if (memory == nullptr) return kOutOfMemory;
  std::memset(memory, 0xCD, nbytes);
  fake().blocks[reinterpret_cast<uintptr_t>(memory)] = {nbytes, thread_contexts().back(), pooled};
  ++fake().counters.live_blocks;
  ++fake().counters.allocations;
  fake().counters.live_bytes += nbytes;
  *out = reinterpret_cast<uintptr_t>(memory);
  return kOk;
}

Result release(Pointer p) {
  auto found = fake().blocks.find(address(p));
  if (found == fake().blocks.end()) return bad_pointer();
  --fake().counters.live_blocks;
  fake().counters.live_bytes -= found->second.nbytes;
  std::memset(pointer(p), 0xDD, found->second.nbytes);
  // Work that is still to come would be seen to use it.
  const bool late = found->second.pooled && fake().deferred;
  fake().blocks.erase(found);
  if (late) {
    fake().kept.push_back(pointer(p));
  } else {
    std::free(pointer(p));
  }
  return kOk;
}

bool is_pinned(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  for (const auto& [start, size] : fake().pinned) {
    if (at >= start && at < start + size) return true;
  }
  return false;
}

Result copy(void* dst, Side to, const void* src, Side from, size_t nbytes, void* stream) {
  NEED_CONTEXT();
  const bool good = (to == Side::Device ? inside(dst, nbytes) : !on_device(dst)) &&
                    (from == Side::Device ? inside(src, nbytes) : !on_device(src));
  if (!good) return bad_pointer();
  // A copy may cross from device to device, but one end is where the stream is.
  const bool here = to == from ? on_current_device(dst) || on_current_device(src)
                               : on_current_device(dst) && on_current_device(src);
  if (!here) return bad_context();
  ++(to == Side::Host     ? fake().counters.downloads
     : from == Side::Host ? fake().counters.uploads
                          : fake().counters.device_copies);
  const auto found = fake().streams.find(stream);
  const bool recording = found != fake().streams.end() && found->second.recording != nullptr;
  // Pageable memory is read before the call returns, as the driver does for small copies; by a
  // graph at each launch.
  if (from == Side::Host && !is_pinned(src) && !recording) {
    std::string staged(static_cast<const char*>(src), nbytes);
    return submit(stream, [=] { std::memcpy(dst, staged.data(), staged.size()); });
  }
  return submit(stream, Node{.body = [=] { std::memcpy(dst, src, nbytes); },
                             .words = {reinterpret_cast<uintptr_t>(dst),
                                       reinterpret_cast<uintptr_t>(src), nbytes}});
}

Side side_of(const void* p) { return on_device(p) ? Side::Device : Side::Host; }

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

FAKE void fake_cuda_counters(FakeCudaCounters* out) {
  std::lock_guard lock(fake().mutex);
  *out = fake().counters;
}
FAKE void fake_cuda_reset_counters() {
  std::lock_guard lock(fake().mutex);
  FakeCudaCounters& c = fake().counters;
  FakeCudaCounters kept{};
  kept.live_blocks = c.live_blocks;
  kept.live_bytes = c.live_bytes;
  kept.live_streams = c.live_streams;
  kept.live_events = c.live_events;
  kept.live_modules = c.live_modules;
  kept.live_pools = c.live_pools;
  kept.live_graphs = c.live_graphs;
  c = kept;
}
FAKE void fake_cuda_fail(const char* symbol, int result, int after) {
  std::lock_guard lock(fake().mutex);
  if (symbol == nullptr) {
    fake().failures.clear();
  } else {
    fake().failures[symbol] = {result, after};
  }
}
FAKE uint64_t fake_cuda_device_waits(int device) {
  std::lock_guard lock(fake().mutex);
  return fake().device_waits[device];
}
FAKE int fake_cuda_device_of(const void* p) {
  std::lock_guard lock(fake().mutex);
  if (!on_device(p)) return -1;
  return std::prev(fake().blocks.upper_bound(reinterpret_cast<uintptr_t>(p)))->second.device;
}
FAKE void fake_cuda_set_devices(int count) { fake().devices = count; }
FAKE void fake_cuda_set_pools(int supported) { fake().pools = supported; }
FAKE void fake_cuda_set_version(int version) { fake().version = version; }
FAKE void fake_cuda_set_memory(uint64_t nbytes) { fake().memory = nbytes; }
FAKE void fake_cuda_defer(int deferred) {
  std::lock_guard lock(fake().mutex);
  run_everything();
  fake().deferred = deferred != 0;
}
FAKE void fake_cuda_pin(void* p, size_t nbytes) {
  std::lock_guard lock(fake().mutex);
  fake().pinned[reinterpret_cast<uintptr_t>(p)] = nbytes;
}
FAKE void fake_cuda_unpin(void* p) {
  std::lock_guard lock(fake().mutex);
  fake().pinned.erase(reinterpret_cast<uintptr_t>(p));
}
FAKE void fake_cuda_launch(void* stream, FakeKernel kernel, const void* arguments,
                           size_t num_words) {
  std::lock_guard lock(fake().mutex);
  ++fake().counters.launches;
  fake().kernels[reinterpret_cast<void*>(kernel)] = num_words;
  const auto* words = static_cast<const uint64_t*>(arguments);
  submit(stream, Node{.type = 0, .kernel = kernel, .words = {words, words + num_words}});
}

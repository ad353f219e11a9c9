// The fake driver's state and the rules of its streams, shared by its files.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_driver.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

using Result = int;
using Pointer = unsigned long long;

constexpr Result kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                 kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
                 kNotWhileRecording = 900, kRecordingBroken = 901, kNotRecorded = 905,
                 kLegacyWhileRecording = 906, kRecordedEvent = 907;

struct Block {
  size_t nbytes = 0;
  int device = 0;
  bool pooled = false;
};

struct Event {
  int device = 0;
  bool recorded = false;  // in a graph, where nothing can wait for it
  uint64_t ticket = 0;    // of the record that counts; 0: never recorded
  void* stream = nullptr;
};

struct Work {
  uint64_t ticket = 0;
  uint64_t after = 0;            // wait for this ticket ...
  void* after_stream = nullptr;  // ... of this stream
  std::function<void()> body;
};

struct Node {
  bool enabled = true;
  int type = 1;                  // copy; 0: kernel, 2: fill
  std::function<void()> body{};  // of what is no kernel
  FakeKernel kernel = nullptr;
  std::vector<uint64_t> words{};   // its arguments
  std::vector<void*> arguments{};  // where they are, for who asks

  void run() const {
    if (kernel == nullptr) return body();
    std::vector<uint64_t> copy = words;
    kernel(copy.data());
  }
};

// A graph is what a stream recorded. What a launch does is a copy of its nodes, made when it was
// instantiated; `template_of` tells them by their originals.
struct Graph {
  std::deque<Node> nodes;  // addresses stay
};
struct GraphExec {
  std::map<const Node*, size_t> template_of;
  std::vector<Node> nodes;
};

struct Stream {
  int device = 0;
  bool blocking = true;
  Graph* recording = nullptr;
  bool broken = false;  // by a call that does not go with recording
  std::deque<Work> queue{};
};

struct State {
  std::recursive_mutex mutex;
  int devices = 1;
  int pools = 1;
  int version = 13000;
  uint64_t memory = uint64_t{16} << 30;
  bool initialized = false;
  bool deferred = false;
  FakeCudaCounters counters{};
  std::map<uintptr_t, Block> blocks;  // by address
  std::vector<void*> kept;            // memory that was given back
  std::map<uintptr_t, size_t> pinned;
  std::map<void*, Stream> streams;  // by resolved handle
  std::set<Event*> events;
  std::map<void*, int> modules;  // and their devices
  std::map<void*, int> pool_handles;
  std::map<int, uint64_t> device_waits;
  std::map<void*, size_t> kernels;  // and the number of their arguments
  std::set<Graph*> graphs;
  std::set<GraphExec*> graph_execs;
  std::map<std::string, std::pair<Result, int>> failures;
  uint64_t tickets = 0;
};

State& fake();
std::vector<int>& thread_contexts();  // devices, innermost last
int current_device();                 // 0 without a context: what tests call needs none

// The stream that a handle means now: null, 1 and 2 are streams of the current device.
void* legacy_of(int device);
void* resolve(void* handle);
// The resolved stream if it is one of the current device, else a counted mistake.
Result own_stream(void* handle, void** resolved);
Result bad_context();
bool on_current_device(const void* p);  // memory; also where it is on no device

inline uintptr_t address(Pointer p) { return static_cast<uintptr_t>(p); }
inline void* pointer(Pointer p) { return reinterpret_cast<void*>(address(p)); }

// What a call that was told to fail returns.
Result injected(const char* symbol);

// Device memory that this range lies in; host memory that is pinned.
bool inside(const void* p, size_t nbytes);
bool on_device(const void* p);
bool is_pinned(const void* p);
Result bad_pointer();

Result allocate(Pointer* out, size_t nbytes, bool pooled);
Result release(Pointer p);

// Queues work on a stream of the current device, or does it at once when nothing is deferred.
Result submit(void* stream, std::function<void()> body);
// Does a resolved stream's work up to a ticket, and before it what CUDA would have done first.
void run_until(void* stream, uint64_t ticket);
void run_stream(void* stream);
void run_device(int device);
void run_everything();

enum class Side { Host, Device };
Side side_of(const void* p);
// Ends in an error what is recorded on the device's streams; on its blocking ones only. True if
// there was any.
bool break_recordings(int device, bool only_blocking);
// Does `node` on the stream now, or records it.
Result submit(void* stream, Node node);
Result copy(void* dst, Side to, const void* src, Side from, size_t nbytes, void* stream);

}  // namespace fake_cuda

#define ENTER(symbol)                              \
  std::lock_guard lock(fake().mutex);              \
  if (!fake().initialized) return kNotInitialized; \
  if (const Result failure = injected(#symbol); failure != kOk) return failure

#define NEED_CONTEXT()                                 \
  if (thread_contexts().empty()) return bad_context(); \
  static_cast<void>(0)

// For memory, an event, a module or a pool of this device.
#define NEED_DEVICE(device)                               \
  if ((device) != current_device()) return bad_context(); \
  static_cast<void>(0)

// Which stream work goes to, and events that order streams.
//
// Three layers, innermost first: the stream that a running model set for itself (StreamGuard), the
// stream that the caller asked for (CallerStreams, thread-local, set from Python), and one blocking
// stream per device that all programs share. That last one makes the default safe: delegates of one
// method, methods with common state and their copies run in submission order, and the legacy
// default stream of torch and CuPy waits for it and is waited for.
#pragma once

#include <optional>

#include "driver.h"

namespace pteron::cuda {

// The stream that the caller chose for this thread; nullopt: none. Null (legacy) is a choice too.
std::optional<Stream> caller_stream(int device) noexcept;
void set_caller_stream(int device, Stream stream);
void clear_caller_stream(int device) noexcept;

// The process's own stream on a device: blocking, so that it takes part in legacy ordering.
Stream shared_stream(int device);

// The device of a caller's stream; `device` where that cannot be told, as of the default streams,
// which are there on every device.
int stream_device(int device, Stream stream);

// What the shims allocate and copy on: the innermost StreamGuard, else the caller's stream, else
// the legacy stream.
Stream current_stream(int device) noexcept;

class StreamGuard {
 public:
  StreamGuard(int device, Stream stream) noexcept;
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  int previous_device_;
  Stream previous_stream_;
};

void synchronize_stream(int device, Stream stream);

// Events without timing, pooled: creating one can stall on the context's lock.
Event acquire_event(int device);
Event record_event(int device, Stream stream);  // one of them, recorded; context current
void release_event(int device, Event event) noexcept;
int live_events() noexcept;  // acquired and not yet released

// The end of the last work of one owner. Work that goes on on another stream waits for it on the
// device; the owner waits for it on the host before it frees anything.
class LastUse {
 public:
  explicit LastUse(int device) : device_(device) {}
  ~LastUse();
  LastUse(const LastUse&) = delete;
  LastUse& operator=(const LastUse&) = delete;

  // Before and after a batch of work on `stream`, context current. `own`: the stream is the
  // library's and lives for good; otherwise its number may come to belong to another stream.
  void order(Stream stream, bool own);
  void record(Stream stream, bool own);
  void wait() noexcept;

 private:
  int device_;
  Event event_ = nullptr;
  Stream own_stream_ = nullptr;  // of the last record, if it was the library's own
  bool used_ = false;
};

}  // namespace pteron::cuda

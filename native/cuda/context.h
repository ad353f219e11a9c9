// Devices and their primary contexts. The primary context is the one that torch, CuPy and every
// program of the CUDA runtime API share, so memory and streams of all of them are usable here.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "driver.h"

namespace pteron::cuda {

int device_count();
std::string device_name(int device);
int compute_capability(int device);  // 90 for sm_90

// Retained at the first use and kept until the process ends.
Context primary_context(int device);

// The device of this thread's current context, or 0 where there is none.
int current_device();

// Makes a device's primary context current for a scope, and puts back what was current before.
class ContextGuard {
 public:
  explicit ContextGuard(int device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

// Blocks the host until everything that was submitted to the device is done.
void synchronize_device(int device);

// While it is held, nobody is in synchronize_device(): a wait for the device that a CUDA graph is
// recorded on, on whatever thread, fails and ends the recording in an error.
std::unique_lock<std::shared_mutex> hold_off_waits(int device);

struct PointerInfo {
  enum class Kind { Host, Pinned, Device, Managed };
  Kind kind = Kind::Host;
  int device = -1;  // of Device and Managed

  bool on_device() const noexcept { return kind == Kind::Device || kind == Kind::Managed; }
};

// Where memory really is, whatever an annotation says.
PointerInfo pointer_info(const void* pointer);

}  // namespace pteron::cuda

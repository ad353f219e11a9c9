#include "driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

namespace pteron::cuda {

namespace {

// Where distributions, WSL and container toolkits put the driver when the loader's own search path
// does not cover it.
constexpr const char* kFallbackPaths[] = {
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
};

constexpr int kOldestVersion = 11020;  // minor-version compatibility and memory pools start here

struct State {
  std::mutex mutex;
  std::string path;  // set by set_driver_path()
  bool attempted = false;
  Driver driver;
  std::optional<Failure> failure;
  std::atomic<bool> ready{false};  // the fast path of driver()
};

State& state() {
  // Never destroyed: frees may come from other libraries' destructors.
  static State* const instance = new State;
  return *instance;
}

void* open_library(State& s) {
  if (s.path.empty()) {
    if (const char* path = std::getenv("PTERON_CUDA_DRIVER"); path != nullptr) s.path = path;
  }
  if (!s.path.empty()) {
    void* handle = dlopen(s.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw Failure(ErrorCode::NotFound, std::string("cannot open the CUDA driver: ") + dlerror());
    }
    return handle;
  }
  if (void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string reason = dlerror();
  for (const char* path : kFallbackPaths) {
    if (void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  throw Failure(ErrorCode::NotFound, "no CUDA driver on this machine (" + reason + ")");
}

template <typename Function>
void find(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
}

void load(State& s) {
  void* library = open_library(s);
  Driver& d = s.driver;
#define PTERON_DRIVER_FIND(member, symbol, arguments)                                        \
  find(library, #symbol, d.member);                                                          \
  if (d.member == nullptr) {                                                                 \
    throw Failure(ErrorCode::NotSupported, "the CUDA driver is too old: it lacks " #symbol); \
  }
  PTERON_FORALL_DRIVER_CALLS(PTERON_DRIVER_FIND)
#undef PTERON_DRIVER_FIND
#define PTERON_DRIVER_FIND(member, symbol, arguments) find(library, #symbol, d.member);
  PTERON_FORALL_OPTIONAL_DRIVER_CALLS(PTERON_DRIVER_FIND)
#undef PTERON_DRIVER_FIND

  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(d.init), &where) != 0 && where.dli_fname != nullptr) {
    d.path = where.dli_fname;
  }
  auto explain = [&](Result result, const char* doing) {
    if (result == kSuccess) return;
    const char* text = nullptr;
    d.error_string(result, &text);
    throw Failure(result_code(result), std::string(doing) + ": " +
                                           (text != nullptr ? text : "unknown error") + " (" +
                                           std::to_string(result) + ")");
  };
  explain(d.init(0), "the CUDA driver does not start");
  explain(d.driver_version(&d.version), "the CUDA driver does not tell its version");
  if (d.version < kOldestVersion) {
    throw Failure(ErrorCode::NotSupported, "the CUDA driver is too old: it supports CUDA " +
                                               std::to_string(d.version / 1000) + "." +
                                               std::to_string(d.version % 1000 / 10) +
                                               ", and 11.2 is the oldest that works");
  }
  int count = 0;
  explain(d.device_count(&count), "the CUDA driver does not count its devices");
  if (count == 0) throw Failure(ErrorCode::NotFound, "the CUDA driver finds no device");
}

}  // namespace

const Driver& driver() {
  State& s = state();
  if (s.ready.load(std::memory_order_acquire)) return s.driver;
  std::lock_guard lock(s.mutex);
  if (!s.attempted) {
    s.attempted = true;
    try {
      load(s);
      s.ready.store(true, std::memory_order_release);
    } catch (const Failure& failure) {
      s.failure = failure;
    }
  }
  if (s.failure) throw *s.failure;
  return s.driver;
}

bool driver_available(std::string* reason) noexcept {
  try {
    driver();
    return true;
  } catch (const std::exception& error) {
    if (reason != nullptr) *reason = error.what();
    return false;
  }
}

bool set_driver_path(const std::string& path) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.attempted) return false;
  s.path = path;
  return true;
}

std::string result_text(Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  const State& s = state();
  if (s.ready.load(std::memory_order_acquire)) {
    s.driver.error_name(result, &name);
    s.driver.error_string(result, &text);
  }
  std::string out = text != nullptr ? text : "CUDA error";
  return out + " (" + (name != nullptr ? std::string(name) : std::to_string(result)) + ")";
}

ErrorCode result_code(Result result) noexcept {
  switch (result) {
    case kSuccess:
      return ErrorCode::Ok;
    case kInvalidValue:
      return ErrorCode::InvalidArgument;
    case kOutOfMemory:
      return ErrorCode::MemoryAllocationFailed;
    case kNotInitialized:
    case kDeinitialized:
      return ErrorCode::InvalidState;
    case kNoDevice:
    case kInvalidDevice:
      return ErrorCode::NotFound;
    case kNotSupported:
      return ErrorCode::NotSupported;
    default:
      return ErrorCode::Internal;
  }
}

void fail(Result result, const char* doing) {
  throw Failure(result_code(result), std::string(doing) + ": " + result_text(result));
}

}  // namespace pteron::cuda

// The fake driver's controls, found in the library that the code under test opened too.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "fake_driver.h"

namespace pteron::testing {

struct FakeDriver {
  explicit FakeDriver(const std::string& path) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    find(get_counters, "fake_cuda_counters");
    find(reset_counters, "fake_cuda_reset_counters");
    find(fail, "fake_cuda_fail");
    find(set_devices, "fake_cuda_set_devices");
    find(set_pools, "fake_cuda_set_pools");
    find(set_memory, "fake_cuda_set_memory");
    find(defer, "fake_cuda_defer");
    find(pin, "fake_cuda_pin");
    find(unpin, "fake_cuda_unpin");
    find(launch, "fake_cuda_launch");
    find(stream_create, "cuStreamCreate");
  }

  FakeCudaCounters counters() const {
    FakeCudaCounters out{};
    get_counters(&out);
    return out;
  }
  void* new_stream(bool blocking) const {
    void* stream = nullptr;
    stream_create(&stream, blocking ? 0 : 1);
    return stream;
  }

  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(dlerror());
  }

  void* library = nullptr;
  void (*get_counters)(FakeCudaCounters*) = nullptr;
  void (*reset_counters)() = nullptr;
  void (*fail)(const char*, int, int) = nullptr;
  void (*set_devices)(int) = nullptr;
  void (*set_pools)(int) = nullptr;
  void (*set_memory)(uint64_t) = nullptr;
  void (*defer)(int) = nullptr;
  void (*pin)(void*, size_t) = nullptr;
  void (*unpin)(void*) = nullptr;
  void (*launch)(void*, FakeKernel, const void*, size_t) = nullptr;
  int (*stream_create)(void**, unsigned) = nullptr;
};

// Set by main() from the command line.
inline FakeDriver* fake = nullptr;

}  // namespace pteron::testing

// GPU test: order across streams, failures of a load, latency against the bare container.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "golden.h"
#include "gpu_test_groups.h"

namespace pteron::testing {

namespace {

// Waits about `ns` nanoseconds on the device.
constexpr const char* kSpinPtx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) {
  .reg .u64 %rd<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [ns];
  mov.u64 %rd2, %globaltimer;
again:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p, %rd4, %rd1;
  @%p bra again;
  ret;
}
)";

struct Driver {
  int (*stream_create)(void**, unsigned);
  int (*module_load)(void**, const void*);
  int (*module_function)(void**, void*, const char*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*copy_async)(unsigned long long, unsigned long long, size_t, void*);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  void* spin_function = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find(stream_create, "cuStreamCreate");
    find(module_load, "cuModuleLoadData");
    find(module_function, "cuModuleGetFunction");
    find(launch, "cuLaunchKernel");
    find(copy_async, "cuMemcpyAsync");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    void* context = nullptr;
    retain(&context, 0);
    set_current(context);
    void* module = nullptr;
    if (module_load(&module, kSpinPtx) == 0) module_function(&spin_function, module, "spin");
  }

  void spin(void* stream, uint64_t milliseconds) const {
    uint64_t ns = milliseconds * 1000000;
    void* parameters[] = {&ns};
    void* context = nullptr;
    retain(&context, 0);
    set_current(context);
    const int result = launch(spin_function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    if (result != 0) {
      throw std::runtime_error("the spin kernel does not start: " + std::to_string(result));
    }
  }
};

Driver& driver() {
  static Driver instance;
  return instance;
}

unsigned long long number(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}

// A device input that another stream is still about to write must be waited for.
void late_writer(Suite& s, const std::string& what, void* writer, bool on_caller_stream) {
  s.section(what, [&] {
    const Golden golden = read_golden(s.folder("add_devio"));
    auto method = s.load("add_devio");
    s.compare("add_devio", method->run(golden.inputs), golden.steps[0]);
    const size_t nbytes = golden.inputs[0].bytes.size();
    DeviceBytes source(s.api, nbytes);
    check(s.api->copy(0, kPteronCudaHostToDevice, source.get(), golden.inputs[0].bytes.data(),
                      nbytes, nullptr));
    const std::vector<char> zeros(nbytes, 0);
    for (int i = 0; i < 3; ++i) {
      check(s.api->copy(0, kPteronCudaHostToDevice, method->device_input(0), zeros.data(), nbytes,
                        nullptr));
      check(s.api->synchronize_device(0));
      driver().spin(writer, 50);
      driver().copy_async(number(method->device_input(0)), number(source.get()), nbytes, writer);
      if (on_caller_stream) check(s.api->set_caller_stream(0, writer));
      const auto start = std::chrono::steady_clock::now();
      method->execute();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      s.expect(took.count() < 25, "execute() blocked the host: " + std::to_string(took.count()));
      if (on_caller_stream) {
        check(s.api->synchronize_stream(0, writer));
        s.api->clear_caller_stream(0);
      }
      s.compare("add_devio", method->outputs(), golden.steps[0]);
    }
  });
}

double median_us(int rounds, const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < rounds / 10 + 5; ++i) body();
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

// The container called by hand, with nothing of ours but the shims.
class Bare {
 public:
  Bare(const Suite& s, const std::string& name) {
    // The shims become global here, which the product never does; this group runs last.
    void* shims = dlopen(s.library_path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (shims == nullptr) throw std::runtime_error(dlerror());
    const std::vector<char> pte = read_file(s.folder(name) + "/model.pte");
    const std::string text(pte.begin(), pte.end());
    const size_t at = text.find(
        "\x7f"
        "ELF");
    char path[] = "/tmp/bare-XXXXXX";
    const int fd = mkstemp(path);
    if (write(fd, pte.data() + at, pte.size() - at) < 0) throw std::runtime_error("write");
    close(fd);
    void* model = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (model == nullptr) throw std::runtime_error(dlerror());
    auto find = [](void* from, auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(from, symbol));
    };
    find(model, create_, "AOTInductorModelContainerCreateWithDevice");
    find(model, run_, "AOTInductorModelContainerRunSingleThreaded");
    find(model, run_locked_, "AOTInductorModelContainerRun");
    find(shims, blob_, "aoti_torch_create_tensor_from_blob");
    find(shims, delete_, "aoti_torch_delete_tensor_object");
    if (create_(&container_, 1, "cuda:0", nullptr) != 0) throw std::runtime_error("create");
  }

  void run(const std::vector<HostTensor>& inputs, const std::vector<void*>& data, void* stream,
           bool locked) {
    std::vector<void*> in(inputs.size());
    void* out[8] = {};
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<int64_t> sizes(inputs[i].sizes.begin(), inputs[i].sizes.end());
      blob_(data[i], static_cast<int64_t>(sizes.size()), sizes.data(), nullptr, 0, inputs[i].dtype,
            1, 0, &in[i]);
    }
    if ((locked ? run_locked_ : run_)(container_, in.data(), in.size(), out, 1, stream, nullptr)) {
      throw std::runtime_error("run");
    }
    delete_(out[0]);
  }

 private:
  void* container_ = nullptr;
  int (*create_)(void**, size_t, const char*, const char*) = nullptr;
  int (*run_)(void*, void**, size_t, void**, size_t, void*, void*) = nullptr;
  int (*run_locked_)(void*, void**, size_t, void**, size_t, void*, void*) = nullptr;
  int (*blob_)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int, int, int,
               void**) = nullptr;
  int (*delete_)(void*) = nullptr;
};

void bare_latency(Suite& s, const std::string& name) {
  const Golden golden = read_golden(s.folder(name));
  Bare bare(s, name);
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  std::vector<void*> data;
  for (const HostTensor& in : golden.inputs) {
    memory.push_back(std::make_unique<DeviceBytes>(s.api, in.bytes.size()));
    data.push_back(memory.back()->get());
  }
  void* stream = nullptr;
  check(s.api->shared_stream(0, &stream));
  auto run = [&](bool locked, bool wait) {
    return median_us(2000, [&] {
      bare.run(golden.inputs, data, stream, locked);
      if (wait) check(s.api->synchronize_stream(0, stream));
    });
  };
  std::printf("     bare container %-14s submit %7.2f us, done %7.2f us; Run(): done %7.2f us\n",
              name.c_str(), run(false, false), run(false, true), run(true, true));
  check(s.api->synchronize_device(0));
}

}  // namespace

void* Suite::new_stream() const {
  void* stream = nullptr;
  driver();
  void* context = nullptr;
  driver().retain(&context, 0);
  driver().set_current(context);
  if (driver().stream_create(&stream, 1) != 0) throw std::runtime_error("no stream");
  return stream;
}

void stream_order(Suite& s) {
  late_writer(s, "the legacy stream still writes an input", nullptr, false);
  late_writer(s, "a non-blocking caller stream still writes an input", s.new_stream(), true);
  s.section("changing caller streams between runs", [&] {
    const Golden golden = read_golden(s.folder("state"));
    auto method = s.load("state");
    void* streams[] = {s.new_stream(), s.new_stream(), s.new_stream()};
    for (size_t k = 0; k < golden.steps.size(); ++k) {
      driver().spin(streams[k % 3], 20);
      check(s.api->set_caller_stream(0, streams[k % 3]));
      s.compare("state", method->run(golden.inputs), golden.steps[k]);
    }
    s.api->clear_caller_stream(0);
  });
  s.section("events", [&] {
    void* stream = s.new_stream();
    void* event = nullptr;
    int32_t done = -1;
    driver().spin(stream, 50);
    check(s.api->event_record(0, stream, &event));
    check(s.api->event_query(0, event, &done));
    s.expect(done == 0, "the event is done too early");
    check(s.api->event_wait(0, nullptr, event));
    check(s.api->synchronize_stream(0, nullptr));
    check(s.api->event_query(0, event, &done));
    s.expect(done == 1, "the event is not done");
    s.api->event_release(0, event);
    const double record = median_us(2000, [&] {
      void* e = nullptr;
      check(s.api->event_record(0, stream, &e));
      check(s.api->event_wait(0, nullptr, e));
      s.api->event_release(0, e);
    });
    check(s.api->synchronize_device(0));
    const double idle = median_us(500, [&] { check(s.api->synchronize_device(0)); });
    int32_t kind = 0;
    int32_t device = 0;
    const DeviceBytes some(s.api, 64);
    const double query =
        median_us(2000, [&] { check(s.api->pointer_query(some.get(), &kind, &device)); });
    std::printf(
        "     event record+wait+release %.2f us, idle device wait %.2f us, pointer query %.2f us\n",
        record, idle, query);
  });
}

void load_errors(Suite& s) {
  s.section("a missing data file", [&] {
    std::string text;
    try {
      Method method(s.api, Program::from_folder(s.folder("mlp_fp32"), false));
    } catch (const std::exception& error) {
      text = error.what();
    }
    s.expect(text.find("0x20") != std::string::npos, "missing .ptd: " + text);
  });
  s.section("no data file where none is needed", [&] {
    const Golden golden = read_golden(s.folder("add"));
    Method method(s.api, Program::from_folder(s.folder("add"), false));
    s.compare("add", method.run(golden.inputs), golden.steps[0]);
  });
  s.section("a damaged library", [&] {
    std::vector<char> pte = read_file(s.folder("add") + "/model.pte");
    const std::string text(pte.begin(), pte.end());
    pte[text.find("\x7f"
                  "ELF") +
        1] = 'X';
    bool failed = false;
    try {
      Method method(s.api, std::make_shared<Program>(std::move(pte), std::nullopt));
    } catch (const std::exception&) {
      failed = true;
    }
    s.expect(failed, "a damaged library loads");
  });
}

// What a copy of 4 MiB costs, from pageable and from pinned memory.
void copy_speed(Suite& s) {
  s.section("copies of 4 MiB", [&] {
    constexpr size_t kSize = 4 << 20;
    const DeviceBytes device(s.api, kSize);
    std::vector<char> pageable(kSize, 1);
    void* pinned = nullptr;
    check(s.api->allocate_host(kSize, &pinned));
    std::memset(pinned, 1, kSize);
    void* stream = nullptr;
    check(s.api->shared_stream(0, &stream));
    auto up = [&](const void* from) {
      return median_us(100, [&] {
        check(s.api->copy(0, kPteronCudaHostToDevice, device.get(), from, kSize, stream));
        check(s.api->synchronize_stream(0, stream));
      });
    };
    auto down = [&](void* to) {
      return median_us(100, [&] {
        check(s.api->copy(0, kPteronCudaDeviceToHost, to, device.get(), kSize, stream));
      });
    };
    std::printf(
        "     up: pageable %.0f us, pinned %.0f us; down: pageable %.0f us, pinned %.0f us\n",
        up(pageable.data()), up(pinned), down(pageable.data()), down(pinned));
    s.api->free_host(pinned);
  });
}

void latency(Suite& s) {
  copy_speed(s);
  s.section("latency", [&] {
    for (const char* name : {"add", "add_devio", "mlp_fp32", "add_big", "add_big_devio"}) {
      const Golden golden = read_golden(s.folder(name));
      auto method = s.load(name);
      s.compare(name, method->run(golden.inputs), golden.steps[0]);
      void* stream = nullptr;
      check(s.api->shared_stream(0, &stream));
      const int rounds = std::string(name) == "add_big" ? 200 : 2000;
      const double submit = median_us(rounds, [&] { method->execute(); });
      const double done = median_us(rounds, [&] {
        method->execute();
        check(s.api->synchronize_stream(0, stream));
      });
      check(s.api->set_caller_stream(0, s.new_stream()));
      const double caller = median_us(rounds, [&] { method->execute(); });
      s.api->clear_caller_stream(0);
      check(s.api->synchronize_device(0));
      std::printf(
          "     %-14s execute() %7.2f us, until done %7.2f us, on a caller stream %7.2f us\n", name,
          submit, done, caller);
    }
  });
  s.section("bare container", [&] {
    bare_latency(s, "add_devio");
    bare_latency(s, "add_big_devio");
  });
}

}  // namespace pteron::testing

// Runs the golden programs on a real GPU through the C++ runtime: gpu_test LIBRARY GOLDENS
// [GROUP...].
//
// LIBRARY is libpteron_cuda.so, opened privately as the binding does. Also built as a library, so
// that a Python process that has torch in it can run the same tests (pteron_gpu_test).
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "golden.h"
#include "gpu_test_groups.h"

namespace pteron::testing {

Suite::Suite(std::string opened, std::string goldens_folder)
    : library_path(std::move(opened)), goldens(std::move(goldens_folder)) {
  ::executorch::runtime::runtime_init();
  void* handle = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  auto get = reinterpret_cast<const PteronCudaApi* (*)(uint32_t)>(dlsym(handle, "pteron_cuda_api"));
  api = get(kPteronCudaApiVersion);
  check(api->ensure_loaded());
}

void Suite::expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s\n", what.c_str());
}

void Suite::section(const std::string& name, const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  const int before = failures;
  try {
    body();
  } catch (const std::exception& error) {
    expect(false, name + ": " + error.what());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s %s (%.2f s)\n", failures == before ? "ok  " : "BAD ", name.c_str(), took.count());
  std::fflush(stdout);
}

std::vector<std::string> Suite::names() const {
  std::vector<std::string> all;
  // PTERON_GPU_PROGRAMS=add,conv runs only those: a memory checker is slow.
  const char* filter = std::getenv("PTERON_GPU_PROGRAMS");
  const std::string wanted = filter != nullptr ? filter : "";
  for (const auto& entry : std::filesystem::directory_iterator(goldens)) {
    const std::string name = entry.path().filename();
    std::istringstream list(wanted);
    bool listed = wanted.empty();
    for (std::string item; std::getline(list, item, ',');) listed = listed || item == name;
    if (!listed || needs_two_devices(name)) continue;
    if (std::filesystem::exists(entry.path() / "golden.txt")) all.push_back(name);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::unique_ptr<Method> Suite::load(const std::string& name, const char* method) const {
  return std::make_unique<Method>(api, Program::from_folder(folder(name)), method);
}

double Suite::compare(const std::string& name, std::vector<HostTensor> got,
                      const std::vector<HostTensor>& expected) {
  double worst = 0;
  // A program that updates an input returns the new input first, then what eager returns.
  if (name == "inplace_in" && got.size() == 2) got.erase(got.begin());
  bool ok = got.size() == expected.size();
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    if (name == "rand") {  // shape and range only: x + [0, 1)
      ok = ok && got[i].sizes == expected[i].sizes;
      continue;
    }
    const double d = difference(got[i], expected[i]);
    worst = std::max(worst, d);
    ok = ok && d <= tolerance(name, expected[i].dtype);
  }
  expect(ok, name + ": outputs differ, worst " + std::to_string(worst));
  return worst;
}

namespace {

void golden_programs(Suite& s) {
  for (const std::string& name : s.names()) {
    s.section("golden " + name, [&] {
      const Golden golden = read_golden(s.folder(name));
      auto method = s.load(name);
      double worst = 0;
      const int repeats = golden.steps.size() > 1 || std::getenv("PTERON_GPU_PROGRAMS") ? 1 : 100;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (const auto& step : golden.steps) {
          worst = std::max(worst, s.compare(name, method->run(golden.inputs), step));
          if (s.failures > 20) return;
        }
      }
      if (name == "rand") {
        const auto out = method->run(golden.inputs);
        const auto again = method->run(golden.inputs);
        bool differs = false;
        for (size_t i = 0; i < out[0].numel(); ++i) {
          const double r = value_at(out[0], i) - value_at(golden.inputs[0], i);
          s.expect(r >= -1e-6 && r < 1 + 1e-6, "rand: out of range " + std::to_string(r));
          differs = differs || value_at(out[0], i) != value_at(again[0], i);
        }
        s.expect(differs, "rand: two runs gave the same numbers");
      }
      std::printf("     %-18s worst %.2e\n", name.c_str(), worst);
    });
  }
}

HostTensor random_tensor(std::vector<int32_t> sizes, unsigned seed) {
  HostTensor t;
  t.sizes = std::move(sizes);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(t.numel());
  for (float& v : values) v = normal(generator);
  t.bytes.resize(values.size() * sizeof(float));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

void dynamic_shapes(Suite& s) {
  s.section("dynamic muladd", [&] {
    auto method = s.load("muladd_dyn");
    unsigned seed = 0;
    for (int32_t batch : {4, 1, 8, 3, 8, 2, 7}) {
      const HostTensor x = random_tensor({batch, 8}, ++seed);
      const HostTensor y = random_tensor({batch, 8}, ++seed);
      HostTensor product = x;
      HostTensor sum;
      sum.sizes = {batch};
      sum.bytes.resize(static_cast<size_t>(batch) * sizeof(float));
      auto* p = reinterpret_cast<float*>(product.bytes.data());
      auto* q = reinterpret_cast<float*>(sum.bytes.data());
      for (size_t i = 0; i < x.numel(); ++i) {
        p[i] = static_cast<float>(value_at(x, i) * value_at(y, i) + value_at(x, i));
        q[i / 8] += static_cast<float>(value_at(x, i));
      }
      s.compare("muladd_dyn", method->run({x, y}), {product, sum});
    }
    s.expect(method->try_execute() == et::Error::Ok, "a rerun without new inputs fails");
  });
  s.section("dynamic mlp", [&] {
    auto method = s.load("mlp_dyn");
    const Golden golden = read_golden(s.folder("mlp_dyn"));
    s.compare("mlp_dyn", method->run(golden.inputs), golden.steps[0]);
    for (int32_t batch : {8, 1, 5}) {  // every row is the golden's first row
      HostTensor x = random_tensor({batch, 64}, 1);
      HostTensor expected;
      expected.sizes = {batch, 16};
      for (int32_t row = 0; row < batch; ++row) {
        std::copy_n(golden.inputs[0].bytes.begin(), 256, x.bytes.begin() + row * 256);
        expected.bytes.insert(expected.bytes.end(), golden.steps[0][0].bytes.begin(),
                              golden.steps[0][0].bytes.begin() + 64);
      }
      s.compare("mlp_dyn", method->run({x}), {expected});
    }
  });
}

void shared_state(Suite& s) {
  s.section("two methods share weights", [&] {
    const Golden golden = read_golden(s.folder("two_methods"));
    auto program = Program::from_folder(s.folder("two_methods"));
    auto first = std::make_unique<Method>(s.api, program, "forward");
    const size_t one = s.api->use().nbytes;
    auto second = std::make_unique<Method>(s.api, program, "again");
    const size_t two = s.api->use().nbytes;
    s.compare("two_methods", first->run(golden.inputs), golden.steps[0]);
    s.compare("two_methods", second->run(golden.inputs), golden.steps[0]);
    first.reset();
    s.compare("two_methods", second->run(golden.inputs), golden.steps[0]);
    std::printf("     device bytes: one method %zu, two %zu\n", one, two);
    s.expect(two - one < 20000, "the second method copied the weights");
  });
  s.section("two loads of a method have a state each", [&] {
    const Golden golden = read_golden(s.folder("state"));
    auto program = Program::from_folder(s.folder("state"));
    Method a(s.api, program);
    auto b = std::make_unique<Method>(s.api, program);
    for (const auto& step : golden.steps) {
      s.compare("state", a.run(golden.inputs), step);
      s.compare("state", b->run(golden.inputs), step);
    }
    b.reset();
    Method again(s.api, program);
    s.compare("state", again.run(golden.inputs), golden.steps[0]);
  });
}

void orders(Suite& s) {
  s.section("three programs deleted in every order", [&] {
    const std::vector<std::string> names = {"add", "mlp_fp32", "conv"};
    std::vector<Golden> goldens;
    for (const auto& name : names) goldens.push_back(read_golden(s.folder(name)));
    std::vector<size_t> order = {0, 1, 2};
    do {
      std::vector<std::unique_ptr<Method>> methods;
      for (const auto& name : names) methods.push_back(s.load(name));
      for (size_t i : order) {
        for (size_t k = 0; k < 3; ++k) {
          if (methods[k])
            s.compare(names[k], methods[k]->run(goldens[k].inputs), goldens[k].steps[0]);
        }
        methods[i].reset();
      }
    } while (std::next_permutation(order.begin(), order.end()));
    s.expect(s.api->use().handles == 0, "handles are left");
  });
}

void leaks(Suite& s) {
  for (const char* name : {"add", "mlp_fp32", "state", "muladd_noout", "views"}) {
    s.section(std::string("200 loads of ") + name, [&] {
      const Golden golden = read_golden(s.folder(name));
      size_t free_before = 0;
      size_t total = 0;
      PteronCudaUse use{};
      for (int i = 0; i < 205; ++i) {
        if (i == 5) {
          check(s.api->synchronize_device(0));
          check(s.api->memory_info(0, &free_before, &total));
          use = s.api->use();
        }
        auto method = s.load(name);
        s.compare(name, method->run(golden.inputs), golden.steps[0]);
      }
      check(s.api->synchronize_device(0));
      size_t free_after = 0;
      check(s.api->memory_info(0, &free_after, &total));
      const PteronCudaUse now = s.api->use();
      std::printf(
          "     free before %zu after %zu (lost %lld), blocks %zu -> %zu, tensors %lld -> %lld\n",
          free_before, free_after,
          static_cast<long long>(free_before) - static_cast<long long>(free_after), use.blocks,
          now.blocks, static_cast<long long>(use.tensors), static_cast<long long>(now.tensors));
      s.expect(free_before <= free_after + (4U << 20), "device memory is lost");
      s.expect(now.blocks == use.blocks && now.tensors == use.tensors && now.handles == 0,
               "blocks, tensors or handles are left");
    });
  }
}

void threads(Suite& s) {
  for (const bool own_stream : {false, true}) {
    s.section(own_stream ? "8 threads x 4 programs, a stream each" : "8 threads x 4 programs", [&] {
      const std::vector<std::string> names = {"add", "mlp_fp32", "views", "muladd_dyn"};
      std::vector<Golden> goldens;
      for (const auto& name : names) goldens.push_back(read_golden(s.folder(name)));
      std::atomic<int> bad{0};
      std::vector<std::thread> pool;
      for (int t = 0; t < 8; ++t) {
        pool.emplace_back([&, t] {
          try {
            void* stream = own_stream ? s.new_stream() : nullptr;
            if (own_stream) check(s.api->set_caller_stream(0, stream));
            for (int round = 0; round < 5; ++round) {
              const size_t k = static_cast<size_t>(t + round) % names.size();
              auto method = s.load(names[k]);
              for (int i = 0; i < 50; ++i) {
                const auto got = method->run(goldens[k].inputs);
                for (size_t o = 0; o < got.size(); ++o) {
                  const auto& want = goldens[k].steps[0][o];
                  if (difference(got[o], want) > tolerance(names[k], want.dtype)) ++bad;
                }
              }
            }
            s.api->clear_caller_stream(0);
          } catch (const std::exception& error) {
            std::printf("     thread: %s\n", error.what());
            ++bad;
          }
        });
      }
      for (std::thread& thread : pool) thread.join();
      s.expect(bad == 0, std::to_string(bad) + " wrong results");
    });
  }
}

}  // namespace

int run_gpu_tests(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Suite s(argv[1], argv[2]);
  const char* text = nullptr;
  check(s.api->driver_text(&text));
  std::printf("driver: %s\n", text);
  check(s.api->device_text(0, &text));
  std::printf("device: %s\n", text);
  const std::vector<std::pair<std::string, std::function<void(Suite&)>>> groups = {
      {"goldens", golden_programs},
      {"dynamic", dynamic_shapes},
      {"state", shared_state},
      {"orders", orders},
      {"leaks", leaks},
      {"threads", threads},
      {"streams", stream_order},
      {"errors", load_errors},
      {"latency", latency},
  };
  for (const auto& [name, body] : groups) {
    const bool wanted = argc <= 3 || std::any_of(argv + 3, argv + argc,
                                                 [&](const char* arg) { return name == arg; });
    if (wanted) s.section("== " + name, [&, b = body] { b(s); });
  }
  std::printf("%d failures\n", s.failures);
  return s.failures == 0 ? 0 : 1;
}

}  // namespace pteron::testing

extern "C" __attribute__((visibility("default"))) int pteron_gpu_test(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "gpu_test LIBRARY GOLDENS [GROUP...]\n");
    return 2;
  }
  try {
    return pteron::testing::run_gpu_tests(argc, argv);
  } catch (const std::exception& error) {
    std::printf("FAIL %s\n", error.what());
    return 1;
  }
}

int main(int argc, char** argv) { return pteron_gpu_test(argc, argv); }

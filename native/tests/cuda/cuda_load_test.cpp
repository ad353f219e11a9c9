// Loading: weights and state, failures, isolation, files, threads, options, the API.
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "cuda_delegate_test.h"

namespace pteron::testing {

TEST(state_is_kept_shared_and_reset) {
  const Clean clean;
  const Golden golden = read_golden(folder("state"));
  auto program = Program::from_folder(folder("state"));
  {
    Method a(api, program);
    Method b(api, program);  // X2: a state of its own
    for (const auto& step : golden.steps) {
      expect_close("state", a.run(golden.inputs), step);
      expect_close("state", b.run(golden.inputs), step);
    }
  }
  Method again(api, program);
  expect_close("state", again.run(golden.inputs), golden.steps[0]);
}

TEST(methods_of_a_program_share_weights) {
  const Clean clean;
  auto program = Program::from_folder(folder("two_methods"));
  auto first = std::make_unique<Method>(api, program, "forward");
  const size_t one = api->use().nbytes;
  auto second = std::make_unique<Method>(api, program, "again");
  EXPECT(api->use().nbytes - one < 20000);  // the arena only
  first.reset();
  const Golden golden = read_golden(folder("two_methods"));
  expect_close("two_methods", second->run(golden.inputs), golden.steps[0]);
  auto other = load("two_methods");  // another loaded program: weights of its own
  EXPECT(api->use().nbytes > 2 * 40000);
}

TEST(missing_data_is_named) {
  const Clean clean;
  EXPECT_TEXT(thrown([] { Method m(api, Program::from_folder(folder("mlp_fp32"), false)); }),
              "0x20");
  const Golden golden = read_golden(folder("add"));
  Method method(api, Program::from_folder(folder("add"), false));  // no weights: none needed
  expect_close("add", method.run(golden.inputs), golden.steps[0]);
}

TEST(failures_of_a_load_leave_nothing) {
  const Clean clean;
  for (const char* call : {"cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2"}) {
    for (int after = 0; after < 7; ++after) {
      fake->fail(call, 719, after);
      thrown([] { load("mlp_fp32"); });
      fake->fail(nullptr, 0, 0);
    }
  }
  Delegate bad("add");
  bad.payload_ = "ETCUDAFQN3";
  EXPECT(bad.init() == et::Error::InvalidProgram);
  Delegate device("add");
  EXPECT(device.init("cuda:9") == et::Error::NotFound);
  EXPECT(device.init("tpu") == et::Error::InvalidProgram);
  EXPECT(device.init("cuda:1") == et::Error::Ok);
}

TEST(failures_of_a_run_leave_nothing) {
  const Clean clean;
  const Golden golden = read_golden(folder("mlp_fp32"));
  auto method = load("mlp_fp32");
  expect_close("mlp_fp32", method->run(golden.inputs), golden.steps[0]);
  for (const char* call : {"cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync_v2",
                           "cuMemcpyDtoHAsync_v2", "cuEventRecord"}) {
    fake->fail(call, 719, 0);
    method->try_execute();
    fake->fail(nullptr, 0, 0);
    expect_close("mlp_fp32", method->run(golden.inputs), golden.steps[0]);
  }
}

TEST(a_model_that_throws) {
  const Clean clean;
  Delegate delegate("throws");
  EXPECT(delegate.init() == et::Error::Ok);
  Argument x({2}, {1, 2});
  Argument y({2}, {3, 4});
  Argument z({2});
  EXPECT(delegate.execute({&x.value, &y.value, &z.value}) == et::Error::Ok);
  EXPECT((z.read() == std::vector<float>{4, 6}));
  EXPECT(delegate.execute({&x.value, &y.value, &z.value}) == et::Error::Internal);
}

TEST(wrong_arguments) {
  const Clean clean;
  Delegate delegate("add");
  EXPECT(delegate.init() == et::Error::Ok);
  Argument x({2}, {1, 2});
  Argument z({2});
  EXPECT(delegate.execute({&x.value, &z.value}) == et::Error::InvalidArgument);
  et::EValue number(int64_t{3});
  EXPECT(delegate.execute({&x.value, &number, &z.value}) == et::Error::InvalidArgument);
  Argument small({3});
  EXPECT(delegate.execute({&x.value, &x.value, &small.value}) == et::Error::NotSupported);
  Argument flat({1, 2});
  EXPECT(delegate.execute({&x.value, &x.value, &flat.value}) == et::Error::InvalidArgument);
  Argument empty({0});
  Argument none({0});
  empty.impl->set_data(nullptr);
  none.impl->set_data(nullptr);
  EXPECT(delegate.execute({&empty.value, &empty.value, &none.value}) == et::Error::Ok);
}

TEST(what_a_model_lacks_is_named) {  // M81: the loader's reason, at load
  const Clean clean;
  take_log();
  EXPECT(Delegate("undefined").init() == et::Error::AccessFailed);
  EXPECT_TEXT(take_log(), "undefined symbol: aoti_torch_no_such_shim");
  EXPECT(Delegate("absent").init() == et::Error::AccessFailed);
  EXPECT_TEXT(take_log(), "libpteron_absent.so: cannot open shared object file");
  EXPECT(Delegate("add").init() == et::Error::Ok);
  EXPECT(take_log().empty());
}

TEST(nothing_becomes_global) {
  const Clean clean;
  auto method = load("add");
  EXPECT(dlsym(RTLD_DEFAULT, "aoti_torch_empty_strided") == nullptr);
  EXPECT(dlsym(RTLD_DEFAULT, "cudaMalloc") == nullptr);
  EXPECT(dlsym(RTLD_DEFAULT, "AOTInductorModelContainerDelete") == nullptr);
  EXPECT(dlsym(RTLD_DEFAULT, "pteron_cuda_api") == nullptr);
}

// Global shims of somebody else's would be found before ours.
TEST(models_bind_to_our_shims) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they refuse RTLD_DEEPBIND
  const Clean clean;
  const std::string path = models_folder + "/libforeign_shims.so";
  void* foreign = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  EXPECT(foreign != nullptr);
  {
    Delegate delegate("add");
    std::vector<char> so = read_file(models_folder + "/libfake_add.so");
    so.push_back('1');  // not the library that is loaded already
    delegate.map_ = OneEntryMap();
    delegate.map_.add("so_key", so);
    EXPECT(delegate.init() == et::Error::Ok);
    Argument x({2}, {1, 2});
    Argument z({2});
    EXPECT(delegate.execute({&x.value, &x.value, &z.value}) == et::Error::Ok);
    EXPECT((z.read() == std::vector<float>{2, 4}));
  }
  dlclose(foreign);
#endif
}

TEST(no_file_is_left) {
  const std::string base = "/tmp/pteron-test-" + std::to_string(getpid());
  std::filesystem::create_directory(base);
  setenv("TMPDIR", base.c_str(), 1);
  // Content that was not loaded before: a cached library would touch no file.
  Delegate delegate("muladd");
  std::vector<char> so = read_file(models_folder + "/libfake_muladd.so");
  so.insert(so.end(), {'x', 'y'});
  delegate.map_ = OneEntryMap();
  delegate.map_.add("so_key", so);
  EXPECT(delegate.init() == et::Error::Ok);
  EXPECT(std::filesystem::is_empty(base));
  // A folder that cannot be written: memory files serve.
  setenv("TMPDIR", "/nonexistent-folder", 1);
  so.push_back('z');
  Delegate in_memory("muladd");
  in_memory.map_ = OneEntryMap();
  in_memory.map_.add("so_key", so);
  EXPECT(in_memory.init() == et::Error::Ok);
  unsetenv("TMPDIR");
  std::filesystem::remove_all(base);
}

TEST(loads_and_unloads_in_every_order) {
  const Clean clean;
  const std::vector<std::string> names = {"add", "mlp_fp32", "state"};
  std::vector<size_t> order = {0, 1, 2};
  do {
    std::vector<std::unique_ptr<Method>> methods;
    for (const auto& name : names) methods.push_back(load(name));
    for (const size_t i : order) methods[i].reset();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(threads) {
  const Clean clean;
  std::vector<std::thread> pool;
  for (int t = 0; t < 4; ++t) {
    pool.emplace_back([t] {
      const std::string name = t % 2 == 0 ? "mlp_fp32" : "muladd_dyn";
      const Golden golden = read_golden(folder(name));
      for (int i = 0; i < 10; ++i) {
        auto method = load(name);
        for (int k = 0; k < 10; ++k)
          expect_close(name, method->run(golden.inputs), golden.steps[0]);
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
}

TEST(options) {
  et::BackendOptions<2> good;
  EXPECT(good.set_option("use_shared_cuda_stream", true) == et::Error::Ok);
  EXPECT(good.set_option("weight_sharing_across_methods", true) == et::Error::Ok);
  EXPECT(et::set_option("CudaBackend", good.view()) == et::Error::Ok);
  et::BackendOptions<1> graphs;
  EXPECT(graphs.set_option("enable_cuda_graph_for_method", "forward") == et::Error::Ok);
  EXPECT(et::set_option("CudaBackend", graphs.view()) == et::Error::NotSupported);
  et::BackendOptions<1> unknown;
  EXPECT(unknown.set_option("no_such_option", true) == et::Error::Ok);
  EXPECT(et::set_option("CudaBackend", unknown.view()) == et::Error::InvalidArgument);
}

TEST(api_reports_errors_as_text) {
  const Clean clean;
  void* p = nullptr;
  EXPECT_TEXT(api->allocate(9, 4, nullptr, &p), "there is no cuda:9 here");
  EXPECT_TEXT(api->copy(0, 7, nullptr, nullptr, 1, nullptr), "no such kind of copy");
  EXPECT_TEXT(api->set_driver_path("x"), "already open");
  EXPECT(api->allocate(0, 4, nullptr, &p) == nullptr && api->free(0, p, nullptr) == nullptr);
  int32_t count = 0;
  EXPECT(api->device_count(&count) == nullptr && count == 2);
  const char* text = nullptr;
  EXPECT(api->device_text(1, &text) == nullptr && std::string(text) == "Fake GPU (sm_90)");
  void* event = nullptr;
  int32_t done = 0;
  fake->defer(1);
  void* stream = nullptr;
  EXPECT(api->stream_create(0, &stream) == nullptr);
  EXPECT(api->event_record(0, stream, &event) == nullptr);
  EXPECT(api->event_query(0, event, &done) == nullptr && done == 0);
  EXPECT(api->event_wait(0, nullptr, event) == nullptr);
  EXPECT(api->event_synchronize(0, event) == nullptr);
  EXPECT(api->event_query(0, event, &done) == nullptr && done == 1);
  api->event_release(0, event);
  api->stream_destroy(0, stream);
  api->stream_destroy(0, stream);  // refused by the driver, and that is all
}

}  // namespace pteron::testing

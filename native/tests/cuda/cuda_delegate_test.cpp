// The delegate end to end without a GPU: the library as the binding opens it, the fake driver, and
// programs of the official exporter whose model is replaced by a fake one (make_fake_programs.py).
// cuda_delegate_test LIBRARY FAKE_DRIVER PROGRAMS MODELS [FILTER...].
#include "cuda_delegate_test.h"

#include <executorch/runtime/platform/platform.h>

namespace pteron::testing {

namespace {

thread_local std::string log_text;

void keep_line(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t,
               const char* message, size_t length) {
  if (level >= kError) log_text.append(message, length).append("\n");
}

}  // namespace

std::string take_log() { return std::exchange(log_text, {}); }

void keep_log() { register_pal(et::PalImpl::create(keep_line, __FILE__)); }

TEST(programs_give_the_golden_numbers) {
  for (const std::string& name : program_names()) {
    const Clean clean;
    const Golden golden = read_golden(folder(name));
    auto method = load(name);
    for (int repeat = 0; repeat < (golden.steps.size() > 1 ? 1 : 3); ++repeat) {
      for (const auto& step : golden.steps) expect_close(name, method->run(golden.inputs), step);
    }
  }
}

// The same with work on streams as late as the rules of CUDA allow: no missing wait goes unseen.
TEST(programs_order_their_work) {
  for (const bool own_stream : {false, true}) {
    for (const std::string& name : program_names()) {
      const Clean clean;
      const Golden golden = read_golden(folder(name));
      auto method = load(name);
      fake->defer(1);
      void* stream = own_stream ? fake->new_stream(false) : nullptr;
      for (const auto& step : golden.steps) {
        method->set_inputs(golden.inputs);
        if (own_stream) {
          // The inputs came on the legacy stream, which a non-blocking stream does not wait for.
          check(api->synchronize_stream(0, nullptr));
          check(api->set_caller_stream(0, stream));
        }
        method->execute();
        if (own_stream) check(api->synchronize_stream(0, stream));
        api->clear_caller_stream(0);
        expect_close(name, method->outputs(), step);
      }
    }
  }
}

TEST(no_wait_for_the_device_in_a_run) {  // M22
  const Clean clean;
  const Golden golden = read_golden(folder("add_devio"));
  auto method = load("add_devio");
  method->run(golden.inputs);
  fake->reset_counters();
  method->execute();
  const FakeCudaCounters c = fake->counters();
  EXPECT(c.device_waits == 0 && c.stream_waits == 0 && c.event_waits == 0);
  EXPECT(c.launches == 1);
}

TEST(outputs_are_written_in_place_from_the_second_run_on) {
  const Clean clean;
  const Golden golden = read_golden(folder("add_devio"));
  auto method = load("add_devio");
  expect_close("add_devio", method->run(golden.inputs), golden.steps[0]);
  fake->reset_counters();
  method->execute();
  EXPECT(fake->counters().device_copies == 0 && fake->counters().allocations == 0);
  expect_close("add_devio", method->outputs(), golden.steps[0]);
}

TEST(outputs_over_inputs_are_not_written_in_place) {
  const Clean clean;
  Delegate delegate("swap");
  EXPECT(delegate.init() == et::Error::Ok);
  Argument x({4}, {1, 2, 3, 4});
  Argument a({4});
  Argument b({4});
  for (int i = 0; i < 2; ++i)
    EXPECT(delegate.execute({&x.value, &a.value, &b.value}) == et::Error::Ok);
  a.impl->set_data(x.impl->mutable_data());  // x is read and written by the same call
  EXPECT(delegate.execute({&x.value, &a.value, &b.value}) == et::Error::Ok);
  EXPECT((a.read() == std::vector<float>{2, 3, 4, 5}) &&
         (b.read() == std::vector<float>{3, 4, 5, 6}));
}

TEST(wrong_guesses_about_outputs_are_only_copies) {
  const Clean clean;
  fake->defer(1);
  Delegate delegate("swap");
  EXPECT(delegate.init() == et::Error::Ok);
  Argument a({3});
  Argument b({3});
  for (int i = 0; i < 6; ++i) {
    const auto f = static_cast<float>(i);
    Argument x({3}, {f, f + 1, f + 2});
    EXPECT(delegate.execute({&x.value, &a.value, &b.value}) == et::Error::Ok);
    EXPECT((a.read() == std::vector<float>{f + 1, f + 2, f + 3}));
    EXPECT((b.read() == std::vector<float>{f + 2, f + 3, f + 4}));
  }
}

namespace {

// The model "views" and its arguments. Made after Clean, so that it is gone before.
struct Views {
  Delegate delegate{"views"};
  Argument x{{2, 3}, {0, 1, 2, 3, 4, 5}};
  Argument t{{3, 2}}, y{{2, 3}}, again{{2, 3}}, part{{2, 2}}, same{{2, 3}};

  Views() { EXPECT(delegate.init() == et::Error::Ok); }
  et::Error run() {
    return delegate.execute({&x.value, &t.value, &y.value, &again.value, &part.value, &same.value});
  }
};

}  // namespace

TEST(views_aliases_and_pass_through) {
  const Clean clean;
  Views v;
  for (int i = 0; i < 3; ++i) {
    EXPECT(v.run() == et::Error::Ok);
    EXPECT((v.t.read() == std::vector<float>{1, 4, 2, 5, 3, 6}));
    EXPECT((v.y.read() == std::vector<float>{1, 2, 3, 4, 5, 6}) && v.again.read() == v.y.read());
    EXPECT((v.part.read() == std::vector<float>{2, 3, 5, 6}));
    EXPECT((v.same.read() == std::vector<float>{0, 1, 2, 3, 4, 5}));
  }
}

TEST(an_input_that_is_passed_through_and_overwritten) {
  const Clean clean;
  Views v;
  v.y.impl->set_data(v.x.impl->mutable_data());  // x + 1 goes over x, and x itself comes out too
  EXPECT(v.run() == et::Error::Ok);
  EXPECT((v.y.read() == std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT((v.same.read() == std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST(outputs_without_memory_get_some) {  // M58
  for (const char* name : {"add_noout", "add_noio", "muladd_noout"}) {
    const Clean clean;
    const Golden golden = read_golden(folder(name));
    auto method = load(name);
    const size_t before = api->use().blocks;
    for (int i = 0; i < 5; ++i) expect_close(name, method->run(golden.inputs), golden.steps[0]);
    EXPECT(api->use().blocks > before && api->use().blocks <= before + 2);
  }
}

TEST(dynamic_shapes) {
  const Clean clean;
  auto method = load("muladd_dyn");
  for (const int32_t batch : {4, 1, 8, 3, 8}) {
    HostTensor x;
    x.sizes = {batch, 8};
    std::vector<float> values(x.numel());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
    x.bytes.assign(reinterpret_cast<char*>(values.data()),
                   reinterpret_cast<char*>(values.data() + values.size()));
    const auto out = method->run({x, x});
    EXPECT(out[0].sizes == x.sizes && out[1].sizes == std::vector<int32_t>{batch});
    EXPECT(value_at(out[0], 6) == 42 && value_at(out[1], 0) == 21);
  }
}

}  // namespace pteron::testing

int main(int argc, char** argv) {
  using namespace pteron::testing;  // NOLINT
  if (argc < 5) return 2;
  executorch::runtime::runtime_init();
  keep_log();
  FakeDriver driver(argv[2]);
  fake = &driver;
  driver.set_devices(2);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  auto get =
      reinterpret_cast<const PteronCudaApi* (*)(uint32_t)>(dlsym(library, "pteron_cuda_api"));
  api = get(kPteronCudaApiVersion);
  if (get(99) != nullptr || api->set_driver_path(argv[2]) != nullptr) return 1;
  if (const char* error = api->ensure_loaded()) {
    std::printf("%s\n", error);
    return 1;
  }
  programs_folder = argv[3];
  models_folder = argv[4];
  return run_cases(argc, argv, 5);
}

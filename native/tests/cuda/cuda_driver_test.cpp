// Opening the driver: what a user is told when there is none. Each case in a process of its own,
// because a driver is opened once. cuda_driver_test FAKE_DRIVER.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "../../cuda/context.h"
#include "cuda_test.h"
#include "fake_control.h"

namespace pteron::testing {

namespace {

std::string fake_path;

// Runs `body` in a child and gives what it returned as text.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = body();
    if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "the child died: " + text;
}

// What driver_available() says with this driver after `prepare`.
std::string reason_with(const std::string& path,
                        const std::function<void(FakeDriver&)>& prepare = {}) {
  return in_child([&] {
    if (prepare) {
      FakeDriver driver(fake_path);
      prepare(driver);
    }
    cuda::set_driver_path(path);
    std::string reason;
    if (cuda::driver_available(&reason)) return std::string("available");
    std::string again;
    cuda::driver_available(&again);
    return reason == again ? reason : "the second answer differs";
  });
}

}  // namespace

TEST(a_working_driver) { EXPECT(reason_with(fake_path) == "available"); }

TEST(no_such_file) {
  EXPECT_TEXT(reason_with("/nonexistent/libcuda.so.1"),
              "cannot open the CUDA driver: /nonexistent");
}

TEST(a_driver_that_lacks_functions) {
  EXPECT_TEXT(reason_with("libm.so.6"), "too old: it lacks cuInit");
}

TEST(no_device) {
  EXPECT_TEXT(reason_with(fake_path, [](FakeDriver& d) { d.set_devices(0); }), "finds no device");
}

TEST(a_driver_that_does_not_start) {
  EXPECT_TEXT(reason_with(fake_path, [](FakeDriver& d) { d.fail("cuInit", 100, 0); }),
              "does not start: a fake error (100)");
}

TEST(an_old_version) {
  EXPECT_TEXT(reason_with(fake_path,
                          [](FakeDriver& d) {
                            void (*set_version)(int) = nullptr;
                            d.find(set_version, "fake_cuda_set_version");
                            set_version(11010);
                          }),
              "too old: it supports CUDA 11.1, and 11.2 is the oldest");
}

TEST(the_environment_names_a_driver) {
  EXPECT(in_child([] {
           setenv("PTERON_CUDA_DRIVER", fake_path.c_str(), 1);
           return cuda::driver().path;
         }) == fake_path);
}

TEST(too_late_for_another_path) {
  EXPECT(in_child([] {
           cuda::set_driver_path(fake_path);
           cuda::driver();
           return std::string(cuda::set_driver_path("x") ? "taken" : "refused");
         }) == "refused");
}

TEST(without_pools_memory_comes_the_slow_way) {
  EXPECT(in_child([] {
           FakeDriver driver(fake_path);
           driver.set_pools(0);
           cuda::set_driver_path(fake_path);
           return std::to_string(cuda::device_count());
         }) == "1");
}

}  // namespace pteron::testing

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  pteron::testing::fake_path = argv[1];
  return pteron::testing::run_cases(argc, argv, 2);
}

// What the files of the GPU test share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program_runner.h"

namespace pteron::testing {

struct Suite {
  Suite(std::string library_path, std::string goldens);

  void expect(bool ok, const std::string& what);
  void section(const std::string& name, const std::function<void()>& body);
  std::vector<std::string> names() const;
  std::string folder(const std::string& name) const { return goldens + "/" + name; }
  std::unique_ptr<Method> load(const std::string& name, const char* method = "forward") const;
  // The largest difference; counts a failure where it is above the golden's tolerance.
  double compare(const std::string& name, std::vector<HostTensor> got,
                 const std::vector<HostTensor>& expected);
  void* new_stream() const;  // non-blocking, never destroyed

  std::string library_path;
  std::string goldens;
  const PteronCudaApi* api = nullptr;
  int failures = 0;
};

void stream_order(Suite& s);
void load_errors(Suite& s);
void latency(Suite& s);

}  // namespace pteron::testing

#include "registry.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <cstring>

namespace rt = executorch::runtime;

namespace pteron {

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const rt::Kernel& kernel : rt::get_registered_kernels()) {
    if (kernel.name_ != nullptr) names.emplace_back(kernel.name_);
  }
  return names;
}

bool has_operator(const std::string& full_name) {
  // By name alone: a kernel for other dtypes than the call's is the runtime's to refuse.
  for (const rt::Kernel& kernel : rt::get_registered_kernels()) {
    if (kernel.name_ != nullptr && full_name == kernel.name_) return true;
  }
  return false;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (size_t i = 0; i < rt::get_num_registered_backends(); ++i) {
    if (auto name = rt::get_backend_name(i); name.ok()) names.emplace_back(*name);
  }
  return names;
}

bool is_backend_available(const std::string& id) {
  const rt::BackendInterface* backend = rt::get_backend_class(id.c_str());
  return backend != nullptr && backend->is_available();
}

void configure_backends() {
  // XNNPACKBackend.h, which the SDK lacks. "Per model" means per memory allocator: each method has
  // one.
  constexpr int kPerModel = 1;
  rt::BackendOption option{};
  std::strcpy(option.key, "workspace_sharing_mode");
  option.value = kPerModel;
  (void)rt::set_option("XnnpackBackend", {&option, 1});  // another version may not know it
}

}  // namespace pteron

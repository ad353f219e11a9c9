#include "modules.h"

#include <utility>

#include "context.h"

namespace pteron::cuda {

namespace {
thread_local ModuleScope* active_modules = nullptr;
}

void ModuleScope::unload() noexcept {
  to_code([this] {
    std::vector<Module> left;
    {
      std::lock_guard lock(mutex_);
      left.swap(modules_);
    }
    if (left.empty()) return;
    ContextGuard guard(device_);
    for (Module module : left) driver().module_unload(module);
  });
}

ModuleScope::Active::Active(ModuleScope& scope) noexcept
    : previous_(std::exchange(active_modules, &scope)) {}

ModuleScope::Active::~Active() { active_modules = previous_; }

void ModuleScope::remember(Module module) {
  if (active_modules == nullptr) return;
  std::lock_guard lock(active_modules->mutex_);
  active_modules->modules_.push_back(module);
}

void ModuleScope::forget(Module module) noexcept {
  if (active_modules == nullptr) return;
  std::lock_guard lock(active_modules->mutex_);
  std::erase(active_modules->modules_, module);
}

}  // namespace pteron::cuda

// The device code that a handle loaded, so that it goes when the handle goes.
#pragma once

#include <mutex>
#include <vector>

#include "driver.h"

namespace pteron::cuda {

class ModuleScope {
 public:
  explicit ModuleScope(int device) : device_(device) {}
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
  ~ModuleScope() { unload(); }

  // Unloads what is left. The work must be done.
  void unload() noexcept;

  // Modules that are loaded on this thread belong to the scope while this lives.
  class Active {
   public:
    explicit Active(ModuleScope& scope) noexcept;
    ~Active();
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    ModuleScope* previous_;
  };

  static void remember(Module module);
  static void forget(Module module) noexcept;

 private:
  int device_;
  std::mutex mutex_;
  std::vector<Module> modules_;
};

}  // namespace pteron::cuda

// The runtime's objects behind a Method, and what is known of each input and output.
#pragma once

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>

#include <memory>
#include <optional>
#include <vector>

#include "error.h"
#include "method.h"
#include "method_graph.h"
#include "planned_memory.h"
#include "shared_state.h"

namespace pteron {

struct InputSlot {
  const TensorSpec* spec = nullptr;  // null: not a tensor
  executorch::runtime::EValue* value = nullptr;
  executorch::runtime::etensor::TensorImpl* impl = nullptr;
  void* planned = nullptr;  // its planned memory, or null
  Placement placement;
  TensorRef own;  // a private copy, for an input without planned memory
  bool copied = true;
  size_t port = DeviceGraph::kNoPort;  // with a CUDA graph, for a device tensor
};

struct OutputSlot {
  const TensorSpec* spec = nullptr;  // null: not a tensor
  executorch::runtime::etensor::TensorImpl* impl = nullptr;
  void* planned = nullptr;
  bool direct = false;     // may be written straight into a result
  bool unplanned = false;  // needs memory from us for every run
  TensorRef block;         // where the current run writes it; empty: planned memory
  TensorRef rescued;       // its copy, where the last run left it in the caller's input
  size_t port = DeviceGraph::kNoPort;
};

struct Method::State {
  // Order matters: the method is destroyed before the memory that it uses.
  std::vector<Arena> arenas;                              // of the buffers that are not shared
  std::vector<executorch::runtime::Span<uint8_t>> spans;  // of all buffers, from 1
  std::vector<executorch::runtime::etensor::Device> devices;
  executorch::extension::MallocMemoryAllocator method_allocator;
  executorch::extension::MallocMemoryAllocator temp_allocator;
  struct Fixed {  // with a CUDA graph, the memory of an input or output that is not planned
    std::shared_ptr<void> memory;
    size_t nbytes;
  };
  std::vector<Fixed> fixed;
  std::optional<executorch::runtime::HierarchicalAllocator> planned;
  std::optional<executorch::runtime::MemoryManager> manager;
  std::optional<executorch::runtime::Method> method;
  std::unique_ptr<DeviceGraph> graph;

  std::vector<InputSlot> inputs;
  std::vector<OutputSlot> outputs;
  bool has_own = false;          // some input has a private copy
  std::vector<TensorRef> moved;  // inputs of this run that were rescued from our own memory
};

// Holds a method for one call, and the state that it shares. Waits for another thread's call;
// refuses a nested one, which would wait for itself.
class Method::Exclusive {
 public:
  explicit Exclusive(Method& method) : method_(method), lock_(lock(method)) {
    if (method.shared_ != nullptr) turn_.emplace(*method.shared_, method.spec_.name);
    method.running_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~Exclusive() { method_.running_.store(std::thread::id(), std::memory_order_relaxed); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  static std::unique_lock<std::mutex> lock(Method& method) {
    if (method.running_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      throw Error(Kind::State, Code::InvalidState,
                  "Method '" + method.spec_.name +
                      "' is in the middle of a run on this thread, and cannot be called from "
                      "inside it");
    }
    return std::unique_lock(method.mutex_);
  }

  Method& method_;
  std::unique_lock<std::mutex> lock_;
  std::optional<SharedState::Turn> turn_;
};

}  // namespace pteron

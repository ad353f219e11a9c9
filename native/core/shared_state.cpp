#include "shared_state.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "memory_limit.h"
#include "program.h"

namespace pteron {

executorch::runtime::Span<uint8_t> SharedState::memory(const Program& program, uint32_t index) {
  const auto known = arenas_.find(index);
  if (known != arenas_.end()) return known->second.span;
  uint64_t size = 0;
  for (const MethodSpec& method : program.file().methods) {
    if (index < method.buffers.size()) size = std::max(size, method.buffers[index].reachable);
  }
  require_memory(size, [&] { return "The shared state of " + program.name(); });
  Arena arena = Arena::create({}, size, "load the shared state of " + program.name());
  std::set<uint64_t> done;
  for (const MethodSpec& method : program.file().methods) {
    for (const StateSpec& state : method.state) {
      const TensorSpec& tensor = method.values[state.value].tensor;
      if (tensor.memory_id != index || !done.insert(tensor.offset).second) continue;
      program.load_initial(state, arena.span.data() + tensor.offset);
    }
  }
  return arenas_.emplace(index, std::move(arena)).first->second.span;
}

SharedState::Turn::Turn(SharedState& shared, const std::string& method) : shared_(shared) {
  if (shared.running_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    throw Error(Kind::State, Code::InvalidState,
                "Method '" + method +
                    "' shares state with a method that is in the middle of a run on this thread, "
                    "and cannot be called from inside it");
  }
  shared.mutex_.lock();
  shared.running_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

SharedState::Turn::~Turn() {
  shared_.running_.store(std::thread::id(), std::memory_order_relaxed);
  shared_.mutex_.unlock();
}

}  // namespace pteron

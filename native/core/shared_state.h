// The state that the methods of one loaded program share, and whose turn it is.
//
// Methods that share state run one at a time: a second one waits. Locks are taken in one order:
// the method's own, this one, the trace's.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "planned_memory.h"

namespace pteron {

class Program;

class SharedState {
 public:
  // The memory of shared buffer `index` of `program`, whose state it is; made with its initial
  // values when first asked for. Throws Error{Memory, ...}. Hold the turn.
  executorch::runtime::Span<uint8_t> memory(const Program& program, uint32_t index);

  // Waits for the turn and holds it. Refuses a thread that has it already, which would wait for
  // itself: throws Error{State} that names `method`.
  class Turn {
   public:
    Turn(SharedState& shared, const std::string& method);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    SharedState& shared_;
  };

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> running_{};
  std::map<uint32_t, Arena> arenas_;
};

}  // namespace pteron

// The order in which the instructions of a method may run.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "validate.h"

namespace pteron {

// Which instructions are sure to have run when a later one runs.
class Order {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  explicit Order(const MethodCode& code) {
    if (!code.jumps) return;
    const auto n = static_cast<uint32_t>(code.instructions.size());
    skipped_to_.assign(n + 1, kNever);
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> targets;
    for (uint32_t i = 0; i < n; ++i) {
      while (!targets.empty() && targets.top() <= i) targets.pop();
      if (!targets.empty()) skipped_to_[i] = targets.top();
      const Instruction& instruction = code.instructions[i];
      if (instruction.code == OpCode::JumpFalse && instruction.index > i + 1) {
        targets.push(instruction.index);
      }
    }
    for (uint32_t i = 0; i < n; ++i) {
      const Instruction& instruction = code.instructions[i];
      if (instruction.code != OpCode::JumpFalse || instruction.index > i) continue;
      // A jump back from beyond a skipped stretch into its middle.
      if (skipped_to_[instruction.index] <= i) tangled_ = true;
    }
  }

  bool surely_before(uint32_t first, uint32_t then) const noexcept {
    if (first == kNever || first >= then) return false;
    return skipped_to_.empty() || (!tangled_ && then < skipped_to_[first]);
  }

 private:
  std::vector<uint32_t> skipped_to_;  // the nearest place that a jump over the instruction leads to
  bool tangled_ = false;
};

}  // namespace pteron

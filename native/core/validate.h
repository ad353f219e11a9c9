// The instructions of a method, and the rules about them that the runtime relies on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flatbuffer.h"
#include "program_file.h"

namespace pteron {

enum class OpCode : uint8_t { Kernel = 1, Delegate, Move, JumpFalse, Free };  // program.fbs

struct Instruction {
  OpCode code = OpCode::Kernel;
  uint32_t index = 0;  // of the operator or the delegate; the target of a jump
  uint32_t first =
      0;  // its arguments in MethodCode::args: move: from, to; jump: condition; free: value
  uint32_t count = 0;
};

// What a kernel does to its arguments. `outs` counts the tensors (or the one tensor list) that it
// writes: they come last and are followed by what the operator returns, the same values again (two
// or more as one list).
struct Effect {
  enum class Kind : uint8_t {
    Unknown,  // a custom operator: it may write any argument
    Out,      // writes `outs` arguments and reads the others
    InPlace,  // writes its first argument, and its last becomes another name for that
    View,     // its last argument becomes another name for the memory of its first
    Append,   // reads and writes its first argument
    Scalar,   // reads tensors, and its last argument becomes a number
  };
  Kind kind = Kind::Unknown;
  uint32_t outs = 0;
};

Effect effect_of(const OperatorSpec& op) noexcept;

// What is known about the arguments of a delegate; all 0 where nothing is.
struct DelegateArgs {
  uint32_t read_only = 0;          // leading arguments that it only reads
  uint32_t needed = 0;             // arguments that it looks at
  std::vector<uint8_t> itemsizes;  // by argument, bytes of its elements; 0 where it is not known
};

// All chains of a method in one row, jump targets adjusted.
struct MethodCode {
  std::vector<Instruction> instructions;
  std::vector<uint32_t> args;
  std::vector<Effect> effects;  // by operator
  std::vector<DelegateArgs> delegates;
  bool jumps = false;

  std::span<const uint32_t> args_of(const Instruction& instruction) const noexcept {
    return std::span(args).subspan(instruction.first, instruction.count);
  }
  const Effect& effect(const Instruction& instruction) const noexcept {
    return effects[instruction.index];
  }
};

// Calls `use` with the index of each tensor that the value `index` stands for: itself or the items
// of the list.
template <typename Use>
void for_each_tensor(const std::vector<ValueSpec>& values, uint32_t index, const Use& use) {
  const ValueSpec& value = values[index];
  if (value.kind == ValueKind::Tensor) {
    use(index);
  } else if (value.kind == ValueKind::TensorList || value.kind == ValueKind::OptionalTensorList) {
    for (const int32_t item : value.items) {
      if (item >= 0) use(static_cast<uint32_t>(item));
    }
  }
}

// Work that may be done on all methods of a program together, where it is not linear by nature.
struct Effort {
  uint64_t left = 0;
  bool spend(uint64_t steps) noexcept {
    left -= steps < left ? steps : left;
    return left != 0;
  }
};

// Throws unless the runtime can run `code` without touching memory that is not there or not to be
// written. Marks the tensors whose memory the delegate that writes them has to bring.
void validate(MethodSpec& method, const MethodCode& code, Effort& effort, flatbuffer::Place& place);

}  // namespace pteron

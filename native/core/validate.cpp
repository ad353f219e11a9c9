#include "validate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "order.h"

namespace pteron {
namespace {

using flatbuffer::Place;

class Validator {
 public:
  Validator(MethodSpec& method, const MethodCode& code, Effort& effort, Place& place)
      : method_(method),
        code_(code),
        effort_(effort),
        place_(place),
        order_(code),
        notes_(method.values.size()),
        given_(method.values.size(), Order::kNever) {}

  void run() {
    note_values();
    spread_memory();
    note_lists();
    for (uint32_t i = 0; i < code_.instructions.size(); ++i) {
      place_.at("instruction", i);
      now_ = i;
      check(code_.instructions[i]);
    }
    place_.at_file();
  }

 private:
  // Bits about a tensor, and about a list for any of its items.
  enum : uint8_t {
    kBare = 1,      // no memory in the file
    kFixed = 2,     // not to be written
    kOnDevice = 4,  // planned in the memory of a device
    kInput = 8,
    kOutput = 16,
    kFreed = 32,
    kRenamed = 64,  // other values may name its memory, or it theirs
  };

  void note_values() {
    for (const uint32_t i : method_.inputs) notes_[i] |= kInput;
    for (const uint32_t i : method_.outputs) notes_[i] |= kOutput;
    for (size_t i = 0; i < notes_.size(); ++i) {
      const ValueSpec& value = method_.values[i];
      if (value.kind != ValueKind::Tensor) continue;
      const TensorSpec& tensor = value.tensor;
      const bool fixed = tensor.constant || (tensor.external && !tensor.planned);
      if (fixed) notes_[i] |= kFixed;
      if (!fixed && !tensor.planned && tensor.nbytes != 0) notes_[i] |= kBare;
      if (tensor.planned && !method_.buffers[tensor.memory_id].device.is_cpu()) {
        notes_[i] |= kOnDevice;
      }
    }
  }

  // Moves and views give a value the memory of another one: of a constant, or on a device.
  void spread_memory() {
    std::vector<std::pair<uint32_t, uint32_t>> edges, names, views;
    for (const Instruction& instruction : code_.instructions) {
      const auto args = code_.args_of(instruction);
      if (args.size() < 2) continue;
      const bool is_kernel = instruction.code == OpCode::Kernel;
      const auto kind = is_kernel ? code_.effect(instruction).kind : Effect::Kind::Unknown;
      const bool is_view = kind == Effect::Kind::View;
      if (is_kernel && kind == Effect::Kind::Unknown) any_unknown_ = true;
      if (!is_view && kind != Effect::Kind::InPlace && instruction.code != OpCode::Move) continue;
      edges.emplace_back(args.front(), args.back());
      if (args.front() == args.back()) continue;
      (is_view ? views : names).emplace_back(args.front(), args.back());
    }
    for (const auto& [from, to] : names) {
      notes_[from] |= kRenamed;
      notes_[to] |= kRenamed;
    }
    // A kernel that writes a view may let it grow to its bound, which its memory may not have.
    for (const auto& [from, to] : views) {
      const TensorSpec& base = method_.values[from].tensor;
      const TensorSpec& view = method_.values[to].tensor;
      if ((notes_[from] & kRenamed) || view.nbytes > base.nbytes) notes_[to] |= kFixed;
    }
    std::sort(edges.begin(), edges.end());
    constexpr uint8_t kSpreads = kFixed | kOnDevice;
    std::vector<uint32_t> found;
    for (const auto& edge : edges) {
      if (notes_[edge.first] & kSpreads) found.push_back(edge.first);
    }
    while (!found.empty()) {
      const uint32_t from = found.back();
      found.pop_back();
      auto edge = std::lower_bound(edges.begin(), edges.end(), std::pair{from, uint32_t{0}});
      for (; edge != edges.end() && edge->first == from; ++edge) {
        uint8_t& note = notes_[edge->second];
        const auto more = static_cast<uint8_t>(notes_[from] & kSpreads & ~note);
        if (more == 0) continue;
        note |= more;
        found.push_back(edge->second);
      }
    }
  }

  void note_lists() {
    for (uint32_t i = 0; i < notes_.size(); ++i) {
      if (method_.values[i].kind == ValueKind::Tensor) continue;
      for_each_tensor(method_.values, i, [&](uint32_t item) { notes_[i] |= notes_[item]; });
    }
  }

  std::string name_of(uint32_t index) const {
    const TensorSpec& tensor = method_.values[index].tensor;
    std::string text = "value " + std::to_string(index);
    if (!tensor.name.empty()) {
      text += " ('" + tensor.name.substr(0, utf8_prefix(tensor.name, 80)) + "')";
    }
    return text;
  }

  std::string call_of(const Instruction& instruction) const {
    if (instruction.code == OpCode::Kernel) {
      const std::string name = method_.operators[instruction.index].full_name();
      return name.substr(0, utf8_prefix(name, 80));
    }
    if (instruction.code == OpCode::Delegate) {
      const std::string& id = method_.delegates[instruction.index].id;
      return "delegate " + id.substr(0, utf8_prefix(id, 80));
    }
    return "the instruction";
  }

  // Looks at each tensor behind an argument only where the notes say that one of them matters.
  template <typename Use>
  void for_noted(uint32_t arg, uint8_t note, const Use& use) {
    if ((notes_[arg] & note) == 0) return;
    for_each_tensor(method_.values, arg, [&](uint32_t index) {
      spend(1);
      if (notes_[index] & note) use(index);
    });
  }

  void spend(uint64_t steps) {
    if (!effort_.spend(steps)) place_.fail("its lists of tensors are too long to check");
  }

  void needs_memory(const Instruction& instruction, uint32_t arg) {
    for_noted(arg, kFreed, [&](uint32_t index) {
      place_.fail(call_of(instruction) + " uses " + name_of(index) + " after it was freed");
    });
    for_noted(arg, kBare, [&](uint32_t index) {
      if (notes_[index] & (kInput | kOutput)) return;
      if (order_.surely_before(given_[index], now_)) return;
      place_.fail(call_of(instruction) + " uses " + name_of(index) +
                  ", a tensor without memory: it is neither planned, nor constant, nor an input "
                  "or output of the method. Export the model again with memory planning");
    });
  }

  void must_not_write(const Instruction& instruction, uint32_t arg) {
    for_noted(arg, kFixed, [&](uint32_t index) {
      place_.fail(call_of(instruction) + " would write into " + name_of(index) +
                  ", which is or may be a constant or a part of another value");
    });
  }

  void check(const Instruction& instruction) {
    const auto args = code_.args_of(instruction);
    switch (instruction.code) {
      case OpCode::Kernel:
        check_kernel(instruction, args);
        break;
      case OpCode::Delegate:
        check_delegate(instruction, args);
        break;
      case OpCode::Move:
        check_move(instruction, args[0], args[1]);
        break;
      case OpCode::JumpFalse: {
        const ValueSpec& condition = method_.values[args[0]];
        const bool is_bool =
            condition.kind == ValueKind::Bool ||
            (condition.kind == ValueKind::Tensor && condition.tensor.dtype == DType::Bool);
        if (!is_bool) {
          place_.fail("the condition of a jump is " + name_of(args[0]) + ", a " +
                      to_string(condition.kind) + " that is not bool");
        }
        needs_memory(instruction, args[0]);
        must_be_on_host(instruction, args[0]);
        break;
      }
      case OpCode::Free:
        check_free(args[0]);
        break;
    }
  }

  void must_be_on_host(const Instruction& instruction, uint32_t arg) {
    for_noted(arg, kOnDevice, [&](uint32_t index) {
      place_.fail(call_of(instruction) + " runs on the host, but " + name_of(index) +
                  " is in the memory of a device");
    });
  }

  void check_kernel(const Instruction& instruction, std::span<const uint32_t> args) {
    const Effect& effect = code_.effect(instruction);
    const std::string& op = method_.operators[instruction.index].name;
    const bool on_host = (effect.kind == Effect::Kind::Out && !op.starts_with("et_copy::")) ||
                         effect.kind == Effect::Kind::InPlace ||
                         effect.kind == Effect::Kind::Append || op == "aten::_local_scalar_dense";
    check_key(args);
    if (args.empty()) return;
    const uint32_t last = args.back();
    // These give the last argument the memory that it has afterwards.
    bool gives = false;
    switch (effect.kind) {
      case Effect::Kind::Out:
        check_outs(instruction, args, effect.outs);
        break;
      case Effect::Kind::InPlace:
      case Effect::Kind::View:
        gives = true;
        break;
      case Effect::Kind::Append:
        break;
      case Effect::Kind::Scalar:
        if (method_.values[last].kind > ValueKind::Double ||
            method_.values[last].kind == ValueKind::None) {
          place_.fail(call_of(instruction) + " results in a number, but " + name_of(last) +
                      " is a " + to_string(method_.values[last].kind));
        }
        break;
      case Effect::Kind::Unknown:
        gives = args.size() > 1 && args[args.size() - 2] != last &&
                !method_.operators[instruction.index].overload.ends_with("out");
        break;
    }
    gives = gives && method_.values[last].kind == ValueKind::Tensor;
    for (const uint32_t arg : args.first(args.size() - (gives ? 1 : 0))) {
      needs_memory(instruction, arg);
      if (on_host) must_be_on_host(instruction, arg);
    }
    if (effect.kind == Effect::Kind::InPlace || effect.kind == Effect::Kind::Append) {
      must_not_write(instruction, args.front());
    }
    if (effect.kind == Effect::Kind::Out || effect.kind == Effect::Kind::Unknown) {
      must_not_write(instruction, last);
    }
    if (method_.values[last].tensor.constant && gives) {
      place_.fail(call_of(instruction) + " would replace the constant " + name_of(last));
    }
    if (gives) given_[last] = now_;
  }

  // The runtime looks a kernel up by the dtypes and dim orders of its tensors, spelled out in a
  // buffer of this size; where that is too small it may call a kernel that it never set.
  void check_key(std::span<const uint32_t> args) const {
    constexpr size_t kKeySize = 659;
    size_t length = 3;
    for (const uint32_t arg : args) {
      if (method_.values[arg].kind != ValueKind::Tensor) continue;
      const size_t rank = method_.values[arg].tensor.dim_order.size();
      length += 3 + 2 * rank + (rank > 10 ? rank - 10 : 0);
    }
    if (length > kKeySize) place_.fail("its call has too many tensors");
  }

  bool is_list_of(uint32_t list, std::span<const uint32_t> items) {
    const auto& found = method_.values[list].items;
    spend(items.size());
    return found.size() == items.size() &&
           std::equal(items.begin(), items.end(), found.begin(), [](uint32_t a, int32_t b) {
             return static_cast<int64_t>(a) == static_cast<int64_t>(b);
           });
  }

  // The kernel writes the arguments before the result, so these have to be the same values.
  void check_outs(const Instruction& instruction, std::span<const uint32_t> args, size_t outs) {
    const uint32_t last = args.back();
    bool same = false;
    if (args.size() > outs) {
      const auto written = args.subspan(args.size() - 1 - outs, outs);
      const bool lists = method_.values[last].kind == ValueKind::TensorList;
      if (outs > 1) {
        same = lists && is_list_of(last, written);
      } else {
        same = written[0] == last ||
               (lists && method_.values[written[0]].kind == ValueKind::TensorList &&
                method_.values[written[0]].items == method_.values[last].items);
        if (lists) spend(method_.values[last].items.size());
      }
    }
    if (!same) {
      place_.fail(call_of(instruction) + " does not return the arguments that it writes");
    }
  }

  void check_delegate(const Instruction& instruction, std::span<const uint32_t> args) {
    const DelegateArgs& known = code_.delegates[instruction.index];
    if (args.size() < known.needed) {
      place_.fail(call_of(instruction) + " is given " + std::to_string(args.size()) +
                  " arguments and uses " + std::to_string(known.needed));
    }
    for (size_t i = 0; i < args.size(); ++i) {
      const uint32_t arg = args[i];
      TensorSpec& tensor = method_.values[arg].tensor;
      // The runtime compares shapes, and takes the elements to be what the delegate makes of them.
      if (i < known.itemsizes.size() && method_.values[arg].kind == ValueKind::Tensor &&
          itemsize(tensor.dtype) < known.itemsizes[i]) {
        place_.fail(call_of(instruction) + " is given " + name_of(arg) + ", whose elements are " +
                    info(tensor.dtype).name + ", for elements of " +
                    std::to_string(known.itemsizes[i]) + " bytes");
      }
      if ((notes_[arg] & kBare) && !(notes_[arg] & kInput) && !tensor.device.is_cpu() &&
          method_.values[arg].kind == ValueKind::Tensor) {
        tensor.delegate_owned = true;
        if (!order_.surely_before(given_[arg], now_)) given_[arg] = now_;
      } else {
        needs_memory(instruction, arg);
      }
      const bool may_write = known.needed != 0 ? i >= known.read_only : i + 1 == args.size();
      if (may_write) must_not_write(instruction, arg);
    }
  }

  void check_move(const Instruction& instruction, uint32_t from, uint32_t to) {
    const ValueKind kind = method_.values[from].kind;
    if (kind != method_.values[to].kind) {
      place_.fail("it moves " + name_of(from) + ", a " + to_string(kind) + ", to " + name_of(to) +
                  ", a " + to_string(method_.values[to].kind));
    }
    if (kind > ValueKind::String) place_.fail(std::string("it moves a ") + to_string(kind));
    needs_memory(instruction, from);
    given_[to] = now_;
  }

  void check_free(uint32_t arg) {
    const ValueSpec& value = method_.values[arg];
    if (value.kind != ValueKind::Tensor || value.tensor.planned || (notes_[arg] & kFixed) ||
        (notes_[arg] & (kOutput | kRenamed))) {
      place_.fail("it frees " + name_of(arg) + ", whose memory is not its own");
    }
    if (code_.jumps || any_unknown_) {
      place_.fail("it frees a tensor in a method with jumps or operators unknown to pteron");
    }
    notes_[arg] |= kFreed;
    if (any_freed_) return;
    any_freed_ = true;
    for (size_t i = 0; i < notes_.size(); ++i) {  // their items may be freed from now on
      if (!method_.values[i].items.empty()) notes_[i] |= kFreed;
    }
  }

  MethodSpec& method_;
  const MethodCode& code_;
  Effort& effort_;
  Place& place_;
  const Order order_;
  std::vector<uint8_t> notes_;   // by value
  std::vector<uint32_t> given_;  // by value: the last instruction that gave it memory
  uint32_t now_ = 0;
  bool any_freed_ = false;
  bool any_unknown_ = false;
};

}  // namespace

void validate(MethodSpec& method, const MethodCode& code, Effort& effort,
              flatbuffer::Place& place) {
  Validator(method, code, effort, place).run();
}

}  // namespace pteron

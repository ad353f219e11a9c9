#include "placement.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "overlaps.h"

namespace pteron {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

// When the bytes behind a value are read and written, in instructions. A value that is written
// before it is read shows nothing of what was in its memory before.
struct Uses {
  uint32_t first_read = kNever;
  uint32_t last_read = 0;  // meaningful where first_read is
  uint32_t first_write = kNever;
  uint32_t last_write = 0;  // meaningful where first_write is
  uint32_t writes = 0;      // instructions
  uint32_t viewed = 0;      // instructions that let it name other memory (et_view)
  bool rebound = false;     // a move or an in-place operator gives it or another value its name
  bool unclear = false;     // an operator or delegate of which we do not know what it does
  bool delegate = false;

  bool is_written() const noexcept { return first_write != kNever; }
  bool is_read() const noexcept { return first_read != kNever; }
  bool shows_old_bytes() const noexcept { return is_read() && first_read <= first_write; }
};

class Analysis {
 public:
  Analysis(MethodSpec& method, const MethodCode& code)
      : method_(method),
        code_(code),
        uses_(method.values.size()),
        family_(method.values.size()),
        is_input_(method.values.size()),
        outputs_(method.values.size()) {
    std::iota(family_.begin(), family_.end(), 0u);
    for (const uint32_t i : method.inputs) is_input_[i] = true;
    for (const uint32_t i : method.outputs) ++outputs_[i];
  }

  void run() {
    for (now_ = 0; now_ < code_.instructions.size(); ++now_) look_at(code_.instructions[now_]);
    spread_lists();
    for (const uint32_t i : method_.outputs) read(i);  // by the caller, after the last instruction
    collect_regions();
    collect_families();
    const Lowest to_input(regions_, [&](const Region& r) { return harm_to_input(r.value); });
    for (const uint32_t i : method_.inputs) method_.input_placement.push_back(input(i, to_input));
    const Lowest to_output(regions_, [&](const Region& r) { return harm_to_output(r.value); });
    for (const uint32_t i : method_.outputs) {
      method_.output_placement.push_back(output(i, to_output));
    }
  }

 private:
  void read(uint32_t value) {
    Uses& uses = uses_[value];
    uses.first_read = std::min(uses.first_read, now_);
    uses.last_read = std::max(uses.last_read, now_);
  }

  void write(uint32_t value) {
    Uses& uses = uses_[value];
    if (!uses.is_written() || uses.last_write != now_) ++uses.writes;
    uses.first_write = std::min(uses.first_write, now_);
    uses.last_write = now_;
  }

  void unclear(uint32_t value) {
    read(value);
    write(value);
    uses_[value].unclear = true;
  }

  void join(uint32_t a, uint32_t b) { family_[root(a)] = root(b); }

  uint32_t root(uint32_t value) {
    while (family_[value] != value) value = family_[value] = family_[family_[value]];
    return value;
  }

  void look_at(const Instruction& instruction) {
    const auto args = code_.args_of(instruction);
    switch (instruction.code) {
      case OpCode::Kernel:
        look_at_kernel(code_.effect(instruction), args);
        break;
      case OpCode::Delegate: {
        const DelegateArgs& known = code_.delegates[instruction.index];
        for (size_t i = 0; i < args.size(); ++i) {
          uses_[args[i]].delegate = true;
          if (known.needed == 0) {
            unclear(args[i]);
          } else if (i < known.read_only) {
            read(args[i]);
          } else {
            write(args[i]);
          }
        }
        break;
      }
      case OpCode::Move:
        read(args[0]);
        rebind(args[0], args[1]);
        break;
      case OpCode::JumpFalse:
        read(args[0]);
        break;
      case OpCode::Free:
        unclear(args[0]);
        break;
    }
  }

  void rebind(uint32_t from, uint32_t to) {
    if (from == to) return;
    uses_[from].rebound = uses_[to].rebound = true;
    join(from, to);
  }

  void look_at_kernel(const Effect& effect, std::span<const uint32_t> args) {
    if (args.empty()) return;
    switch (effect.kind) {
      case Effect::Kind::Unknown:
        for (const uint32_t arg : args) unclear(arg);
        break;
      case Effect::Kind::Out: {  // the results repeat what is written: validate.cpp
        const size_t inputs = args.size() - 1 - effect.outs;
        for (size_t i = 0; i < inputs; ++i) read(args[i]);
        for (size_t i = inputs; i + 1 < args.size(); ++i) write(args[i]);
        break;
      }
      case Effect::Kind::InPlace:
        for (const uint32_t arg : args.first(args.size() - 1)) read(arg);
        write(args.front());
        rebind(args.front(), args.back());
        break;
      case Effect::Kind::Append:
        for (const uint32_t arg : args) read(arg);
        write(args.front());
        break;
      case Effect::Kind::View:
        for (const uint32_t arg : args.first(args.size() - 1)) read(arg);
        ++uses_[args.back()].viewed;
        uses_[args.back()].first_write = std::min(uses_[args.back()].first_write, now_);
        join(args.front(), args.back());
        break;
      case Effect::Kind::Scalar:
        for (const uint32_t arg : args.first(args.size() - 1)) read(arg);
        break;
    }
  }

  void spread_lists() {
    for (uint32_t list = 0; list < uses_.size(); ++list) {
      if (method_.values[list].items.empty()) continue;
      const Uses from = uses_[list];
      for_each_tensor(method_.values, list, [&](uint32_t item) {
        Uses& uses = uses_[item];
        if (from.is_read()) {
          uses.first_read = std::min(uses.first_read, from.first_read);
          uses.last_read = std::max(uses.last_read, from.last_read);
        }
        if (from.is_written()) uses.last_write = std::max(uses.last_write, from.last_write);
        uses.first_write = std::min(uses.first_write, from.first_write);
        uses.writes += from.writes;
        uses.rebound = uses.rebound || from.rebound;
        uses.unclear = uses.unclear || from.unclear;
        uses.delegate = uses.delegate || from.delegate;
      });
    }
  }

  // A static view of planned memory has no instruction of its own: it names exactly the bytes of
  // another value. So one that is read after those were written shows nothing older either.
  void collect_regions() {
    regions_ = planned_regions(method_);
    std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) {
      if (a.memory_id != b.memory_id) return a.memory_id < b.memory_id;
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    defined_.assign(uses_.size(), kNever);
    for (size_t from = 0, to = 0; from < regions_.size(); from = to) {
      uint32_t first = kNever;
      for (to = from; to < regions_.size() && regions_[to].same_bytes(regions_[from]); ++to) {
        const uint32_t value = regions_[to].value;
        const bool whole = method_.values[value].tensor.dynamism == Dynamism::Static;
        const Uses& uses = uses_[value];  // an instruction that also reads may write only a part
        if (whole && uses.viewed == 0 && !uses.shows_old_bytes()) {
          first = std::min(first, uses.first_write);
        }
      }
      for (size_t i = from; i < to; ++i) {
        const uint32_t value = regions_[i].value;
        const bool whole = method_.values[value].tensor.dynamism == Dynamism::Static;
        defined_[value] = std::min(uses_[value].first_write, whole ? first : kNever);
      }
    }
  }

  bool shows_old_bytes(uint32_t value) const noexcept {
    return uses_[value].is_read() && uses_[value].first_read <= defined_[value];
  }

  // A family shares memory through et_view, moves and in-place operators.
  struct Family {
    uint32_t members = 0;
    bool written = false;
    bool in_place_safe = true;  // for an input at its head
    uint32_t last_read = 0;     // of any member
  };

  void collect_families() {
    families_.resize(uses_.size());
    for (uint32_t i = 0; i < uses_.size(); ++i) {
      const Uses& uses = uses_[i];
      Family& family = families_[root(i)];
      ++family.members;
      family.last_read = std::max(family.last_read, uses.last_read);
      family.written = family.written || uses.writes != 0 || uses.unclear;
      // Views of the input stay valid only from their making to the end of the run.
      const bool view = uses.viewed == 1 && !code_.jumps && !uses.shows_old_bytes() &&
                        outputs_[i] == 0 && !is_input_[i];
      if (uses.rebound || uses.unclear || !(view || uses.viewed == 0)) family.in_place_safe = false;
      if (!view && !is_input_[i]) family.in_place_safe = false;
      if (is_input_[i] && uses.viewed != 0) family.in_place_safe = false;
    }
    std::vector<uint32_t> heads(uses_.size());
    for (const uint32_t i : method_.inputs) {
      if (++heads[root(i)] > 1) families_[root(i)].in_place_safe = false;
    }
  }

  // What an input may not share its bytes with, as the last reading of it that goes well: 0 for
  // none. Reading the input after another value took its memory is no use we know.
  uint32_t harm_to_input(uint32_t other) const noexcept {
    const Uses& uses = uses_[other];
    if (is_input_[other] || (code_.jumps ? uses.is_read() : shows_old_bytes(other))) return 0;
    return code_.jumps || uses.viewed != 0 || !uses.is_written() ? Lowest::kNone
                                                                 : uses.first_write + 1;
  }

  // The same for an output that is written before all else is over, counted down.
  uint32_t harm_to_output(uint32_t other) {
    const Uses& uses = uses_[other];
    const bool stale = uses.is_read() && !is_input_[other] && shows_old_bytes(other);
    if (uses.rebound || uses.unclear || stale) return 0;
    const uint32_t written = uses.is_written() ? uses.last_write : 0;
    const uint32_t read = uses.is_read() ? families_[root(other)].last_read + 1 : 0;
    const uint32_t last = std::max(written, read);
    return last == 0 ? Lowest::kNone : Lowest::kNone - last;
  }

  bool is_planned_on_host(const ValueSpec& value) const noexcept {
    return value.kind == ValueKind::Tensor && value.tensor.planned && value.tensor.nbytes != 0 &&
           value.tensor.device.is_cpu() && !value.tensor.initialized;
  }

  Placement input(uint32_t value, const Lowest& harm) {
    Placement result;
    const Family& family = families_[root(value)];
    result.written = family.written;
    result.delegate = uses_[value].delegate;
    result.rebound = uses_[value].rebound;
    result.direct = is_planned_on_host(method_.values[value]) && !family.written &&
                    family.in_place_safe && outputs_[value] == 0 &&
                    harm.beside(region_of(method_, value)) >
                        (uses_[value].is_read() ? family.last_read + 1 : 0);
    return result;
  }

  Placement output(uint32_t value, const Lowest& harm) {
    Placement result;
    const Uses& mine = uses_[value];
    result.written = is_input_[value];
    result.delegate = mine.delegate;
    result.rebound = mine.rebound;
    result.direct = is_planned_on_host(method_.values[value]) && !is_input_[value] &&
                    outputs_[value] == 1 && !code_.jumps && mine.writes == 1 && mine.viewed == 0 &&
                    !mine.rebound && !mine.unclear && families_[root(value)].members == 1 &&
                    !mine.shows_old_bytes() &&
                    harm.beside(region_of(method_, value)) >= Lowest::kNone - mine.first_write;
    return result;
  }

  MethodSpec& method_;
  const MethodCode& code_;
  std::vector<Uses> uses_;        // by value, as all of these
  std::vector<uint32_t> family_;  // union-find
  std::vector<Family> families_;  // by root
  std::vector<bool> is_input_;
  std::vector<uint32_t> outputs_;  // how often it is an output
  std::vector<uint32_t> defined_;  // the first instruction that sets all of its bytes
  std::vector<Region> regions_;    // of planned tensors, by memory and address
  uint32_t now_ = 0;
};

}  // namespace

void place(MethodSpec& method, const MethodCode& code) { Analysis(method, code).run(); }

}  // namespace pteron

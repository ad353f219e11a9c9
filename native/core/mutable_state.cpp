// The format does not say which tensors are state. It may name them, it may hold initial values,
// and the instructions tell the rest: what is read before anything was written there, and what the
// exporter's write-back at the end of a run (aten::copy_) writes to.
#include "mutable_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "overlaps.h"

namespace pteron {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

// Sets of bytes in planned memory.
class Ranges {
 public:
  bool overlaps(const TensorSpec& tensor) const { return find(tensor) != ranges_.end(); }
  bool holds(const TensorSpec& tensor) const {
    const auto found = find(tensor);
    return found != ranges_.end() && found->first.second <= tensor.offset &&
           found->second >= end_of(tensor);
  }
  void add(const TensorSpec& tensor) {
    uint64_t begin = tensor.offset;
    uint64_t end = end_of(tensor);
    for (auto found = find(tensor); found != ranges_.end(); found = find(tensor)) {
      begin = std::min(begin, found->first.second);
      end = std::max(end, found->second);
      ranges_.erase(found);
    }
    ranges_[{tensor.memory_id, begin}] = end;
  }

 private:
  using Map = std::map<std::pair<uint32_t, uint64_t>, uint64_t>;  // buffer and begin: end

  static uint64_t end_of(const TensorSpec& tensor) { return tensor.offset + tensor.nbytes; }

  Map::const_iterator find(const TensorSpec& tensor) const {
    auto next = ranges_.lower_bound({tensor.memory_id, end_of(tensor)});
    if (next == ranges_.begin()) return ranges_.end();
    --next;
    const bool found = next->first.first == tensor.memory_id && next->second > tensor.offset;
    return found ? next : ranges_.end();
  }

  Map ranges_;
};

class StateFinder {
 public:
  StateFinder(MethodSpec& method, const MethodCode& code)
      : method_(method),
        code_(code),
        uses_(method.values.size()),
        is_input_(method.values.size()) {}

  void run() {
    for (const uint32_t i : method_.inputs) is_input_[i] = true;
    for (now_ = 0; now_ < code_.instructions.size(); ++now_) look_at(code_.instructions[now_]);
    for (const uint32_t i : method_.outputs) read(i);
    spread_lists();
    choose();
  }

 private:
  struct Uses {
    uint32_t first_read = kNever;
    uint32_t first_write = kNever;  // also where a delegate or operator may write
    bool written_back = false;
    bool is_used() const noexcept {
      return written_back || first_read != kNever || first_write != kNever;
    }
  };

  // How sure we are, in the order in which candidates for the same bytes are preferred.
  enum class Evidence : uint8_t { Named, Initialized, WrittenBack, ReadFirst, Unused };
  using Candidate = std::tuple<Evidence, uint64_t, uint32_t>;  // nbytes counted down, value

  void read(uint32_t value) { uses_[value].first_read = std::min(uses_[value].first_read, now_); }
  void write(uint32_t value) {
    uses_[value].first_write = std::min(uses_[value].first_write, now_);
  }

  void look_at(const Instruction& instruction) {
    const auto args = code_.args_of(instruction);
    if (args.empty()) return;
    switch (instruction.code) {
      case OpCode::Kernel:
        look_at_kernel(instruction, args);
        break;
      case OpCode::Delegate: {
        const DelegateArgs& known = code_.delegates[instruction.index];
        for (size_t i = 0; i < args.size(); ++i) {
          if (i < known.read_only) {
            read(args[i]);
          } else {
            write(args[i]);
          }
        }
        break;
      }
      case OpCode::Move:
        read(args[0]);
        write(args[1]);
        break;
      case OpCode::JumpFalse:
        read(args[0]);
        break;
      case OpCode::Free:
        break;
    }
  }

  void look_at_kernel(const Instruction& instruction, std::span<const uint32_t> args) {
    const Effect& effect = code_.effect(instruction);
    const OperatorSpec& op = method_.operators[instruction.index];
    const auto read_all = [&](std::span<const uint32_t> values) {
      for (const uint32_t value : values) read(value);
    };
    switch (effect.kind) {
      case Effect::Kind::Out: {
        const size_t inputs = args.size() - 1 - effect.outs;
        read_all(args.first(inputs));
        for (const uint32_t value : args.subspan(inputs)) write(value);
        break;
      }
      case Effect::Kind::InPlace:
        if (op.name == "aten::copy_") {
          // Reads nothing of its target. Loops fill what they carry along with it, too.
          if (!code_.jumps) uses_[args.front()].written_back = true;
          read_all(args.subspan(1, args.size() - 2));
        } else {
          read_all(args.first(args.size() - 1));
        }
        write(args.front());
        write(args.back());
        break;
      case Effect::Kind::Append:
        read_all(args.subspan(1));
        write(args.front());
        break;
      case Effect::Kind::View:
      case Effect::Kind::Scalar:
        read_all(args.first(args.size() - 1));
        write(args.back());
        break;
      case Effect::Kind::Unknown: {
        // By convention the last argument is what it returns: for an out variant what it writes,
        // otherwise a new value, or its first argument changed in place.
        const bool is_out = op.overload.ends_with("out");
        for (const uint32_t value : args.first(args.size() - 1)) {
          if (!is_out || value != args.back()) read(value);
        }
        write(args.back());
        break;
      }
    }
  }

  void spread_lists() {
    for (uint32_t list = 0; list < uses_.size(); ++list) {
      if (method_.values[list].items.empty()) continue;
      const Uses from = uses_[list];
      for_each_tensor(method_.values, list, [&](uint32_t item) {
        uses_[item].first_read = std::min(uses_[item].first_read, from.first_read);
        uses_[item].first_write = std::min(uses_[item].first_write, from.first_write);
      });
    }
  }

  const TensorSpec& tensor(uint32_t value) const { return method_.values[value].tensor; }

  // By what bytes are filled: inputs before everything else.
  Lowest find_fillings() const {
    return Lowest(planned_regions(method_), [this](const Region& region) {
      const uint32_t written = uses_[region.value].first_write;
      return is_input_[region.value] ? 0 : written == kNever ? Lowest::kNone : written + 1;
    });
  }

  std::optional<Evidence> judge(uint32_t value, const Lowest& fillings) const {
    const TensorSpec& mine = tensor(value);
    const Uses& uses = uses_[value];
    if (!mine.planned || is_input_[value]) return {};
    if (!mine.name.empty()) return Evidence::Named;
    if (mine.nbytes == 0) return {};
    if (mine.initialized) return Evidence::Initialized;
    if (uses.written_back) return Evidence::WrittenBack;
    if (!uses.is_used()) return Evidence::Unused;
    const bool read_first = uses.first_read != kNever && uses.first_read <= uses.first_write;
    // A view of bytes that an input or an instruction has filled before also reads what it never
    // wrote itself.
    if (read_first && fillings.beside(region_of(method_, value)) > uses.first_read) {
      return Evidence::ReadFirst;
    }
    return {};
  }

  void choose() {
    const Lowest fillings = find_fillings();
    std::vector<Candidate> candidates;
    for (uint32_t i = 0; i < uses_.size(); ++i) {
      if (const auto evidence = judge(i, fillings)) {
        candidates.emplace_back(*evidence, UINT64_MAX - tensor(i).nbytes, i);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    Ranges taken;
    for (const auto& [evidence, size, value] : candidates) {
      if (evidence != Evidence::Named && taken.overlaps(tensor(value))) continue;
      if (tensor(value).nbytes != 0) taken.add(tensor(value));
      StateSpec state;
      state.value = value;
      state.unused = evidence == Evidence::Unused;
      method_.state.push_back(std::move(state));
    }
    std::sort(method_.state.begin(), method_.state.end(),
              [this](const StateSpec& a, const StateSpec& b) {
                const TensorSpec& first = tensor(a.value);
                const TensorSpec& second = tensor(b.value);
                return std::tie(first.memory_id, first.offset, a.value) <
                       std::tie(second.memory_id, second.offset, b.value);
              });
  }

  MethodSpec& method_;
  const MethodCode& code_;
  std::vector<Uses> uses_;  // by value
  std::vector<bool> is_input_;
  uint32_t now_ = 0;
};

// The exporter's share_mutable_buffers=True puts all state of all methods into a planned buffer of
// its own, at the same place in each. So a buffer is shared if in every method that has it there is
// state in it and nothing else, and the methods agree on what lies where.
class Sharing {
 public:
  explicit Sharing(std::vector<MethodSpec>& methods) : methods_(methods) {}

  void run() {
    for (uint32_t m = 0; m < methods_.size(); ++m) look_at(m);
    drop_what_is_not_shared();
    for (MethodSpec& method : methods_) {
      for (uint32_t i = 0; i < method.buffers.size(); ++i) {
        method.buffers[i].shared = i < buffers_.size() && buffers_[i].shared;
      }
      keep_state_only(method);
    }
    give_names();
    for (MethodSpec& method : methods_) write_in_place(method);
  }

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // memory_id and offset
  struct Buffer {
    uint32_t users = 0;  // methods that have it; of the first ones none
    uint64_t declared = 0;
    bool fits = true;
    bool shared = false;
  };
  struct Place {
    const TensorSpec* tensor;
    std::string name;
    uint32_t method;
    uint32_t value;
    bool initialized;
  };

  const TensorSpec& tensor(const MethodSpec& method, const StateSpec& state) const {
    return method.values[state.value].tensor;
  }

  void look_at(uint32_t m) {
    const MethodSpec& method = methods_[m];
    buffers_.resize(std::max(buffers_.size(), method.buffers.size()));
    for (uint32_t i = 2; i < method.buffers.size(); ++i) {  // what is in the first is not shared
      Buffer& buffer = buffers_[i];
      const PlannedBuffer& mine = method.buffers[i];
      if (buffer.users++ == 0) buffer.declared = mine.declared;
      if (mine.declared != buffer.declared || !mine.device.is_cpu()) buffer.fits = false;
    }
    Ranges mine;
    for (const StateSpec& state : method.state) {
      const TensorSpec& spec = tensor(method, state);
      if (spec.nbytes == 0) continue;
      mine.add(spec);
      if (!state.unused && !add(m, state)) buffers_[spec.memory_id].fits = false;
    }
    for (const ValueSpec& value : method.values) {
      const TensorSpec& spec = value.tensor;
      if (!spec.planned || spec.nbytes == 0 || mine.holds(spec)) continue;
      buffers_[spec.memory_id].fits = false;
    }
  }

  // False where another method has something else in its place.
  bool add(uint32_t m, const StateSpec& state) {
    const TensorSpec& spec = tensor(methods_[m], state);
    const auto [found, is_new] = places_.try_emplace(
        {spec.memory_id, spec.offset}, Place{&spec, {}, m, state.value, spec.initialized});
    Place& place = found->second;
    if (!is_new && !same(*place.tensor, spec)) return false;
    if (place.name.empty()) place.name = spec.name;
    if (!spec.name.empty() && spec.name != place.name) return false;
    if (spec.initialized && !place.initialized) {
      place = {&spec, place.name, m, state.value, true};
    }
    return true;
  }

  void drop_what_is_not_shared() {
    for (auto place = places_.begin(); place != places_.end(); ++place) {
      const auto [memory_id, offset] = place->first;
      buffers_[memory_id].shared = true;
      const auto next = std::next(place);
      if (next == places_.end() || next->first.first != memory_id) continue;
      if (next->first.second < offset + place->second.tensor->nbytes) {
        buffers_[memory_id].fits = false;
      }
    }
    for (Buffer& buffer : buffers_) {
      buffer.shared = buffer.shared && buffer.fits && buffer.users > 1;
    }
    std::erase_if(places_, [&](const auto& place) { return !buffers_[place.first.first].shared; });
  }

  static bool same(const TensorSpec& a, const TensorSpec& b) {
    return a.dtype == b.dtype && a.sizes == b.sizes && a.dim_order == b.dim_order &&
           a.dynamism == b.dynamism;
  }

  const Place* shared_place(const TensorSpec& spec) const {
    const auto found = places_.find({spec.memory_id, spec.offset});
    if (found == places_.end() || !same(*found->second.tensor, spec)) return nullptr;
    return &found->second;
  }

  // What a method does not use is state only where another method says so.
  void keep_state_only(MethodSpec& method) const {
    std::erase_if(method.state, [&](const StateSpec& state) {
      return state.unused && shared_place(tensor(method, state)) == nullptr;
    });
    for (StateSpec& state : method.state) {
      const TensorSpec& spec = tensor(method, state);
      const auto own = static_cast<uint32_t>(&method - methods_.data());
      if (spec.initialized) state.initial = {own, state.value};
      if (const Place* place = shared_place(spec)) {
        state.name = place->name;
        if (place->initialized) state.initial = {place->method, place->value};
      } else {
        state.name = spec.name;
      }
    }
  }

  // Shared places are counted first and for all methods together, so that each has the same name
  // everywhere.
  void give_names() const {
    std::map<Key, size_t> shared;
    for (const auto& [key, place] : places_) shared.emplace(key, shared.size());
    for (MethodSpec& method : methods_) {
      std::set<std::string> taken;
      for (StateSpec& state : method.state) {
        if (!state.name.empty() && !taken.insert(state.name).second) state.name.clear();
      }
      size_t next = shared.size();
      for (StateSpec& state : method.state) {
        const TensorSpec& spec = tensor(method, state);
        const auto found = shared.find({spec.memory_id, spec.offset});
        const bool is_shared = found != shared.end() && shared_place(spec) != nullptr;
        const size_t number = is_shared ? found->second : next++;
        if (!state.name.empty()) continue;
        state.name = "buffer" + std::to_string(number);
        while (!taken.insert(state.name).second) state.name += "_";
      }
    }
  }

  // The next run reads what this one writes, so it must be written there and not into a result.
  void write_in_place(MethodSpec& method) const {
    std::set<uint32_t> values;
    for (const StateSpec& state : method.state) values.insert(state.value);
    for (size_t j = 0; j < method.outputs.size(); ++j) {
      if (values.count(method.outputs[j]) != 0) method.output_placement[j].direct = false;
    }
  }

  std::vector<MethodSpec>& methods_;
  std::vector<Buffer> buffers_;
  std::map<Key, Place> places_;  // of state; in the end of shared buffers only
};

}  // namespace

void find_state(MethodSpec& method, const MethodCode& code) { StateFinder(method, code).run(); }

void share_state(std::vector<MethodSpec>& methods) { Sharing(methods).run(); }

}  // namespace pteron

#include "code_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "program_schema.h"

namespace pteron {
namespace {

using flatbuffer::Place;
using flatbuffer::Table;

class CodeReader {
 public:
  CodeReader(MethodSpec& method, Place& place) : method_(method), place_(place) {}

  MethodCode read(const Table& plan) {
    place_.at_file();
    const auto chains = plan.required<uint32_t>(schema::plan::chains);
    if (chains.size() == 0) place_.fail("it has no chain of instructions");
    for (const OperatorSpec& op : method_.operators) code_.effects.push_back(effect_of(op));
    for (uint32_t c = 0; c < chains.size(); ++c) {
      place_.at("chain", c);
      const Table chain = plan.element(chains, c);
      const auto instructions = chain.required<uint32_t>(schema::chain::instructions);
      chain_start_ = code_.instructions.size();
      chain_size_ = instructions.size();
      for (uint32_t i = 0; i < instructions.size(); ++i) {
        place_.at("instruction", code_.instructions.size());
        code_.instructions.push_back(read_instruction(chain.element(instructions, i)));
      }
    }
    method_.instructions = static_cast<uint32_t>(code_.instructions.size());
    return std::move(code_);
  }

 private:
  Instruction read_instruction(const Table& table) {
    const auto type = table.get<uint8_t>(schema::instruction::type);
    if (type < static_cast<uint8_t>(OpCode::Kernel) || type > static_cast<uint8_t>(OpCode::Free)) {
      place_.fail("it is of unknown kind " + std::to_string(type));
    }
    const Table args = table.table(schema::instruction::args);
    if (!args.present()) place_.fail("its arguments are missing");
    Instruction result;
    result.code = static_cast<OpCode>(type);
    result.first = static_cast<uint32_t>(code_.args.size());
    switch (result.code) {
      case OpCode::Kernel:
        result.index = call(args, method_.operators, "operator");
        break;
      case OpCode::Delegate:
        result.index = call(args, method_.delegates, "delegate");
        break;
      case OpCode::Move:
        add(args.get<int32_t>(schema::move::from), "what it moves");
        add(args.get<int32_t>(schema::move::to), "what it moves to");
        break;
      case OpCode::JumpFalse: {
        code_.jumps = true;
        add(args.get<int32_t>(schema::jump::cond), "its condition");
        const auto target = args.get<int32_t>(schema::jump::target);
        if (target < 0 || static_cast<size_t>(target) > chain_size_) {
          place_.fail("it jumps to instruction " + std::to_string(target) + " of " +
                      std::to_string(chain_size_));
        }
        result.index = static_cast<uint32_t>(chain_start_ + static_cast<size_t>(target));
        break;
      }
      case OpCode::Free:
        add(args.get<int32_t>(schema::release::value), "what it frees");
        break;
    }
    result.count = static_cast<uint32_t>(code_.args.size()) - result.first;
    return result;
  }

  template <typename Callee>
  uint32_t call(const Table& table, std::vector<Callee>& callees, const char* what) {
    const auto index = table.get<int32_t>(schema::call::index);
    if (index < 0 || static_cast<size_t>(index) >= callees.size()) {
      place_.fail(std::string("it calls ") + what + " " + std::to_string(index) + " of " +
                  std::to_string(callees.size()));
    }
    const auto args = table.required<int32_t>(schema::call::args);
    for (uint32_t i = 0; i < args.size(); ++i) add(args[i], "an argument");
    ++callees[static_cast<size_t>(index)].calls;
    return static_cast<uint32_t>(index);
  }

  void add(int32_t index, const char* role) {
    code_.args.push_back(value_index(index, method_, role, place_));
  }

  MethodSpec& method_;
  Place& place_;
  MethodCode code_;
  size_t chain_start_ = 0;
  size_t chain_size_ = 0;
};

}  // namespace

uint32_t value_index(int32_t index, const MethodSpec& method, const char* role,
                     const Place& place) {
  if (index < 0 || static_cast<size_t>(index) >= method.values.size()) {
    place.fail(std::string(role) + " is value " + std::to_string(index) + ", but there are " +
               std::to_string(method.values.size()) + " values");
  }
  return static_cast<uint32_t>(index);
}

MethodCode read_code(const Table& plan, MethodSpec& method, Place& place) {
  return CodeReader(method, place).read(plan);
}

}  // namespace pteron

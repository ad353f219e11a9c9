// What a program file says, read without trusting a byte of it.
//
// `ProgramFile::parse` walks the flatbuffer of program.fbs with bounds checks, applies every rule
// that the runtime relies on and does not check, and gives plain structs. It runs before the C++
// runtime sees the file, in every verification mode. Whatever it accepts, the runtime may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device.h"
#include "dtype.h"

namespace pteron {

enum class ValueKind : uint8_t {  // numbers of the union KernelTypes in program.fbs
  None = 1,
  Int,
  Bool,
  Double,
  Tensor,
  String,
  IntList,
  DoubleList,
  BoolList,
  TensorList,
  OptionalTensorList,
};
const char* to_string(ValueKind kind) noexcept;

enum class Dynamism : uint8_t { Static = 0, DynamicBound = 1, DynamicUnbound = 2 };

struct TensorSpec {
  DType dtype = DType::Float32;
  std::vector<int32_t> sizes;  // the bound of each axis where the shape is dynamic
  std::vector<uint8_t> dim_order;
  Dynamism dynamism = Dynamism::Static;
  size_t nbytes = 0;  // at the bound
  Device device;
  std::string name;  // fully qualified name of a constant or a mutable buffer, else empty

  bool planned = false;  // lives in planned memory: buffer `memory_id`, byte `offset`
  uint32_t memory_id = 0;
  uint64_t offset = 0;
  bool constant = false;        // data in the program, not writable
  bool external = false;        // data in a data map under `name`; not writable unless planned
  bool initialized = false;     // planned and filled from the file when the method is loaded
  uint64_t initial_offset = 0;  // of that value in the file, unless it is external
  bool delegate_owned = false;  // memory comes from the delegate that writes it (PR 24016's files)
};

struct ValueSpec {
  ValueKind kind = ValueKind::None;
  int64_t int_value = 0;  // Int and Bool
  double double_value = 0;
  std::string string_value;
  TensorSpec tensor;
  std::vector<int32_t> items;  // of IntList and tensor lists: indices of values, -1 for None
};

struct OperatorSpec {
  std::string name;      // "aten::add"
  std::string overload;  // "out"
  uint32_t calls = 0;    // instructions that use it
  std::string full_name() const { return overload.empty() ? name : name + "." + overload; }
};

struct DelegateSpec {
  std::string id;       // "XnnpackBackend"
  uint64_t offset = 0;  // of its payload in the file
  uint64_t nbytes = 0;
  uint32_t calls = 0;
};

struct PlannedBuffer {
  uint64_t declared = 0;   // what the file asks for; with XNNPACK, 64 bytes that it may read beyond
  uint64_t reachable = 0;  // max(offset + nbytes) over the tensors that live in it
  Device device;
  bool shared = false;  // it is one memory for all methods of a loaded program: state, nothing else
};

// A tensor that keeps its value from run to run: a mutable buffer of the model.
struct StateSpec {
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Initial {  // the value of a method whose initial data it starts from; else from zeros
    uint32_t method = kNone;
    uint32_t value = kNone;
  };
  uint32_t value = 0;
  std::string name;  // fully qualified, or where the file has none "buffer0", "buffer1" by place
  Initial initial;
  bool unused = false;  // this method has it because another one shares it
};

// How an input or output may be bound to memory of the caller instead of planned memory.
struct Placement {
  // Only of values planned on the host. Input: no instruction writes it and no other value shows
  // its planned bytes, so its tensor may point at the caller's memory for a run. Output: exactly
  // one instruction writes it and no other value shows its bytes, so it may be written straight
  // into the result.
  bool direct = false;
  // Input: some instruction may write it, and may let a dynamic shape grow to its bound meanwhile,
  // also in memory that the caller lent. Output: the value is also an input.
  bool written = false;
  // A delegate reads or writes it: kernels of delegates may read a few bytes past the end.
  bool delegate = false;
  // A move (of torch.cond) or an in-place operator makes the value a name of another tensor: after
  // a run its tensor has to be looked up anew.
  bool rebound = false;
};

struct MethodSpec {
  std::string name;
  std::string input_tree;  // container_meta_type: JSON of the call's structure, or empty
  std::string output_tree;
  std::vector<ValueSpec> values;
  std::vector<uint32_t> inputs;   // value indices, in call order
  std::vector<uint32_t> outputs;  // value indices, in return order
  std::vector<Placement> input_placement;
  std::vector<Placement> output_placement;
  std::vector<uint32_t> attributes;  // values that have a name: mutable buffers, external constants
  std::vector<StateSpec> state;      // in the order of planned memory
  std::vector<PlannedBuffer> buffers;  // index 0 is unused by the format
  std::vector<OperatorSpec> operators;
  std::vector<DelegateSpec> delegates;
  uint32_t instructions = 0;

  const ValueSpec& input(size_t i) const { return values[inputs[i]]; }
  const ValueSpec& output(size_t i) const { return values[outputs[i]]; }
};

struct NamedData {
  std::string key;
  uint64_t nbytes = 0;
};

// Reads bytes of the file: fills `into` from `offset`, or returns false.
using ReadAt = std::function<bool(uint64_t offset, std::span<std::byte> into)>;

struct ProgramFile {
  uint32_t version = 0;
  uint64_t program_size = 0;  // bytes of the flatbuffer, header included
  uint64_t segment_base = 0;  // 0: the file has no segments
  uint64_t constant_nbytes = 0;
  std::vector<MethodSpec> methods;
  std::vector<NamedData> named_data;

  // How many bytes of the file's head must be handed to parse(): the flatbuffer's length from the
  // extended header, or `file_size` where there is none. `head` holds the first min(64, file_size)
  // bytes. Throws Error{InvalidProgram} that says what the file is instead, if it is recognisable
  // (empty, PNG, HTML, a git-lfs pointer, a zip, a bundled program, a data file, truncated).
  static uint64_t flatbuffer_size(std::span<const std::byte> head, uint64_t file_size,
                                  std::string_view what);

  // `data` is the flatbuffer (the first flatbuffer_size() bytes); it needs no alignment and is not
  // kept. `what` names the file in messages. `read` reads the rest of the file: the graphs of
  // XNNPACK payloads tell which arguments the delegate only reads (without it, any may be written).
  // Throws Error{InvalidProgram, 0x23}.
  static ProgramFile parse(std::span<const std::byte> data, uint64_t file_size,
                           std::string_view what, const ReadAt& read = {});

  const MethodSpec* find(std::string_view method) const noexcept;
};

}  // namespace pteron

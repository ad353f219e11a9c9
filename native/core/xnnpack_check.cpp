#include "xnnpack_check.h"

#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "memory_limit.h"
#include "xnnpack_nodes.h"

namespace pteron {
namespace {

using flatbuffer::Buffer;
using flatbuffer::Field;
using flatbuffer::Place;
using flatbuffer::Table;

// Field numbers of XNNPACK's runtime_schema.fbs.
constexpr Field kNodes{1, "xnodes"}, kValues{2, "xvalues"};
constexpr Field kNumExternals{3, "num_externs"};
constexpr Field kInputs{4, "input_ids"}, kOutputs{5, "output_ids"};
constexpr Field kBuffers{6, "constant_buffer"}, kConstants{8, "constant_data"};
constexpr Field kUnionType{0, "type"}, kUnion{1, "union"};  // of a node and of a value
constexpr Field kStorage{0, "storage"};
constexpr Field kOffset{0, "offset"}, kSize{1, "size"}, kKey{2, "named_key"};
constexpr Field kTensorOfQuantized{0, "tensor_value"}, kQuantType{1, "quant_params_type"};
constexpr Field kQuant{2, "quant_params"};
constexpr Field kDatatype{0, "datatype"}, kNumDims{1, "num_dims"}, kDims{2, "dims"};
constexpr Field kConstant{3, "constant_buffer_idx"}, kExternalId{4, "external_id"};
constexpr Field kFlags{5, "flags"}, kId{6, "id_out"};
constexpr Field kScale{0, "scale"}, kChannel{1, "channel_dim"};
constexpr Field kChannelBuffer{2, "scale_buffer_idx"};
constexpr Field kGroupSize{2, "group_size"}, kGroupBuffer{4, "scale_buffer_idx"};
constexpr Field kRowDims{0, "num_nonbatch_dims"};
constexpr uint8_t kQuantized = 2;
using xnnpack::kPerChannel, xnnpack::kPerGroup, xnnpack::kPerToken;
constexpr uint32_t kTransposed = 1;                        // XNN_FLAG_TRANSPOSE_WEIGHTS
constexpr uint32_t kExternalInput = 1, kExternal = 1 | 2;  // XNN_VALUE_FLAG_EXTERNAL_INPUT, _OUTPUT

struct Value {
  std::vector<uint32_t> dims;
  bool constant = false;
  bool external = false;
  bool filled = false;  // an input of the graph, or written by a node that was looked at
  uint64_t numel = 1;   // UINT64_MAX: more than there can be
};

uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

class Check {
 public:
  Check(const Table& root, uint64_t room, const NamedSize& named, const Place& place)
      : root_(root), room_(room), named_(named), place_(place) {}

  void run() {
    read_constants();
    const auto values = root_.vector<uint32_t>(kValues);
    for (uint32_t i = 0; i < values.size(); ++i) add_value(root_.element(values, i), i);
    const auto nodes = root_.vector<uint32_t>(kNodes);
    for (uint32_t i = 0; i < nodes.size(); ++i) check_node(root_.element(nodes, i), i);
    if (check_externals(kInputs) + check_externals(kOutputs) != arguments_.size()) {
      fail("it has " + std::to_string(arguments_.size()) + " arguments, and lists others");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    place_.fail("its XNNPACK payload is damaged: " + what);
  }

  void read_constants() {
    const auto buffers = root_.vector<uint32_t>(kBuffers);
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      constants_.push_back(root_.element(buffers, i).unvisited<uint8_t>(kStorage).size());
    }
    const auto entries = root_.vector<uint32_t>(kConstants);
    if (entries.size() > 0) constants_.clear();
    for (uint32_t i = 0; i < entries.size(); ++i) {
      const Table entry = root_.element(entries, i);
      const auto offset = entry.get<uint64_t>(kOffset);
      const auto size = entry.get<uint64_t>(kSize);
      const std::string_view key = entry.string(kKey);
      if (i > 0 && key.empty() && (offset > room_ || size > room_ - offset)) {
        fail("constant " + std::to_string(i) + " lies outside of it");
      }
      constants_.push_back(key.empty() ? size : named_(key));
    }
  }

  // Bytes of a constant; index 0 stands for none.
  uint64_t constant_nbytes(uint32_t index, const std::string& name) const {
    if (index >= constants_.size()) fail(name + " is constant " + std::to_string(index));
    return constants_[index];
  }

  void require(uint64_t has, uint64_t needs, const std::string& what) const {
    if (has >= needs) return;
    fail(what + " has " + std::to_string(has) + " of " + std::to_string(needs));
  }

  void add_value(const Table& entry, uint32_t i) {
    const std::string name = "value " + std::to_string(i);
    const Table content = entry.table(kUnion);
    if (!content.present()) fail(name + " is missing");
    const bool quantized = entry.get<uint8_t>(kUnionType) == kQuantized;
    const Table tensor = quantized ? content.table(kTensorOfQuantized) : content;
    if (!tensor.present()) fail(name + " has no tensor");
    Value value;
    const auto dims = tensor.vector<uint32_t>(kDims);
    if (dims.size() != tensor.get<uint32_t>(kNumDims)) fail(name + " has a wrong rank");
    for (uint32_t d = 0; d < dims.size(); ++d) {
      value.dims.push_back(dims[d]);
      value.numel = times(value.numel, dims[d]);
    }
    const auto type = tensor.get<int16_t>(kDatatype);
    if (type <= 0 || static_cast<size_t>(type) >= std::size(xnnpack::kDatatypes)) {
      fail(name + " is of the unknown type " + std::to_string(type));
    }
    const auto index = tensor.get<uint32_t>(kConstant);
    value.constant = index != 0;
    value.external = (tensor.get<uint32_t>(kFlags) & kExternal) != 0;
    value.filled = (tensor.get<uint32_t>(kFlags) & kExternalInput) != 0;
    const auto position = tensor.get<uint32_t>(kExternalId);
    if (value.external != (position != UINT32_MAX) || (value.external && value.constant)) {
      fail(name + " is an argument and is none");
    }
    if (value.external) {
      if (position >= root_.get<uint32_t>(kNumExternals)) fail(name + " is an unknown argument");
      if (!arguments_.insert(position).second) fail(name + " is the argument of another");
    }
    if (xnnpack::kDatatypes[type].quantized != (quantized ? content.get<uint8_t>(kQuantType) : 0)) {
      fail(name + " is of the type " + std::to_string(type) + ", which is quantized otherwise");
    }
    const uint64_t bits = times(value.numel, xnnpack::kDatatypes[type].bits);
    const uint64_t nbytes = bits / 8 + (bits % 8 != 0);
    if (value.constant) {
      require(constant_nbytes(index, name), nbytes, name + ", in bytes,");
    } else {  // XNNPACK allocates it when it runs
      require_memory(nbytes, [&] { return "An XNNPACK delegate's " + name; });
    }
    if (quantized) check_scales(content, value, name);
    if (!values_.emplace(tensor.get<uint32_t>(kId), std::move(value)).second) {
      fail(name + " has the id of another");
    }
  }

  void check_scales(const Table& content, const Value& value, const std::string& name) const {
    const auto kind = content.get<uint8_t>(kQuantType);
    const Table scales = content.table(kQuant);
    if (!scales.present()) fail(name + " has no scales");
    if (kind == kPerToken && scales.get<uint32_t>(kRowDims) > value.dims.size()) {
      fail(name + " has rows of more dimensions than it has");
    }
    if (kind != kPerChannel && kind != kPerGroup) return;
    const auto channel = static_cast<uint32_t>(scales.get<int32_t>(kChannel));
    if (channel >= value.dims.size()) fail(name + " has its scales along no dimension");
    uint64_t needs = value.dims[channel];
    uint32_t width = sizeof(float);
    if (kind == kPerGroup) {
      const auto group = scales.get<int32_t>(kGroupSize);
      if (group <= 0) fail(name + " has groups of " + std::to_string(group));
      const uint64_t along = needs == 0 ? 0 : value.numel / needs;
      if (along % static_cast<uint64_t>(group) != 0) fail(name + " has a part of a group");
      needs = times(needs, along / static_cast<uint64_t>(group));
      width = 2;  // bfloat16
    }
    const auto buffer = scales.get<uint32_t>(kind == kPerGroup ? kGroupBuffer : kChannelBuffer);
    const uint64_t has = buffer != 0 ? constant_nbytes(buffer, name) / width
                                     : scales.unvisited<float>(kScale).size();
    require(has, needs, "the list of scales of " + name);
  }

  // The runtime looks for the arguments of the call at the ids of these.
  size_t check_externals(Field field) const {
    const auto ids = root_.vector<uint32_t>(field);
    for (uint32_t i = 0; i < ids.size(); ++i) {
      const auto found = values_.find(ids[i]);
      if (found == values_.end() || !found->second.external) {
        fail(std::string("one of its '") + field.name + "' is no argument");
      }
    }
    return ids.size();
  }

  const Value* find(const Table& node, uint16_t slot) const {
    const auto found = values_.find(node.get<uint32_t>({slot, "value"}, 0));
    return found == values_.end() ? nullptr : &found->second;  // XNNPACK refuses unknown ids
  }

  // Every value is written once and before it is read: XNNPACK follows from readers to writers.
  void check_flow(const Table& node, uint8_t type, const std::string& name) {
    if (type >= std::size(xnnpack::kNodeKinds)) return;  // XNNPACK does not know it either
    const xnnpack::NodeKind kind = xnnpack::kNodeKinds[type];
    for (uint8_t i = 0; i < kind.inputs; ++i) {
      check_input(node, static_cast<uint8_t>(kind.input + i), name);
    }
    if (kind.more_input != 0) check_input(node, kind.more_input, name);
    check_output(node, kind.output, name);
    if (kind.more_output != 0) check_output(node, kind.more_output, name);
  }

  void check_input(const Table& node, uint8_t slot, const std::string& name) const {
    const Value* value = find(node, slot);
    if (value == nullptr || value->constant || value->filled) return;
    fail("an input" + name + " is not there yet");
  }

  void check_output(const Table& node, uint8_t slot, const std::string& name) {
    const auto found = values_.find(node.get<uint32_t>({slot, "value"}));
    if (found == values_.end()) return;
    if (found->second.constant) fail("the output" + name + " is a constant");
    if (found->second.filled) fail("the output" + name + " is that of another");
    found->second.filled = true;
  }

  // Lists that XNNPACK reads as many numbers of as it has axes.
  void check_lists(const Table& node, uint8_t type, const std::string& name) const {
    using namespace xnnpack;
    size_t lists = 0, first = 1;
    if (type == kTranspose || type == kReshape) lists = 1;
    if (type == kSlice) lists = 2;
    if (type == kPad) lists = 2, first = 0;
    for (size_t i = first; i < first + lists; ++i) {
      const Value* input = type == kPad ? find(node, 3) : nullptr;
      if (type == kPad && input == nullptr) continue;
      const size_t rank =
          input != nullptr ? input->dims.size() : node.get<uint32_t>({0, "num_dims"});
      const auto numbers = node.unvisited<uint32_t>({static_cast<uint16_t>(i), "dims"});
      if (numbers.size() != rank) {
        fail("a list" + name + " has " + std::to_string(numbers.size()) + " numbers for " +
             std::to_string(rank) + " axes");
      }
    }
  }

  void check_node(const Table& entry, uint32_t i) {
    using namespace xnnpack;
    const std::string name = " of node " + std::to_string(i);
    const auto type = entry.get<uint8_t>(kUnionType);
    const Table node = entry.table(kUnion);
    if (type == 0 || !node.present()) fail("node " + std::to_string(i) + " is missing");
    check_lists(node, type, name);
    check_flow(node, type, name);
    if (type == kFullyConnected) {
      const Value* filter = find(node, 1);
      if (filter == nullptr || !filter->constant) return;
      if (filter->dims.size() != 2) fail("the filter" + name + " is no matrix");
      const bool transposed = (node.get<uint32_t>({4, "flags"}) & kTransposed) != 0;
      check_bias(find(node, 2), filter->dims[transposed ? 1 : 0], name);
    } else if (type == kConv || type == kDepthwiseConv || type == kTransposedConv) {
      const auto number = [&](uint16_t slot) -> uint64_t {
        return node.get<uint32_t>({slot, "size"});
      };
      const uint64_t kernel = times(number(4), number(5));
      const uint64_t outputs = times(number(11), number(12));
      const uint64_t inputs = type == kDepthwiseConv ? 1 : number(10);
      if (const Value* filter = find(node, 16)) {
        require(filter->numel, times(times(kernel, outputs), inputs), "the filter" + name);
      }
      check_bias(find(node, 17), outputs, name);
      const Value* input = find(node, 15);
      if (input == nullptr) return;
      if (input->dims.size() != 4) fail("the input" + name + " is no image");
      require(input->dims[3], times(number(10), number(12)), "the channels" + name);
    }
  }

  void check_bias(const Value* bias, uint64_t outputs, const std::string& name) const {
    if (bias != nullptr && bias->constant) require(bias->numel, outputs, "the bias" + name);
  }

  const Table& root_;
  uint64_t room_;
  const NamedSize& named_;
  const Place& place_;
  std::vector<uint64_t> constants_;
  std::unordered_map<uint32_t, Value> values_;
  std::unordered_set<uint32_t> arguments_;  // positions
};

}  // namespace

void check_xnnpack_payload(uint64_t offset, uint64_t nbytes, const ReadAt& read,
                           const NamedSize& named, const Place& place) {
  constexpr size_t kHeader = 30;
  std::byte header[kHeader];
  if (nbytes < kHeader || !read(offset, header)) return;
  uint32_t from = 0, constants_from = 0;
  uint64_t size = nbytes, room = 0;
  if (std::memcmp(header + 4, "XH00", 4) == 0) {
    uint32_t graph_size = 0;
    std::memcpy(&from, header + 10, sizeof from);
    std::memcpy(&graph_size, header + 14, sizeof graph_size);
    std::memcpy(&constants_from, header + 18, sizeof constants_from);
    size = graph_size;
    if (constants_from > nbytes) place.fail("its XNNPACK payload is cut short");
    room = nbytes - constants_from;
  }
  if (from > nbytes || size > nbytes - from) place.fail("its XNNPACK payload is cut short");
  std::vector<std::byte> graph(static_cast<size_t>(size));
  if (!read(offset + from, graph)) return;
  Buffer buffer(graph, place);
  const Table root(buffer, flatbuffer::follow(buffer, 0, "graph"), "graph");
  Check(root, room, named, place).run();
}

}  // namespace pteron

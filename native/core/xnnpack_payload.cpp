#include "xnnpack_payload.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "flatbuffer.h"
#include "xnnpack_nodes.h"

namespace pteron {
namespace {

using flatbuffer::Buffer;
using flatbuffer::Field;
using flatbuffer::Place;
using flatbuffer::Table;

// Field numbers of XNNPACK's runtime_schema.fbs.
constexpr Field kNodes{1, "xnodes"};
constexpr Field kValues{2, "xvalues"};
constexpr Field kUnionType{0, "type"};  // of a node and of a value
constexpr Field kUnion{1, "union"};
constexpr Field kTensorOfQuantized{0, "tensor_value"};
constexpr Field kDatatype{0, "datatype"};
constexpr Field kExternalId{4, "external_id"};
constexpr Field kFlags{5, "flags"};
constexpr Field kId{6, "id_out"};
constexpr uint8_t kQuantized = 2;
constexpr uint32_t kExternalOutput = 2;
constexpr uint32_t kInvalidId = UINT32_MAX;
constexpr uint32_t kMaxArguments = 1u << 16;

// The graph without the weights. Old payloads are one flatbuffer with the weights inside.
std::vector<std::byte> read_graph(uint64_t offset, uint64_t nbytes, const ReadAt& read) {
  constexpr uint64_t kMaxGraph = 16u << 20;
  constexpr size_t kHeader = 30;
  std::byte header[kHeader];
  if (nbytes < kHeader || !read(offset, header)) return {};
  uint32_t from = 0;
  uint64_t size = nbytes;
  if (std::memcmp(header + 4, "XH00", 4) == 0) {
    uint32_t graph_size = 0;
    std::memcpy(&from, header + 10, sizeof(from));
    std::memcpy(&graph_size, header + 14, sizeof(graph_size));
    size = graph_size;
  }
  if (from > nbytes || size > nbytes - from || size > kMaxGraph) return {};
  std::vector<std::byte> graph(static_cast<size_t>(size));
  if (!read(offset + from, graph)) return {};
  return graph;
}

Table tensor_of(const Table& value) {
  const Table tensor = value.table(kUnion);
  const bool quantized = value.get<uint8_t>(kUnionType) == kQuantized;
  return tensor.present() && quantized ? tensor.table(kTensorOfQuantized) : tensor;
}

// Whether a node of the graph writes one of `inputs`, which is sorted, or may do so.
bool writes_input(const Table& root, const std::vector<uint32_t>& inputs) {
  const auto nodes = root.vector<uint32_t>(kNodes);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const Table node = root.element(nodes, i);
    const auto type = node.get<uint8_t>(kUnionType);
    const Table content = node.table(kUnion);
    if (type == 0 || type >= std::size(xnnpack::kNodeKinds) || !content.present()) return true;
    const auto writes = [&](uint16_t slot) {
      const auto id = content.get<uint32_t>({slot, "output_id"});
      return std::binary_search(inputs.begin(), inputs.end(), id);
    };
    const xnnpack::NodeKind kind = xnnpack::kNodeKinds[type];
    if (writes(kind.output) || (kind.more_output != 0 && writes(kind.more_output))) return true;
  }
  return false;
}

// The runtime takes the external id of a value as the position of its argument.
DelegateArgs read_externals(std::span<const std::byte> graph) {
  DelegateArgs result;
  const Place place("XNNPACK payload");
  Buffer buffer(graph, place);
  const Table root(buffer, flatbuffer::follow(buffer, 0, "graph"), "graph");
  const auto values = root.vector<uint32_t>(kValues);
  uint32_t first_output = kInvalidId;
  uint32_t needed = 0;
  bool unclear = false;
  std::vector<uint32_t> inputs;
  for (uint32_t i = 0; i < values.size(); ++i) {
    const Table tensor = tensor_of(root.element(values, i));
    if (!tensor.present()) return {};
    const auto position = tensor.get<uint32_t>(kExternalId);
    const bool output = (tensor.get<uint32_t>(kFlags) & kExternalOutput) != 0;
    if (position == kInvalidId) {
      if (output) unclear = true;
      continue;
    }
    needed = std::max(needed, position + 1);
    const auto type = static_cast<size_t>(tensor.get<int16_t>(kDatatype));
    if (position < kMaxArguments && type < std::size(xnnpack::kDatatypes)) {
      result.itemsizes.resize(std::max<size_t>(result.itemsizes.size(), position + 1));
      result.itemsizes[position] = xnnpack::kDatatypes[type].bits / 8;
    }
    if (output) {
      first_output = std::min(first_output, position);
    } else {
      inputs.push_back(tensor.get<uint32_t>(kId));
    }
  }
  std::sort(inputs.begin(), inputs.end());
  if (unclear || first_output == kInvalidId || writes_input(root, inputs)) return result;
  result.needed = needed;
  result.read_only = first_output;
  return result;
}

}  // namespace

DelegateArgs read_xnnpack_payload(uint64_t offset, uint64_t nbytes, const ReadAt& read) {
  const std::vector<std::byte> graph = read_graph(offset, nbytes, read);
  if (graph.empty()) return {};
  try {
    return read_externals(graph);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace pteron

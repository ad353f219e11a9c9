#include "graph_kernels.h"

#include <cstring>

namespace pteron::cuda {

namespace {

enum NodeType : int { kKernel = 0, kCopy = 1, kFill = 2 };

bool nodes_of(GraphHandle graph, std::vector<GraphNode>& nodes) {
  size_t count = 0;
  if (driver().graph_nodes(graph, nullptr, &count) != kSuccess) return false;
  nodes.resize(count);
  return driver().graph_nodes(graph, nodes.data(), &count) == kSuccess && count == nodes.size();
}

bool is_copy_of(std::span<const GraphPlace> places, GraphNode node) {
  for (const GraphPlace& place : places) {
    if (place.copy == node) return true;
  }
  return false;
}

template <typename Params>
bool same(Result (*get)(GraphNode, Params*), GraphNode a, GraphNode b) {
  Params first{};
  Params second{};
  return get(a, &first) == kSuccess && get(b, &second) == kSuccess &&
         std::memcmp(&first, &second, sizeof first) == 0;
}

// The only place that is this much further on in the second recording.
std::optional<size_t> place_that_moved(std::span<const GraphPlace> first,
                                       std::span<const GraphPlace> second, uint64_t distance) {
  std::optional<size_t> found;
  for (size_t p = 0; p < first.size(); ++p) {
    if (first[p].nbytes == 0) continue;
    if (to_device_ptr(second[p].data) - to_device_ptr(first[p].data) != distance) continue;
    if (found) return {};
    found = p;
  }
  return found;
}

bool same_shape(const KernelNode& a, const KernelNode& b) {
  return a.function == b.function && a.grid_x == b.grid_x && a.grid_y == b.grid_y &&
         a.grid_z == b.grid_z && a.block_x == b.block_x && a.block_y == b.block_y &&
         a.block_z == b.block_z && a.shared_nbytes == b.shared_nbytes;
}

}  // namespace

bool GraphKernels::read_kernel(GraphNode node, Kernel& kernel) {
  const Driver& d = driver();
  kernel.node = node;
  if (d.graph_kernel(node, &kernel.call) != kSuccess || kernel.call.arguments == nullptr ||
      kernel.call.extra != nullptr) {
    return false;
  }
  size_t offset = 0;
  size_t size = 0;
  Result result = kSuccess;
  while ((result = d.argument_info(kernel.call.function, kernel.sizes.size(), &offset, &size)) ==
         kSuccess) {
    kernel.sizes.push_back(size);
  }
  if (result != kInvalidValue) return false;  // what comes after the last one
  std::vector<size_t> starts;
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    starts.push_back(kernel.words.size());
    kernel.words.resize(kernel.words.size() + (kernel.sizes[i] + 7) / 8);
    std::memcpy(&kernel.words[starts[i]], kernel.call.arguments[i], kernel.sizes[i]);
  }
  for (size_t start : starts) kernel.arguments.push_back(&kernel.words[start]);
  return true;
}

std::optional<GraphKernels> GraphKernels::find(GraphHandle first,
                                               std::span<const GraphPlace> first_places,
                                               GraphHandle second,
                                               std::span<const GraphPlace> second_places) {
  const Driver& d = driver();
  std::vector<GraphNode> before;
  std::vector<GraphNode> after;
  if (d.graph_nodes == nullptr || d.graph_node_type == nullptr || d.graph_kernel == nullptr ||
      d.graph_copy == nullptr || d.graph_fill == nullptr || d.argument_info == nullptr ||
      !nodes_of(first, before) || !nodes_of(second, after) || before.size() != after.size()) {
    return {};
  }
  GraphKernels found;
  found.addresses_.resize(second_places.size());
  for (size_t n = 0; n < before.size(); ++n) {
    if (is_copy_of(first_places, before[n]) != is_copy_of(second_places, after[n])) return {};
    if (is_copy_of(second_places, after[n])) continue;
    int type = -1;
    int other = -1;
    if (d.graph_node_type(before[n], &type) != kSuccess ||
        d.graph_node_type(after[n], &other) != kSuccess || type != other) {
      return {};
    }
    if (type == kCopy && same(d.graph_copy, before[n], after[n])) continue;
    if (type == kFill && same(d.graph_fill, before[n], after[n])) continue;
    if (type != kKernel) return {};

    Kernel was;
    Kernel is;
    if (!read_kernel(before[n], was) || !read_kernel(after[n], is)) return {};
    if (!same_shape(was.call, is.call) || was.sizes != is.sizes) return {};
    for (size_t i = 0; i < is.sizes.size(); ++i) {
      if (std::memcmp(was.arguments[i], is.arguments[i], is.sizes[i]) == 0) continue;
      if (is.sizes[i] != sizeof(uint64_t)) return {};
      const uint64_t old_value = *static_cast<uint64_t*>(was.arguments[i]);
      const uint64_t new_value = *static_cast<uint64_t*>(is.arguments[i]);
      const std::optional<size_t> p =
          place_that_moved(first_places, second_places, new_value - old_value);
      if (!p) return {};
      const uint64_t offset = old_value - to_device_ptr(first_places[*p].data);
      if (offset >= first_places[*p].nbytes) return {};
      found.addresses_[*p].push_back({found.kernels_.size(), i, offset});
    }
    found.kernels_.push_back(std::move(is));
  }
  return found;
}

void GraphKernels::move(size_t place, const void* to) {
  for (const Address& address : addresses_[place]) {
    Kernel& kernel = kernels_[address.kernel];
    *static_cast<uint64_t*>(kernel.arguments[address.argument]) =
        to_device_ptr(to) + address.offset;
    kernel.changed = true;
  }
}

void GraphKernels::apply(GraphExec exec) {
  for (Kernel& kernel : kernels_) {
    if (!kernel.changed) continue;
    kernel.call.arguments = kernel.arguments.data();
    check(driver().graph_set_kernel(exec, kernel.node, &kernel.call), "change a CUDA graph");
    kernel.changed = false;
  }
}

}  // namespace pteron::cuda

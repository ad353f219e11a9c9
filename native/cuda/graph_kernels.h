// Which arguments of a recorded graph's kernels are addresses of inputs and outputs, so that a
// launch can read and write the caller's memory itself.
//
// The graph is recorded twice, with inputs and outputs in different places and all else the same.
// What differs then must be such an address: an argument of eight bytes that points as far into the
// place of the second recording as into that of the first, and no other place has moved as far. One
// difference that is not, in whatever kind of work, and nothing is taken for an address.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "driver.h"

namespace pteron::cuda {

// The memory of an input or output in one recording, and the copy that fills or reads it.
struct GraphPlace {
  const void* data;
  size_t nbytes;  // 0: it stays where it is
  GraphNode copy;
};

class GraphKernels {
 public:
  // Nothing where some difference is no address, or the driver is too old to tell (before CUDA
  // 12.4). The places of the two recordings correspond.
  static std::optional<GraphKernels> find(GraphHandle first,
                                          std::span<const GraphPlace> first_places,
                                          GraphHandle second,
                                          std::span<const GraphPlace> second_places);

  // Whether any kernel uses the input or output.
  bool use(size_t place) const { return !addresses_[place].empty(); }
  // From the next launch on kernels find the input or output there. Aligned as its place is.
  void move(size_t place, const void* to);
  // Before a launch: tells the graph what was moved.
  void apply(GraphExec exec);

 private:
  struct Kernel {
    GraphNode node;
    KernelNode call;
    std::vector<size_t> sizes;    // of its arguments, in bytes
    std::vector<uint64_t> words;  // their values, each from a word of its own on
    std::vector<void*> arguments;
    bool changed = false;
  };
  struct Address {
    size_t kernel;
    size_t argument;
    size_t offset;  // into the input or output, in bytes
  };

  static bool read_kernel(GraphNode node, Kernel& kernel);

  std::vector<Kernel> kernels_;
  std::vector<std::vector<Address>> addresses_;  // by place
};

}  // namespace pteron::cuda

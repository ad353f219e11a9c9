// One loaded delegate: a model in its container, on one device.
//
// Members are in the order of their making; they go in the reverse order, so that the work is over
// before the container goes, the container before its weights, and the device code last.
#pragma once

#include <executorch/runtime/core/evalue.h>

#include <span>
#include <string>
#include <vector>

#include "container.h"
#include "modules.h"
#include "placement.h"
#include "stream.h"
#include "weights.h"

namespace pteron::cuda {

using ETensor = ::executorch::aten::Tensor;
using EValue = ::executorch::runtime::EValue;

// Device memory that the handle lends to an output without memory of its own. The exporters 1.4.0
// to 1.5.1 leave such outputs behind when alloc_graph_output is off and the copy to the host is on
// (ExecuTorch PR 24016).
class LentMemory {
 public:
  explicit LentMemory(int device) : device_(device) {}
  ~LentMemory();
  LentMemory(LentMemory&& other) noexcept;
  LentMemory& operator=(LentMemory&&) = delete;
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // At least this much; the contents are lost when it has to grow.
  void* grow(size_t nbytes);
  void* get() const noexcept { return data_; }

 private:
  int device_;
  void* data_ = nullptr;
  size_t nbytes_ = 0;
};

class Handle {
 public:
  Handle(int device, std::string method, const Library& library);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void load_weights(const Manifest& manifest, const NamedDataMap* data,
                    std::string_view library_key);

  // `args` are the inputs, then the outputs. Throws Failure.
  void execute(std::span<EValue*> args);

  const std::string& method() const noexcept { return method_; }

 private:
  class Arguments;

  std::unique_ptr<Tensor> input(const ETensor& tensor, size_t index, Stream stream) const;
  void offer_outputs(std::span<EValue*> inputs, std::span<EValue*> outputs);
  void rescue_outputs(Arguments& results, std::span<EValue*> outputs, Stream stream) const;
  void output(ETensor& tensor, const Tensor& result, size_t index, Stream stream);

  int device_;
  std::string method_;
  ModuleScope modules_;
  Weights weights_;
  std::unique_ptr<Container> container_;
  std::vector<LentMemory> lent_;  // by output
  Placement placement_;
  LastUse last_use_;
};

}  // namespace pteron::cuda

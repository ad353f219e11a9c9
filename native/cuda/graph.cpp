#include "graph.h"

#include <algorithm>
#include <utility>

#include "context.h"
#include "copy_kernel.h"
#include "memory.h"
#include "stream.h"

namespace pteron::cuda {

namespace {
thread_local Graph* active_graph = nullptr;
}  // namespace

Graph* Graph::recording(int device) {
  if (active_graph != nullptr && active_graph->device_ != device) {
    throw Failure(ErrorCode::NotSupported,
                  "it works on cuda:" + std::to_string(active_graph->device_) +
                      " and on cuda:" + std::to_string(device));
  }
  return active_graph;
}

bool Graph::is_recording() noexcept { return active_graph != nullptr; }

Graph::~Graph() {
  leave();
  to_code([this] {
    ContextGuard guard(device_);
    stop();
    if (exec_ != nullptr) driver().graph_exec_destroy(exec_);
    if (graph_ != nullptr) driver().graph_destroy(graph_);
  });
  // What a model has not given back, it still will.
  for (const Block& block : blocks_) {
    if (!block.used) cuda::free(device_, block.data);
  }
}

void Graph::begin(Graph* earlier) {
  const Driver& d = driver();
  if (d.capture_begin == nullptr || d.capture_end == nullptr || d.capture_info == nullptr ||
      d.graph_instantiate == nullptr || d.graph_set_kernel == nullptr ||
      d.graph_set_enabled == nullptr || d.graph_launch == nullptr ||
      d.graph_exec_destroy == nullptr || d.graph_destroy == nullptr) {
    throw Failure(ErrorCode::NotSupported,
                  "the driver is too old: CUDA 11.6 is the first that can do it");
  }
  ContextGuard guard(device_);
  if (earlier != nullptr) {
    blocks_.swap(earlier->blocks_);
    plan_ = earlier->taken_;
  }
  // Not a blocking stream: other threads may use the legacy stream, which would join the capture.
  check(d.stream_create(&stream_, kStreamNonBlocking), "create a CUDA stream");
  alone_ = hold_off_waits(device_);
  check(d.capture_begin(stream_, kCaptureRelaxed), "record a CUDA graph");
  active_graph = this;
  set_caller_stream(device_, stream_);
}

size_t Graph::port(void* dst, const void* src, size_t nbytes, bool before, bool alone) {
  Port port{nullptr, nbytes, dst, src, true, before, alone};
  port.kernels_see = port.inner();
  const CopyKernel& kernel = copy_kernel(device_);
  if (kernel.function != nullptr) {
    ContextGuard guard(device_);
    const CopyKernel::Call call(kernel, dst, src, nbytes);
    const KernelNode& k = call.node;
    check(driver().launch(k.function, k.grid_x, 1, 1, k.block_x, 1, 1, 0, stream_, k.arguments,
                          nullptr),
          "record a copy");
    // What the stream's next work depends on is the copy, and nothing but it.
    int status = 0;
    unsigned long long id = 0;
    GraphHandle graph = nullptr;
    const GraphNode* last = nullptr;
    size_t count = 0;
    check(driver().capture_info(stream_, &status, &id, &graph, &last, &count), "record a copy");
    if (count != 1) throw Failure(ErrorCode::Internal, "a recorded copy has no place");
    port.node = last[0];
  }
  ports_.push_back(port);
  return ports_.size() - 1;
}

void Graph::end(const Graph* earlier) {
  leave();
  ContextGuard guard(device_);
  check(stop(), "record a CUDA graph");
  if (gave_back_) {
    throw Failure(ErrorCode::NotSupported, "the model gives back memory that it had before");
  }
  for (const Block& block : blocks_) {
    if (block.used) {
      throw Failure(ErrorCode::NotSupported, "the model keeps memory from one run to the next");
    }
  }
  check(driver().graph_instantiate(&exec_, graph_, 0), "make a CUDA graph");
  if (earlier != nullptr && earlier->ports_.size() == ports_.size()) {
    kernels_ = GraphKernels::find(earlier->graph_, earlier->places(), graph_, places());
  }
}

std::vector<GraphPlace> Graph::places() const {
  std::vector<GraphPlace> all;
  for (const Port& p : ports_) all.push_back({p.inner(), p.alone ? p.nbytes : 0, p.node});
  return all;
}

// Whether kernels use the caller's memory itself from the next launch on.
bool Graph::redirect(size_t port, const void* outer) {
  constexpr uintptr_t kAlignment = 16;  // what models may count on
  Port& p = ports_[port];
  if (!kernels_ || !kernels_->use(port)) return false;
  const bool direct = outer != nullptr && reinterpret_cast<uintptr_t>(outer) % kAlignment == 0;
  const void* wanted = direct ? outer : p.inner();
  if (wanted != p.kernels_see) kernels_->move(port, wanted);
  p.kernels_see = wanted;
  return direct;
}

// From here on this thread's programs run as always.
void Graph::leave() noexcept {
  if (active_graph != this) return;
  clear_caller_stream(device_);
  active_graph = nullptr;
}

// Ends the recording, well or not.
Result Graph::stop() {
  if (stream_ == nullptr) return kSuccess;
  const Result result = driver().capture_end(stream_, &graph_);
  alone_ = {};
  driver().stream_destroy(std::exchange(stream_, nullptr));
  return result;
}

bool Graph::connect(size_t port, const void* outer) {
  Port& p = ports_[port];
  const bool enable = !redirect(port, outer) && outer != nullptr;
  if (p.node != nullptr && enable != p.enabled) {
    check(driver().graph_set_enabled(exec_, p.node, enable ? 1 : 0), "change a CUDA graph");
  }
  p.enabled = enable;
  const void*& end = p.before ? p.src : p.dst;
  if (!enable || end == outer) return enable;
  if (p.node != nullptr) {
    ContextGuard guard(device_);
    void* inner = p.inner();
    const CopyKernel::Call call(copy_kernel(device_), p.before ? inner : const_cast<void*>(outer),
                                p.before ? outer : inner, p.nbytes);
    check(driver().graph_set_kernel(exec_, p.node, &call.node), "change a CUDA graph");
  }
  end = outer;
  return true;
}

void Graph::copy_ports(bool before, Stream stream) const {
  for (const Port& p : ports_) {
    if (p.node != nullptr || !p.enabled || p.before != before) continue;
    copy_async(CopyKind::DeviceToDevice, device_, const_cast<void*>(p.dst), p.src, p.nbytes,
               stream);
  }
}

void Graph::launch(Stream stream) {
  ContextGuard guard(device_);
  if (kernels_) kernels_->apply(exec_);
  copy_ports(true, stream);
  check(driver().graph_launch(exec_, stream), "launch a CUDA graph");
  copy_ports(false, stream);
}

// Memory that the model has given back serves again: the graph's work is in one order. The same
// work takes the same blocks as the last time.
void* Graph::allocate(size_t nbytes) {
  size_t best = blocks_.size();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.used || block.nbytes < nbytes || block.nbytes / 2 > nbytes) continue;
    if (best == blocks_.size() || block.nbytes < blocks_[best].nbytes) best = i;
  }
  if (taken_.size() < plan_.size()) {
    const size_t i = plan_[taken_.size()];
    if (!blocks_[i].used && blocks_[i].nbytes >= nbytes) best = i;
  }
  taken_.reserve(taken_.size() + 1);
  blocks_.reserve(blocks_.size() + 1);
  if (best == blocks_.size()) blocks_.push_back({cuda::allocate(device_, nbytes), nbytes, false});
  blocks_[best].used = true;
  taken_.push_back(best);
  return blocks_[best].data;
}

bool Graph::release(void* pointer) noexcept {
  auto found = std::ranges::find(blocks_, pointer, &Block::data);
  if (found == blocks_.end()) {
    gave_back_ = gave_back_ || pointer != nullptr;
    return false;
  }
  found->used = false;
  return true;
}

}  // namespace pteron::cuda

// Kernels and graphs: the cu* functions of the fake driver that launch and record.
#include <cstring>
#include <utility>

#include "fake_driver_state.h"

using namespace fake_cuda;  // NOLINT: this file is the library's border

namespace {
// pteron's own kernel: dst, src, nbytes.
void run_copy(void* arguments) {
  auto* words = static_cast<uint64_t*>(arguments);
  ++fake().counters.device_copies;
  std::memcpy(pointer(words[0]), pointer(words[1]), words[2]);
}

// A kernel's arguments, which a copy must be able to use.
Result take_arguments(Node& node, void** arguments, size_t count) {
  node.words.resize(count);
  for (size_t i = 0; i < count; ++i) std::memcpy(&node.words[i], arguments[i], 8);
  if (node.kernel != run_copy) return kOk;
  const bool good = inside(pointer(node.words[0]), node.words[2]) &&
                    inside(pointer(node.words[1]), node.words[2]);
  return good ? kOk : bad_pointer();
}
}  // namespace

FAKE Result cuModuleGetFunction(void** out, void* module, const char* name) {
  ENTER(cuModuleGetFunction);
  *out = module;
  if (std::strcmp(name, "pteron_copy") == 0) *out = reinterpret_cast<void*>(run_copy);
  return kOk;
}
FAKE Result cuFuncSetAttribute(void*, int, int) { return kOk; }

FAKE Result cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, unsigned, void* stream, void** arguments, void**) {
  ENTER(cuLaunchKernel);
  NEED_CONTEXT();
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  ++fake().counters.launches;
  if (function != reinterpret_cast<void*>(run_copy)) return kOk;
  Node node{.type = 0, .kernel = run_copy};
  if (const Result wrong = take_arguments(node, arguments, 3); wrong != kOk) return wrong;
  return submit(stream, std::move(node));
}

FAKE Result cuStreamBeginCapture_v2(void* stream, int) {
  ENTER(cuStreamBeginCapture_v2);
  if (stream == nullptr) return kInvalidHandle;
  if (const Result wrong = own_stream(stream, &stream); wrong != kOk) return wrong;
  fake().streams[stream].recording = new Graph;
  fake().streams[stream].broken = false;
  return kOk;
}
FAKE Result cuStreamEndCapture(void* stream, Graph** out) {
  ENTER(cuStreamEndCapture);
  if (!fake().streams.contains(stream)) return kInvalidHandle;
  *out = std::exchange(fake().streams[stream].recording, nullptr);
  if (*out == nullptr) return kInvalidValue;
  if (std::exchange(fake().streams[stream].broken, false)) {
    delete std::exchange(*out, nullptr);
    return kRecordingBroken;
  }
  fake().graphs.insert(*out);
  ++fake().counters.live_graphs;
  return kOk;
}
FAKE Result cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id,
                                      Graph** out, Node*** nodes, size_t* count) {
  ENTER(cuStreamGetCaptureInfo_v2);
  if (!fake().streams.contains(stream)) return kInvalidHandle;
  Graph* graph = fake().streams[stream].recording;
  *status = graph != nullptr ? 1 : 0;
  *id = 1;
  *out = graph;
  thread_local Node* last = nullptr;
  *count = graph == nullptr || graph->nodes.empty() ? 0 : 1;
  if (*count != 0) last = &graph->nodes.back();
  *nodes = &last;
  return kOk;
}
FAKE Result cuGraphInstantiateWithFlags(GraphExec** out, Graph* graph, unsigned long long) {
  ENTER(cuGraphInstantiateWithFlags);
  if (!fake().graphs.contains(graph)) return kInvalidHandle;
  *out = new GraphExec;
  for (const Node& node : graph->nodes) {
    (*out)->template_of[&node] = (*out)->nodes.size();
    (*out)->nodes.push_back(node);
  }
  fake().graph_execs.insert(*out);
  ++fake().counters.live_graphs;
  return kOk;
}

namespace {
struct KernelNode {
  void* function;
  unsigned sizes[7];
  void** arguments;
  void** extra;
};

Node* node_of(GraphExec* exec, const Node* node) {
  if (!fake().graph_execs.contains(exec)) return nullptr;
  auto found = exec->template_of.find(node);
  return found == exec->template_of.end() ? nullptr : &exec->nodes[found->second];
}
}  // namespace

FAKE Result cuGraphExecKernelNodeSetParams(GraphExec* exec, const Node* which,
                                           const KernelNode* kernel) {
  ENTER(cuGraphExecKernelNodeSetParams);
  NEED_CONTEXT();
  Node* node = node_of(exec, which);
  if (node == nullptr || reinterpret_cast<void*>(node->kernel) != kernel->function) {
    return kInvalidHandle;
  }
  return take_arguments(*node, kernel->arguments, node->words.size());
}
FAKE Result cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
  ENTER(cuGraphGetNodes);
  if (!fake().graphs.contains(graph)) return kInvalidHandle;
  size_t i = 0;
  for (Node& node : graph->nodes) {
    if (nodes != nullptr && i < *count) nodes[i] = &node;
    ++i;
  }
  *count = i;
  return kOk;
}
FAKE Result cuGraphNodeGetType(const Node* node, int* type) {
  *type = node->type;
  return kOk;
}
FAKE Result cuGraphKernelNodeGetParams(Node* node, KernelNode* kernel) {
  if (node->kernel == nullptr) return kInvalidValue;
  node->arguments.clear();
  for (uint64_t& word : node->words) node->arguments.push_back(&word);
  *kernel = {reinterpret_cast<void*>(node->kernel),
             {1, 1, 1, 1, 1, 1, 0},
             node->arguments.data(),
             nullptr};
  return kOk;
}
// Not as the real driver says it, but two that differ are told differently. Of fills nothing is.
FAKE Result cuGraphMemcpyNodeGetParams(const Node* node, void* params) {
  if (node->type != 1 || node->words.empty()) return kInvalidValue;
  std::memcpy(params, node->words.data(), 8 * node->words.size());
  return kOk;
}
FAKE Result cuGraphMemsetNodeGetParams(const Node*, void*) { return kInvalidValue; }
FAKE Result cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  ENTER(cuFuncGetParamInfo);
  auto found = fake().kernels.find(function);
  if (found == fake().kernels.end() || index >= found->second) return kInvalidValue;
  *offset = 8 * index;
  *size = 8;
  return kOk;
}
FAKE Result cuGraphNodeSetEnabled(GraphExec* exec, const Node* which, unsigned enabled) {
  ENTER(cuGraphNodeSetEnabled);
  Node* node = node_of(exec, which);
  if (node == nullptr) return kInvalidHandle;
  node->enabled = enabled != 0;
  return kOk;
}
FAKE Result cuGraphLaunch(GraphExec* exec, void* stream) {
  ENTER(cuGraphLaunch);
  NEED_CONTEXT();
  if (!fake().graph_execs.contains(exec)) return kInvalidHandle;
  ++fake().counters.graph_launches;
  return submit(stream, [nodes = exec->nodes] {
    for (const Node& node : nodes) {
      if (node.enabled) node.run();
    }
  });
}
FAKE Result cuGraphExecDestroy(GraphExec* exec) {
  ENTER(cuGraphExecDestroy);
  if (fake().graph_execs.erase(exec) == 0) return kInvalidHandle;
  delete exec;
  --fake().counters.live_graphs;
  return kOk;
}
FAKE Result cuGraphDestroy(Graph* graph) {
  ENTER(cuGraphDestroy);
  if (fake().graphs.erase(graph) == 0) return kInvalidHandle;
  --fake().counters.live_graphs;
  delete graph;
  return kOk;
}

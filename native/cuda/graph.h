// The device work of a method, recorded once and then started as a whole: a CUDA graph.
//
// Recording executes nothing. While a Graph records, what the thread's programs submit goes to the
// graph's own stream, which is being captured; the memory that models allocate meanwhile belongs to
// the graph, since every launch uses the same addresses. What the host would have to do in the
// middle of a run cannot be recorded, and ends the recording with a Failure that says so.
//
// Inputs and outputs go through ports, between the graph's memory and the caller's, which is given
// anew for each launch. Where possible the kernels are told the caller's address (graph_kernels.h).
// Otherwise a port copies: as a node of the graph, which costs a third of a copy of its own, or as
// one where the device cannot load the kernel for it.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "driver.h"
#include "graph_kernels.h"

namespace pteron::cuda {

class Graph {
 public:
  explicit Graph(int device) : device_(device) {}
  ~Graph();  // the work must be done
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // `earlier`: a recording of the same work, whose memory this one takes over, block for block.
  void begin(Graph* earlier);
  // Records a copy on the device, of an input before the rest or of an output after it. Returns its
  // number. `alone`: nothing else is ever in the graph's memory of it, so that the caller's may
  // stand in for it.
  size_t port(void* dst, const void* src, size_t nbytes, bool before, bool alone);
  // With `earlier`, whose ports that are alone were elsewhere, finds their addresses in kernels.
  void end(const Graph* earlier);

  // The caller's memory of an input or output from the next launch on; null: there is none, and an
  // output stays where the graph has it. Whether a launch copies.
  bool connect(size_t port, const void* outer);
  void launch(Stream stream);

  // Whether it copies from or to host memory: then such memory is in use until the work is done.
  bool copies_host() const noexcept { return copies_host_; }

  // The graph that records on this thread, or null. Throws Failure for another device than its own.
  static Graph* recording(int device);
  static bool is_recording() noexcept;

  // For memory.cpp. release() returns false for memory that is not the graph's.
  void* allocate(size_t nbytes);
  bool release(void* pointer) noexcept;
  void note_host_copy() noexcept { copies_host_ = true; }

 private:
  struct Block {
    void* data;
    size_t nbytes;
    bool used;
  };
  struct Port {
    GraphNode node;  // null: a copy of its own
    size_t nbytes;
    const void* dst;
    const void* src;
    bool enabled;
    bool before;  // it brings an input
    bool alone;

    void* inner() const { return const_cast<void*>(before ? dst : src); }
    const void* kernels_see = nullptr;  // the address that kernels were told
  };

  void leave() noexcept;
  Result stop();
  void copy_ports(bool before, Stream stream) const;
  std::vector<GraphPlace> places() const;
  bool redirect(size_t port, const void* outer);

  int device_;
  std::unique_lock<std::shared_mutex> alone_;  // while it records, as the stream
  Stream stream_ = nullptr;
  GraphHandle graph_ = nullptr;  // the nodes of ports are in it
  GraphExec exec_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<size_t> taken_;  // the block of each allocation, in order
  std::vector<size_t> plan_;   // the same of the earlier recording
  std::vector<Port> ports_;
  std::optional<GraphKernels> kernels_;
  bool copies_host_ = false;
  bool gave_back_ = false;  // memory of before
};

}  // namespace pteron::cuda

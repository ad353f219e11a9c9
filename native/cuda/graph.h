// The device work of a method, recorded once and then started as a whole: a CUDA graph.
//
// Recording executes nothing. While a Graph records, what the thread's programs submit goes to the
// graph's own stream, which is being captured; the memory that models allocate meanwhile belongs to
// the graph, since every launch uses the same addresses. What the host would have to do in the
// middle of a run cannot be recorded, and ends the recording with a Failure that says so.
//
// Inputs and outputs go through ports: copies between the graph's memory and the caller's, whose
// outer end is given anew for each launch. As nodes of the graph they cost a third of a copy of
// their own, which is what they are where the device cannot load the kernel for it.
#pragma once

#include <cstddef>
#include <vector>

#include "driver.h"

namespace pteron::cuda {

class Graph {
 public:
  explicit Graph(int device) : device_(device) {}
  ~Graph();  // the work must be done
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin();
  // Records a copy on the device, of an input before the rest or of an output after it. Returns its
  // number.
  size_t port(void* dst, const void* src, size_t nbytes, bool before);
  void end();

  // Where the copy of a port reads and writes from the next launch on; null: it does not happen.
  void connect(size_t port, void* dst, const void* src);
  void launch(Stream stream);

  // Whether it copies from or to host memory: then such memory is in use until the work is done.
  bool copies_host() const noexcept { return copies_host_; }

  // The graph that records on this thread, or null. Throws Failure for another device than its own.
  static Graph* recording(int device);

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
    void* dst;
    const void* src;
    bool enabled;
    bool before;  // it brings an input
  };

  void stop() noexcept;
  void copy_ports(bool before, Stream stream) const;

  int device_;
  Stream stream_ = nullptr;      // while it records
  GraphHandle graph_ = nullptr;  // the nodes of ports are in it
  GraphExec exec_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<Port> ports_;
  bool copies_host_ = false;
};

}  // namespace pteron::cuda

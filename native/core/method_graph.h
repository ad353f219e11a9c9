// The CUDA graph of a method that was loaded with cuda_graph.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cuda_library.h"
#include "device.h"

namespace pteron {

// Owns what the CUDA library recorded. Destroyed before the memory that it reads and writes.
class DeviceGraph {
 public:
  static constexpr size_t kNoPort = SIZE_MAX;

  // Begins to record what programs do on this thread. `earlier`, if any, is a recording of the same
  // with the tensors of ports that are `alone` elsewhere; it gives up its memory.
  DeviceGraph(Device device, DeviceGraph* earlier);
  ~DeviceGraph();  // waits for the last launch
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  Device device() const noexcept { return device_; }

  // Records an input that is read at `inner`, or an output that is written there; `outer` stands
  // for the caller's memory. `alone`: nothing else is ever in the memory at `inner`.
  size_t port(void* inner, void* outer, size_t nbytes, bool input, bool alone);
  void end(const DeviceGraph* earlier);

  // The caller's memory for the next launches; null: the output stays where it is. Whether they
  // copy.
  bool connect(size_t port, const void* outer);
  // On the stream, or the library's own. Returns when the work is done if it uses host memory.
  void launch(const Method::Stream& stream);
  // The next launch waits on the device for this event; null: everything is done.
  void set_last_use(std::shared_ptr<void> event) noexcept { last_use_ = std::move(event); }
  // The same for the end of a launch that nobody has waited for.
  void record_last_use(const Method::Stream& stream);

 private:
  Device device_;
  void* graph_ = nullptr;
  void* own_stream_ = nullptr;
  bool copies_host_ = false;
  std::shared_ptr<void> last_use_;
};

}  // namespace pteron

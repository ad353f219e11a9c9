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

  // Begins to record what programs do on this thread.
  explicit DeviceGraph(Device device);
  ~DeviceGraph();  // waits for the last launch
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  Device device() const noexcept { return device_; }

  size_t input_port(void* to, const void* from, size_t nbytes);
  size_t output_port(void* to, const void* from, size_t nbytes);
  void end();

  void connect(size_t port, void* to, const void* from);
  // On the stream, or the library's own. Returns when the work is done if it uses host memory.
  void launch(const Method::Stream& stream);
  // The next launch waits on the device for this event; null: everything is done.
  void set_last_use(std::shared_ptr<void> event) noexcept { last_use_ = std::move(event); }

 private:
  size_t port(void* to, const void* from, size_t nbytes, bool before);

  Device device_;
  void* graph_ = nullptr;
  void* own_stream_ = nullptr;
  bool copies_host_ = false;
  std::shared_ptr<void> last_use_;
};

}  // namespace pteron

// The ETDump of a program: what ran, for how long, and, with a debug buffer, what came out.
#pragma once

#include <executorch/devtools/etdump/etdump_flatcc.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pteron {

// Where intermediate values go. The runtime ends the process when a sink fails; this one counts
// what did not fit, for an error once the run is over.
class DebugBuffer final : public executorch::etdump::DataSinkBase {
 public:
  // Throws Error{Memory}.
  explicit DebugBuffer(size_t size);

  executorch::runtime::Result<size_t> write(const void* data, size_t size) override;
  size_t get_used_bytes() const override { return used_; }

  const std::vector<uint8_t>& bytes() const noexcept { return bytes_; }
  size_t needed() const noexcept { return needed_; }
  void rewind() noexcept { used_ = needed_ = 0; }

 private:
  std::vector<uint8_t> bytes_;
  size_t used_ = 0;
  size_t needed_ = 0;  // more than bytes_.size(): not all values fit
};

// The runtime's generator, which ends the process at values that an ETDump has no field for.
class Generator final : public executorch::etdump::ETDumpGen {
 public:
  executorch::runtime::Result<bool> log_evalue(const executorch::runtime::EValue& value,
                                               executorch::runtime::LoggedEValueType type) override;
};

// Shared by the program and all its methods, which therefore run one at a time while traced.
class Trace {
 public:
  // `debug_buffer_size` 0: intermediate values are not recorded. Throws Error{Memory}.
  explicit Trace(size_t debug_buffer_size);

  executorch::runtime::EventTracer* tracer() noexcept { return &generator_; }
  std::mutex& mutex() noexcept { return mutex_; }
  void mark_used() noexcept { used_ = true; }

  // The serialised ETDump of the runs since the last take, and the values that it points to. Throws
  // Error{State} when there is none, or it is not whole. Takes mutex().
  struct Record {
    std::vector<uint8_t> etdump;
    std::vector<uint8_t> debug_buffer;
  };
  Record take();

  // Forgets the runs since the last take: the last one broke off in the middle of an event. The
  // caller holds mutex().
  void discard() noexcept;

 private:
  void start_anew() noexcept;

  std::mutex mutex_;
  DebugBuffer debug_buffer_;
  Generator generator_;
  bool used_ = false;
  bool broke_off_ = false;
};

}  // namespace pteron

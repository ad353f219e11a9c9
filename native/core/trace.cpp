#include "trace.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "error.h"

namespace pteron {

DebugBuffer::DebugBuffer(size_t size) {
  try {
    bytes_.resize(size);
  } catch (const std::exception&) {  // no memory, or more than a vector can count
    throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                "A debug buffer of " + std::to_string(size) +
                    " bytes is not to be had: debug_buffer_size is too large, " +
                    code_text(Code::MemoryAllocationFailed));
  }
}

executorch::runtime::Result<size_t> DebugBuffer::write(const void* data, size_t size) {
  needed_ += size;
  if (size > bytes_.size() - used_) return size_t{0};
  const size_t offset = used_;
  if (size > 0) std::memcpy(bytes_.data() + offset, data, size);
  used_ += size;
  return offset;
}

executorch::runtime::Result<bool> Generator::log_evalue(
    const executorch::runtime::EValue& value, executorch::runtime::LoggedEValueType type) {
  if (!value.isTensor() && !value.isTensorList() && !value.isInt() && !value.isBool() &&
      !value.isDouble()) {
    return false;
  }
  return ETDumpGen::log_evalue(value, type);
}

Trace::Trace(size_t debug_buffer_size) : debug_buffer_(debug_buffer_size) {
  if (debug_buffer_size == 0) return;
  start_anew();
  generator_.set_event_tracer_debug_level(
      executorch::runtime::EventTracerDebugLogLevel::kIntermediateOutputs);
}

Trace::Record Trace::take() {
  std::lock_guard lock(mutex_);
  const auto fail = [](const std::string& why) {
    throw Error(Kind::State, Code::InvalidState, why);
  };
  if (std::exchange(broke_off_, false)) {
    fail("The ETDump is lost: a run broke off in the middle. Load the method again and run it");
  }
  // The generator may be asked once for each block of events; asked again, it crashes.
  if (!used_) {
    fail(
        "There is no ETDump to write: run a method first. An ETDump holds the runs since the last "
        "one was written");
  }
  if (const size_t needed = debug_buffer_.needed(); needed > debug_buffer_.bytes().size()) {
    start_anew();
    fail("The debug buffer of " + std::to_string(debug_buffer_.bytes().size()) +
         " bytes is too small for the " + std::to_string(needed) +
         " bytes of values of the runs since the last write: load the program with a larger "
         "debug_buffer_size, or write after fewer runs");
  }
  const executorch::etdump::ETDumpResult result = generator_.get_etdump_data();
  std::unique_ptr<void, void (*)(void*)> owner(result.buf, std::free);
  const auto* bytes = static_cast<const uint8_t*>(result.buf);
  Record record{{bytes, bytes + (bytes ? result.size : 0)}, debug_buffer_.bytes()};
  start_anew();
  if (bytes == nullptr) fail("The runtime has no ETDump of these runs");
  return record;
}

void Trace::discard() noexcept {
  start_anew();
  broke_off_ = true;
}

void Trace::start_anew() noexcept {
  generator_.reset();  // forgets the sink too
  if (!debug_buffer_.bytes().empty()) generator_.set_data_sink(&debug_buffer_);
  debug_buffer_.rewind();
  used_ = false;
}

}  // namespace pteron

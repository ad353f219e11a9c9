#include "memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "control_group.h"
#include "error.h"

namespace pteron {
namespace {

// The number in a file of the control groups; no limit where it has none ("max") or is not there.
uint64_t read_limit(const std::string& path) {
  uint64_t nbytes = 0;
  std::ifstream file(path);
  return file >> nbytes ? nbytes : UINT64_MAX;
}

uint64_t control_group_limit(const std::string& root) {
  uint64_t lowest = UINT64_MAX;
  visit_control_groups(root, "memory", [&](const std::string& folder) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {  // v2, v1
      lowest = std::min(lowest, read_limit(folder + file));
    }
  });
  return lowest;
}

std::atomic<uint64_t>& limit() noexcept {
  static std::atomic<uint64_t> nbytes = default_memory_limit();
  return nbytes;
}

}  // namespace

uint64_t default_memory_limit(const std::string& root) {
  const auto machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(machine, control_group_limit(root));
}

uint64_t memory_limit() noexcept { return limit().load(std::memory_order_relaxed); }

void set_memory_limit(int64_t nbytes) {
  if (nbytes < 1) {
    throw Error(Kind::Argument, Code::InvalidArgument,
                "The memory limit must be 1 byte or more, not " + std::to_string(nbytes));
  }
  limit().store(static_cast<uint64_t>(nbytes), std::memory_order_relaxed);
}

void over_memory_limit(const std::string& what, uint64_t nbytes) {
  throw Error(Kind::Memory, Code::MemoryAllocationFailed,
              what + " needs " + std::to_string(nbytes) + " bytes, and the memory limit is " +
                  std::to_string(memory_limit()) + " bytes, " +
                  code_text(Code::MemoryAllocationFailed) +
                  ": if that is as it should be, raise Runtime.get().memory_limit or the "
                  "environment variable PTERON_MEMORY_LIMIT");
}

}  // namespace pteron

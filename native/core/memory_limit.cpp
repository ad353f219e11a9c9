#include "memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "error.h"

namespace pteron {
namespace {

// The number in a file of the control groups; no limit where it has none ("max") or is not there.
uint64_t read_limit(const std::string& path) {
  uint64_t nbytes = 0;
  std::ifstream file(path);
  return file >> nbytes ? nbytes : UINT64_MAX;
}

// Every group that the process is in may have a limit of its own.
uint64_t lowest_limit(const std::string& base, std::string group, const char* file) {
  uint64_t lowest = UINT64_MAX;
  while (true) {
    while (group.ends_with('/')) group.pop_back();
    lowest = std::min(lowest, read_limit(base + group + file));
    if (group.empty()) return lowest;
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

uint64_t control_group_limit(const std::string& root) {
  uint64_t lowest = UINT64_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b", or "5:memory:/a/b"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    std::string kinds = line.substr(first, second - first);
    kinds.front() = ',';
    kinds += ',';
    const std::string group = line.substr(second + 1);
    if (kinds == ",,") {
      lowest = std::min(lowest, lowest_limit(root + "/sys/fs/cgroup", group, "/memory.max"));
    } else if (kinds.find(",memory,") != kinds.npos) {
      lowest = std::min(
          lowest, lowest_limit(root + "/sys/fs/cgroup/memory", group, "/memory.limit_in_bytes"));
    }
  }
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

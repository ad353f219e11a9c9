#include "cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "control_group.h"

namespace pteron {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

size_t cpu_set_size() {
  // The kernel refuses a set that has no room for all the processors there may be.
  for (size_t room = 1024; room <= (size_t{1} << 20); room *= 2) {
    std::vector<cpu_set_t> set((room + 8 * sizeof(cpu_set_t) - 1) / (8 * sizeof(cpu_set_t)));
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0) {
      return static_cast<size_t>(CPU_COUNT_S(bytes, set.data()));
    }
  }
  return std::thread::hardware_concurrency();
}

// Microseconds of processor time in a period, as processors. The format of cpu.max in v2, and of
// the two files of v1 one after the other.
double processors(std::istream& text) {
  std::string quota;
  double period = 0;
  if (!(text >> quota >> period) || period <= 0) return kUnlimited;
  std::istringstream number(quota);
  double time = 0;
  if (!(number >> time) || time <= 0) return kUnlimited;  // "max", -1
  return time / period;
}

double quota_of(const std::string& folder) {
  if (std::ifstream file(folder + "/cpu.max"); file) return processors(file);
  std::ifstream quota(folder + "/cpu.cfs_quota_us");
  std::ifstream period(folder + "/cpu.cfs_period_us");
  std::stringstream both;
  both << quota.rdbuf() << ' ' << period.rdbuf();
  return processors(both);
}

double cgroup_quota(const std::string& root) {
  double least = kUnlimited;
  visit_control_groups(
      root, "cpu", [&](const std::string& folder) { least = std::min(least, quota_of(folder)); });
  return least;
}

}  // namespace

size_t available_cpus(const std::string& root) {
  const size_t cpus = std::max<size_t>(cpu_set_size(), 1);
  const double quota = std::ceil(cgroup_quota(root));
  return quota < static_cast<double>(cpus) ? static_cast<size_t>(quota) : cpus;
}

}  // namespace pteron

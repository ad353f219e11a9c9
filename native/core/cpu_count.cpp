#include "cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

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

// The smallest quota of `group` and all above it. A container may see its group's files at the top
// and its path from outside: the folders that are not there limit nothing.
double quota_along(const std::string& mount, std::string group) {
  double least = quota_of(mount);
  while (!group.empty() && group != "/") {
    least = std::min(least, quota_of(mount + group));
    group.erase(group.rfind('/'));
  }
  return least;
}

double cgroup_quota(const std::string& root) {
  double least = kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b", v2: "0::/a/b"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const std::string mounts = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      least = std::min(least, quota_along(mounts, group));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      least = std::min({least, quota_along(mounts + "/cpu", group),
                        quota_along(mounts + "/" + controllers, group)});
    }
  }
  return least;
}

}  // namespace

size_t available_cpus(const std::string& root) {
  const size_t cpus = std::max<size_t>(cpu_set_size(), 1);
  const double quota = std::ceil(cgroup_quota(root));
  return quota < static_cast<double>(cpus) ? static_cast<size_t>(quota) : cpus;
}

}  // namespace pteron

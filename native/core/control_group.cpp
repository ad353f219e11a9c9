#include "control_group.h"

#include <fstream>

namespace pteron {

void visit_control_groups(const std::string& root, const std::string& controller,
                          const std::function<void(const std::string& folder)>& visit) {
  const auto visit_up = [&](const std::string& mount, std::string group) {
    for (;;) {
      while (group.ends_with('/')) group.pop_back();
      visit(mount + group);
      if (group.empty()) return;
      group.erase(group.rfind('/'));
    }
  };
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b", v2: "0::/a/b"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      visit_up(mounts, group);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      visit_up(mounts + "/" + controller, group);
      if (controllers != controller) visit_up(mounts + "/" + controllers, group);
    }
  }
}

}  // namespace pteron

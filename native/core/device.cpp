#include "device.h"

namespace pteron {

std::string to_string(Device device) {
  if (device.is_cpu()) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

}  // namespace pteron

#include "device.h"

#include "error.h"

namespace pteron {

std::string to_string(Device device) {
  if (device.is_cpu()) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

Device device_named(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceType::Cuda, 0};
  if (text.starts_with("cuda:") && text.size() > 5 && text.size() < 8 &&
      text.find_first_not_of("0123456789", 5) == text.npos) {
    const int index = std::stoi(std::string(text.substr(5)));
    if (index < 64) return {DeviceType::Cuda, static_cast<int8_t>(index)};
  }
  throw Error(Kind::Device, Code::InvalidArgument,
              "There is no device '" + std::string(text) + "': a device is 'cpu' or 'cuda:0'");
}

}  // namespace pteron

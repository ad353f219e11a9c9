// Where memory lives. Names are torch's: "cpu", "cuda:0".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pteron {

enum class DeviceType : int8_t { Cpu = 0, Cuda = 1 };  // numbers of program.fbs

struct Device {
  DeviceType type = DeviceType::Cpu;
  int8_t index = 0;

  bool is_cpu() const noexcept { return type == DeviceType::Cpu; }
  bool operator==(const Device& other) const noexcept = default;
};

// DLPack's number of the device type (dlpack.h): kDLCPU, kDLCUDA.
constexpr int32_t dlpack_device_type(DeviceType type) noexcept {
  return type == DeviceType::Cpu ? 1 : 2;
}

std::string to_string(Device device);

// "cpu", "cuda" or "cuda:1"; anything else throws.
Device device_named(std::string_view text);

}  // namespace pteron

// Golden inputs and outputs, as dump_goldens.py writes them: `golden.txt` with one line a tensor
// ("name dtype ndim sizes...") and one raw file a name. For tests.
#pragma once

#include <bit>
#include <cmath>
#include <map>
#include <sstream>

#include "../../core/dtype.h"
#include "program_runner.h"

namespace pteron::testing {

struct Golden {
  std::vector<HostTensor> inputs;
  std::vector<std::vector<HostTensor>> steps;
};

inline Golden read_golden(const std::string& folder) {
  Golden golden;
  std::ifstream index(folder + "/golden.txt");
  if (!index) throw std::runtime_error("no golden.txt in " + folder);
  std::string line;
  while (std::getline(index, line)) {
    std::istringstream in(line);
    std::string name;
    std::string dtype;
    size_t ndim = 0;
    in >> name >> dtype >> ndim;
    HostTensor tensor;
    static const std::map<std::string, int> kNames = [] {
      std::map<std::string, int> names;
      for (int i = 0; i < kNumDTypes; ++i) names[kDTypes[i].name] = i;
      return names;
    }();
    tensor.dtype = kNames.at(dtype);
    tensor.sizes.resize(ndim);
    for (int32_t& size : tensor.sizes) in >> size;
    tensor.bytes = read_file(folder + "/" + name + ".bin");
    if (name.starts_with("in")) {
      golden.inputs.push_back(std::move(tensor));
    } else {
      const auto step = static_cast<size_t>(std::stoi(name.substr(4)));
      if (golden.steps.size() <= step) golden.steps.resize(step + 1);
      golden.steps[step].push_back(std::move(tensor));
    }
  }
  return golden;
}

// Element i as a double; integers up to 2^53 are exact.
inline double value_at(const HostTensor& t, size_t i) {
  const char* p = t.bytes.data();
  auto as = [&]<typename T>(T) {
    T v;
    std::memcpy(&v, p + i * sizeof(T), sizeof(T));
    return v;
  };
  switch (static_cast<DType>(t.dtype)) {
    case DType::Float32:
      return as(float{});
    case DType::Float64:
      return as(double{});
    case DType::Int64:
      return static_cast<double>(as(int64_t{}));
    case DType::Int32:
      return as(int32_t{});
    case DType::UInt8:
    case DType::Bool:
      return as(uint8_t{});
    case DType::BFloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(as(uint16_t{})) << 16);
    case DType::Float16: {
      const uint16_t h = as(uint16_t{});
      const int e = (h >> 10) & 31;
      const double m = h & 1023;
      const double v = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
      return (h & 0x8000) != 0 ? -v : v;
    }
    default:
      throw std::runtime_error("no comparison for this type");
  }
}

// Largest difference relative to the largest expected value; infinite when shapes or types differ.
inline double difference(const HostTensor& got, const HostTensor& expected) {
  if (got.dtype != expected.dtype || got.sizes != expected.sizes ||
      got.bytes.size() != expected.bytes.size()) {
    return INFINITY;
  }
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < expected.numel(); ++i) {
    const double want = value_at(expected, i);
    const double have = value_at(got, i);
    if (std::isnan(want) != std::isnan(have)) return INFINITY;
    if (std::isnan(want)) continue;
    largest = std::max(largest, std::fabs(want));
    worst = std::max(worst, std::fabs(want - have));
  }
  return worst == 0 ? 0 : worst / std::max(largest, 1e-30);
}

// This test's runner puts everything on the first device.
inline bool needs_two_devices(const std::string& name) {
  return name.starts_with("add1") || name.starts_with("sums");
}

inline double tolerance(const std::string& name, int dtype) {
  if (dtype == static_cast<int>(DType::BFloat16) || dtype == static_cast<int>(DType::Float16)) {
    return 2e-2;
  }
  if (dtype == static_cast<int>(DType::Float32)) {
    const bool tf32 = name.starts_with("mlp") || name == "conv" || name == "two_methods";
    return tf32 ? 2e-3 : 1e-4;
  }
  return 0;  // integers, bool, float64 of the scalars program: exact
}

}  // namespace pteron::testing

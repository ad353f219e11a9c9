// Which values share bytes of planned memory.
//
// Files may let any number of values overlap, so that comparing each with all others would take
// hours. Questions about the others are put as numbers instead: Lowest finds the lowest number
// among the values that share bytes with one, in logarithmic time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "program_file.h"

namespace pteron {

struct Region {
  uint32_t memory_id;
  uint64_t begin;
  uint64_t end;  // beyond begin
  uint32_t value;
  bool same_bytes(const Region& o) const noexcept {
    return memory_id == o.memory_id && begin == o.begin && end == o.end;
  }
};

inline Region region_of(const MethodSpec& method, uint32_t value) {
  const TensorSpec& tensor = method.values[value].tensor;
  return {tensor.memory_id, tensor.offset, tensor.offset + tensor.nbytes, value};
}

// Of all values that have planned bytes.
inline std::vector<Region> planned_regions(const MethodSpec& method) {
  std::vector<Region> regions;
  for (uint32_t i = 0; i < method.values.size(); ++i) {
    const TensorSpec& tensor = method.values[i].tensor;
    if (tensor.planned && tensor.nbytes != 0) regions.push_back(region_of(method, i));
  }
  return regions;
}

class Lowest {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `number` gives each region's number; those that are kNone do not count.
  template <typename Number>
  Lowest(std::span<const Region> regions, const Number& number) {
    starts_.reserve(2 * regions.size());
    for (const Region& region : regions) {
      starts_.emplace_back(region.memory_id, region.begin);
      starts_.emplace_back(region.memory_id, region.end);
    }
    std::sort(starts_.begin(), starts_.end());
    starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
    tree_.resize(2 * starts_.size());

    std::vector<std::pair<uint32_t, uint32_t>> order;  // number, index of the region
    for (uint32_t i = 0; i < regions.size(); ++i) {
      if (const uint32_t n = number(regions[i]); n != kNone) order.emplace_back(n, i);
    }
    std::sort(order.begin(), order.end());
    // Each stretch keeps the first two that come to it; `open` leads on to one that has room.
    std::vector<uint32_t> open(starts_.size() + 1);
    std::iota(open.begin(), open.end(), 0u);
    const auto next_open = [&](uint32_t i) {
      while (open[i] != i) i = open[i] = open[open[i]];
      return i;
    };
    for (const auto& [n, index] : order) {
      const auto [from, to] = stretches(regions[index]);
      for (uint32_t i = next_open(from); i < to; i = next_open(i + 1)) {
        Two& two = tree_[starts_.size() + i];
        if (two.first == kNone) {
          two.first = n;
          two.value = regions[index].value;
        } else {
          two.second = n;
          open[i] = i + 1;
        }
      }
    }
    for (size_t i = starts_.size(); i-- > 1;) tree_[i] = merged(tree_[2 * i], tree_[2 * i + 1]);
  }

  // Among the regions of other values that overlap this one, which was there when it was made.
  uint32_t beside(const Region& region) const {
    Two found;
    auto [from, to] = stretches(region);
    for (size_t a = from + starts_.size(), b = to + starts_.size(); a < b; a /= 2, b /= 2) {
      if (a % 2 != 0) found = merged(found, tree_[a++]);
      if (b % 2 != 0) found = merged(found, tree_[--b]);
    }
    return found.value == region.value ? found.second : found.first;
  }

 private:
  struct Two {  // the lowest, whose it is, and the lowest of another value
    uint32_t first = kNone;
    uint32_t value = kNone;
    uint32_t second = kNone;
  };

  static Two merged(const Two& a, const Two& b) {
    if (b.first < a.first) return merged(b, a);
    return {a.first, a.value, std::min(a.second, a.value == b.value ? b.second : b.first)};
  }

  std::pair<uint32_t, uint32_t> stretches(const Region& region) const {
    const auto at = [&](uint64_t byte) {
      const auto found =
          std::lower_bound(starts_.begin(), starts_.end(), std::pair{region.memory_id, byte});
      return static_cast<uint32_t>(found - starts_.begin());
    };
    return {at(region.begin), at(region.end)};
  }

  // Where a region begins or ends, a stretch of memory begins that is wholly in a region or not.
  std::vector<std::pair<uint32_t, uint64_t>> starts_;
  std::vector<Two> tree_;  // a node over two; the stretches are in its second half
};

}  // namespace pteron

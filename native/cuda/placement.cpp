#include "placement.h"

#include <algorithm>
#include <utility>

namespace pteron::cuda {

namespace {
thread_local Placement* active_placement = nullptr;
}

void Placement::begin(size_t num_outputs) {
  from_.resize(num_outputs, kUnknown);
  offers_.clear();
  allocations_.clear();
}

void Placement::offer(size_t output, void* data, size_t nbytes) {
  if (from_[output] == kUnknown || reinterpret_cast<uintptr_t>(data) % kAlignment != 0) return;
  offers_.push_back({from_[output], data, nbytes});
}

void Placement::learn(size_t output, const Tensor& result) {
  from_[output] = kUnknown;
  if (result.offset() != 0 || result.nbytes() != result.storage_nbytes()) return;
  // The last one there: memory that the model gave back in the run may have served twice.
  const auto found = std::find(allocations_.rbegin(), allocations_.rend(), result.data());
  if (found == allocations_.rend()) return;
  const auto allocation = static_cast<size_t>(allocations_.rend() - found - 1);
  // Two outputs may share one allocation; only one of them can have it.
  if (std::ranges::find(from_, allocation) == from_.end()) from_[output] = allocation;
}

Placement::Active::Active(Placement& placement) noexcept
    : previous_(std::exchange(active_placement, &placement)) {}

Placement::Active::~Active() { active_placement = previous_; }

Placement* Placement::active(int device) noexcept {
  return active_placement != nullptr && active_placement->device_ == device ? active_placement
                                                                            : nullptr;
}

void* Placement::next(size_t nbytes) {
  const size_t index = allocations_.size();
  for (const Offer& offer : offers_) {
    if (offer.allocation == index && offer.nbytes == nbytes) {
      allocations_.push_back(offer.data);
      return offer.data;
    }
  }
  return nullptr;
}

}  // namespace pteron::cuda

// What the files of the unit test share: tensors of known contents, and a check that nothing is
// left behind.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "../../cuda/memory.h"
#include "../../cuda/shims.h"
#include "../../cuda/stream.h"
#include "../../cuda/strided_copy.h"
#include "cuda_test.h"
#include "fake_control.h"

namespace pteron::testing {

using namespace cuda;  // NOLINT: the names under test

inline constexpr Place kHost{};
inline constexpr Place kCuda{true, 0};

// No test may leave memory, tensors or events behind, or hand the driver a wrong pointer.
class Clean {
 public:
  Clean() : memory_(memory_use()), tensors_(Tensor::live()), events_(live_events()) {
    fake->fail(nullptr, 0, 0);
    fake->reset_counters();
  }
  ~Clean() {
    fake->defer(0);
    EXPECT(memory_use().blocks == memory_.blocks);
    EXPECT(Tensor::live() == tensors_);
    EXPECT(live_events() == events_);
    EXPECT(fake->counters().bad_pointers == 0);
    EXPECT(fake->counters().bad_contexts == 0);
  }

 private:
  MemoryUse memory_;
  int64_t tensors_;
  int events_;
};

inline std::unique_ptr<Tensor> iota(Place place, std::vector<int64_t> sizes,
                                    std::vector<int64_t> strides = {}) {
  auto host = Tensor::empty(kHost, DType::Float32, sizes, {});
  std::iota(static_cast<float*>(host->data()), static_cast<float*>(host->data()) + host->numel(),
            0.0F);
  auto tensor = Tensor::empty(place, DType::Float32, sizes, strides);
  copy_tensor(*tensor, *host, nullptr);
  return tensor;
}

inline std::vector<float> values(const Tensor& tensor) {
  auto host = Tensor::empty(kHost, DType::Float32, tensor.sizes(), {});
  copy_tensor(*host, tensor, nullptr);
  const auto* p = static_cast<const float*>(host->data());
  return {p, p + host->numel()};
}

inline bool counts_up(const std::vector<float>& v) {
  for (size_t i = 0; i < v.size(); ++i) {
    if (v[i] != static_cast<float>(i)) return false;
  }
  return true;
}

inline std::unique_ptr<Tensor> own(Tensor* tensor) { return std::unique_ptr<Tensor>(tensor); }

}  // namespace pteron::testing

// Lets a model write its outputs straight into the memory that they are wanted in.
//
// A model allocates its outputs itself, in the middle of its run, and looks the same every time:
// the n-th allocation of a run becomes output i. After a first run that is known, and the memory of
// output i is handed out for that allocation. A wrong guess (a branch that allocates differently)
// costs nothing but a copy: the result is copied wherever it is not where it should be.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor.h"

namespace pteron::cuda {

class Placement {
 public:
  explicit Placement(int device) : device_(device) {}
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  // Before a run: forget the last run's allocations and offers.
  void begin(size_t num_outputs);

  // Memory for an output of exactly this many bytes. Nobody else may read or write it in the run:
  // it must overlap no input and no other output.
  void offer(size_t output, void* data, size_t nbytes);

  // After a run: the output came as this dense tensor, or in a layout that cannot be placed.
  void learn(size_t output, const Tensor& result);
  void forget(size_t output) { from_[output] = kUnknown; }

  // Allocations of this thread are part of the run while this lives.
  class Active {
   public:
    explicit Active(Placement& placement) noexcept;
    ~Active();
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    Placement* previous_;
  };

  // For Storage: the placement that allocations on this device belong to, or null.
  static Placement* active(int device) noexcept;
  // The offered memory for the next allocation, or null; then allocated() must follow.
  void* next(size_t nbytes);
  void allocated(void* data) { allocations_.push_back(data); }

 private:
  static constexpr size_t kUnknown = SIZE_MAX;
  static constexpr size_t kAlignment = 16;  // models are compiled for at least this much

  struct Offer {
    size_t allocation;
    void* data;
    size_t nbytes;
  };

  int device_;
  std::vector<size_t> from_;  // by output: which allocation it was
  std::vector<Offer> offers_;
  std::vector<void*> allocations_;
};

}  // namespace pteron::cuda

// The tensor behind the opaque handle of the shims (AtenTensorHandle).
//
// A Tensor is sizes, strides and an offset over a Storage; several tensors may share one. A model
// library creates and deletes tensors through the shims only, from any thread, so the storage's
// count is atomic. A Tensor itself belongs to one owner at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>

#include "../core/dtype.h"
#include "driver.h"

namespace pteron::cuda {

struct Place {
  bool on_device = false;
  int index = 0;  // 0 on the host

  bool operator==(const Place&) const noexcept = default;
};

class Storage {
 public:
  // Owning; device memory is ordered on the current stream, here and when it is freed.
  static Storage* allocate(size_t nbytes, Place place);
  // Not owning.
  static Storage* view(void* data, size_t nbytes, Place place);

  void retain() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  void* data() const noexcept { return data_; }
  size_t nbytes() const noexcept { return nbytes_; }
  Place place() const noexcept { return place_; }

 private:
  Storage(void* data, size_t nbytes, Place place, bool owned)
      : data_(data), nbytes_(nbytes), place_(place), owned_(owned) {}
  ~Storage();

  std::atomic<int64_t> count_{1};
  void* data_;
  size_t nbytes_;
  Place place_;
  bool owned_;
};

class TensorScope;

class Tensor {
 public:
  // Takes over one count of `storage`. `strides` may be empty: contiguous.
  Tensor(Storage* storage, DType dtype, std::span<const int64_t> sizes,
         std::span<const int64_t> strides, int64_t offset);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // Another tensor over the same storage.
  std::unique_ptr<Tensor> view(DType dtype, std::span<const int64_t> sizes,
                               std::span<const int64_t> strides, int64_t offset) const;

  // A new tensor with memory of its own. `strides` empty: contiguous.
  static std::unique_ptr<Tensor> empty(Place place, DType dtype, std::span<const int64_t> sizes,
                                       std::span<const int64_t> strides);

  void* data() const noexcept;  // first element; null when empty and never given memory
  std::span<const int64_t> sizes() const noexcept { return {dims_.get(), ndim_}; }
  std::span<const int64_t> strides() const noexcept { return {dims_.get() + ndim_, ndim_}; }
  int64_t* mutable_sizes() noexcept { return dims_.get(); }
  int64_t* mutable_strides() noexcept { return dims_.get() + ndim_; }
  size_t ndim() const noexcept { return ndim_; }
  int64_t offset() const noexcept { return offset_; }
  int64_t numel() const noexcept { return numel_; }
  DType dtype() const noexcept { return dtype_; }
  size_t itemsize() const noexcept { return pteron::itemsize(dtype_); }
  size_t nbytes() const noexcept { return static_cast<size_t>(numel_) * itemsize(); }
  Place place() const noexcept { return storage_->place(); }
  size_t storage_nbytes() const noexcept { return storage_->nbytes(); }
  bool is_contiguous() const noexcept;

  // How many tensors there are now: leak checks of the tests.
  static int64_t live() noexcept;

 private:
  friend class TensorScope;

  Storage* storage_;
  TensorScope* scope_ = nullptr;
  std::unique_ptr<int64_t[]> dims_;  // sizes, then strides
  size_t ndim_;
  int64_t offset_;  // elements
  int64_t numel_;
  DType dtype_;
};

// Owns the tensors that were made while it was active on a thread and that nobody deleted by the
// time it goes. A model library makes a handle of its own for each weight that we bind and never
// deletes it; without this they would leak at every load.
class TensorScope {
 public:
  TensorScope() = default;
  ~TensorScope();
  TensorScope(const TensorScope&) = delete;
  TensorScope& operator=(const TensorScope&) = delete;

  class Active {
   public:
    explicit Active(TensorScope& scope) noexcept;
    ~Active();

   private:
    TensorScope* previous_;
  };

 private:
  friend class Tensor;
  std::mutex mutex_;
  std::unordered_set<Tensor*> tensors_;
};

// Number of elements; throws when it overflows or a size is negative.
int64_t checked_numel(std::span<const int64_t> sizes);

// Elements between the first and one past the last that these strides reach, 0 when empty.
int64_t span_of(std::span<const int64_t> sizes, std::span<const int64_t> strides);

DType checked_dtype(int32_t number);

}  // namespace pteron::cuda

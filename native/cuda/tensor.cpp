#include "tensor.h"

#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "memory.h"
#include "placement.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

std::atomic<int64_t> live_tensors{0};
thread_local TensorScope* active_scope = nullptr;

constexpr size_t kHostAlignment = 64;  // as torch's, vectorised host code relies on it

void contiguous_strides(std::span<const int64_t> sizes, std::span<int64_t> strides) {
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    if (sizes[i] > 1) step *= sizes[i];
  }
}

}  // namespace

Storage* Storage::allocate(size_t nbytes, Place place) {
  if (place.on_device) {
    Placement* placement = Placement::active(place.index);
    if (placement != nullptr) {
      if (void* data = placement->next(nbytes)) return new Storage(data, nbytes, place, false);
    }
    void* data = allocate_async(place.index, nbytes, current_stream(place.index));
    if (placement != nullptr) placement->allocated(data);
    return new Storage(data, nbytes, place, true);
  }
  const size_t rounded = (nbytes + kHostAlignment) / kHostAlignment * kHostAlignment;
  void* data = std::aligned_alloc(kHostAlignment, rounded);
  if (data == nullptr) throw std::bad_alloc();
  return new Storage(data, nbytes, place, true);
}

Storage* Storage::view(void* data, size_t nbytes, Place place) {
  return new Storage(data, nbytes, place, false);
}

Storage::~Storage() {
  if (!owned_) return;
  if (place_.on_device) {
    free_async(place_.index, data_, current_stream(place_.index));
  } else {
    std::free(data_);
  }
}

void Storage::release() noexcept {
  if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Tensor::Tensor(Storage* storage, DType dtype, std::span<const int64_t> sizes,
               std::span<const int64_t> strides, int64_t offset)
    : storage_(storage), ndim_(sizes.size()), offset_(offset), numel_(0), dtype_(dtype) {
  try {
    numel_ = checked_numel(sizes);
    dims_ = std::make_unique<int64_t[]>(2 * ndim_ + 1);
    std::copy(sizes.begin(), sizes.end(), dims_.get());
    if (strides.empty()) {
      contiguous_strides(sizes, {dims_.get() + ndim_, ndim_});
    } else {
      std::copy(strides.begin(), strides.end(), dims_.get() + ndim_);
    }
    if (active_scope != nullptr) {
      std::lock_guard lock(active_scope->mutex_);
      active_scope->tensors_.insert(this);
      scope_ = active_scope;
    }
  } catch (...) {
    storage_->release();
    throw;
  }
  live_tensors.fetch_add(1, std::memory_order_relaxed);
}

Tensor::~Tensor() {
  if (scope_ != nullptr) {
    std::lock_guard lock(scope_->mutex_);
    scope_->tensors_.erase(this);
  }
  storage_->release();
  live_tensors.fetch_sub(1, std::memory_order_relaxed);
}

std::unique_ptr<Tensor> Tensor::view(DType dtype, std::span<const int64_t> sizes,
                                     std::span<const int64_t> strides, int64_t offset) const {
  storage_->retain();
  return std::make_unique<Tensor>(storage_, dtype, sizes, strides, offset);
}

std::unique_ptr<Tensor> Tensor::empty(Place place, DType dtype, std::span<const int64_t> sizes,
                                      std::span<const int64_t> strides) {
  const int64_t elements = strides.empty() ? checked_numel(sizes) : span_of(sizes, strides);
  size_t nbytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(elements), pteron::itemsize(dtype), &nbytes)) {
    throw Failure(ErrorCode::InvalidArgument, "a tensor's size overflows");
  }
  return std::make_unique<Tensor>(Storage::allocate(nbytes, place), dtype, sizes, strides, 0);
}

void* Tensor::data() const noexcept {
  auto* base = static_cast<char*>(storage_->data());
  if (base == nullptr) return nullptr;
  return base + offset_ * static_cast<int64_t>(itemsize());
}

bool Tensor::is_contiguous() const noexcept {
  if (numel_ == 0) return true;
  int64_t step = 1;
  for (size_t i = ndim_; i-- > 0;) {
    if (sizes()[i] == 1) continue;
    if (strides()[i] != step) return false;
    step *= sizes()[i];
  }
  return true;
}

int64_t Tensor::live() noexcept { return live_tensors.load(std::memory_order_relaxed); }

TensorScope::~TensorScope() {
  std::unordered_set<Tensor*> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(tensors_);
  }
  for (Tensor* tensor : left) {
    tensor->scope_ = nullptr;
    delete tensor;
  }
}

TensorScope::Active::Active(TensorScope& scope) noexcept
    : previous_(std::exchange(active_scope, &scope)) {}

TensorScope::Active::~Active() { active_scope = previous_; }

int64_t checked_numel(std::span<const int64_t> sizes) {
  int64_t numel = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) throw Failure(ErrorCode::InvalidArgument, "a tensor has a negative size");
    empty = empty || size == 0;
    overflow = __builtin_mul_overflow(numel, size == 0 ? 1 : size, &numel) || overflow;
  }
  if (overflow) throw Failure(ErrorCode::InvalidArgument, "a tensor's size overflows");
  return empty ? 0 : numel;
}

int64_t span_of(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw Failure(ErrorCode::InvalidArgument, "a tensor has a negative size");
    if (strides[i] < 0) throw Failure(ErrorCode::InvalidArgument, "a tensor has a negative stride");
    int64_t reach = 0;
    if (sizes[i] > 0 && (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) ||
                         __builtin_add_overflow(last, reach, &last))) {
      throw Failure(ErrorCode::InvalidArgument, "a tensor's size overflows");
    }
  }
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
  }
  return last == INT64_MAX ? throw Failure(ErrorCode::InvalidArgument, "a tensor's size overflows")
                           : last + 1;
}

DType checked_dtype(int32_t number) {
  if (!is_dtype(number)) {
    throw Failure(ErrorCode::NotSupported,
                  "the model uses an unknown element type: " + std::to_string(number));
  }
  return static_cast<DType>(number);
}

}  // namespace pteron::cuda

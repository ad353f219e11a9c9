// The memory of one result, with its shape, counted in C++ so that a DLPack deleter needs no
// Python.
//
// One malloc holds the header, shape and strides, and, where the block owns its data, the data
// itself at a 64-byte boundary. A borrowed block points into memory of its owner and keeps it
// alive.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device.h"
#include "dtype.h"

namespace pteron {

inline constexpr size_t kDataAlignment = 64;  // bytes; what JAX asks for to import without a copy
inline constexpr size_t kDataPadding = 64;    // readable bytes past the end: vector kernels overrun
inline constexpr int kMaxRank = 16;           // the runtime's kTensorDimensionLimit

// The number of the run that last wrote a method's memory. Shared with the results that borrow it.
using Generation = std::atomic<uint64_t>;

struct TensorBlock {
  void* data = nullptr;
  size_t nbytes = 0;
  int64_t* shape = nullptr;    // ndim entries
  int64_t* strides = nullptr;  // ndim entries, in elements
  int ndim = 0;
  DType dtype = DType::Float32;
  Device device;
  bool readonly = false;  // a constant of the program
  bool borrowed = false;  // the data belongs to `owner`, which others use too

  std::shared_ptr<void> owner;
  // An event on the device after which the data is there; null: it is there.
  std::shared_ptr<void> ready;
  void* stream = nullptr;  // that `ready` was recorded on
  // Borrowed from a run: stale once *generation differs from `written_in`. Null: never stale.
  const Generation* generation = nullptr;
  uint64_t written_in = 0;

  bool stale() const noexcept {
    return generation != nullptr && generation->load(std::memory_order_acquire) != written_in;
  }
  int64_t numel() const noexcept {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
  // Whether `address` lies in the data.
  bool holds(const void* address) const noexcept {
    const auto* first = static_cast<const std::byte*>(data);
    return address >= first && address < first + nbytes;
  }
  // C order, skipping axes of size 1; what memoryview calls c_contiguous.
  bool contiguous() const noexcept;

  // A block with uninitialised shape, strides and `nbytes` bytes of data; null when out of memory.
  static TensorBlock* allocate(int ndim, DType dtype, size_t nbytes) noexcept;
  // A block over memory that `owner` keeps alive.
  static TensorBlock* borrow(int ndim, DType dtype, void* data, size_t nbytes,
                             std::shared_ptr<void> owner) noexcept;
  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

 private:
  TensorBlock() = default;
  ~TensorBlock() = default;
  static TensorBlock* create(int ndim, DType dtype, size_t extra) noexcept;
  std::atomic<uint32_t> references_{1};
};

// Owning pointer to a block.
class TensorRef {
 public:
  TensorRef() = default;
  explicit TensorRef(TensorBlock* block) noexcept : block_(block) {}  // takes the reference over
  TensorRef(TensorRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  TensorRef& operator=(TensorRef&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  TensorRef(const TensorRef& other) noexcept : block_(other.block_) {
    if (block_) block_->retain();
  }
  TensorRef& operator=(const TensorRef& other) noexcept { return *this = TensorRef(other); }
  ~TensorRef() {
    if (block_) block_->release();
  }
  TensorBlock* get() const noexcept { return block_; }
  TensorBlock* operator->() const noexcept { return block_; }
  explicit operator bool() const noexcept { return block_ != nullptr; }
  TensorBlock* detach() noexcept { return std::exchange(block_, nullptr); }

 private:
  TensorBlock* block_ = nullptr;
};

}  // namespace pteron

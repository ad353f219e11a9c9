#include "tensor_block.h"

#include <cstdlib>
#include <new>

namespace pteron {

TensorBlock* TensorBlock::create(int ndim, DType dtype, size_t extra) noexcept {
  const size_t head = sizeof(TensorBlock) + 2 * static_cast<size_t>(ndim) * sizeof(int64_t);
  if (extra > SIZE_MAX - head) return nullptr;
  void* memory = std::malloc(head + extra);
  if (memory == nullptr) return nullptr;
  auto* block = new (memory) TensorBlock;
  block->shape = reinterpret_cast<int64_t*>(block + 1);
  block->strides = block->shape + ndim;
  block->ndim = ndim;
  block->dtype = dtype;
  return block;
}

TensorBlock* TensorBlock::allocate(int ndim, DType dtype, size_t nbytes) noexcept {
  if (nbytes > SIZE_MAX / 2) return nullptr;
  TensorBlock* block = create(ndim, dtype, nbytes + kDataAlignment + kDataPadding);
  if (block == nullptr) return nullptr;
  const auto end = reinterpret_cast<uintptr_t>(block->strides + ndim);
  block->data = reinterpret_cast<void*>((end + kDataAlignment - 1) & ~(kDataAlignment - 1));
  block->nbytes = nbytes;
  return block;
}

TensorBlock* TensorBlock::borrow(int ndim, DType dtype, void* data, size_t nbytes,
                                 std::shared_ptr<void> owner) noexcept {
  TensorBlock* block = create(ndim, dtype, 0);
  if (block == nullptr) return nullptr;
  block->data = data;
  block->nbytes = nbytes;
  block->borrowed = true;
  block->owner = std::move(owner);
  return block;
}

void TensorBlock::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  this->~TensorBlock();
  std::free(this);
}

bool TensorBlock::contiguous() const noexcept {
  int64_t expected = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace pteron

#include "block_cache.h"

#include <memory>
#include <utility>

#include "context.h"
#include "delegate.h"
#include "stream.h"

namespace pteron::cuda {

namespace {

constexpr size_t kStep = 512;

// The legacy stream and the library's own do not come to an end.
bool is_lasting(int device, Stream stream) {
  return stream == nullptr || stream == shared_stream(device);
}

}  // namespace

size_t BlockCache::rounded(size_t nbytes) noexcept {
  return nbytes == 0 ? kStep : (nbytes + kStep - 1) / kStep * kStep;
}

// From the work that used the block to what comes on `stream`.
void BlockCache::hand_over(Block& block, Stream stream) const {
  if (block.event == nullptr) {
    if (block.stream == stream) return;
    block.event = record_event(device_, block.stream);
  }
  check(driver().stream_wait_event(stream, block.event, 0), "order two CUDA streams");
  release_event(device_, std::exchange(block.event, nullptr));
}

void* BlockCache::take(size_t nbytes, Stream stream) {
  const size_t size = rounded(nbytes);
  Block block;
  {
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(size);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    // The one that was given back last, and on this stream if there is one.
    auto& blocks = found->second;
    size_t i = blocks.size() - 1;
    while (i > 0 && blocks[i].stream != stream) --i;
    if (blocks[i].stream != stream) i = blocks.size() - 1;
    block = blocks[i];
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    nbytes_ -= size;
  }
  try {
    hand_over(block, stream);
  } catch (...) {
    std::lock_guard lock(mutex_);
    blocks_[size].push_back(block);
    nbytes_ += size;
    throw;
  }
  return block.pointer;
}

bool BlockCache::put(void* pointer, size_t nbytes, Stream stream) {
  const size_t size = rounded(nbytes);
  if (size > kMostEach) return false;
  Event event = nullptr;
  if (!is_lasting(device_, stream)) event = record_event(device_, stream);
  std::lock_guard lock(mutex_);
  // Asked under the lock: who destroys the last handle comes here for all blocks after that.
  if (nbytes_ + size > kMost || live_handles() == 0) {
    release_event(device_, event);
    return false;
  }
  blocks_[size].push_back({pointer, stream, event});
  nbytes_ += size;
  return true;
}

std::vector<void*> BlockCache::clear(Stream stream) {
  std::vector<void*> all;
  std::lock_guard lock(mutex_);
  for (auto& [size, blocks] : blocks_) {
    while (!blocks.empty()) {
      all.reserve(all.size() + 1);
      if (to_code([&] { hand_over(blocks.back(), stream); }) != ErrorCode::Ok) break;
      all.push_back(blocks.back().pointer);
      blocks.pop_back();
      nbytes_ -= size;
    }
  }
  return all;
}

BlockCache& block_cache(int device) {
  static std::mutex mutex;
  static auto* const all = new std::map<int, std::unique_ptr<BlockCache>>;
  std::lock_guard lock(mutex);
  auto& cache = (*all)[device];
  if (cache == nullptr) cache = std::make_unique<BlockCache>(device);
  return *cache;
}

}  // namespace pteron::cuda

#include "block_cache.h"

#include <memory>

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

void record(Event event, Stream stream) {
  check(driver().event_record(event, stream), "record a CUDA event");
}

}  // namespace

size_t BlockCache::rounded(size_t nbytes) noexcept {
  return nbytes == 0 ? kStep : (nbytes + kStep - 1) / kStep * kStep;
}

void* BlockCache::take(size_t nbytes, Stream stream) {
  Block block;
  {
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(rounded(nbytes));
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    // The one that was given back last, and on this stream if there is one.
    auto& blocks = found->second;
    size_t i = blocks.size() - 1;
    while (i > 0 && blocks[i].stream != stream) --i;
    if (blocks[i].stream != stream) i = blocks.size() - 1;
    block = blocks[i];
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    nbytes_ -= found->first;
  }
  if (block.event == nullptr) {
    if (block.stream == stream) return block.pointer;
    block.event = acquire_event(device_);
    record(block.event, block.stream);
  }
  const Result result = driver().stream_wait_event(stream, block.event, 0);
  release_event(device_, block.event);
  check(result, "order two CUDA streams");
  return block.pointer;
}

bool BlockCache::put(void* pointer, size_t nbytes, Stream stream) {
  const size_t size = rounded(nbytes);
  if (size > kMostEach || live_handles() == 0) return false;
  Event event = nullptr;
  if (!is_lasting(device_, stream)) {
    event = acquire_event(device_);
    record(event, stream);
  }
  std::lock_guard lock(mutex_);
  if (nbytes_ + size > kMost) {
    release_event(device_, event);
    return false;
  }
  blocks_[size].push_back({pointer, stream, event});
  nbytes_ += size;
  return true;
}

std::vector<void*> BlockCache::clear() {
  std::vector<void*> all;
  std::lock_guard lock(mutex_);
  for (const auto& [size, blocks] : blocks_) {
    for (const Block& block : blocks) {
      all.push_back(block.pointer);
      release_event(device_, block.event);
    }
  }
  blocks_.clear();
  nbytes_ = 0;
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

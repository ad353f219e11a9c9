// Device memory that was given back and may serve again at once: asking the driver's pool and
// giving back to it costs more than a microsecond each time, and models and results ask for the
// same sizes in every run.
//
// A block may be used again by what comes after the work that used it. On the stream that it was
// given back on that is so by itself; another stream waits for an event.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "driver.h"

namespace pteron::cuda {

class BlockCache {
 public:
  explicit BlockCache(int device) : device_(device) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Bytes that a block for `nbytes` should have.
  static size_t rounded(size_t nbytes) noexcept;

  // A block of rounded(nbytes) that work on `stream` may use, or null.
  void* take(size_t nbytes, Stream stream);
  // Keeps a block whose last use is on `stream` already. False: it has no place.
  bool put(void* pointer, size_t nbytes, Stream stream);
  // All blocks, which work on `stream` may use from now on; but for those that cannot be ordered.
  std::vector<void*> clear(Stream stream);

 private:
  static constexpr size_t kMostEach = 32 << 20;  // bytes
  static constexpr size_t kMost = 128 << 20;     // of all

  struct Block {
    void* pointer;
    Stream stream;
    Event event;  // null: the stream is there for good, and can be asked when the block is taken
  };

  void hand_over(Block& block, Stream stream) const;

  int device_;
  std::mutex mutex_;
  std::map<size_t, std::vector<Block>> blocks_;  // by size
  size_t nbytes_ = 0;
};

// The device's own.
BlockCache& block_cache(int device);

}  // namespace pteron::cuda

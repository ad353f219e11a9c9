#include "staging.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "context.h"
#include "workers.h"

namespace pteron::cuda {

namespace {

constexpr size_t kChunk = 512 << 10;  // smaller ones spend their time in the driver
constexpr size_t kBuffersEach = 2;    // one that the device copies, one that the thread fills

// The pinned buffers of a device, some for each thread that copies. Kept until the process ends.
class Buffers {
 public:
  std::mutex mutex;  // held for a whole copy

  bool prepare() {
    if (attempted_) return memory_ != nullptr;
    attempted_ = true;
    const size_t count = (num_workers() + 1) * kBuffersEach;
    const Driver& d = driver();
    void* pinned = nullptr;
    if (d.host_alloc == nullptr || d.host_alloc(&pinned, kChunk * count, 0) != kSuccess) {
      return false;
    }
    slots_.resize(count);
    for (Slot& slot : slots_) {
      check(d.event_create(&slot.event, kEventNoTiming), "create a CUDA event");
    }
    memory_ = static_cast<char*>(pinned);
    return true;
  }

  // The buffer of this thread that has rested longest, once the device is done with it.
  size_t next(size_t worker) {
    Slot& first = slots_[worker * kBuffersEach];
    const size_t slot = worker * kBuffersEach + first.turn;
    first.turn = (first.turn + 1) % kBuffersEach;
    wait(slot);
    return slot;
  }

  char* data(size_t slot) const { return memory_ + slot * kChunk; }

  void mark(size_t slot, Stream stream) {
    check(driver().event_record(slots_[slot].event, stream), "record a CUDA event");
    slots_[slot].used = true;
  }

  void wait(size_t slot) {
    if (!std::exchange(slots_[slot].used, false)) return;
    check(driver().event_synchronize(slots_[slot].event), "wait for a copy");
  }

 private:
  struct Slot {
    Event event = nullptr;  // the last use of the buffer on the device
    bool used = false;
    size_t turn = 0;  // of the thread, in its first slot
  };

  bool attempted_ = false;
  char* memory_ = nullptr;
  std::vector<Slot> slots_;
};

Buffers& buffers_of(int device) {
  static std::mutex mutex;
  static auto* const all = new std::map<int, std::unique_ptr<Buffers>>;
  std::lock_guard lock(mutex);
  auto& buffers = (*all)[device];
  if (buffers == nullptr) buffers = std::make_unique<Buffers>();
  return *buffers;
}

// Calls copy(offset, count, worker) for every chunk. False: nothing was done.
template <typename Copy>
bool in_chunks(int device, size_t nbytes, Buffers& buffers, Copy&& copy) {
  const std::unique_lock lock(buffers.mutex, std::try_to_lock);
  if (!lock.owns_lock() || !buffers.prepare()) return false;
  for_each_parallel((nbytes + kChunk - 1) / kChunk, [&](size_t chunk, size_t worker) {
    ContextGuard guard(device);
    copy(chunk * kChunk, std::min(kChunk, nbytes - chunk * kChunk), worker);
  });
  return true;
}

}  // namespace

bool upload_staged(int device, void* dst, const void* src, size_t nbytes, Stream stream) {
  Buffers& buffers = buffers_of(device);
  return in_chunks(device, nbytes, buffers, [&](size_t at, size_t count, size_t worker) {
    const size_t slot = buffers.next(worker);
    std::memcpy(buffers.data(slot), static_cast<const char*>(src) + at, count);
    check(driver().copy_htod_async(to_device_ptr(static_cast<char*>(dst) + at), buffers.data(slot),
                                   count, stream),
          "copy host memory to the device");
    buffers.mark(slot, stream);
  });
}

bool download_staged(int device, void* dst, const void* src, size_t nbytes, Stream stream) {
  Buffers& buffers = buffers_of(device);
  return in_chunks(device, nbytes, buffers, [&](size_t at, size_t count, size_t worker) {
    const size_t slot = buffers.next(worker);
    check(driver().copy_dtoh_async(
              buffers.data(slot), to_device_ptr(static_cast<const char*>(src) + at), count, stream),
          "copy device memory to the host");
    buffers.mark(slot, stream);
    buffers.wait(slot);
    std::memcpy(static_cast<char*>(dst) + at, buffers.data(slot), count);
  });
}

}  // namespace pteron::cuda

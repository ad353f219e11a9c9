#include "workers.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace pteron::cuda {

namespace {

constexpr size_t kMostWorkers = 3;

using Body = std::function<void(size_t, size_t)>;

class Workers {
 public:
  Workers() {
    for (size_t i = 1; i <= num_workers(); ++i) {
      std::thread([this, i] { serve(i); }).detach();
    }
  }

  void run(size_t items, const Body& body) {
    {
      std::lock_guard lock(mutex_);
      body_ = &body;
      items_ = items;
      next_ = 0;
      error_ = nullptr;
    }
    wake_.notify_all();
    work(body, items, 0);
    std::unique_lock lock(mutex_);
    body_ = nullptr;  // whoever wakes up now finds nothing to do
    idle_.wait(lock, [this] { return active_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  std::mutex exclusive;  // held by the thread that uses the helpers

 private:
  void serve(size_t worker) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return body_ != nullptr && next_ < items_; });
      const Body& body = *body_;
      const size_t items = items_;
      ++active_;
      lock.unlock();
      work(body, items, worker);
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  void work(const Body& body, size_t items, size_t worker) noexcept {
    for (size_t item = next_++; item < items; item = next_++) {
      try {
        body(item, worker);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_ = items;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  const Body* body_ = nullptr;
  size_t items_ = 0;
  std::atomic<size_t> next_{0};
  size_t active_ = 0;
  std::exception_ptr error_;
};

Workers& workers() {
  static auto* const instance = new Workers;  // its threads use it until the process ends
  return *instance;
}

}  // namespace

size_t num_workers() {
  static const size_t count =
      std::min<size_t>(kMostWorkers, std::max(1U, std::thread::hardware_concurrency()) - 1);
  return count;
}

void for_each_parallel(size_t items, const Body& body) {
  if (items > 1 && num_workers() > 0) {
    const std::unique_lock lock(workers().exclusive, std::try_to_lock);
    if (lock.owns_lock()) {
      workers().run(items, body);
      return;
    }
  }
  for (size_t item = 0; item < items; ++item) body(item, 0);
}

}  // namespace pteron::cuda

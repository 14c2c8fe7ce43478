// A std::shared_mutex that lets a waiting writer through before further readers. The C library's
// own prefers readers: while readers keep overlapping, a writer waits for ever.
#ifndef TILEWRIGHT_BASE_SHARED_MUTEX_H_
#define TILEWRIGHT_BASE_SHARED_MUTEX_H_

#include <atomic>
#include <mutex>
#include <shared_mutex>

namespace tilewright {

// Used through std::unique_lock and std::shared_lock. Not recursive.
class SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() {
    waiting_writers_.fetch_add(1, std::memory_order_relaxed);
    {
      // Readers that come now queue up here; those inside leave in their own time.
      std::lock_guard<std::mutex> turn(turn_);
      mutex_.lock();
    }
    waiting_writers_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

  void lock_shared() {
    // Only a hint, so that readers among themselves pay for no second lock.
    if (waiting_writers_.load(std::memory_order_relaxed) > 0) {
      std::lock_guard<std::mutex> turn(turn_);
    }
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::atomic<int> waiting_writers_ = 0;
  std::mutex turn_;
  std::shared_mutex mutex_;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_SHARED_MUTEX_H_

// One tuner per GPU and host: two that measure at once would both measure wrong.
#ifndef TILEWRIGHT_TUNE_GPU_LOCK_H_
#define TILEWRIGHT_TUNE_GPU_LOCK_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace tilewright::tune {

// A name that one holder at a time can have: an abstract socket address (unix(7)), bound and never
// used. It needs no file and no permission, is seen by every user and container that shares the
// network namespace, and is free again when its holder dies, however it dies. A child forked while
// it is held keeps it until it execs or exits. Where containers have network namespaces of their
// own they do not see each other; noise bands and discarded rounds must do there.
class GpuLock {
 public:
  // Waits until `deadline`, asking every 5 to 50 ms; `stop` ends the wait. Nothing when
  // another holder kept it. Where the system has no such sockets the lock is given, as a courtesy
  // that cannot be had must not stop the work.
  static std::optional<GpuLock> Acquire(const std::string& gpu_uuid,
                                        std::chrono::steady_clock::time_point deadline,
                                        const std::function<bool()>& stop = nullptr);

  GpuLock(GpuLock&& other) noexcept;
  GpuLock& operator=(GpuLock&& other) noexcept;
  ~GpuLock();

 private:
  explicit GpuLock(int socket) : socket_(socket) {}
  int socket_;  // -1: none was to be had
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_GPU_LOCK_H_

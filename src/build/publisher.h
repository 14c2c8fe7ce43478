// Publishes entries on a thread of its own, so that a kernel is launched before it is on disk.
#ifndef TILEWRIGHT_BUILD_PUBLISHER_H_
#define TILEWRIGHT_BUILD_PUBLISHER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "cache/artifact_store.h"

namespace tilewright::build {

// Thread-safe. Jobs are done in the order of the calls. The thread starts with the first job and
// blocks every signal, so that the host program's handlers run on its own threads.
class Publisher {
 public:
  // Entries that may wait at a time. A store slower than this many compiles ahead (a hung network
  // file system) loses entries instead of holding up callers or memory.
  static constexpr size_t kMaxPending = 256;

  Publisher(cache::ArtifactStore* store, const Logger* logger) : store_(store), logger_(*logger) {}
  // Shutdown without a limit.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Puts `entry`, then releases `lock` (so that a process waiting for it finds the entry) and calls
  // `done`, whether or not the entry could be stored.
  void Put(cache::Entry entry, std::unique_ptr<cache::ArtifactStore::KeyLock> lock,
           const std::function<void()>& done);

  // Removes an entry, after those put before.
  void Remove(const Digest& digest, std::string variant_hex);

  // Adds what `totals` gives, on the thread, to the totals of the store, after the jobs before.
  void AddToTotals(std::function<cache::Totals()> totals);

  // Ends the thread: waits up to a second for pending jobs, drops those that have not begun by
  // then, and waits for the one that has until `timeout_ms` after the call. False when that one is
  // still not back: a store that hangs (a network file system without its server) must not hang the
  // end of the program. The thread is then left to itself, silent, and neither the publisher, nor
  // the store, nor what a callback uses may ever be destroyed. Later jobs are dropped.
  [[nodiscard]] bool Shutdown(int timeout_ms);

  // Entries and removals that were dropped because too many waited.
  int64_t dropped() const;

  // False when jobs are still pending after `timeout_ms`.
  bool Flush(int timeout_ms);

 private:
  using Job = std::function<void()>;
  // Queues `job`; does it at once where there is no thread for it; calls `dropped` instead where
  // too many wait.
  void Enqueue(Job job, const std::function<void()>& dropped);
  bool HaveThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();

  cache::ArtifactStore* const store_;
  const Logger logger_;  // a copy: the caller's may end before a thread that was left
  mutable Mutex mutex_;
  CondVar wake_;  // the thread: a job or the end
  CondVar idle_;  // Flush: nothing pending
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::build

#endif  // TILEWRIGHT_BUILD_PUBLISHER_H_

// Locks that keep the processes of a host from compiling the same kernel at the same time. They
// save work; nothing is wrong when they fail.
//
// All keys share one file: a key locks the byte at an offset made of its digest, so that two keys
// practically never wait for one another, no lock file is made or removed, and the kernel releases
// what a killed process held.
#ifndef TILEWRIGHT_CACHE_KEY_LOCKS_H_
#define TILEWRIGHT_CACHE_KEY_LOCKS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "cache/artifact_store.h"
#include "cache/store_directory.h"

namespace tilewright::cache {

struct LockStats {
  int64_t waits = 0;
  double wait_ms = 0;
  int64_t timeouts = 0;
};

// Thread-safe. Locks keep the object alive that they came from.
class KeyLocks : public std::enable_shared_from_this<KeyLocks> {
 public:
  explicit KeyLocks(const StoreDirectory& directory) : directory_(directory) {}

  // As ArtifactStore::Lock; excludes the other threads of this process as well.
  std::unique_ptr<ArtifactStore::KeyLock> Lock(const Digest& digest, int timeout_ms);

  // The lock of the collector: nullptr when another process or thread collects. Where the file
  // system has no locks one is granted: two collectors at once remove files that neither needs.
  std::unique_ptr<ArtifactStore::KeyLock> LockForGc();

  LockStats stats() const;

 private:
  class Held;
  using Clock = std::chrono::steady_clock;
  enum class Attempt { kLocked, kBusy, kNoLocks };

  std::unique_ptr<ArtifactStore::KeyLock> LockOffset(int64_t offset, int timeout_ms);
  // Sets `waited` when it was not free at once.
  bool ClaimInProcess(int64_t offset, Clock::time_point deadline, bool* waited);
  void Disclaim(int64_t offset);
  Attempt TryLock(int64_t offset);
  void Unlock(int64_t offset);
  int OpenLockFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StoreDirectory directory_;
  mutable Mutex mutex_;
  CondVar released_;
  // Offsets that threads of a process hold or wait for. After a fork those of the parent mean
  // nothing, hence the process id.
  absl::flat_hash_map<int64_t, pid_t> claims_ ABSL_GUARDED_BY(mutex_);
  // Opened by the first lock and kept: closing any handle of the file would drop all locks on it.
  ScopedHandle file_ ABSL_GUARDED_BY(mutex_);
  LockStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_KEY_LOCKS_H_

#include "cache/key_locks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/elapsed.h"

namespace tilewright::cache {
namespace {

constexpr int64_t kGcOffset = 0;
constexpr char kLockFileName[] = "keys.lock";

// 62 bits of the digest, above kGcOffset.
int64_t OffsetOf(const Digest& digest) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 8 | digest.bytes[static_cast<size_t>(i)];
  return static_cast<int64_t>(bits >> 2) + 1;
}

}  // namespace

class KeyLocks::Held : public ArtifactStore::KeyLock {
 public:
  Held(std::shared_ptr<KeyLocks> locks, int64_t offset, bool on_disk)
      : locks_(std::move(locks)), offset_(offset), on_disk_(on_disk), process_(getpid()) {}
  ~Held() override {
    if (getpid() != process_) return;  // a forked child does not have the lock
    if (on_disk_) locks_->Unlock(offset_);
    locks_->Disclaim(offset_);
  }

 private:
  const std::shared_ptr<KeyLocks> locks_;
  const int64_t offset_;
  const bool on_disk_;
  const pid_t process_;
};

std::unique_ptr<ArtifactStore::KeyLock> KeyLocks::Lock(const Digest& digest, int timeout_ms) {
  return LockOffset(OffsetOf(digest), timeout_ms);
}

std::unique_ptr<ArtifactStore::KeyLock> KeyLocks::LockForGc() {
  bool waited = false;
  if (!ClaimInProcess(kGcOffset, Clock::now(), &waited)) return nullptr;
  const Attempt attempt = TryLock(kGcOffset);
  if (attempt == Attempt::kBusy) {
    Disclaim(kGcOffset);
    return nullptr;
  }
  return std::make_unique<Held>(shared_from_this(), kGcOffset, attempt == Attempt::kLocked);
}

std::unique_ptr<ArtifactStore::KeyLock> KeyLocks::LockOffset(int64_t offset, int timeout_ms) {
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + std::chrono::milliseconds(std::max(timeout_ms, 0));
  bool waited = false;
  Attempt attempt = Attempt::kBusy;
  if (ClaimInProcess(offset, deadline, &waited)) {
    // There is no system call that waits for a lock but not longer than a time, and alarms belong
    // to the program; so ask again, less and less often.
    constexpr auto kLongestPause = std::chrono::microseconds(20000);
    auto pause = std::chrono::microseconds(500);
    while ((attempt = TryLock(offset)) == Attempt::kBusy) {
      waited = true;
      const Clock::time_point now = Clock::now();
      if (now >= deadline) break;
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
      pause = std::min(pause * 3 / 2, kLongestPause);
    }
    if (attempt != Attempt::kLocked) Disclaim(offset);
  }
  if (waited) {
    MutexLock lock(&mutex_);
    ++stats_.waits;
    stats_.wait_ms += MillisecondsSince(start);
    if (attempt == Attempt::kBusy) ++stats_.timeouts;
  }
  if (attempt != Attempt::kLocked) return nullptr;
  return std::make_unique<Held>(shared_from_this(), offset, true);
}

bool KeyLocks::ClaimInProcess(int64_t offset, Clock::time_point deadline, bool* waited) {
  const pid_t process = getpid();
  MutexLock lock(&mutex_);
  while (true) {
    const auto [claim, inserted] = claims_.try_emplace(offset, process);
    if (inserted) return true;
    if (claim->second != process) {
      claim->second = process;
      return true;
    }
    *waited = true;
    if (Clock::now() >= deadline) return false;
    (void)released_.WaitUntil(&mutex_, deadline);
  }
}

void KeyLocks::Disclaim(int64_t offset) {
  {
    MutexLock lock(&mutex_);
    claims_.erase(offset);
  }
  released_.SignalAll();
}

KeyLocks::Attempt KeyLocks::TryLock(int64_t offset) {
  MutexLock lock(&mutex_);
  if (OpenLockFile() != 0) return Attempt::kNoLocks;
  const int error = directory_.file_system().TryLock(file_.get(), offset);
  if (error == 0) return Attempt::kLocked;
  return error == EAGAIN || error == EACCES ? Attempt::kBusy : Attempt::kNoLocks;
}

void KeyLocks::Unlock(int64_t offset) {
  MutexLock lock(&mutex_);
  // An error leaves the lock to the end of the process; others then time out and compile.
  if (file_.valid()) (void)directory_.file_system().Unlock(file_.get(), offset);
}

int KeyLocks::OpenLockFile() {
  FileSystem& file_system = directory_.file_system();
  ScopedHandle directory;
  // Not durable: whoever locks is about to compile and must not wait for the disk, and nobody
  // misses the directory after a power cut.
  if (const Fault fault =
          directory_.Open({"v1", "l"}, /*create=*/true, &directory, /*durable=*/false);
      !fault.ok()) {
    return fault.error != 0 ? fault.error : EPERM;
  }
  if (file_.valid()) {
    // Whoever cleared the directory removed the name; new processes lock another file then. An
    // error tells nothing of the kind, and to open the same file again would drop every lock.
    FileInfo held;
    FileInfo named;
    const int error = file_system.StatAt(directory.get(), kLockFileName, &named);
    if (error != 0 && error != ENOENT) return 0;
    if (file_system.Stat(file_.get(), &held) != 0) return 0;
    if (error == 0 && held.inode == named.inode && held.device == named.device) return 0;
  }
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = file_system.OpenOrCreateFile(directory.get(), kLockFileName,
                                                     directory_.file_mode(), &handle);
      error != 0) {
    return error;
  }
  ScopedHandle file(&file_system, handle);
  FileInfo info;
  if (!directory_.CheckFile(handle, &info).ok()) return EPERM;
  file_ = std::move(file);
  return 0;
}

LockStats KeyLocks::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tilewright::cache

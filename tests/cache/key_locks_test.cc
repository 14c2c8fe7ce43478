#include "cache/key_locks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using Clock = std::chrono::steady_clock;

class KeyLocksTest : public ::testing::Test {
 protected:
  std::shared_ptr<KeyLocks> Locks(FileSystem* file_system = &FileSystem::Posix()) {
    return std::make_shared<KeyLocks>(StoreDirectory(file_system, directory_, TrustRules{}));
  }
  // What another process sees.
  std::string LockInChild(const Digest& digest, int timeout_ms = 0) {
    return testing::RunInChild([&]() -> std::string {
      return Locks()->Lock(digest, timeout_ms) != nullptr ? "locked" : "busy";
    });
  }

  testing::TempDirectory temp_;
  const std::string directory_ = temp_.path() + "/store";
  const Digest key_ = Sha256("key");
};

TEST_F(KeyLocksTest, HoldsUntilItIsDestroyed) {
  const auto locks = Locks();
  auto held = locks->Lock(key_, 0);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(LockInChild(key_), "busy");
  EXPECT_EQ(LockInChild(Sha256("other")), "locked");
  held.reset();
  EXPECT_EQ(LockInChild(key_), "locked");
}

TEST_F(KeyLocksTest, ThreadsOfOneProcessExcludeOneAnother) {
  const auto locks = Locks();
  std::atomic<int> inside = 0;
  std::atomic<int> worst = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const auto held = locks->Lock(key_, 10000);
        if (held == nullptr) worst = 100;
        const int now = ++inside;
        if (now > worst) worst = now;
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(worst, 1);
}

TEST_F(KeyLocksTest, GivesUpAfterTheTimeOut) {
  const auto locks = Locks();
  const auto held = locks->Lock(key_, 0);
  const auto start = Clock::now();
  EXPECT_EQ(locks->Lock(key_, 50), nullptr);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(locks->stats().timeouts, 1);
  EXPECT_EQ(locks->stats().waits, 1);
  EXPECT_GE(locks->stats().wait_ms, 50);
  EXPECT_EQ(LockInChild(key_, 30), "busy");
}

TEST_F(KeyLocksTest, AFreeLockIsNoWait) {
  const auto locks = Locks();
  EXPECT_NE(locks->Lock(key_, 1000), nullptr);
  EXPECT_NE(locks->Lock(key_, 1000), nullptr);
  EXPECT_EQ(locks->stats().waits, 0);
}

TEST_F(KeyLocksTest, AKilledHolderHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = testing::StartChild([&] {
    const auto held = Locks()->Lock(key_, 0);
    (void)!write(ready[1], "x", 1);
    pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto locks = Locks();
  EXPECT_EQ(locks->Lock(key_, 0), nullptr);
  kill(holder, SIGKILL);
  EXPECT_NE(locks->Lock(key_, 10000), nullptr);
  (void)testing::WaitForChild(holder);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(KeyLocksTest, GoesOnWhereTheLockFileWasRemoved) {
  const auto locks = Locks();
  const auto held = locks->Lock(key_, 0);
  std::filesystem::remove_all(directory_);
  const auto again = locks->Lock(Sha256("other"), 0);
  EXPECT_NE(again, nullptr);
  EXPECT_EQ(LockInChild(Sha256("other")), "busy");
}

// On the way to a compile: a sync takes as long as the disk likes.
TEST_F(KeyLocksTest, ALockWaitsForNoDisk) {
  const std::string root = temp_.path() + "/store";
  std::filesystem::create_directory(root);
  std::filesystem::permissions(root, std::filesystem::perms::owner_all);
  testing::FaultyFileSystem recorder(&FileSystem::Posix());
  ASSERT_NE(Locks(&recorder)->Lock(key_, 0), nullptr);
  EXPECT_EQ(std::count(recorder.log().begin(), recorder.log().end(), "Sync"), 0);
  EXPECT_EQ(std::count(recorder.log().begin(), recorder.log().end(), "MakeDirectory l"), 1);
}

// POSIX drops all locks of a process on a file when it closes any descriptor of it.
TEST_F(KeyLocksTest, AnErrorOfTheFileSystemDropsNoLock) {
  for (const int error : {EIO, EACCES, ESTALE, EMFILE, EBUSY, EINTR}) {
    for (int64_t call = 1;; ++call) {
      testing::FaultyFileSystem faulty(&FileSystem::Posix());
      const auto locks = Locks(&faulty);
      const auto held = locks->Lock(key_, 0);
      ASSERT_NE(held, nullptr);
      faulty.ClearLog();
      faulty.FailAt(call, error);
      (void)locks->Lock(Sha256("other"), 0);
      if (faulty.calls() < call) break;
      EXPECT_EQ(LockInChild(key_), "busy") << error << " at call " << call;
    }
  }
}

// R24: a file system without locks costs nothing but the exclusion.
TEST_F(KeyLocksTest, WithoutLocksTheCallerGoesOnAtOnce) {
  for (int error : {ENOLCK, ENOTSUP, ENOSYS, EIO, ESTALE, EINTR}) {
    testing::FaultyFileSystem faulty(&FileSystem::Posix());
    const auto locks = Locks(&faulty);
    ASSERT_NE(locks->Lock(key_, 0), nullptr);
    faulty.FailAt(1, error, /*forever=*/true);
    const auto start = Clock::now();
    EXPECT_EQ(locks->Lock(key_, 60000), nullptr);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  }
}

TEST_F(KeyLocksTest, ALockMayOutliveItsStore) {
  auto locks = Locks();
  auto held = locks->Lock(key_, 0);
  locks.reset();
  EXPECT_EQ(LockInChild(key_), "busy");
  held.reset();
  EXPECT_EQ(LockInChild(key_), "locked");
}

TEST_F(KeyLocksTest, OneCollectorAtATime) {
  const auto locks = Locks();
  auto held = locks->LockForGc();
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(locks->LockForGc(), nullptr);
  EXPECT_EQ(testing::RunInChild([&]() -> std::string {
              return Locks()->LockForGc() == nullptr ? "busy" : "locked";
            }),
            "busy");
  EXPECT_NE(locks->Lock(key_, 0), nullptr);
  held.reset();
  EXPECT_NE(locks->LockForGc(), nullptr);
}

}  // namespace
}  // namespace tilewright::cache

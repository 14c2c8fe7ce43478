// The store among processes that compete and die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cache/disk_store.h"
#include "tests/cache/test_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using testing::FaultyFileSystem;
using testing::StartChild;
using testing::WaitForChild;
using Clock = std::chrono::steady_clock;

// Counters that all processes see.
struct Shared {
  std::atomic<int> started{0};
  std::atomic<int> finished{0};
  std::atomic<int> arrived{0};
};

class StoreProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
  }
  void TearDown() override { munmap(shared_, sizeof(Shared)); }

  std::unique_ptr<DiskStore> Open(FileSystem* file_system = &FileSystem::Posix()) {
    auto store = DiskStore::Open({.directory = directory_}, Logger(LogLevel::kOff), file_system);
    return store.ok() ? *std::move(store) : nullptr;
  }

  // What a process does that wants entry `index`: look, lock, look again, compute, publish.
  // `compute` is called at most once. 0 when it ends with the right entry.
  int Obtain(int index, const std::function<void()>& compute) {
    const auto store = Open();
    if (store == nullptr) return 2;
    const Entry entry = NumberedEntry(index, 20000);
    if (Serves(*store, entry)) return 0;
    const auto lock = store->Lock(KeyOf(entry).digest, 60000);
    if (lock == nullptr) return 3;
    if (Serves(*store, entry)) return 0;
    compute();
    return store->Put(entry).ok() ? 0 : 4;
  }

  testing::TempDirectory temp_;
  const std::string directory_ = temp_.path() + "/store";
  Shared* shared_ = nullptr;
};

void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// R20
TEST_F(StoreProcessesTest, SixtyFourProcessesComputeOnceThoughHoldersDie) {
  constexpr int kProcesses = 64;
  constexpr int kVictims = 5;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(StartChild([&] {
      return Obtain(1, [&] {
        const int order = shared_->started++;
        std::mt19937 dice(static_cast<unsigned>(order));
        if (order < kVictims) {
          SleepMs(static_cast<int>(dice() % 10));
          raise(SIGKILL);
        }
        SleepMs(50);
        ++shared_->finished;
      });
    }));
  }
  int killed = 0;
  int right = 0;
  for (pid_t child : children) {
    const int status = WaitForChild(child);
    killed += status == -SIGKILL ? 1 : 0;
    right += status == 0 ? 1 : 0;
  }
  EXPECT_EQ(killed, kVictims);
  EXPECT_EQ(right, kProcesses - kVictims);
  EXPECT_EQ(shared_->finished, 1);
  EXPECT_EQ(Open()->Stats().entries, 1);
}

// The lock is per key: all sixteen are inside at the same time.
TEST_F(StoreProcessesTest, SixteenProcessesWithSixteenKeysDoNotWait) {
  constexpr int kProcesses = 16;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(StartChild([&, i] {
      bool together = false;
      const int status = Obtain(i, [&] {
        ++shared_->arrived;
        const auto deadline = Clock::now() + std::chrono::seconds(20);
        while (shared_->arrived < kProcesses && Clock::now() < deadline) SleepMs(1);
        together = shared_->arrived == kProcesses;
      });
      return status != 0 ? status : together ? 0 : 10;
    }));
  }
  for (pid_t child : children) EXPECT_EQ(WaitForChild(child), 0);
}

TEST_F(StoreProcessesTest, AWaiterGivesUpOnAHolderThatHangs) {
  const pid_t holder = StartChild([&] {
    const auto store = Open();
    const auto lock = store->Lock(KeyOf(NumberedEntry(1)).digest, 0);
    ++shared_->arrived;
    pause();
    return 0;
  });
  while (shared_->arrived == 0) SleepMs(1);
  const auto store = Open();
  const auto start = Clock::now();
  EXPECT_EQ(store->Lock(KeyOf(NumberedEntry(1)).digest, 100), nullptr);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(100));
  EXPECT_EQ(store->Stats().lock_timeouts, 1);
  kill(holder, SIGKILL);
  (void)WaitForChild(holder);
}

// A publisher killed before each of its calls in turn.
TEST_F(StoreProcessesTest, DeathAtAnyCallOfAPublishLeavesNoBadEntry) {
  const Entry entry = NumberedEntry(1, 20000);
  int killed = 0;
  for (int64_t call = 1;; ++call) {
    std::filesystem::remove_all(directory_);
    const int status = WaitForChild(StartChild([&] {
      FaultyFileSystem dying(&FileSystem::Posix());
      dying.KillAt(call);
      const auto store = Open(&dying);
      return store != nullptr && store->Put(entry).ok() ? 0 : 1;
    }));
    const auto store = Open();
    const std::string miss = MissOf(*store, entry);
    EXPECT_TRUE(miss == "hit" || miss == "absent") << miss << ", call " << call;
    EXPECT_EQ(store->Stats().corrupt, 0) << call;
    ASSERT_TRUE(store->Put(entry).ok()) << call;
    EXPECT_TRUE(Serves(*store, entry)) << call;
    if (status == 0) break;
    ASSERT_EQ(status, -SIGKILL);
    ++killed;
  }
  EXPECT_GT(killed, 20);
}

// R65: and at random moments of publish and gc, within system calls too.
TEST_F(StoreProcessesTest, DeathAtAThousandRandomMomentsLeavesNoBadEntry) {
  constexpr int kDeaths = 1000;
  constexpr int kEntries = 40;
  std::mt19937 dice(7);
  for (int death = 0; death < kDeaths; ++death) {
    const pid_t child = StartChild([&] {
      const auto store = Open();
      for (int i = 0;; ++i) {
        Entry entry = NumberedEntry(i % kEntries, 30000);
        // Other contents each time, so that there is always something to write.
        entry.sections.push_back({"round", std::to_string(death) + " " + std::to_string(i)});
        if (!store->Put(entry).ok()) return 1;
        // Every second child collects after each publish, so that it dies there as often.
        if (death % 2 == 1 && !store->Gc({.max_bytes = 200'000}).ok()) return 2;
      }
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(dice() % 4000));
    kill(child, SIGKILL);
    ASSERT_EQ(WaitForChild(child), -SIGKILL);
  }
  const auto store = Open();
  const auto infos = store->List();
  ASSERT_TRUE(infos.ok());
  EXPECT_GT(infos->size(), 0u);
  for (const EntryInfo& info : *infos) {
    const auto entry = store->Read(info);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ(entry->sections.size(), 3u);
  }
  EXPECT_EQ(store->Stats().corrupt, 0);

  // An hour later a collection leaves no temporary, and none of the dead holds its lock.
  const auto files_in = [&](const std::string& name) {
    return std::distance(std::filesystem::directory_iterator(directory_ + "/v1/" + name),
                         std::filesystem::directory_iterator());
  };
  EXPECT_GT(files_in("tmp"), 0);
  FaultyFileSystem later(&FileSystem::Posix());
  later.set_clock_offset_ns(int64_t{2} * 3600 * 1'000'000'000);
  const auto report = Open(&later)->Gc({});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ran);
  EXPECT_GT(report->swept_files, 0);
  EXPECT_EQ(files_in("tmp"), 0);
  EXPECT_EQ(store->List()->size(), infos->size());
}

// R27: collectors, readers and writers at once; nobody fails.
TEST_F(StoreProcessesTest, CollectorsDisturbNeitherReadersNorWriters) {
  constexpr int kWriters = 4;
  constexpr int kReaders = 2;
  constexpr int kCollectors = 2;
  constexpr int kKeys = 24;
  const auto deadline = Clock::now() + std::chrono::milliseconds(1500);
  std::vector<pid_t> writers;
  std::vector<pid_t> others;
  for (int p = 0; p < kWriters; ++p) {
    writers.push_back(StartChild([&, p] {
      const auto store = Open();
      for (int i = 0; Clock::now() < deadline; ++i) {
        if (!store->Put(NumberedEntry((i * 7 + p) % kKeys, 20000)).ok()) return 1;
      }
      return store->Stats().corrupt == 0 ? 0 : 2;
    }));
  }
  for (int p = 0; p < kReaders; ++p) {
    others.push_back(StartChild([&] {
      const auto store = Open();
      while (shared_->finished == 0) {
        for (int i = 0; i < kKeys; ++i) {
          const std::string miss = MissOf(*store, NumberedEntry(i, 20000));
          if (miss != "hit" && miss != "absent") return 1;
          shared_->arrived += miss == "hit" ? 1 : 0;
        }
      }
      return store->Stats().corrupt == 0 ? 0 : 2;
    }));
  }
  for (int p = 0; p < kCollectors; ++p) {
    others.push_back(StartChild([&] {
      const auto store = Open();
      while (shared_->finished == 0) {
        const auto report = store->Gc({.max_bytes = 150'000});
        if (!report.ok()) return 1;
        shared_->started += static_cast<int>(report->removed_entries);
      }
      return 0;
    }));
  }
  for (pid_t child : writers) EXPECT_EQ(WaitForChild(child), 0);
  shared_->finished = 1;
  for (pid_t child : others) EXPECT_EQ(WaitForChild(child), 0);
  EXPECT_GT(shared_->started, 0) << "nothing was collected";
  EXPECT_GT(shared_->arrived, 0) << "nothing was read";
  ASSERT_TRUE(Open()->Gc({.max_bytes = 150'000}).ok());
  EXPECT_LE(Open()->Stats().bytes, 150'000);
}

TEST_F(StoreProcessesTest, ManyProcessesPublishAndReadTheSameKeys) {
  constexpr int kProcesses = 8;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(StartChild([&, p] {
      const auto store = Open();
      for (int i = 0; i < 60; ++i) {
        const Entry entry = NumberedEntry((i + p) % 20, 10000);
        if (!store->Put(entry).ok() || !Serves(*store, entry)) return 1;
      }
      return store->Stats().corrupt == 0 ? 0 : 2;
    }));
  }
  for (pid_t child : children) EXPECT_EQ(WaitForChild(child), 0);
  EXPECT_EQ(Open()->Stats().entries, 20);
}

}  // namespace
}  // namespace tilewright::cache

// The store on a file system that fails: whatever fails, the caller gets the right bytes or a miss.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "cache/disk_store.h"
#include "tests/cache/test_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using testing::FaultyFileSystem;
using testing::MemoryFileSystem;

constexpr int kErrors[] = {EIO,    EACCES, EROFS, ENOSPC, EDQUOT, ESTALE,
                           EMFILE, EBUSY,  ELOOP, EINTR,  ENOENT, EPERM};

const Logger& Quiet() {
  static const Logger* const logger = new Logger(LogLevel::kOff);
  return *logger;
}

std::unique_ptr<DiskStore> Open(FileSystem* file_system, int64_t max_bytes = 0) {
  auto store = DiskStore::Open({.directory = MemoryFileSystem::kRoot, .max_bytes = max_bytes},
                               Quiet(), file_system);
  return store.ok() ? *std::move(store) : nullptr;
}

int CountBelow(const MemoryFileSystem& file_system, const std::string& prefix) {
  const std::vector<std::string> files = file_system.Files();
  return static_cast<int>(std::count_if(files.begin(), files.end(), [&](const std::string& file) {
    return file.starts_with(prefix);
  }));
}

// Everything that a store does, on a store that already holds entry 1. Returns what is wrong.
std::string UseEverything(DiskStore& store) {
  for (int i = 1; i <= 2; ++i) {
    const std::string miss = MissOf(store, NumberedEntry(i));
    if (miss == "wrong entry" || miss == "wrong status code") return miss;
    const Entry entry = NumberedEntry(i);
    const auto any = store.Get({.digest = KeyOf(entry).digest}, entry.manifest);
    if (any.ok() && !SameEntry(**any, entry)) return "wrong entry of any variant";
  }
  {
    const auto lock = store.Lock(KeyOf(NumberedEntry(2)).digest, 0);
    (void)store.Put(NumberedEntry(2));
  }
  const std::string miss = MissOf(store, NumberedEntry(2));
  if (miss == "wrong entry" || miss == "wrong status code") return miss;
  const auto infos = store.List();
  if (infos.ok()) {
    for (const EntryInfo& info : *infos) {
      const auto entry = store.Read(info);
      if (entry.ok() && Sha256(entry->manifest) != info.digest) return "wrong entry read";
    }
  }
  (void)store.Stats();
  (void)store.Gc({.max_bytes = 1 << 20});
  (void)store.Remove(KeyOf(NumberedEntry(2)).digest, "0123456789abcdef");
  return "";
}

// R16: one error at each call in turn, with and without the call having had its effect.
TEST(StoreFaultsTest, OneErrorAtAnyCallIsAMissAtWorst) {
  int injected = 0;
  for (int error : kErrors) {
    for (bool after_effect : {false, true}) {
      for (int64_t call = 1;; ++call) {
        MemoryFileSystem memory;
        ASSERT_TRUE(Open(&memory)->Put(NumberedEntry(1)).ok());
        FaultyFileSystem faulty(&memory);
        faulty.FailAt(call, error);
        faulty.set_fail_after_effect(after_effect);
        const std::string where =
            ErrnoText(error) + " at call " + std::to_string(call) + (after_effect ? " (done)" : "");
        bool reached = true;
        if (const auto store = Open(&faulty); store != nullptr) {
          EXPECT_EQ(UseEverything(*store), "") << where;
          reached = faulty.calls() >= call;
        }
        ASSERT_EQ(memory.open_handles(), 0u) << where;
        // Nothing half done is visible, and all works again.
        const auto later = Open(&memory);
        ASSERT_NE(later, nullptr) << where;
        EXPECT_EQ(later->Stats().entries, CountBelow(memory, "v1/k/")) << where;
        EXPECT_EQ(CountBelow(memory, "v1/bad/"), 0) << where;
        ASSERT_TRUE(later->Put(NumberedEntry(1)).ok()) << where;
        ASSERT_TRUE(later->Put(NumberedEntry(2)).ok()) << where;
        EXPECT_TRUE(Serves(*later, NumberedEntry(1))) << where;
        EXPECT_TRUE(Serves(*later, NumberedEntry(2))) << where;
        EXPECT_EQ(later->Stats().corrupt, 0) << where;
        if (!reached) break;
        ++injected;
      }
    }
  }
  EXPECT_GT(injected, 1000);
}

// A failed publish leaves neither an entry nor a temporary, wherever it failed.
TEST(StoreFaultsTest, AFailedPublishLeavesNothing) {
  for (int error : kErrors) {
    for (int64_t call = 1;; ++call) {
      MemoryFileSystem memory;
      FaultyFileSystem faulty(&memory);
      const auto store = Open(&faulty);
      ASSERT_NE(store, nullptr);
      faulty.ClearLog();
      faulty.FailAt(call, error);
      const absl::Status status = store->Put(NumberedEntry(1));
      const std::string where = ErrnoText(error) + " at call " + std::to_string(call);
      const bool reached = faulty.calls() >= call;
      const std::string failed =
          reached ? faulty.log()[static_cast<size_t>(call) - 1] : std::string();
      EXPECT_EQ(CountBelow(memory, "v1/k/"), status.ok() ? 1 : 0) << where;
      EXPECT_EQ(CountBelow(memory, "v1/tmp/"), 0) << where << ", " << failed;
      EXPECT_EQ(store->Stats().publishes, status.ok() ? 1 : 0) << where;
      EXPECT_EQ(store->Stats().publish_failures, status.ok() ? 0 : 1) << where;
      if (!reached) {
        EXPECT_TRUE(status.ok());
        break;
      }
    }
  }
}

TEST(StoreFaultsTest, AFileSystemThatFailsForGoodNeverFailsTheCaller) {
  for (int error : kErrors) {
    MemoryFileSystem memory;
    FaultyFileSystem faulty(&memory);
    const auto store = Open(&faulty);
    ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
    faulty.FailAt(1, error, /*forever=*/true);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(UseEverything(*store), "") << ErrnoText(error);
    EXPECT_EQ(store->Stats().hits, 0);
    EXPECT_GT(store->Stats().misses, 0);
    EXPECT_GT(store->Stats().publish_failures, 0);
    faulty.FailAt(0, 0);
    faulty.set_clock_offset_ns(int64_t{3600} * 1'000'000'000);
    EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
    EXPECT_TRUE(store->Put(NumberedEntry(3)).ok());
  }
}

TEST(StoreFaultsTest, ErrorsAreCountedByKind) {
  const auto count = [](int error) {
    MemoryFileSystem memory;
    EXPECT_TRUE(Open(&memory)->Put(NumberedEntry(1)).ok());
    FaultyFileSystem faulty(&memory);
    const auto store = Open(&faulty);
    faulty.FailAt(1, error, /*forever=*/true);
    (void)MissOf(*store, NumberedEntry(1));
    return store->Stats();
  };
  for (int error : {EIO, EACCES, EMFILE, EINTR}) EXPECT_EQ(count(error).unreadable, 1);
  for (int error : {ENOENT, ESTALE, EBUSY}) EXPECT_EQ(count(error).absent, 1);
  for (int error : {ELOOP, ENOTDIR}) EXPECT_EQ(count(error).foreign, 1);
}

TEST(StoreFaultsTest, ShortWritesMakeAWholeEntry) {
  MemoryFileSystem memory;
  FaultyFileSystem faulty(&memory);
  faulty.set_longest_write(13);
  const auto store = Open(&faulty);
  ASSERT_TRUE(store->Put(NumberedEntry(1, 5000)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1, 5000)));
}

// R19: a full disk is left alone for longer and longer, and used again when there is room.
TEST(StoreFaultsTest, WritesPauseAfterAFullDisk) {
  for (int error : {ENOSPC, EDQUOT, EROFS}) {
    MemoryFileSystem memory;
    FaultyFileSystem faulty(&memory);
    const auto store = Open(&faulty);
    const auto writes_at = [&](int64_t ms) {
      faulty.set_clock_offset_ns(ms * 1'000'000);
      faulty.ClearLog();
      EXPECT_FALSE(store->Put(NumberedEntry(1)).ok());
      return faulty.calls() > 0;
    };
    faulty.FailAt(1, error, /*forever=*/true);
    EXPECT_TRUE(writes_at(0));
    EXPECT_FALSE(writes_at(500));
    EXPECT_TRUE(writes_at(1500));  // paused for two seconds from here
    EXPECT_FALSE(writes_at(3000));
    EXPECT_TRUE(writes_at(4000));  // four seconds
    EXPECT_FALSE(writes_at(7500));
    EXPECT_TRUE(writes_at(8500));
    faulty.FailAt(0, 0);
    faulty.set_clock_offset_ns(int64_t{60000} * 1'000'000);
    EXPECT_TRUE(store->Put(NumberedEntry(1)).ok());
    EXPECT_TRUE(store->Put(NumberedEntry(2)).ok());
  }
}

TEST(StoreFaultsTest, AnotherErrorDoesNotPauseWrites) {
  MemoryFileSystem memory;
  FaultyFileSystem faulty(&memory);
  const auto store = Open(&faulty);
  faulty.ClearLog();
  faulty.FailAt(1, EIO);
  EXPECT_FALSE(store->Put(NumberedEntry(1)).ok());
  EXPECT_TRUE(store->Put(NumberedEntry(1)).ok());
}

TEST(StoreFaultsTest, AFullDiskForReal) {
  testing::TempDirectory temp;
  const std::string text = testing::RunInChild([&]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", temp.path().c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0) {
      return "no right to mount";
    }
    auto store = DiskStore::Open({.directory = temp.path()}, Quiet());
    if (!store.ok()) return std::string(store.status().message());
    int stored = 0;
    while (stored < 100 && (*store)->Put(NumberedEntry(stored, 30000)).ok()) ++stored;
    if (stored < 10 || stored == 100) return "stored " + std::to_string(stored);
    for (int i = 0; i < stored; ++i) {
      if (!Serves(**store, NumberedEntry(i, 30000))) return "lost " + std::to_string(i);
    }
    if (MissOf(**store, NumberedEntry(stored, 30000)) != "absent") return "half an entry";
    for (const auto& file : std::filesystem::directory_iterator(temp.path() + "/v1/tmp")) {
      return "left " + file.path().string();
    }
    if ((*store)->Stats().publish_failures != 1) return "failure not counted";
    if ((*store)->Stats().corrupt != 0) return "corrupt";
    if (!(*store)->Clear().ok()) return "cannot clear";
    sleep(1);  // the pause after the failure
    if (!(*store)->Put(NumberedEntry(0)).ok()) return "not usable again";
    return "fine";
  });
  if (text == "no right to mount") GTEST_SKIP() << "mounting a small file system needs root";
  EXPECT_EQ(text, "fine");
}

// ---- power cuts -----------------------------------------------------------------------------

struct CutResult {
  int cuts = 0;
  int corrupt = 0;
  int wrong = 0;
  int lost = 0;  // publishes that had succeeded and were gone
};

// Publishes three entries, one of them again with other bytes, cuts the power before each call in
// turn, several times with different dice, and looks at what is left.
CutResult CutEverywhere(bool sync_lies) {
  CutResult result;
  Entry replaced = NumberedEntry(1);
  replaced.sections[0].bytes = "other bytes of the same kernel";
  for (int64_t call = 1;; ++call) {
    bool reached = true;
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 dice(seed * 1000 + static_cast<unsigned>(call));
      MemoryFileSystem memory;
      std::vector<Entry> published;
      {
        FaultyFileSystem faulty(&memory);
        faulty.FailAt(call, EIO, /*forever=*/true);
        faulty.set_sync_lies(sync_lies);
        if (const auto store = Open(&faulty); store != nullptr) {
          for (const Entry& entry : {NumberedEntry(1), NumberedEntry(2), NumberedEntry(3)}) {
            // A publish that failed at its last sync was successful before the cut, not durable.
            const int64_t before = faulty.calls();
            if (store->Put(entry).ok() && (call <= before || faulty.calls() < call)) {
              published.push_back(entry);
            }
          }
          (void)store->Put(replaced);
        }
        reached = faulty.calls() >= call;
      }
      memory.PowerCut(dice);
      ++result.cuts;
      const auto store = Open(&memory);
      if (store == nullptr) {
        ++result.wrong;
        continue;
      }
      for (int i = 1; i <= 3; ++i) {
        const Entry entry = NumberedEntry(i);
        const auto found = store->Get(KeyOf(entry), entry.manifest);
        const bool right =
            found.ok() && (SameEntry(**found, entry) || (i == 1 && SameEntry(**found, replaced)));
        if (found.ok() && !right) ++result.wrong;
      }
      result.corrupt += static_cast<int>(store->Stats().corrupt);
      for (const Entry& entry : published) {
        if (!store->Get(KeyOf(entry), entry.manifest).ok()) ++result.lost;
      }
    }
    if (!reached) return result;
  }
}

// R14: after a cut at any call, no bad hit, and not even a file that must be refused; and what was
// published stays published.
TEST(PowerCutTest, NothingHalfWrittenIsEverVisible) {
  const CutResult result = CutEverywhere(/*sync_lies=*/false);
  EXPECT_GT(result.cuts, 500);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_EQ(result.corrupt, 0);
  EXPECT_EQ(result.lost, 0);
}

// On a disk that does not sync what it says it did, the digest is what stands between a torn file
// and the driver. Shows too that the model above can see the difference.
TEST(PowerCutTest, OnALyingDiskTornEntriesAreMisses) {
  const CutResult result = CutEverywhere(/*sync_lies=*/true);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_GT(result.corrupt, 0);
  EXPECT_GT(result.lost, 0);
}

}  // namespace
}  // namespace tilewright::cache

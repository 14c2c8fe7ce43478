// The counters that a store sums up over processes, on file systems that fail and in processes that
// die: at worst counts are lost, and nothing else is touched.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

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
constexpr int64_t kTwoHoursNs = int64_t{2} * 3600 * 1'000'000'000;

std::unique_ptr<DiskStore> OpenAt(const std::string& directory,
                                  FileSystem* file_system = &FileSystem::Posix()) {
  auto store = DiskStore::Open({.directory = directory}, Logger(LogLevel::kOff), file_system);
  return store.ok() ? *std::move(store) : nullptr;
}

std::unique_ptr<DiskStore> OpenIn(FileSystem* file_system) {
  return OpenAt(MemoryFileSystem::kRoot, file_system);
}

double Hits(DiskStore& store) {
  const Totals totals = store.ReadTotals();
  const auto hits = totals.find("hits");
  return hits == totals.end() ? 0 : hits->second;
}

int Temporaries(const MemoryFileSystem& file_system) {
  const std::vector<std::string> files = file_system.Files();
  return static_cast<int>(std::count_if(files.begin(), files.end(), [](const std::string& file) {
    return file.starts_with("v1/tmp/");
  }));
}

// R16, R63: one error at each call in turn, with and without the call having had its effect.
TEST(TotalsFaultsTest, OneErrorAtAnyCallLosesCountsAtWorst) {
  int injected = 0;
  for (const int error : kErrors) {
    for (const bool after_effect : {false, true}) {
      for (int64_t call = 1;; ++call) {
        MemoryFileSystem memory;
        {
          const auto before = OpenIn(&memory);
          ASSERT_TRUE(before->Put(NumberedEntry(1)).ok());
          before->AddToTotals({{"hits", 5}});
        }
        bool reached = true;
        {
          FaultyFileSystem faulty(&memory);
          const auto store = OpenIn(&faulty);
          ASSERT_NE(store, nullptr);
          faulty.ClearLog();
          faulty.FailAt(call, error);
          faulty.set_fail_after_effect(after_effect);
          store->AddToTotals({{"hits", 1}});
          reached = faulty.calls() >= call;
        }
        const std::string where =
            ErrnoText(error) + " at call " + std::to_string(call) + (after_effect ? " (done)" : "");
        ASSERT_EQ(memory.open_handles(), 0u) << where;
        // A creation that happened and was said to have failed is nobody's to remove but a
        // collector's.
        EXPECT_LE(Temporaries(memory), after_effect ? 1 : 0) << where;
        const auto later = OpenIn(&memory);
        const double hits = Hits(*later);
        // Where the name is said to be gone, or a link, the sums begin anew.
        const bool anew = (error == ENOENT || error == ELOOP) && hits == 1;
        EXPECT_TRUE(hits == 5 || hits == 6 || anew) << hits << ", " << where;
        EXPECT_TRUE(Serves(*later, NumberedEntry(1))) << where;
        later->AddToTotals({{"hits", 1}});
        EXPECT_EQ(Hits(*later), hits + 1) << where;
        FaultyFileSystem afterwards(&memory);
        afterwards.set_clock_offset_ns(kTwoHoursNs);
        ASSERT_TRUE(OpenIn(&afterwards)->Gc({}).ok());
        EXPECT_EQ(Temporaries(memory), 0) << where;
        if (!reached) {
          EXPECT_EQ(hits, 6);
          break;
        }
        ++injected;
      }
    }
  }
  EXPECT_GT(injected, 400);
}

TEST(TotalsFaultsTest, OneErrorAtAnyCallOfAReaderShowsNothingAtWorst) {
  for (const int error : kErrors) {
    for (int64_t call = 1;; ++call) {
      MemoryFileSystem memory;
      OpenIn(&memory)->AddToTotals({{"hits", 5}});
      FaultyFileSystem faulty(&memory);
      const auto store = OpenIn(&faulty);
      faulty.ClearLog();
      faulty.FailAt(call, error);
      const double hits = Hits(*store);
      const bool reached = faulty.calls() >= call;
      EXPECT_TRUE(hits == 5 || (hits == 0 && reached)) << hits << " at call " << call;
      faulty.FailAt(0, 0);
      EXPECT_EQ(Hits(*store), 5);
      if (!reached) break;
    }
  }
}

TEST(TotalsFaultsTest, AFileSystemThatFailsForGoodKeepsWhatThereWas) {
  for (const int error : kErrors) {
    MemoryFileSystem memory;
    FaultyFileSystem faulty(&memory);
    const auto store = OpenIn(&faulty);
    store->AddToTotals({{"hits", 5}});
    faulty.FailAt(1, error, /*forever=*/true);
    store->AddToTotals({{"hits", 1}});
    EXPECT_TRUE(store->ReadTotals().empty());
    faulty.FailAt(0, 0);
    EXPECT_EQ(Hits(*store), 5) << ErrnoText(error);
    EXPECT_EQ(Temporaries(memory), 0) << ErrnoText(error);
  }
}

// A process killed before each of its calls in turn.
TEST(TotalsFaultsTest, DeathAtAnyCallLosesItsOwnCountsAtWorst) {
  const testing::TempDirectory temp;
  int killed = 0;
  int left = 0;
  for (int64_t call = 1;; ++call) {
    const std::string directory = temp.path() + "/" + std::to_string(call);
    {
      const auto before = OpenAt(directory);
      ASSERT_TRUE(before->Put(NumberedEntry(1)).ok());
      before->AddToTotals({{"hits", 5}});
    }
    const int status = testing::WaitForChild(testing::StartChild([&] {
      FaultyFileSystem dying(&FileSystem::Posix());
      const auto store = OpenAt(directory, &dying);
      dying.ClearLog();
      dying.KillAt(call);
      store->AddToTotals({{"hits", 1}});
      return 0;
    }));
    const auto store = OpenAt(directory);
    const double hits = Hits(*store);
    EXPECT_TRUE(hits == 5 || hits == 6) << hits << " at call " << call;
    EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
    // Its lock died with it.
    store->AddToTotals({{"hits", 1}});
    EXPECT_EQ(Hits(*store), hits + 1) << call;
    const auto temporaries = [&] {
      return std::distance(std::filesystem::directory_iterator(directory + "/v1/tmp"),
                           std::filesystem::directory_iterator());
    };
    left += static_cast<int>(temporaries());
    FaultyFileSystem later(&FileSystem::Posix());
    later.set_clock_offset_ns(kTwoHoursNs);
    ASSERT_TRUE(OpenAt(directory, &later)->Gc({}).ok());
    EXPECT_EQ(temporaries(), 0) << call;
    EXPECT_EQ(Hits(*store), hits + 1) << call;
    if (status == 0) break;
    ASSERT_EQ(status, -SIGKILL);
    ++killed;
  }
  EXPECT_GT(killed, 20);
  EXPECT_GT(left, 0) << "no death left anything to sweep";
}

// They are not synced: a cut may leave the old ones, the new ones, or none of a line.
TEST(TotalsFaultsTest, APowerCutNeverLeavesCountsThatNobodyHad) {
  int lost = 0;
  for (int64_t call = 1;; ++call) {
    bool reached = true;
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 dice(seed * 1000 + static_cast<unsigned>(call));
      MemoryFileSystem memory;
      {
        const auto before = OpenIn(&memory);
        ASSERT_TRUE(before->Put(NumberedEntry(1)).ok());
        before->AddToTotals({{"compiles", 70}, {"hits", 5}});
        FaultyFileSystem faulty(&memory);
        const auto store = OpenIn(&faulty);
        faulty.ClearLog();
        faulty.FailAt(call, EIO, /*forever=*/true);
        store->AddToTotals({{"compiles", 7}, {"hits", 1}});
        reached = faulty.calls() >= call;
      }
      memory.PowerCut(dice);
      const auto store = OpenIn(&memory);
      ASSERT_NE(store, nullptr);
      for (const auto& [name, value] : store->ReadTotals()) {
        if (name == "hits") {
          EXPECT_TRUE(value == 5 || value == 6) << value;
        } else {
          EXPECT_TRUE(name == "compiles" && (value == 70 || value == 77)) << name << " " << value;
        }
      }
      lost += store->ReadTotals().empty() ? 1 : 0;
      EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
    }
    if (!reached) break;
  }
  EXPECT_GT(lost, 0) << "the model cuts nothing";
}

// R23: what others may have put in their place is neither read nor written through.
TEST(TotalsFaultsTest, PlantsAreNotTheSums) {
  const testing::TempDirectory temp;
  const std::string directory = temp.path() + "/store";
  const std::string totals = directory + "/v1/totals";
  const std::string other = temp.path() + "/other";
  const auto store = OpenAt(directory);
  const auto check = [&](const std::string& plant) {
    EXPECT_EQ(Hits(*store), 0) << plant;
    store->AddToTotals({{"hits", 2}});
    EXPECT_EQ(Hits(*store), 2) << plant;
    struct stat stat;
    ASSERT_EQ(lstat(totals.c_str(), &stat), 0);
    EXPECT_TRUE(S_ISREG(stat.st_mode)) << plant;
    EXPECT_EQ(stat.st_mode & 07777, 0600u) << plant;
    std::filesystem::remove(totals);
  };
  const auto write = [](const std::string& path) { std::ofstream(path) << "hits 1000\n"; };
  write(other);
  std::filesystem::create_symlink(other, totals);
  check("symbolic link");
  ASSERT_EQ(mkfifo(totals.c_str(), 0600), 0);
  check("FIFO");
  std::filesystem::create_hard_link(other, totals);
  check("hard link");
  write(totals);
  ASSERT_EQ(chmod(totals.c_str(), 0666), 0);
  check("writable by all");
  std::ofstream(totals) << std::string(70000, 'x') << " 1\n";
  ASSERT_EQ(chmod(totals.c_str(), 0600), 0);
  check("too long");
  EXPECT_EQ(std::filesystem::file_size(other), std::string("hits 1000\n").size());
  // A directory cannot be replaced; nothing is left of the attempt.
  std::filesystem::create_directory(totals);
  store->AddToTotals({{"hits", 2}});
  EXPECT_EQ(Hits(*store), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory + "/v1/tmp"));
}

TEST(TotalsFaultsTest, ProcessesAddUpWithoutMixing) {
  constexpr int kProcesses = 12;
  constexpr int kTimes = 5;
  const testing::TempDirectory temp;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(testing::StartChild([&] {
      const auto store = OpenAt(temp.path());
      for (int i = 0; i < kTimes; ++i) store->AddToTotals({{"compiles", 10}, {"hits", 1}});
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(testing::WaitForChild(child), 0);
  Totals totals = OpenAt(temp.path())->ReadTotals();
  // A process that does not get the lock in its time gives its counts up.
  EXPECT_GT(totals["hits"], 0);
  EXPECT_LE(totals["hits"], kProcesses * kTimes);
  EXPECT_EQ(totals["compiles"], 10 * totals["hits"]);
}

}  // namespace
}  // namespace tilewright::cache

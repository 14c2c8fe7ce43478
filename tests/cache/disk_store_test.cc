#include "cache/disk_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cache/entry_format.h"
#include "tests/cache/test_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  chmod(path.c_str(), 0600);
}

class DiskStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<DiskStore> OpenStore(DiskStoreOptions options = {},
                                       FileSystem* file_system = &FileSystem::Posix()) {
    if (options.directory.empty()) options.directory = directory_;
    auto store = DiskStore::Open(options, Logger(LogLevel::kOff), file_system);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string Shard(const Entry& entry) const {
    return directory_ + "/v1/k/" + KeyOf(entry).digest.ToHex().substr(0, 2);
  }
  std::string PathOf(const Entry& entry) const {
    return Shard(entry) + "/" + EntryFileName(KeyOf(entry).digest, VariantHex(entry.variant));
  }
  size_t FilesIn(const std::string& name) const {
    std::error_code error;
    size_t count = 0;
    for (const auto& item : fs::directory_iterator(directory_ + "/v1/" + name, error)) {
      count += item.is_regular_file() ? 1 : 0;
    }
    return count;
  }
  static void SetAge(const std::string& path, int64_t seconds) {
    const timespec times[2] = {{time(nullptr) - seconds, 0}, {time(nullptr) - seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  static int64_t AgeOf(const std::string& path) {
    struct stat stat = {};
    EXPECT_EQ(::stat(path.c_str(), &stat), 0);
    return time(nullptr) - stat.st_mtime;
  }

  testing::TempDirectory temp_;
  const std::string directory_ = temp_.path() + "/store";
};

TEST_F(DiskStoreTest, ServesWhatWasPutAlsoInALaterStore) {
  const Entry entry = NumberedEntry(1, 40000);
  {
    const auto store = OpenStore();
    EXPECT_EQ(MissOf(*store, entry), "absent");
    ASSERT_TRUE(store->Put(entry).ok());
    EXPECT_TRUE(Serves(*store, entry));
  }
  EXPECT_TRUE(Serves(*OpenStore(), entry));
  EXPECT_EQ(FilesIn("tmp"), 0u);
}

TEST_F(DiskStoreTest, FilesAndDirectoriesArePrivate) {
  const mode_t old = umask(0);
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(OpenStore()->Put(entry).ok());
  umask(old);
  struct stat stat = {};
  for (const std::string& path : {directory_, directory_ + "/v1", Shard(entry)}) {
    ASSERT_EQ(::stat(path.c_str(), &stat), 0) << path;
    EXPECT_EQ(stat.st_mode & 0777, 0700u) << path;
  }
  ASSERT_EQ(::stat(PathOf(entry).c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0600u);
}

// R11: nothing but the file itself is needed.
TEST_F(DiskStoreTest, OneCopiedFileIsAHitInAnEmptyStore) {
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(OpenStore()->Put(entry).ok());
  const std::string other = temp_.path() + "/other";
  const std::string shard = other + "/v1/k/" + KeyOf(entry).digest.ToHex().substr(0, 2);
  fs::create_directories(shard);
  fs::permissions(other, fs::perms::owner_all);
  fs::copy_file(PathOf(entry), shard + "/" + fs::path(PathOf(entry)).filename().string());
  EXPECT_TRUE(Serves(*OpenStore({.directory = other}), entry));
}

// R4: neither place nor time matter.
TEST_F(DiskStoreTest, MovingAndTouchingEverythingKeepsEveryHit) {
  constexpr int kEntries = 50;
  {
    const auto store = OpenStore();
    for (int i = 0; i < kEntries; ++i) ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
  }
  const std::string moved = temp_.path() + "/moved";
  fs::rename(directory_, moved);
  std::mt19937 dice(1);
  for (const auto& item : fs::recursive_directory_iterator(moved)) {
    SetAge(item.path(), static_cast<int64_t>(dice() % 100000000) - 50000000);
  }
  const auto store = OpenStore({.directory = moved});
  for (int i = 0; i < kEntries; ++i) EXPECT_TRUE(Serves(*store, NumberedEntry(i))) << i;
  EXPECT_EQ(store->Stats().hits, kEntries);
}

// R12, through the store: whatever bit is wrong, it is a miss, the file is out of the way and the
// next publish heals it.
TEST_F(DiskStoreTest, EveryFlippedBitIsAMiss) {
  const Entry entry = SmallEntry();
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  const std::string path = PathOf(entry);
  const std::string good = ReadFile(path);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    WriteFile(path, bad);
    ASSERT_THAT(MissOf(*store, entry), StartsWith("corrupt: ")) << "bit " << bit;
    ASSERT_FALSE(fs::exists(path)) << "bit " << bit;
  }
  EXPECT_EQ(store->Stats().corrupt, static_cast<int64_t>(8 * good.size()));
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, EveryTruncationIsAMiss) {
  const Entry entry = SmallEntry();
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  const std::string path = PathOf(entry);
  const std::string good = ReadFile(path);
  for (size_t size = 0; size < good.size(); ++size) {
    WriteFile(path, good.substr(0, size));
    ASSERT_THAT(MissOf(*store, entry), StartsWith("corrupt: length")) << size;
  }
  WriteFile(path, good + "x");
  EXPECT_THAT(MissOf(*store, entry), StartsWith("corrupt: length"));
}

TEST_F(DiskStoreTest, SwappedEntriesAreMisses) {
  const Entry one = NumberedEntry(1);
  const Entry two = NumberedEntry(2);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(one).ok());
  ASSERT_TRUE(store->Put(two).ok());
  const std::string first = ReadFile(PathOf(one));
  WriteFile(PathOf(one), ReadFile(PathOf(two)));
  WriteFile(PathOf(two), first);
  EXPECT_THAT(MissOf(*store, one), StartsWith("corrupt: name"));
  EXPECT_THAT(MissOf(*store, two), StartsWith("corrupt: name"));
}

TEST_F(DiskStoreTest, AnEntryOfAnotherCompilerUnderThisNameIsAMiss) {
  const Entry one = NumberedEntry(1, 100, "nvrtc 1");
  const Entry two = NumberedEntry(1, 100, "nvrtc 2");
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(two).ok());
  fs::rename(PathOf(two), PathOf(one));
  EXPECT_THAT(MissOf(*store, one), StartsWith("corrupt: name"));
}

TEST_F(DiskStoreTest, TheManifestIsComparedByteForByte) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_EQ(store->Get(KeyOf(entry), entry.manifest + "x").status().message(), "manifest differs");
  EXPECT_EQ(store->Stats().manifest_differs, 1);
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, VariantsAreApartUnlessAnyWillDo) {
  const Entry one = NumberedEntry(1, 100, "nvrtc 1");
  const Entry two = NumberedEntry(1, 200, "nvrtc 2");
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(one).ok());
  EXPECT_EQ(MissOf(*store, two), "absent");
  ASSERT_TRUE(store->Put(two).ok());
  EXPECT_TRUE(Serves(*store, one));
  EXPECT_TRUE(Serves(*store, two));
  const EntryKey any = {.digest = KeyOf(one).digest, .variant = std::nullopt};
  EXPECT_TRUE(store->Get(any, one.manifest).ok());
  // A damaged one does not stand in the way of the other.
  WriteFile(PathOf(one), "damaged");
  const auto rest = store->Get(any, one.manifest);
  ASSERT_TRUE(rest.ok());
  EXPECT_TRUE(SameEntry(**rest, two));
  ASSERT_TRUE(store->Remove(KeyOf(two).digest, VariantHex("nvrtc 2")).ok());
  EXPECT_EQ(store->Get(any, one.manifest).status().message(), "absent");
}

TEST_F(DiskStoreTest, RemovingWhatIsNotThereIsFine) {
  const auto store = OpenStore();
  EXPECT_TRUE(store->Remove(Sha256("x"), VariantHex("v")).ok());
}

// R17, with the number of kept files bounded.
TEST_F(DiskStoreTest, ManyCorruptEntriesHealAndLeaveAFewFilesAside) {
  constexpr int kEntries = 200;
  const auto store = OpenStore();
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
    WriteFile(PathOf(NumberedEntry(i)), "damaged");
  }
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_THAT(MissOf(*store, NumberedEntry(i)), StartsWith("corrupt: "));
    ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
  }
  for (int i = 0; i < kEntries; ++i) ASSERT_TRUE(Serves(*store, NumberedEntry(i)));
  EXPECT_EQ(store->Stats().corrupt, kEntries);
  EXPECT_EQ(FilesIn("bad"), 32u);
  for (const auto& item : fs::directory_iterator(directory_ + "/v1/bad")) {
    EXPECT_EQ(item.path().extension(), ".bad");
  }
}

// ---- plants ---------------------------------------------------------------------------------

TEST_F(DiskStoreTest, ASymbolicLinkForAnEntryIsRefused) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  const std::string real = temp_.path() + "/real.twk";
  fs::rename(PathOf(entry), real);
  fs::create_symlink(real, PathOf(entry));
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: symbolic link"));
  EXPECT_EQ(store->Stats().foreign, 1);
  // A publish replaces the link and not what it points to.
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_TRUE(Serves(*store, entry));
  EXPECT_TRUE(fs::exists(real));
}

TEST_F(DiskStoreTest, AFifoForAnEntryIsRefusedAtOnce) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  fs::remove(PathOf(entry));
  ASSERT_EQ(mkfifo(PathOf(entry).c_str(), 0600), 0);
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: not a regular file"));
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, ADirectoryForAnEntryIsRefused) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  fs::remove(PathOf(entry));
  fs::create_directory(PathOf(entry));
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: not a regular file"));
  EXPECT_FALSE(store->Put(entry).ok());
  EXPECT_EQ(store->Stats().publish_failures, 1);
  EXPECT_EQ(FilesIn("tmp"), 0u);
}

TEST_F(DiskStoreTest, ADeviceForAnEntryIsRefused) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  fs::remove(PathOf(entry));
  if (mknod(PathOf(entry).c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0) {
    GTEST_SKIP() << "no right to make a device node";
  }
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: "));
}

TEST_F(DiskStoreTest, AHardLinkedEntryIsRefusedButInPacks) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  fs::create_hard_link(PathOf(entry), temp_.path() + "/second");
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: file has 2 names"));
  EXPECT_TRUE(Serves(*OpenStore({.pack = true}), entry));
}

TEST_F(DiskStoreTest, FilesThatOthersMayWriteAreRefused) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  for (mode_t mode : {0620, 0602, 0666}) {
    chmod(PathOf(entry).c_str(), mode);
    EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: file has mode")) << mode;
  }
  chmod(PathOf(entry).c_str(), 0644);
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, DirectoriesThatOthersMayWriteAreRefused) {
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  for (const std::string& path :
       {directory_, directory_ + "/v1", directory_ + "/v1/k", Shard(entry)}) {
    chmod(path.c_str(), 0777);
    EXPECT_THAT(MissOf(*store, entry), HasSubstr("has mode 0777")) << path;
    EXPECT_EQ(store->Put(NumberedEntry(1, 5)).code(), absl::StatusCode::kPermissionDenied) << path;
    chmod(path.c_str(), 0700);
  }
  chmod(directory_.c_str(), 01777);
  const auto refused = DiskStore::Open({.directory = directory_}, Logger(LogLevel::kOff));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("has mode 1777"));
  chmod(directory_.c_str(), 0700);
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, ASymbolicLinkForADirectoryIsRefused) {
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(OpenStore()->Put(entry).ok());
  const std::string link = temp_.path() + "/link";
  fs::create_symlink(directory_, link);
  const auto refused = DiskStore::Open({.directory = link}, Logger(LogLevel::kOff));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("symbolic link"));

  const auto store = OpenStore();
  const std::string real = temp_.path() + "/shard";
  fs::rename(Shard(entry), real);
  fs::create_symlink(real, Shard(entry));
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: "));
}

TEST_F(DiskStoreTest, ForeignOwnersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  const Entry entry = NumberedEntry(1);
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(entry).ok());
  ASSERT_EQ(chown(PathOf(entry).c_str(), 12345, 12345), 0);
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: file belongs to user 12345"));
  ASSERT_EQ(chown(PathOf(entry).c_str(), 0, 0), 0);
  ASSERT_EQ(chown(directory_.c_str(), 12345, 12345), 0);
  EXPECT_THAT(MissOf(*store, entry), HasSubstr("belongs to user 12345"));
  EXPECT_EQ(DiskStore::Open({.directory = directory_}, Logger(LogLevel::kOff)).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(DiskStoreTest, RootsStoreMayBeReadByOthersButNotWritten) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(OpenStore()->Put(entry).ok());
  chmod(temp_.path().c_str(), 0755);
  for (const auto& item : fs::recursive_directory_iterator(directory_)) {
    fs::permissions(item.path(), item.is_directory() ? fs::perms(0755) : fs::perms(0644));
  }
  chmod(directory_.c_str(), 0755);
  const std::string result = testing::RunInChild([&]() -> std::string {
    if (setuid(12345) != 0) return "setuid failed";
    const Logger quiet(LogLevel::kOff);
    if (DiskStore::Open({.directory = directory_}, quiet).ok()) return "writable store opened";
    auto reading = DiskStore::Open({.directory = directory_, .read_only = true}, quiet);
    if (!reading.ok()) return std::string(reading.status().message());
    auto pack = DiskStore::Open({.directory = directory_, .pack = true}, quiet);
    if (!pack.ok()) return std::string(pack.status().message());
    return MissOf(**reading, entry) + " " + MissOf(**pack, entry);
  });
  EXPECT_EQ(result, "hit hit");
}

TEST_F(DiskStoreTest, ASharedStoreAcceptsGroupMembersAndFollowsTheUmask) {
  const mode_t old = umask(0007);
  const Entry entry = NumberedEntry(1);
  const DiskStoreOptions shared = {.directory = directory_, .group_shared = true};
  const auto store = OpenStore(shared);
  ASSERT_TRUE(store->Put(entry).ok());
  umask(old);
  struct stat stat = {};
  ASSERT_EQ(::stat(PathOf(entry).c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0660u);
  ASSERT_EQ(::stat(Shard(entry).c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0770u);
  EXPECT_TRUE(Serves(*store, entry));
  EXPECT_FALSE(DiskStore::Open({.directory = directory_}, Logger(LogLevel::kOff)).ok());
  // The rest of the world is never let in.
  chmod(PathOf(entry).c_str(), 0666);
  EXPECT_THAT(MissOf(*store, entry), StartsWith("foreign: "));
  chmod(PathOf(entry).c_str(), 0660);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(PathOf(entry).c_str(), 12345, 12345), 0);
    EXPECT_TRUE(Serves(*store, entry));
  }
}

// ---- read-only ------------------------------------------------------------------------------

TEST_F(DiskStoreTest, AReadOnlyStoreIsOnlyRead) {
  const Entry good = NumberedEntry(1);
  const Entry bad = NumberedEntry(2);
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store->Put(good).ok());
    ASSERT_TRUE(store->Put(bad).ok());
  }
  WriteFile(PathOf(bad), "damaged");
  SetAge(PathOf(good), 100000);
  FaultyFileSystem recorder(&FileSystem::Posix());
  const auto store = OpenStore({.read_only = true}, &recorder);
  EXPECT_TRUE(Serves(*store, good));
  EXPECT_THAT(MissOf(*store, bad), StartsWith("corrupt: "));
  EXPECT_EQ(store->Put(NumberedEntry(3)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Remove(KeyOf(good).digest, VariantHex(good.variant)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Gc({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store->Gc({.dry_run = true}).ok());
  EXPECT_EQ(store->Clear().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Lock(KeyOf(good).digest, 0), nullptr);
  EXPECT_EQ(store->List()->size(), 2u);
  const std::set<std::string> reading = {"OpenRoot", "OpenDirectory", "OpenFile", "Close",
                                         "Read",     "Stat",          "StatAt",   "List"};
  for (const std::string& call : recorder.log()) {
    EXPECT_TRUE(reading.contains(call.substr(0, call.find(' ')))) << call;
  }
  EXPECT_TRUE(fs::exists(PathOf(bad)));
  EXPECT_GE(AgeOf(PathOf(good)), 99999);
}

TEST_F(DiskStoreTest, AMissingReadOnlyStoreIsNotFound) {
  const Logger quiet(LogLevel::kOff);
  EXPECT_EQ(DiskStore::Open({.directory = directory_, .read_only = true}, quiet).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(directory_));
}

TEST_F(DiskStoreTest, TheDirectoryMustBeAbsolute) {
  for (const char* directory : {"", "relative", "./x"}) {
    EXPECT_EQ(DiskStore::Open({.directory = directory}, Logger(LogLevel::kOff)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// ---- publishing -----------------------------------------------------------------------------

// R14: the order that makes an entry whole before it is visible.
TEST_F(DiskStoreTest, PublishesByWriteSyncCloseRenameSync) {
  FaultyFileSystem recorder(&FileSystem::Posix());
  const auto store = OpenStore({}, &recorder);
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(store->Put(NumberedEntry(2)).ok());
  ASSERT_TRUE(store->Put(entry).ok());
  fs::remove(PathOf(entry));
  recorder.ClearLog();
  ASSERT_TRUE(store->Put(entry).ok());
  std::vector<std::string> steps;
  bool created = false;
  for (const std::string& call : recorder.log()) {
    const std::string name = call.substr(0, call.find(' '));
    created = created || name == "CreateFile";
    if (created && steps.size() < 6) steps.push_back(name);
  }
  EXPECT_THAT(steps,
              ::testing::ElementsAre("CreateFile", "Write", "Sync", "Close", "Rename", "Sync"));
}

TEST_F(DiskStoreTest, AnEqualEntryIsNotWrittenAgain) {
  FaultyFileSystem recorder(&FileSystem::Posix());
  const auto store = OpenStore({}, &recorder);
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(store->Put(entry).ok());
  recorder.ClearLog();
  ASSERT_TRUE(store->Put(entry).ok());
  for (const std::string& call : recorder.log()) EXPECT_THAT(call, ::testing::Not("CreateFile"));
  Entry other = entry;
  other.sections[0].bytes += "x";
  ASSERT_TRUE(store->Put(other).ok());
  EXPECT_TRUE(Serves(*store, other));
}

TEST_F(DiskStoreTest, AnEntryThatCannotBeWrittenDownIsRefused) {
  const auto store = OpenStore();
  EXPECT_EQ(store->Put({.manifest = "", .variant = "", .sections = {{"a", ""}, {"a", ""}}}).code(),
            absl::StatusCode::kInvalidArgument);
}

// R15
TEST_F(DiskStoreTest, WorksWhileItsDirectoryIsDeletedAgainAndAgain) {
  const auto store = OpenStore();
  std::atomic<bool> stop = false;
  std::thread vandal([&] {
    std::error_code ignored;
    while (!stop) fs::remove_all(directory_, ignored);
  });
  for (int i = 0; i < 300; ++i) {
    const Entry entry = NumberedEntry(i);
    (void)store->Put(entry);
    const std::string miss = MissOf(*store, entry);
    EXPECT_TRUE(miss == "hit" || miss == "absent") << miss;
  }
  stop = true;
  vandal.join();
  EXPECT_EQ(store->Stats().corrupt, 0);
  fs::remove_all(directory_);
  ASSERT_TRUE(store->Put(NumberedEntry(0)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(0)));
}

TEST_F(DiskStoreTest, ThreadsMayShareIt) {
  const auto store = OpenStore();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const Entry entry = NumberedEntry((t * 5 + i) % 30, 3000);
        if (!store->Put(entry).ok() || !Serves(*store, entry)) ++wrong;
        const auto lock = store->Lock(KeyOf(entry).digest, 10000);
        if (lock == nullptr) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store->Stats().entries, 30);
  EXPECT_EQ(FilesIn("tmp"), 0u);
}

// ---- listing and counting -------------------------------------------------------------------

TEST_F(DiskStoreTest, ListsInOrderAndReads) {
  const auto store = OpenStore();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
  WriteFile(Shard(NumberedEntry(0)) + "/stray", "not an entry");
  const auto infos = store->List();
  ASSERT_TRUE(infos.ok());
  ASSERT_EQ(infos->size(), 30u);
  for (size_t i = 0; i + 1 < infos->size(); ++i) {
    EXPECT_LT((*infos)[i].digest, (*infos)[i + 1].digest);
  }
  for (const EntryInfo& info : *infos) {
    EXPECT_EQ(info.bytes, static_cast<int64_t>(fs::file_size(info.path)));
    EXPECT_LT(std::abs(info.mtime_s - time(nullptr)), 60);
    const auto entry = store->Read(info);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ(Sha256(entry->manifest), info.digest);
  }
  WriteFile((*infos)[3].path, "damaged");
  EXPECT_EQ(store->Read((*infos)[3]).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->Read((*infos)[3]).status().code(), absl::StatusCode::kNotFound);
}

// R63: each scenario moves its own counter.
TEST_F(DiskStoreTest, CountsWhatHappens) {
  const auto store = OpenStore();
  const Entry entry = NumberedEntry(1, 5000);
  (void)MissOf(*store, entry);
  StoreStats stats = store->Stats();
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.absent, 1);
  EXPECT_EQ(stats.entries, 0);
  ASSERT_TRUE(store->Put(entry).ok());
  stats = store->Stats();
  EXPECT_EQ(stats.publishes, 1);
  EXPECT_GT(stats.publish_ms, 0);
  EXPECT_EQ(stats.entries, 1);
  EXPECT_GE(stats.bytes, 5000);
  ASSERT_TRUE(Serves(*store, entry));
  EXPECT_EQ(store->Stats().hits, 1);
  chmod(PathOf(entry).c_str(), 0666);
  (void)MissOf(*store, entry);
  EXPECT_EQ(store->Stats().foreign, 1);
  WriteFile(PathOf(entry), "damaged");
  (void)MissOf(*store, entry);
  stats = store->Stats();
  EXPECT_EQ(stats.corrupt, 1);
  EXPECT_EQ(stats.misses, 3);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.unreadable, 0);
  EXPECT_EQ(stats.publish_failures, 0);
}

TEST_F(DiskStoreTest, SaysEachKindOfTroubleOnce) {
  std::vector<std::string> lines;
  const Logger logger(LogLevel::kInfo,
                      [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  auto store = DiskStore::Open({.directory = directory_}, logger);
  ASSERT_TRUE(store.ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE((*store)->Put(NumberedEntry(i)).ok());
    WriteFile(PathOf(NumberedEntry(i)), "damaged");
    (void)MissOf(**store, NumberedEntry(i));
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], StartsWith("store_corrupt path="));
  EXPECT_EQ((*store)->Stats().warnings_suppressed, 9);
}

// ---- age and size ---------------------------------------------------------------------------

TEST_F(DiskStoreTest, AHitRefreshesAStampOlderThanAnHour) {
  const auto store = OpenStore();
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(store->Put(entry).ok());
  SetAge(PathOf(entry), 3000);
  ASSERT_TRUE(Serves(*store, entry));
  EXPECT_GE(AgeOf(PathOf(entry)), 2999);
  SetAge(PathOf(entry), 4000);
  ASSERT_TRUE(Serves(*store, entry));
  EXPECT_LE(AgeOf(PathOf(entry)), 60);
}

TEST_F(DiskStoreTest, ASmallStoreStaysWithinItsBytesAndKeepsWhatIsUsed) {
  constexpr int64_t kMax = int64_t{1} << 20;
  constexpr size_t kSize = 8000;
  const Entry used = NumberedEntry(1000, kSize);
  const auto store = OpenStore({.max_bytes = kMax});
  ASSERT_TRUE(store->Put(used).ok());
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(store->Put(NumberedEntry(i, kSize)).ok());
    SetAge(PathOf(NumberedEntry(i, kSize)), 1000000 - i * 100);
    ASSERT_LE(store->Stats().bytes, kMax + kMax / 20 + 3 * 8192) << i;
  }
  EXPECT_GE(store->Stats().bytes, kMax / 2);
  EXPECT_GT(store->Stats().evictions, 200);
  EXPECT_TRUE(Serves(*store, used));
  EXPECT_TRUE(Serves(*store, NumberedEntry(399, kSize)));
  EXPECT_FALSE(Serves(*store, NumberedEntry(0, kSize)));
}

TEST_F(DiskStoreTest, ALargeStoreKeepsEachShardWithinItsShare) {
  // 256 MiB make shards of 1 MiB. Entries of one shard, found by trying numbers.
  constexpr int64_t kMax = int64_t{256} << 20;
  constexpr size_t kSize = 100000;
  FaultyFileSystem recorder(&FileSystem::Posix());
  const auto store = OpenStore({.max_bytes = kMax}, &recorder);
  std::vector<int> numbers;
  for (int i = 0; numbers.size() < 25; ++i) {
    if (KeyOf(NumberedEntry(i, 1)).digest.ToHex().substr(0, 2) == "7a") numbers.push_back(i);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Entry entry = NumberedEntry(numbers[i], kSize);
    ASSERT_TRUE(store->Put(entry).ok());
    SetAge(PathOf(entry), 1000000 - static_cast<int64_t>(i) * 1000);
  }
  EXPECT_LE(store->Stats().bytes, int64_t{1} << 20);
  EXPECT_GE(store->Stats().bytes, 700000);
  EXPECT_TRUE(Serves(*store, NumberedEntry(numbers.back(), kSize)));
  EXPECT_FALSE(Serves(*store, NumberedEntry(numbers.front(), kSize)));
  // One publish looks at one shard: no other is opened.
  recorder.ClearLog();
  ASSERT_TRUE(store->Put(NumberedEntry(numbers.front(), kSize)).ok());
  for (const std::string& call : recorder.log()) {
    if (call.starts_with("OpenDirectory ") &&
        call.size() == std::string("OpenDirectory 7a").size() && call != "OpenDirectory v1") {
      EXPECT_EQ(call, "OpenDirectory 7a");
    }
  }
}

TEST_F(DiskStoreTest, AnEntryLargerThanTheStoreIsStillServed) {
  const auto store = OpenStore({.max_bytes = 10000});
  const Entry entry = NumberedEntry(1, 50000);
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_TRUE(Serves(*store, entry));
}

TEST_F(DiskStoreTest, GcRemovesTheLongestUnusedFirst) {
  const auto store = OpenStore();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store->Put(NumberedEntry(i, 4000)).ok());
    SetAge(PathOf(NumberedEntry(i, 4000)), 1000 * (i + 1));
  }
  const int64_t bytes = store->Stats().bytes;
  const auto dry = store->Gc({.max_bytes = bytes / 2, .dry_run = true});
  ASSERT_TRUE(dry.ok());
  EXPECT_EQ(dry->removed_entries, 10);
  EXPECT_EQ(store->Stats().entries, 20);
  const auto report = store->Gc({.max_bytes = bytes / 2});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ran);
  EXPECT_EQ(report->removed_entries, 10);
  EXPECT_EQ(report->entries, 10);
  EXPECT_EQ(report->bytes, bytes / 2);
  EXPECT_EQ(report->removed_bytes, bytes - bytes / 2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(fs::exists(PathOf(NumberedEntry(i, 4000))), i < 10) << i;
  }
}

// R65: programs of several versions on one directory.
TEST_F(DiskStoreTest, VersionsKeepOutOfEachOthersWay) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  // A later version of the layout, with names that mean something here too.
  const std::string later = directory_ + "/v2";
  fs::copy(directory_ + "/v1", later, fs::copy_options::recursive);
  fs::create_directories(later + "/tmp");
  WriteFile(later + "/tmp/old", "x");
  SetAge(later + "/tmp/old", 1'000'000);
  const std::string theirs = later + PathOf(NumberedEntry(1)).substr(directory_.size() + 3);
  ASSERT_TRUE(fs::exists(theirs));
  EXPECT_EQ(store->List()->size(), 1u);
  ASSERT_TRUE(store->Gc({.max_bytes = 1}).ok());
  ASSERT_TRUE(store->Clear().ok());
  EXPECT_FALSE(fs::exists(PathOf(NumberedEntry(1))));
  EXPECT_TRUE(fs::exists(theirs));
  EXPECT_TRUE(fs::exists(later + "/tmp/old"));
  // An entry of the next version under a name of this one is a miss, is moved aside, and heals.
  const Entry entry = NumberedEntry(2);
  ASSERT_TRUE(store->Put(entry).ok());
  std::string bytes = ReadFile(PathOf(entry));
  bytes[16] = 2;  // the schema
  const std::string_view hashed = std::string_view(bytes).substr(0, bytes.size() - 32);
  const Digest digest = Sha256(hashed);
  bytes.replace(bytes.size() - 32, 32, reinterpret_cast<const char*>(digest.bytes.data()), 32);
  WriteFile(PathOf(entry), bytes);
  EXPECT_THAT(MissOf(*store, entry), StartsWith("corrupt: schema: 2"));
  ASSERT_TRUE(store->Put(entry).ok());
  EXPECT_TRUE(Serves(*store, entry));
  // What a later version of the same schema adds to an entry disturbs nobody.
  Entry richer = NumberedEntry(3);
  richer.sections.push_back({"added_later", "x"});
  ASSERT_TRUE(store->Put(richer).ok());
  EXPECT_TRUE(Serves(*store, richer));
}

// The clock was years ahead when these were written, and is right now.
TEST_F(DiskStoreTest, StampsOfTheFutureAreTheFirstToGo) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600;
  const auto store = OpenStore();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store->Put(NumberedEntry(i, 4000)).ok());
    SetAge(PathOf(NumberedEntry(i, 4000)), i % 2 == 0 ? -10 * kYear : 1000);
  }
  SetAge(PathOf(NumberedEntry(0, 4000)),
         -400 * kYear);  // further than 64 bits of nanoseconds reach
  // One that is used is renewed, and has an age again.
  ASSERT_TRUE(Serves(*store, NumberedEntry(2, 4000)));
  EXPECT_LE(std::abs(AgeOf(PathOf(NumberedEntry(2, 4000)))), 60);
  const auto report = store->Gc({.max_bytes = store->Stats().bytes - 1});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_entries, 1);
  EXPECT_FALSE(fs::exists(PathOf(NumberedEntry(0, 4000))));
}

TEST_F(DiskStoreTest, LeftoversOfAWrongClockAreSwept) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  const std::string tmp = directory_ + "/v1/tmp/";
  WriteFile(tmp + "future", "x");
  WriteFile(tmp + "skewed", "x");
  SetAge(tmp + "future", -1'000'000);
  SetAge(tmp + "skewed", -1000);
  ASSERT_TRUE(store->Gc({}).ok());
  EXPECT_FALSE(fs::exists(tmp + "future"));
  EXPECT_TRUE(fs::exists(tmp + "skewed"));
}

TEST_F(DiskStoreTest, GcByAge) {
  const auto store = OpenStore();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
    SetAge(PathOf(NumberedEntry(i)), 1000 * i);
  }
  const auto report = store->Gc({.older_than_s = 1500});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_entries, 2);
  EXPECT_TRUE(fs::exists(PathOf(NumberedEntry(1))));
  EXPECT_FALSE(fs::exists(PathOf(NumberedEntry(2))));
}

TEST_F(DiskStoreTest, GcSweepsLeftovers) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  const std::string tmp = directory_ + "/v1/tmp/";
  WriteFile(tmp + "old", "x");
  WriteFile(tmp + "young", "x");
  SetAge(tmp + "old", 4000);
  fs::create_directory(directory_ + "/v1/bad");
  chmod((directory_ + "/v1/bad").c_str(), 0700);
  WriteFile(directory_ + "/v1/bad/x.bad", "x");
  const auto report = store->Gc({});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->swept_files, 1);
  EXPECT_EQ(report->removed_entries, 0);
  EXPECT_FALSE(fs::exists(tmp + "old"));
  EXPECT_TRUE(fs::exists(tmp + "young"));
  EXPECT_TRUE(fs::exists(directory_ + "/v1/bad/x.bad"));
}

TEST_F(DiskStoreTest, MovedAsideEntriesGoAfterAWeek) {
  FaultyFileSystem clock(&FileSystem::Posix());
  const auto store = OpenStore({}, &clock);
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  WriteFile(PathOf(NumberedEntry(1)), "damaged");
  (void)MissOf(*store, NumberedEntry(1));
  EXPECT_EQ(FilesIn("bad"), 1u);
  clock.set_clock_offset_ns(int64_t{6} * 24 * 3600 * 1'000'000'000);
  ASSERT_TRUE(store->Gc({}).ok());
  EXPECT_EQ(FilesIn("bad"), 1u);
  clock.set_clock_offset_ns(int64_t{8} * 24 * 3600 * 1'000'000'000);
  ASSERT_TRUE(store->Gc({}).ok());
  EXPECT_EQ(FilesIn("bad"), 0u);
}

TEST_F(DiskStoreTest, APublishSweepsOldTemporariesNowAndThen) {
  ASSERT_TRUE(OpenStore()->Put(NumberedEntry(1)).ok());
  WriteFile(directory_ + "/v1/tmp/old", "x");
  SetAge(directory_ + "/v1/tmp/old", 4000);
  ASSERT_TRUE(OpenStore()->Put(NumberedEntry(2)).ok());
  EXPECT_EQ(FilesIn("tmp"), 0u);
}

TEST_F(DiskStoreTest, GcLeavesWhatWasUsedSinceItLooked) {
  // A file system that touches a file between the listing and the removal.
  class Toucher : public FaultyFileSystem {
   public:
    using FaultyFileSystem::FaultyFileSystem;
    std::string path;
    int looks = 0;
    int StatAt(Handle directory, const std::string& name, FileInfo* info) override {
      if (path.ends_with(name) && ++looks == 2) SetAge(path, 0);
      return FaultyFileSystem::StatAt(directory, name, info);
    }
  };
  Toucher toucher(&FileSystem::Posix());
  const auto store = OpenStore({}, &toucher);
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  SetAge(PathOf(NumberedEntry(1)), 5000);
  toucher.path = PathOf(NumberedEntry(1));
  const auto report = store->Gc({.older_than_s = 1000});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_entries, 0);
  EXPECT_TRUE(fs::exists(toucher.path));
}

TEST_F(DiskStoreTest, OneCollectsAtATime) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  ASSERT_NE(store->Lock(Sha256("x"), 0), nullptr);  // makes the lock file
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t other = testing::StartChild([&] {
    // Holds the byte of the collector in the lock file.
    const int file = open((directory_ + "/v1/l/keys.lock").c_str(), O_RDWR | O_CREAT, 0600);
    if (FileSystem::Posix().TryLock(file, 0) != 0) return 1;
    (void)!write(ready[1], "x", 1);
    pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto refused = store->Gc({});
  ASSERT_TRUE(refused.ok());
  EXPECT_FALSE(refused->ran);
  kill(other, SIGKILL);
  (void)testing::WaitForChild(other);
  EXPECT_TRUE(store->Gc({})->ran);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(DiskStoreTest, ClearRemovesAllEntries) {
  const auto store = OpenStore();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(store->Put(NumberedEntry(i)).ok());
  WriteFile(directory_ + "/v1/tmp/young", "x");
  const auto report = store->Clear();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_entries, 10);
  EXPECT_EQ(report->swept_files, 1);
  EXPECT_EQ(store->Stats().entries, 0);
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
}

// R27
TEST_F(DiskStoreTest, CollectorsReadersAndWritersGoTogether) {
  const auto writer = OpenStore({.max_bytes = 200000});
  const auto reader = OpenStore();
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::thread collecting([&] {
    while (!stop) {
      if (!OpenStore()->Gc({.max_bytes = 100000}).ok()) ++wrong;
    }
  });
  std::thread reading([&] {
    for (int i = 0; !stop; ++i) {
      const std::string miss = MissOf(*reader, NumberedEntry(i % 60, 4000));
      if (miss != "hit" && miss != "absent") ++wrong;
    }
  });
  for (int i = 0; i < 300; ++i) {
    if (!writer->Put(NumberedEntry(i % 60, 4000)).ok()) ++wrong;
  }
  stop = true;
  collecting.join();
  reading.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(reader->Stats().corrupt, 0);
}

TEST_F(DiskStoreTest, DescribesItsPlace) {
  const auto store = OpenStore();
  const auto facts = store->Describe();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_FALSE(facts->file_system.empty());
  EXPECT_GT(facts->total_bytes, 0);
  EXPECT_EQ(facts->owner, geteuid());
  EXPECT_EQ(facts->mode, 0700u);
  fs::remove_all(directory_);
  EXPECT_FALSE(store->Describe().ok());
}

TEST_F(DiskStoreTest, AnAlmostFullDiskIsLeftAlone) {
  class AlmostFull : public FaultyFileSystem {
   public:
    using FaultyFileSystem::FaultyFileSystem;
    int64_t free = 0;
    int Space(Handle, SpaceInfo* info) override {
      *info = {.total = int64_t{1} << 40, .free = free, .type = 0};
      return 0;
    }
  };
  AlmostFull disk(&FileSystem::Posix());
  const auto store = OpenStore({}, &disk);
  disk.free = (int64_t{256} << 20) - 1;
  const absl::Status status = store->Put(NumberedEntry(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes free"));
  disk.free = int64_t{256} << 20;
  disk.set_clock_offset_ns(int64_t{10} * 1'000'000'000);
  EXPECT_TRUE(store->Put(NumberedEntry(1)).ok());
}

// ---- after a fork ---------------------------------------------------------------------------

TEST_F(DiskStoreTest, AForkedChildGoesOnWithTheStore) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  const auto held = store->Lock(KeyOf(NumberedEntry(2)).digest, 0);
  ASSERT_NE(held, nullptr);
  const std::string result = testing::RunInChild([&]() -> std::string {
    if (!Serves(*store, NumberedEntry(1))) return "no hit";
    if (store->Lock(KeyOf(NumberedEntry(2)).digest, 0) != nullptr) return "has the parent's lock";
    if (store->Lock(KeyOf(NumberedEntry(3)).digest, 0) == nullptr) return "cannot lock";
    if (!store->Put(NumberedEntry(3)).ok()) return "cannot publish";
    return "fine";
  });
  EXPECT_EQ(result, "fine");
  EXPECT_TRUE(Serves(*store, NumberedEntry(3)));
}

}  // namespace
}  // namespace tilewright::cache

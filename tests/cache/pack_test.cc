#include "cache/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache/memory_store.h"
#include "cache/open_store.h"
#include "tests/cache/test_entries.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PackTest : public ::testing::Test {
 protected:
  static std::string ReadFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void WriteFile(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static absl::StatusOr<std::unique_ptr<PackStore>> OpenBytes(const std::string& bytes,
                                                              std::vector<Digest> pins = {}) {
    return PackStore::OpenBytes(bytes, "bytes", pins, Logger(LogLevel::kOff));
  }
  static absl::StatusOr<std::unique_ptr<PackStore>> Open(const std::string& path,
                                                         std::vector<Digest> pins = {}) {
    return PackStore::Open(path, pins, Logger(LogLevel::kOff));
  }
  PackSummary Write(const std::vector<Entry>& entries, const std::string& path) {
    MemoryStore store(0);
    for (const Entry& entry : entries) EXPECT_TRUE(store.Put(entry).ok());
    const auto summary = WritePack(store, *store.List(), path);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary.value_or(PackSummary{});
  }

  testing::TempDirectory temp_;
  const std::string path_ = temp_.path() + "/kernels.twp";
  const std::vector<Entry> entries_ = {NumberedEntry(1), NumberedEntry(2, 300),
                                       NumberedEntry(2, 50, "nvrtc 2"), NumberedEntry(3)};
};

TEST_F(PackTest, ServesWhatItWasMadeOf) {
  const PackSummary summary = Write(entries_, path_);
  EXPECT_EQ(summary.entries, 4);
  EXPECT_EQ(summary.bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
  const auto pack = Open(path_);
  ASSERT_TRUE(pack.ok()) << pack.status();
  EXPECT_EQ((*pack)->digest(), summary.digest);
  for (const Entry& entry : entries_) EXPECT_TRUE(Serves(**pack, entry));
  EXPECT_EQ(MissOf(**pack, NumberedEntry(4)), "absent");
  EXPECT_EQ(MissOf(**pack, NumberedEntry(1, 100, "nvrtc 3")), "absent");
  const Entry two = entries_[1];
  EXPECT_TRUE((*pack)->Get({.digest = KeyOf(two).digest, .variant = {}}, two.manifest).ok());
  EXPECT_EQ((*pack)->Get(KeyOf(two), two.manifest + "x").status().message(), "manifest differs");
  const StoreStats stats = (*pack)->Stats();
  EXPECT_EQ(stats.hits, 5);
  EXPECT_EQ(stats.absent, 2);
  EXPECT_EQ(stats.manifest_differs, 1);
  EXPECT_EQ(stats.misses, 3);
  EXPECT_EQ(stats.entries, 4);
}

TEST_F(PackTest, ListsAndReadsItsEntriesAndChangesNothing) {
  Write(entries_, path_);
  const auto pack = Open(path_);
  ASSERT_TRUE(pack.ok());
  const auto infos = (*pack)->List();
  ASSERT_EQ(infos->size(), 4u);
  for (const EntryInfo& info : *infos) {
    EXPECT_THAT(info.path, StartsWith(path_ + "/"));
    const auto entry = (*pack)->Read(info);
    ASSERT_TRUE(entry.ok());
    EXPECT_EQ(Sha256(entry->manifest), info.digest);
  }
  EXPECT_EQ((*pack)->Read({}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*pack)->Put(NumberedEntry(9)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*pack)->Remove(KeyOf(entries_[0]).digest, VariantHex("nvrtc 1")).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*pack)->Lock(KeyOf(entries_[0]).digest, 0), nullptr);
}

// R4: the bytes depend on the entries alone.
TEST_F(PackTest, TheSameEntriesMakeTheSameBytes) {
  Write(entries_, path_);
  std::vector<Entry> reversed(entries_.rbegin(), entries_.rend());
  const std::string other = temp_.path() + "/other.twp";
  Write(reversed, other);
  EXPECT_EQ(ReadFile(path_), ReadFile(other));
  MemoryStore store(0);
  for (const Entry& entry : entries_) ASSERT_TRUE(store.Put(entry).ok());
  std::vector<EntryInfo> twice = *store.List();
  const std::vector<EntryInfo> once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  ASSERT_TRUE(WritePack(store, twice, other).ok());
  EXPECT_EQ(ReadFile(path_), ReadFile(other));
}

// R29
TEST_F(PackTest, APinnedDigestAdmitsThisPackOnly) {
  const PackSummary summary = Write(entries_, path_);
  EXPECT_TRUE(Open(path_, {Sha256("another"), summary.digest}).ok());
  const absl::Status refused = Open(path_, {Sha256("another")}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(path_), HasSubstr(summary.digest.ToHex()),
                    HasSubstr(Sha256("another").ToHex())));
  EXPECT_EQ(OpenBytes(ReadFile(path_), {Sha256("another")}).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(OpenBytes(ReadFile(path_), {summary.digest}).ok());
}

// Every bit of the header in turn, every bit of the first entry, random bytes elsewhere: refused or
// missed, never wrong.
TEST_F(PackTest, NoDamageMakesAWrongEntry) {
  Write(entries_, path_);
  const std::string good = ReadFile(path_);
  const size_t header = *PackHeaderBytes(good, static_cast<int64_t>(good.size()));
  ASSERT_LT(header + 300, good.size());
  int refused = 0;
  int missed = 0;
  const auto check = [&](const std::string& bytes) {
    const auto pack = OpenBytes(bytes);
    if (!pack.ok()) {
      EXPECT_EQ(pack.status().code(), absl::StatusCode::kDataLoss);
      ++refused;
      return;
    }
    for (const Entry& entry : entries_) {
      const std::string miss = MissOf(**pack, entry);
      EXPECT_THAT(miss, AnyOf("hit", StartsWith("corrupt: ")));
      missed += miss == "hit" ? 0 : 1;
    }
  };
  for (size_t i = 0; i < header; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      check(bytes);
    }
  }
  EXPECT_EQ(refused, static_cast<int>(8 * header));
  for (size_t i = header; i < good.size(); ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    check(bytes);
  }
  EXPECT_EQ(missed, static_cast<int>(good.size() - header));
  std::mt19937 dice(1);
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (int n = 0; n < 4; ++n) bytes[dice() % bytes.size()] = static_cast<char>(dice());
    check(bytes);
  }
}

TEST_F(PackTest, ATruncatedOrExtendedPackIsRefused) {
  Write({NumberedEntry(1, 10)}, path_);
  const std::string good = ReadFile(path_);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(OpenBytes(good.substr(0, length)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(OpenBytes(good + "x").status().code(), absl::StatusCode::kDataLoss);
  WriteFile(path_, good.substr(0, good.size() / 2));
  EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kDataLoss);
  WriteFile(path_, "");
  EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kDataLoss);
}

// A header whose own digest holds, but that its maker got wrong.
TEST_F(PackTest, AHeaderThatNobodyWritesIsRefused) {
  Write({NumberedEntry(1, 10), NumberedEntry(2, 10)}, path_);
  const std::string good = ReadFile(path_);
  const size_t header = *PackHeaderBytes(good, static_cast<int64_t>(good.size()));
  const auto with_manifest = [&](const std::string& manifest, const std::string& rest) {
    std::string bytes = good.substr(0, 8);
    const auto append = [&](uint64_t value) {
      for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    };
    append(24 + manifest.size() + 32 + rest.size());
    append(manifest.size());
    bytes += manifest;
    const Digest check = Sha256(bytes);
    bytes.append(reinterpret_cast<const char*>(check.bytes.data()), 32);
    return bytes + rest;
  };
  const std::string manifest = good.substr(24, header - 24 - 32);
  const std::string rest = good.substr(header);
  ASSERT_EQ(with_manifest(manifest, rest), good);
  const size_t first = manifest.find('\n') + 1;
  const size_t second = manifest.find('\n', first) + 1;
  const std::string line1 = manifest.substr(first, second - first);
  const std::string line2 = manifest.substr(second);
  const std::string title = manifest.substr(0, first);
  std::string upper = line1;
  std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
  for (const std::string& wrong :
       {std::string(), std::string("\n"), title + line2 + line1, title + line1 + line1,
        "tilewright pack 2\n" + line1 + line2, title + line1, title + upper + line2,
        title + line1 + line2 + "\n", title + line1 + line2.substr(0, line2.size() - 1),
        title + line1 + line2 + line2, title + " " + line1 + line2}) {
    EXPECT_EQ(OpenBytes(with_manifest(wrong, rest)).status().code(), absl::StatusCode::kDataLoss)
        << wrong;
  }
  // Swapped contents under names in good order: each entry is another's.
  const std::string exchanged =  // a pack in memory borrows its bytes
      with_manifest(manifest, rest.substr(rest.size() / 2) + rest.substr(0, rest.size() / 2));
  const auto swapped = OpenBytes(exchanged);
  ASSERT_TRUE(swapped.ok());
  EXPECT_THAT(MissOf(**swapped, NumberedEntry(1, 10)), StartsWith("corrupt: "));
}

// An entry whose digest the manifest names rightly, under the name of another key.
TEST_F(PackTest, AnEntryUnderAnothersNameIsCorrupt) {
  const Entry liar = NumberedEntry(1, 10);
  const std::string bytes = *SerializeEntry(liar);
  const std::string manifest =
      "tilewright pack 1\n" + EntryFileName(KeyOf(NumberedEntry(2)).digest, VariantHex("nvrtc 1")) +
      " " + std::to_string(bytes.size()) + " " + Sha256(bytes).ToHex() + "\n";
  Write({NumberedEntry(1)}, path_);
  std::string pack = ReadFile(path_).substr(0, 8);
  for (const uint64_t value : {24 + manifest.size() + 32 + bytes.size(), manifest.size()}) {
    for (int i = 0; i < 8; ++i) pack.push_back(static_cast<char>(value >> (8 * i)));
  }
  pack += manifest;
  const Digest check = Sha256(pack);
  pack.append(reinterpret_cast<const char*>(check.bytes.data()), 32);
  pack += bytes;
  const auto opened = OpenBytes(pack);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(MissOf(**opened, NumberedEntry(2)), HasSubstr("another key"));
  EXPECT_EQ((*opened)->Stats().corrupt, 1);
}

// R24: a file that shrinks while it is open raises no signal.
TEST_F(PackTest, AFileThatShrinksIsAMiss) {
  Write(entries_, path_);
  const auto pack = Open(path_);
  ASSERT_TRUE(pack.ok());
  std::filesystem::resize_file(path_, 100);
  EXPECT_THAT(MissOf(**pack, entries_[0]), StartsWith("unreadable: "));
  EXPECT_EQ((*pack)->Stats().unreadable, 1);
}

TEST_F(PackTest, OnlyFilesOfTrustedOwnersAreRead) {
  const PackSummary summary = Write(entries_, path_);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kPermissionDenied);
  // Pinned, it does not matter who could have written it.
  EXPECT_TRUE(Open(path_, {summary.digest}).ok());
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  EXPECT_TRUE(Open(path_).ok());
  const std::string fifo = temp_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FALSE(Open(fifo).ok());
  EXPECT_EQ(Open(temp_.path() + "/missing").status().code(), absl::StatusCode::kNotFound);
  // Installations link.
  const std::string link = temp_.path() + "/current";
  std::filesystem::create_symlink(path_, link);
  EXPECT_TRUE(Open(link).ok());
}

TEST_F(PackTest, AForeignOwnerIsRefusedUnlessPinned) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a file of another user";
  const PackSummary summary = Write(entries_, path_);
  ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_THAT(std::string(Open(path_).status().message()), HasSubstr("belongs to user 12345"));
  EXPECT_TRUE(Open(path_, {summary.digest}).ok());
}

TEST_F(PackTest, AFailedWriteLeavesTheOldPackAndNothingElse) {
  MemoryStore store(0);
  ASSERT_TRUE(store.Put(NumberedEntry(1)).ok());
  ASSERT_TRUE(WritePack(store, *store.List(), path_).ok());
  const std::string before = ReadFile(path_);
  ASSERT_TRUE(store.Put(NumberedEntry(2)).ok());
  for (int64_t call = 1;; ++call) {
    testing::FaultyFileSystem faulty(&FileSystem::Posix());
    faulty.FailAt(call, ENOSPC);
    const auto summary = WritePack(store, *store.List(), path_, &faulty);
    if (faulty.calls() < call) break;
    ASSERT_LT(call, 100);
    const size_t files = std::distance(std::filesystem::directory_iterator(temp_.path()),
                                       std::filesystem::directory_iterator());
    EXPECT_EQ(files, 1u) << call;
    if (!summary.ok()) continue;
    EXPECT_TRUE(Open(path_).ok());
    WriteFile(path_, before);
  }
  EXPECT_TRUE(Open(path_).ok());
  EXPECT_EQ(WritePack(store, *store.List(), temp_.path() + "/no/such/x").status().code(),
            absl::StatusCode::kNotFound);
}

// R28: moved, on an empty store, by a program that only has its place.
TEST_F(PackTest, AMovedPackServesAnEmptyStore) {
  const PackSummary summary = Write(entries_, path_);
  const std::string moved = temp_.path() + "/elsewhere/moved.bin";
  std::filesystem::create_directory(temp_.path() + "/elsewhere");
  std::filesystem::rename(path_, moved);
  const OpenedStore opened =
      OpenStore({.directory = temp_.path() + "/user", .packs = {moved}}, Logger(LogLevel::kOff));
  ASSERT_EQ(opened.packs.size(), 1u);
  EXPECT_EQ(opened.packs[0].sha256, summary.digest.ToHex());
  EXPECT_EQ(opened.packs[0].refused, "");
  for (const Entry& entry : entries_) EXPECT_TRUE(Serves(*opened.store, entry));
  EXPECT_EQ(opened.store->Stats().pack_hits, 4);
  EXPECT_EQ(opened.disk->List()->size(), 0u);
}

// Installations switch versions by a link: to a file, to a directory, or on the way to either.
TEST_F(PackTest, LinksOnTheWayToAPackAreFollowed) {
  namespace fs = std::filesystem;
  const std::string real = temp_.path() + "/v3";
  fs::create_directory(real);
  ASSERT_EQ(chmod(real.c_str(), 0755), 0);
  fs::create_directory_symlink(real, temp_.path() + "/current");
  Write({NumberedEntry(1)}, temp_.path() + "/current/kernels.twp");
  EXPECT_TRUE(fs::exists(real + "/kernels.twp"));
  {
    const auto store = DiskStore::Open({.directory = real + "/directory"}, Logger(LogLevel::kOff));
    ASSERT_TRUE((*store)->Put(NumberedEntry(2)).ok());
  }
  fs::create_directory_symlink(real + "/directory", temp_.path() + "/linked");
  const OpenedStore opened =
      OpenStore({.directory = temp_.path() + "/user",
                 .packs = {temp_.path() + "/current/kernels.twp", temp_.path() + "/linked"}},
                Logger(LogLevel::kOff));
  for (const PackState& state : opened.packs) EXPECT_EQ(state.refused, "") << state.place;
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(1)));
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(2)));
  const auto infos = opened.store->List();
  ASSERT_TRUE(infos.ok());
  for (const EntryInfo& info : *infos) EXPECT_TRUE(opened.store->Read(info).ok()) << info.path;
  // What a link leads to is held to the rules.
  ASSERT_EQ(chmod((real + "/directory").c_str(), 0777), 0);
  const OpenedStore refused =
      OpenStore({.directory = temp_.path() + "/user", .packs = {temp_.path() + "/linked"}},
                Logger(LogLevel::kOff));
  EXPECT_THAT(refused.packs[0].refused, HasSubstr("mode 0777"));
}

TEST_F(PackTest, PacksOfSeveralVersionsAndKindsLieBesideEachOther) {
  Write({NumberedEntry(1)}, path_);
  const std::string other = temp_.path() + "/other.twp";
  Write({NumberedEntry(2), NumberedEntry(3, 10, "nvrtc 12")}, other);
  const std::string damaged = temp_.path() + "/damaged.twp";
  WriteFile(damaged, "not a pack");
  const std::string directory = temp_.path() + "/directory";
  {
    const auto store = DiskStore::Open({.directory = directory}, Logger(LogLevel::kOff));
    ASSERT_TRUE((*store)->Put(NumberedEntry(4)).ok());
  }
  const std::string embedded_path = temp_.path() + "/embedded.twp";
  Write({NumberedEntry(5)}, embedded_path);
  const std::string bytes = ReadFile(embedded_path);
  StoreOptions options = {.directory = temp_.path() + "/user",
                          .packs = {damaged, path_, directory, other, temp_.path() + "/none"}};
  options.embedded_pack = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const OpenedStore opened = OpenStore(options, Logger(LogLevel::kOff));
  ASSERT_EQ(opened.packs.size(), 6u);
  EXPECT_THAT(opened.packs[1].refused, HasSubstr("magic"));
  EXPECT_NE(opened.packs[5].refused, "");
  for (int i : {1, 2, 4, 5}) EXPECT_TRUE(Serves(*opened.store, NumberedEntry(i))) << i;
  EXPECT_EQ(MissOf(*opened.store, NumberedEntry(3)), "absent");
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(3, 10, "nvrtc 12")));
  const auto infos = opened.store->List();
  ASSERT_TRUE(infos.ok());
  EXPECT_EQ(infos->size(), 5u);
  for (const EntryInfo& info : *infos) {
    EXPECT_TRUE(opened.store->Read(info).ok()) << info.path;
  }

  // With a pin, only what has it: not the directory, and not the embedded one either.
  options.pack_sha256 = {opened.packs[2].sha256};
  const OpenedStore pinned = OpenStore(options, Logger(LogLevel::kOff));
  EXPECT_TRUE(Serves(*pinned.store, NumberedEntry(1)));
  for (int i : {2, 4, 5}) EXPECT_EQ(MissOf(*pinned.store, NumberedEntry(i)), "absent") << i;
  EXPECT_THAT(pinned.packs[3].refused, HasSubstr("directory"));
  options.pack_sha256 = {"not a digest"};
  const OpenedStore none = OpenStore(options, Logger(LogLevel::kOff));
  EXPECT_EQ(MissOf(*none.store, NumberedEntry(1)), "absent");
}

TEST_F(PackTest, AnEmbeddedPackServesWithoutAnyDisk) {
  Write(entries_, path_);
  const std::string bytes = ReadFile(path_);
  StoreOptions options = {.packs = {"/not/looked/at"}, .in_memory = true};
  options.embedded_pack = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const OpenedStore opened = OpenStore(options, Logger(LogLevel::kOff));
  EXPECT_EQ(opened.packs.size(), 1u);
  for (const Entry& entry : entries_) EXPECT_TRUE(Serves(*opened.store, entry));
}

}  // namespace
}  // namespace tilewright::cache

#include "cache/layered_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/entry_format.h"
#include "tests/cache/test_entries.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using ::testing::StartsWith;

class LayeredStoreTest : public ::testing::Test {
 protected:
  static std::unique_ptr<DiskStore> Disk(const std::string& directory, bool pack = false) {
    auto store = DiskStore::Open({.directory = directory, .pack = pack}, Logger(LogLevel::kOff));
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // A pack with these entries.
  void MakePack(const std::vector<Entry>& entries) {
    const auto writer = Disk(pack_);
    for (const Entry& entry : entries) ASSERT_TRUE(writer->Put(entry).ok());
  }
  std::unique_ptr<LayeredStore> Layers(bool with_pack, bool with_user) {
    std::vector<StoreLayer> packs;
    if (with_pack) packs.push_back({pack_, Disk(pack_, /*pack=*/true)});
    return std::make_unique<LayeredStore>(
        std::make_unique<MemoryStore>(0), std::move(packs),
        with_user ? StoreLayer{user_, Disk(user_)} : StoreLayer{});
  }

  testing::TempDirectory temp_;
  const std::string pack_ = temp_.path() + "/pack";
  const std::string user_ = temp_.path() + "/user";
};

TEST_F(LayeredStoreTest, CountsHitsByLayer) {
  MakePack({NumberedEntry(1)});
  ASSERT_TRUE(Disk(user_)->Put(NumberedEntry(2)).ok());
  const auto store = Layers(true, true);
  EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
  EXPECT_TRUE(Serves(*store, NumberedEntry(2)));
  EXPECT_TRUE(Serves(*store, NumberedEntry(2)));
  EXPECT_EQ(MissOf(*store, NumberedEntry(3)), "absent");
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.hits, 3);
  EXPECT_EQ(stats.pack_hits, 1);
  EXPECT_EQ(stats.disk_hits, 1);
  EXPECT_EQ(stats.memory_hits, 1);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.absent, 1);
  EXPECT_EQ(stats.entries, 2);
}

TEST_F(LayeredStoreTest, WritesGoToTheUsersDirectoryOnly) {
  MakePack({NumberedEntry(1)});
  const auto store = Layers(true, true);
  ASSERT_TRUE(store->Put(NumberedEntry(2)).ok());
  EXPECT_TRUE(Serves(*Disk(user_), NumberedEntry(2)));
  EXPECT_EQ(Disk(pack_)->List()->size(), 1u);
  EXPECT_EQ(store->Stats().publishes, 1);
}

TEST_F(LayeredStoreTest, WithoutAUsersDirectoryMemoryServes) {
  const auto store = Layers(false, false);
  ASSERT_TRUE(store->Put(NumberedEntry(1)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
  EXPECT_EQ(store->Lock(Sha256("x"), 0), nullptr);
  ASSERT_EQ(store->List()->size(), 1u);
  EXPECT_TRUE(store->Read(store->List()->front()).ok());
  EXPECT_EQ(store->Stats().entries, 1);
  EXPECT_EQ(store->Stats().publishes, 1);
  ASSERT_TRUE(store->Remove(KeyOf(NumberedEntry(1)).digest, VariantHex("nvrtc 1")).ok());
  EXPECT_EQ(MissOf(*store, NumberedEntry(1)), "absent");
}

// R16: what could not be published is served all the same.
TEST_F(LayeredStoreTest, AnUnwritableDirectoryDoesNotTakeTheEntryAway) {
  const auto store = Layers(false, true);
  std::filesystem::remove_all(user_);
  std::ofstream(user_) << "a file in the way";
  EXPECT_FALSE(store->Put(NumberedEntry(1)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
  EXPECT_EQ(store->Stats().publish_failures, 1);
}

TEST_F(LayeredStoreTest, ARemovedEntryOfAPackIsPassedOver) {
  MakePack({NumberedEntry(1)});
  const auto store = Layers(true, true);
  ASSERT_TRUE(Serves(*store, NumberedEntry(1)));
  ASSERT_TRUE(store->Remove(KeyOf(NumberedEntry(1)).digest, VariantHex("nvrtc 1")).ok());
  EXPECT_EQ(MissOf(*store, NumberedEntry(1)), "absent");
  ASSERT_TRUE(store->Put(NumberedEntry(1, 200)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1, 200)));
  EXPECT_TRUE(Serves(*Disk(pack_, true), NumberedEntry(1)));
}

TEST_F(LayeredStoreTest, ADamagedPackGivesWayToTheUsersDirectory) {
  MakePack({NumberedEntry(1)});
  const std::string path = Disk(pack_)->List()->front().path;
  std::ofstream(path) << "damaged";
  const auto store = Layers(true, true);
  EXPECT_THAT(MissOf(*store, NumberedEntry(1)), StartsWith("corrupt: "));
  ASSERT_TRUE(Disk(user_)->Put(NumberedEntry(1)).ok());
  EXPECT_TRUE(Serves(*store, NumberedEntry(1)));
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(store->Stats().corrupt, 2);
}

TEST_F(LayeredStoreTest, ListsAndReadsEachLayer) {
  MakePack({NumberedEntry(1), NumberedEntry(2)});
  const auto store = Layers(true, true);
  ASSERT_TRUE(store->Put(NumberedEntry(2, 300)).ok());
  const auto infos = store->List();
  ASSERT_TRUE(infos.ok());
  ASSERT_EQ(infos->size(), 3u);
  int from_user = 0;
  for (const EntryInfo& info : *infos) {
    const auto entry = store->Read(info);
    ASSERT_TRUE(entry.ok()) << info.path;
    const bool users = info.path.starts_with(user_);
    from_user += users ? 1 : 0;
    if (users) {
      EXPECT_TRUE(SameEntry(*entry, NumberedEntry(2, 300)));
    }
  }
  EXPECT_EQ(from_user, 1);
  EXPECT_EQ(store->Read({.path = "/elsewhere/x"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tilewright::cache

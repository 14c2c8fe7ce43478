#include "cache/memory_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cache/entry_format.h"
#include "tests/cache/test_entries.h"

namespace tilewright::cache {
namespace {

TEST(MemoryStoreTest, ServesWhatWasPut) {
  MemoryStore store(0);
  const Entry entry = NumberedEntry(1);
  EXPECT_EQ(MissOf(store, entry), "absent");
  ASSERT_TRUE(store.Put(entry).ok());
  EXPECT_TRUE(Serves(store, entry));
  EXPECT_EQ(store.Stats().hits, 1);
  EXPECT_EQ(store.Stats().misses, 1);
  EXPECT_EQ(store.Stats().absent, 1);
  EXPECT_EQ(store.Stats().publishes, 1);
}

TEST(MemoryStoreTest, TheManifestIsComparedByteForByte) {
  MemoryStore store(0);
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(store.Put(entry).ok());
  EXPECT_EQ(store.Get(KeyOf(entry), entry.manifest + "x").status().message(), "manifest differs");
  EXPECT_EQ(store.Stats().manifest_differs, 1);
}

TEST(MemoryStoreTest, VariantsAreApartUnlessAnyWillDo) {
  MemoryStore store(0);
  const Entry one = NumberedEntry(1, 100, "nvrtc 1");
  const Entry two = NumberedEntry(1, 100, "nvrtc 2");
  ASSERT_TRUE(store.Put(one).ok());
  EXPECT_EQ(MissOf(store, two), "absent");
  ASSERT_TRUE(store.Put(two).ok());
  EXPECT_TRUE(Serves(store, one));
  EXPECT_TRUE(Serves(store, two));
  EXPECT_TRUE(store.Get({.digest = KeyOf(one).digest, .variant = {}}, one.manifest).ok());
  EXPECT_EQ(store.List()->size(), 2u);
  ASSERT_TRUE(store.Remove(KeyOf(one).digest, VariantHex("nvrtc 1")).ok());
  EXPECT_FALSE(Serves(store, one));
  EXPECT_TRUE(Serves(store, two));
  ASSERT_TRUE(store.Remove(KeyOf(one).digest, VariantHex("nvrtc 2")).ok());
  EXPECT_EQ(store.Stats().entries, 0);
}

TEST(MemoryStoreTest, StaysWithinItsBytes) {
  MemoryStore store(10000);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(store.Put(NumberedEntry(i, 1000)).ok());
  EXPECT_LE(store.Stats().bytes, 10000);
  EXPECT_GT(store.Stats().entries, 5);
  EXPECT_EQ(store.Stats().evictions, 100 - store.Stats().entries);
  EXPECT_TRUE(Serves(store, NumberedEntry(99, 1000)));
  EXPECT_FALSE(Serves(store, NumberedEntry(0, 1000)));
}

TEST(MemoryStoreTest, ListsAndReads) {
  MemoryStore store(0);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(store.Put(NumberedEntry(i)).ok());
  const auto infos = store.List();
  ASSERT_TRUE(infos.ok());
  ASSERT_EQ(infos->size(), 10u);
  for (size_t i = 0; i + 1 < infos->size(); ++i) {
    EXPECT_LT((*infos)[i].digest, (*infos)[i + 1].digest);
  }
  for (const EntryInfo& info : *infos) {
    EXPECT_TRUE(info.path.empty());
    const auto entry = store.Read(info);
    ASSERT_TRUE(entry.ok());
    EXPECT_EQ(Sha256(entry->manifest), info.digest);
  }
  EXPECT_EQ(store.Read({.digest = Sha256("none")}).status().code(), absl::StatusCode::kNotFound);
}

TEST(MemoryStoreTest, ThreadsMayShareIt) {
  MemoryStore store(20000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Entry entry = NumberedEntry((t + i) % 40, 1000);
        if (!store.Put(entry).ok()) ++wrong;
        const std::string miss = MissOf(store, entry);
        if (miss != "hit" && miss != "absent") ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tilewright::cache

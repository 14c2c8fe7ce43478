#include "cache/totals.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/disk_store.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

using ::tilewright::testing::TempDirectory;

std::unique_ptr<DiskStore> OpenStoreIn(const std::string& directory, bool read_only = false) {
  auto store = DiskStore::Open({.directory = directory, .read_only = read_only}, Logger());
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

TEST(TotalsTest, TextGoesBothWays) {
  const Totals totals = {{"compile_ms", 1234.5678901234}, {"hits", 9007199254740991.0}, {"z", 0}};
  const std::string text = SerializeTotals(totals);
  EXPECT_EQ(text.substr(0, 11), "compile_ms ");
  EXPECT_EQ(ParseTotals(text), totals);
  EXPECT_EQ(ParseTotals(""), Totals{});
}

TEST(TotalsTest, OtherTextsAreNotRead) {
  for (const char* text :
       {"\n", "hits 1", "hits\n", "hits x\n", "Hits 1\n", "hits -1\n", "hits nan\n", "hits inf\n",
        "hits 1\nhits 2\n", "hits 1\n\n", " 1\n", "hits 1 2\n"}) {
    EXPECT_FALSE(ParseTotals(text).has_value()) << text;
  }
}

TEST(TotalsTest, AStoreAddsUpWhatItsProcessesCount) {
  const TempDirectory directory;
  EXPECT_TRUE(OpenStoreIn(directory.path())->ReadTotals().empty());
  OpenStoreIn(directory.path())->AddToTotals({{"compiles", 2}, {"compile_ms", 10.5}});
  OpenStoreIn(directory.path())->AddToTotals({{"compiles", 1}, {"loads", 3}});
  EXPECT_EQ(OpenStoreIn(directory.path())->ReadTotals(),
            (Totals{{"compile_ms", 10.5}, {"compiles", 3}, {"loads", 3}}));
}

TEST(TotalsTest, NothingIsLostAmongThreads) {
  const TempDirectory directory;
  const auto store = OpenStoreIn(directory.path());
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([&] {
      for (int m = 0; m < 10; ++m) store->AddToTotals({{"hits", 1}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->ReadTotals(), (Totals{{"hits", 80}}));
}

TEST(TotalsTest, AReadOnlyStoreKeepsNone) {
  const TempDirectory directory;
  OpenStoreIn(directory.path())->AddToTotals({{"hits", 1}});
  const auto reader = OpenStoreIn(directory.path(), /*read_only=*/true);
  reader->AddToTotals({{"hits", 1}});
  EXPECT_EQ(reader->ReadTotals(), (Totals{{"hits", 1}}));
}

TEST(TotalsTest, DamagedSumsBeginAnew) {
  const TempDirectory directory;
  OpenStoreIn(directory.path())->AddToTotals({{"hits", 5}});
  std::ofstream(directory.path() + "/v1/totals") << "hits 5\nhits";
  const auto store = OpenStoreIn(directory.path());
  EXPECT_TRUE(store->ReadTotals().empty());
  store->AddToTotals({{"hits", 1}});
  EXPECT_EQ(store->ReadTotals(), (Totals{{"hits", 1}}));
}

}  // namespace
}  // namespace tilewright::cache

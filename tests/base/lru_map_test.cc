#include "base/lru_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tilewright {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Keys(const LruMap<std::string, int>& map) {
  std::vector<std::string> keys;
  map.ForEach([&](const std::string& key, int) { keys.push_back(key); });
  return keys;
}

TEST(LruMapTest, ForgetsWhatWasUsedLongestAgo) {
  LruMap<std::string, int> map(3);
  map.Insert("a", 1, 1);
  map.Insert("b", 2, 1);
  map.Insert("c", 3, 1);
  ASSERT_NE(map.Find("a"), nullptr);
  EXPECT_EQ(map.Insert("d", 4, 1), 1);
  EXPECT_EQ(map.Find("b"), nullptr);
  EXPECT_THAT(Keys(map), ElementsAre("d", "a", "c"));
}

TEST(LruMapTest, CountsCosts) {
  LruMap<std::string, int> map(10);
  map.Insert("a", 1, 4);
  map.Insert("b", 2, 4);
  EXPECT_EQ(map.Insert("c", 3, 7), 2);
  EXPECT_THAT(Keys(map), ElementsAre("c"));
  EXPECT_EQ(map.cost(), 7);
}

TEST(LruMapTest, KeepsTheNewestEvenWhenItAloneIsTooLarge) {
  LruMap<std::string, int> map(10);
  map.Insert("a", 1, 4);
  EXPECT_EQ(map.Insert("b", 2, 100), 1);
  ASSERT_NE(map.Find("b"), nullptr);
  EXPECT_EQ(*map.Find("b"), 2);
  EXPECT_EQ(map.Insert("c", 3, 1), 1);
  EXPECT_EQ(map.cost(), 1);
}

TEST(LruMapTest, InsertReplaces) {
  LruMap<std::string, int> map(10);
  map.Insert("a", 1, 4);
  map.Insert("a", 2, 6);
  EXPECT_EQ(map.size(), 1u);
  EXPECT_EQ(map.cost(), 6);
  EXPECT_EQ(*map.Find("a"), 2);
}

TEST(LruMapTest, EraseGivesTheCostBack) {
  LruMap<std::string, int> map(10);
  map.Insert("a", 1, 4);
  EXPECT_TRUE(map.Erase("a"));
  EXPECT_FALSE(map.Erase("a"));
  EXPECT_EQ(map.cost(), 0);
  EXPECT_EQ(map.Find("a"), nullptr);
}

TEST(LruMapTest, ZeroIsNoBound) {
  LruMap<int, int> map(0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(map.Insert(i, i, 1 << 20), 0);
  EXPECT_EQ(map.size(), 1000u);
}

}  // namespace
}  // namespace tilewright

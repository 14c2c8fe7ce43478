#include "compile/ld_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/compile/test_files.h"

namespace tilewright::compile {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

#if defined(__aarch64__)
constexpr uint32_t kOurs = 0x0a03;
#else
constexpr uint32_t kOurs = 0x0303;
#endif
constexpr uint32_t kI386 = 0x0003;

struct Entry {
  uint32_t flags;
  std::string name;
  std::string path;
};

void AppendWord(std::string& bytes, uint32_t word) {
  bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
}

std::string NewFormat(const std::vector<Entry>& entries) {
  std::string texts;
  std::string table;
  const uint32_t texts_at = static_cast<uint32_t>(48 + 24 * entries.size());
  for (const Entry& entry : entries) {
    AppendWord(table, entry.flags);
    AppendWord(table, texts_at + static_cast<uint32_t>(texts.size()));
    texts += entry.name + '\0';
    AppendWord(table, texts_at + static_cast<uint32_t>(texts.size()));
    texts += entry.path + '\0';
    table.append(12, '\0');  // OS version, hardware capabilities
  }
  std::string bytes = "glibc-ld.so.cache1.1";
  AppendWord(bytes, static_cast<uint32_t>(entries.size()));
  AppendWord(bytes, static_cast<uint32_t>(texts.size()));
  bytes.append(20, '\0');
  return bytes + table + texts;
}

std::string BehindOldTable(const std::string& new_format) {
  std::string bytes = "ld.so-1.7.0";
  bytes += '\0';
  AppendWord(bytes, 3);
  bytes.append(3 * 12, '\x7f');
  bytes.append((8 - bytes.size() % 8) % 8, '\0');
  return bytes + new_format;
}

const std::vector<Entry>& Entries() {
  static const std::vector<Entry> entries = {
      {kOurs, "libnvrtc.so.13", "/a/libnvrtc.so.13"},
      {kI386, "libnvrtc.so.12", "/i386/libnvrtc.so.12"},
      {kOurs, "libm.so.6", "/lib/libm.so.6"},
      {kOurs, "libnvrtc.so", "/a/libnvrtc.so"},
  };
  return entries;
}

TEST(LdCacheTest, FindsTheLibrariesOfThisMachineByPrefix) {
  EXPECT_THAT(LibrariesInLdCache(NewFormat(Entries()), "libnvrtc.so"),
              ElementsAre(Pair("libnvrtc.so.13", "/a/libnvrtc.so.13"),
                          Pair("libnvrtc.so", "/a/libnvrtc.so")));
}

TEST(LdCacheTest, ReadsTheTableBehindAnOldOne) {
  EXPECT_THAT(LibrariesInLdCache(BehindOldTable(NewFormat(Entries())), "libm.so"),
              ElementsAre(Pair("libm.so.6", "/lib/libm.so.6")));
}

TEST(LdCacheTest, OtherFilesGiveNothing) {
  EXPECT_THAT(LibrariesInLdCache("", "lib"), IsEmpty());
  EXPECT_THAT(
      LibrariesInLdCache("a text file that is long enough to hold a header of the cache", "lib"),
      IsEmpty());
}

TEST(LdCacheTest, DamageNeverReadsOutsideTheFile) {
  for (const std::string& whole : {NewFormat(Entries()), BehindOldTable(NewFormat(Entries()))}) {
    for (size_t length = 0; length < whole.size(); ++length) {
      EXPECT_LE(LibrariesInLdCache(std::string(whole, 0, length), "lib").size(), 3u);
      std::string damaged = whole;
      damaged[length] = static_cast<char>(~damaged[length]);
      EXPECT_LE(LibrariesInLdCache(damaged, "lib").size(), Entries().size());
    }
  }
}

TEST(LdCacheTest, ReadsThisMachinesCache) {
  const std::string bytes = ReadFile("/etc/ld.so.cache");
  if (bytes.empty()) GTEST_SKIP() << "this machine has no /etc/ld.so.cache";
  const auto found = LibrariesInLdCache(bytes, "libc.so.6");
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].first, "libc.so.6");
  EXPECT_FALSE(ReadFile(found[0].second).empty()) << found[0].second;
}

}  // namespace
}  // namespace tilewright::compile

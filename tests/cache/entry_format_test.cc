#include "cache/entry_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cache/test_entries.h"

namespace tilewright::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Replaces bytes of an entry and gives it the right digest again: what only an attacker or a bug of
// the writer would make.
std::string Resealed(std::string file, size_t at, std::string_view bytes) {
  file.replace(at, bytes.size(), bytes);
  file.resize(file.size() - 32);
  const Digest digest = Sha256(file);
  file.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  return file;
}

std::string LittleEndian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}

constexpr size_t kSchemaAt = 16;
constexpr size_t kSectionsAt = 20;
constexpr size_t kManifestLengthAt = 24;

TEST(EntryFormatTest, ReadsBackWhatItWrote) {
  const Entry entry = {.manifest = std::string("m\0n", 3),
                       .variant = "nvrtc 13.0.88",
                       .sections = {{"cubin", std::string(40000, '\x7f')}, {"facts", ""}}};
  const auto file = SerializeEntry(entry);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = ParseEntry(*file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(SameEntry(*read, entry));
  ASSERT_NE(read->Find("facts"), nullptr);
  EXPECT_EQ(read->Find("source"), nullptr);
}

// The bytes of version 1, written down so that no change of the writer goes unnoticed.
TEST(EntryFormatTest, WritesTheGrammarOfTheReadme) {
  const auto file = SerializeEntry({.manifest = "M", .variant = "V", .sections = {{"s", "B"}}});
  ASSERT_TRUE(file.ok());
  const std::string before_digest = std::string("\x89TWK\r\n\x1a\n", 8) + LittleEndian(92, 8) +
                                    LittleEndian(1, 4) + LittleEndian(1, 4) + LittleEndian(1, 8) +
                                    "M" + LittleEndian(1, 8) + "V" + LittleEndian(1, 8) + "s" +
                                    LittleEndian(1, 8) + "B";
  EXPECT_EQ(file->substr(0, file->size() - 32), before_digest);
  const Digest digest = Sha256(before_digest);
  EXPECT_EQ(file->substr(file->size() - 32),
            std::string(reinterpret_cast<const char*>(digest.bytes.data()), 32));
}

TEST(EntryFormatTest, EveryFlippedBitIsNoticed) {
  const std::string file = *SerializeEntry(SmallEntry());
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(ParseEntry(flipped).status().code(), absl::StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(EntryFormatTest, EveryOtherLengthIsNoticed) {
  const std::string file = *SerializeEntry(SmallEntry());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(std::string(ParseEntry(file.substr(0, size)).status().message()),
                StartsWith("length: "))
        << size;
  }
  EXPECT_THAT(std::string(ParseEntry(file + '\0').status().message()), StartsWith("length: "));
}

TEST(EntryFormatTest, StructureIsCheckedBehindARightDigest) {
  const std::string file = *SerializeEntry(SmallEntry());
  const auto message = [](const std::string& bytes) {
    return std::string(ParseEntry(bytes).status().message());
  };
  ASSERT_TRUE(ParseEntry(Resealed(file, 0, "\x89")).ok());
  EXPECT_THAT(message(Resealed(file, 0, "X")), StartsWith("magic: "));
  EXPECT_THAT(message(Resealed(file, kSchemaAt, LittleEndian(2, 4))), StartsWith("schema: 2"));
  EXPECT_THAT(message(Resealed(file, kSectionsAt, LittleEndian(0, 4))),
              HasSubstr("after the last"));
  EXPECT_THAT(message(Resealed(file, kSectionsAt, LittleEndian(2, 4))), HasSubstr("section 1"));
  EXPECT_THAT(message(Resealed(file, kSectionsAt, LittleEndian(0xffffffff, 4))),
              HasSubstr("4294967295 sections"));
  for (uint64_t length : {uint64_t{1000}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 31}) {
    EXPECT_THAT(message(Resealed(file, kManifestLengthAt, LittleEndian(length, 8))),
                StartsWith("structure: manifest"));
  }
}

TEST(EntryFormatTest, SectionsHaveDifferentNames) {
  EXPECT_EQ(SerializeEntry({.sections = {{"a", ""}, {"a", ""}}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeEntry({.sections = {{"", ""}}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  // And the reader holds to it as well: "b" renamed to "a".
  std::string file = *SerializeEntry({.sections = {{"a", ""}, {"b", ""}}});
  EXPECT_FALSE(ParseEntry(Resealed(file, file.rfind('b', file.size() - 33), "a")).ok());
}

TEST(EntryFormatTest, TooManySectionsAreRefused) {
  Entry entry;
  for (size_t i = 0; i <= kMaxSections; ++i) entry.sections.push_back({std::to_string(i), ""});
  EXPECT_EQ(SerializeEntry(entry).status().code(), absl::StatusCode::kInvalidArgument);
  entry.sections.pop_back();
  const auto file = SerializeEntry(entry);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(ParseEntry(*file).ok());
}

TEST(EntryFormatTest, FileNamesGoBothWays) {
  const Digest digest = Sha256("manifest");
  const std::string name = EntryFileName(digest, VariantHex("nvrtc"));
  EXPECT_EQ(name, digest.ToHex() + "." + Sha256("nvrtc").ToHex().substr(0, 16) + ".twk");
  const auto parsed = ParseEntryFileName(name);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->digest, digest);
  EXPECT_EQ(parsed->variant_hex, VariantHex("nvrtc"));
}

TEST(EntryFormatTest, OtherFileNamesAreNotEntries) {
  const std::string name = EntryFileName(Sha256("m"), VariantHex("v"));
  std::string upper = name;
  upper[70] = 'A';
  for (const std::string& other :
       {std::string(), name + ".bad", name.substr(1), std::string("0").append(name), upper,
        std::string("g").append(name, 1), name.substr(0, 81) + ".twt",
        name.substr(0, 64) + "_" + name.substr(65)}) {
    EXPECT_FALSE(ParseEntryFileName(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace tilewright::cache

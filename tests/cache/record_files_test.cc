#include "cache/record_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/memory_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

Digest Key(int number) { return Sha256(std::to_string(number)); }

TEST(RecordFilesTest, EveryDamageOfASealedRecordIsSeen) {
  const std::string file = SealRecord("{\"a\": 1}\n");
  EXPECT_EQ(*OpenRecord(file), "{\"a\": 1}\n");
  for (size_t n = 0; n < file.size(); ++n) {
    EXPECT_FALSE(OpenRecord(file.substr(0, n)).ok()) << n;
    std::string flipped = file;
    flipped[n] = static_cast<char>(flipped[n] ^ 1);
    EXPECT_FALSE(OpenRecord(flipped).ok()) << n;
  }
  EXPECT_FALSE(OpenRecord(file + "x").ok());
}

TEST(RecordFilesTest, WritesReadsReplacesListsAndRemoves) {
  const tilewright::testing::TempDirectory directory;
  const RecordFiles files({.directory = directory.path()});
  EXPECT_EQ(files.Read(Key(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(files.List().empty());
  ASSERT_TRUE(files.Write(Key(1), "one\n", true).ok());
  ASSERT_TRUE(files.Write(Key(2), "two\n", false).ok());
  EXPECT_EQ(*files.Read(Key(1)), "one\n");
  ASSERT_TRUE(files.Write(Key(1), "uno\n", false).ok());
  EXPECT_EQ(*files.Read(Key(1)), "uno\n");
  EXPECT_THAT(files.List(), ::testing::UnorderedElementsAre(Key(1), Key(2)));
  ASSERT_TRUE(files.Remove(Key(1)).ok());
  ASSERT_TRUE(files.Remove(Key(1)).ok());
  EXPECT_THAT(files.List(), ::testing::ElementsAre(Key(2)));
  // No leftovers.
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/v1/tmp"));
}

TEST(RecordFilesTest, AReadOnlyStoreAndAPackAreNotWritten) {
  const tilewright::testing::TempDirectory directory;
  ASSERT_TRUE(RecordFiles({.directory = directory.path()}).Write(Key(1), "one\n", true).ok());
  for (const RecordFilesOptions& options :
       {RecordFilesOptions{.directory = directory.path(), .read_only = true},
        RecordFilesOptions{.directory = directory.path(), .pack = true}}) {
    const RecordFiles files(options);
    EXPECT_EQ(*files.Read(Key(1)), "one\n");
    EXPECT_EQ(files.Write(Key(2), "two\n", true).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(files.Remove(Key(1)).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(RecordFiles({.directory = directory.path() + "/nowhere", .pack = true})
                .Read(Key(1))
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST(RecordFilesTest, LinksAndFilesOfOthersAreNotTrusted) {
  const tilewright::testing::TempDirectory directory;
  const RecordFiles files({.directory = directory.path()});
  ASSERT_TRUE(files.Write(Key(1), "one\n", true).ok());
  const std::string hex = Key(1).ToHex();
  const std::filesystem::path path =
      directory.path() + "/v1/t/" + hex.substr(0, 2) + "/" + hex + ".twt";
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(files.Read(Key(1)).status().code(), absl::StatusCode::kPermissionDenied);
  std::filesystem::rename(path, path.string() + ".real");
  std::filesystem::create_symlink(path.string() + ".real", path);
  EXPECT_EQ(files.Read(Key(1)).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(RecordFilesTest, APowerCutLeavesTheOldRecordOrTheNewOne) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    tilewright::testing::MemoryFileSystem disk;
    std::mt19937 dice(seed);
    const RecordFiles files({.directory = tilewright::testing::MemoryFileSystem::kRoot}, &disk);
    ASSERT_TRUE(files.Write(Key(1), "old\n", true).ok());
    ASSERT_TRUE(files.Write(Key(1), "new\n", true).ok());
    disk.PowerCut(dice);
    const auto text = files.Read(Key(1));
    if (text.ok()) {
      EXPECT_TRUE(*text == "old\n" || *text == "new\n") << *text;
    } else {
      // The names of folders may be lost with the power; never is something torn taken for whole.
      EXPECT_NE(text.status().code(), absl::StatusCode::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace tilewright::cache

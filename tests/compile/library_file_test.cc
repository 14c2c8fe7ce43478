#include "compile/library_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/compile/test_files.h"

namespace tilewright::compile {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(LibraryFileTest, BuildIdAndSizeMakeTheFingerprint) {
  TempFolder folder;
  const std::string library = SmallLibrary("\x01\x02\xab\xcd", "code");
  WriteFile(folder / "a.so", library);
  const auto fingerprint = FingerprintLibrary(folder / "a.so");
  ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
  EXPECT_EQ(*fingerprint, "build-id:0102abcd size:" + std::to_string(library.size()));
}

TEST(LibraryFileTest, FileWithoutBuildIdIsDigestedWhole) {
  TempFolder folder;
  // Longer than one piece of the digest, with changes in the first and in the last piece.
  std::string payload((1 << 20) + 12345, 'x');
  WriteFile(folder / "a.so", SmallLibrary("", payload));
  WriteFile(folder / "same.so", SmallLibrary("", payload));
  payload.back() = 'y';
  WriteFile(folder / "last.so", SmallLibrary("", payload));
  payload.back() = 'x';
  payload.front() = 'y';
  WriteFile(folder / "first.so", SmallLibrary("", payload));
  const auto a = FingerprintLibrary(folder / "a.so");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_THAT(*a, StartsWith("sha256:"));
  EXPECT_EQ(*a, *FingerprintLibrary(folder / "same.so"));
  EXPECT_NE(*a, *FingerprintLibrary(folder / "first.so"));
  EXPECT_NE(*a, *FingerprintLibrary(folder / "last.so"));
}

TEST(LibraryFileTest, TruncationAtAnyLengthIsDataLoss) {
  TempFolder folder;
  const std::string library = SmallLibrary("\x01\x02\xab\xcd", "some code");
  for (size_t length = 0; length < library.size(); length += 7) {
    WriteFile(folder / "a.so", library.substr(0, length));
    const auto fingerprint = FingerprintLibrary(folder / "a.so");
    EXPECT_EQ(fingerprint.status().code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_THAT(std::string(fingerprint.status().message()), HasSubstr("truncated")) << length;
  }
}

TEST(LibraryFileTest, DamagedHeadersNeverReadOutsideTheFile) {
  TempFolder folder;
  const std::string library = SmallLibrary("\x01\x02\xab\xcd", "some code");
  for (size_t at = 0; at < library.size(); ++at) {
    std::string damaged = library;
    damaged[at] = static_cast<char>(~damaged[at]);
    WriteFile(folder / "a.so", damaged);
    const auto fingerprint = FingerprintLibrary(folder / "a.so");
    if (!fingerprint.ok()) {
      EXPECT_EQ(fingerprint.status().code(), absl::StatusCode::kDataLoss) << at;
    }
  }
}

TEST(LibraryFileTest, OtherFilesAreRefused) {
  TempFolder folder;
  WriteFile(folder / "text.so", std::string(1000, 't'));
  EXPECT_EQ(FingerprintLibrary(folder / "text.so").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FingerprintLibrary(folder / "missing.so").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FingerprintLibrary(folder.path()).status().code(), absl::StatusCode::kDataLoss);
}

TEST(LibraryFileTest, UnreadableFileIsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  TempFolder folder;
  WriteFile(folder / "a.so", SmallLibrary("\x01\x02", "code"));
  ASSERT_EQ(chmod((folder / "a.so").c_str(), 0), 0);
  EXPECT_EQ(FingerprintLibrary(folder / "a.so").status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(FingerprintCacheTest, NoticesThatAFileWasReplaced) {
  TempFolder folder;
  FingerprintCache cache;
  WriteFile(folder / "a.so", SmallLibrary("\x01\x02\x03\x04", "code"));
  const auto before = cache.Get(folder / "a.so");
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(*before, *cache.Get(folder / "a.so"));
  // As package managers do it: another file under the same name, of the same size.
  WriteFile(folder / "b.so", SmallLibrary("\x05\x06\x07\x08", "code"));
  std::filesystem::rename(folder / "b.so", folder / "a.so");
  const auto after = cache.Get(folder / "a.so");
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(*before, *after);
  std::filesystem::remove(folder / "a.so");
  EXPECT_EQ(cache.Get(folder / "a.so").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tilewright::compile

#include "compile/nvrtc_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/compile/test_files.h"

namespace tilewright::compile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A libnvrtc and its builtins in `folder`, told apart from others by `build`.
void Install(const std::string& folder, const std::string& library, const std::string& builtins,
             const std::string& build) {
  WriteFile(folder + "/" + library, SmallLibrary("library " + build, "code"));
  WriteFile(folder + "/" + builtins, SmallLibrary("builtins " + build, "data"));
}

// Places that do not look at this machine.
SearchPlaces In(const std::vector<std::string>& folders) {
  SearchPlaces places;
  places.folders = folders;
  places.loader_cache = "/nonexistent/ld.so.cache";
  return places;
}

TEST(NvrtcSearchTest, TakesTheFirstPlaceThatHasOne) {
  TempFolder root;
  Install(root / "b", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "b");
  Install(root / "c", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "c");
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(In({root / "a", root / "b", root / "c"}), fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->library, root / "b/libnvrtc.so.12");
  ASSERT_EQ(files->builtins.size(), 1u);
  EXPECT_EQ(files->builtins[0].name, "libnvrtc-builtins.so.12.9");
}

TEST(NvrtcSearchTest, TakesTheNewestOfAFolder) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.9", "libnvrtc-builtins.so.9.2", "9");
  Install(root / "a", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "12");
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "13");
  WriteFile(root / "a/libnvrtc.so", SmallLibrary("of no known version", "code"));
  WriteFile(root / "a/libnvrtc.alt.so.14", SmallLibrary("the other kind", "code"));
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(In({root / "a"}), fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->library, root / "a/libnvrtc.so.13");
  ASSERT_EQ(files->builtins.size(), 1u);
  EXPECT_EQ(files->builtins[0].name, "libnvrtc-builtins.so.13.0");
}

TEST(NvrtcSearchTest, TheMinorVersionBehindALinkPicksTheBuiltins) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13.0.88", "libnvrtc-builtins.so.13.0", "0");
  Install(root / "a", "libnvrtc.so.13.1.20", "libnvrtc-builtins.so.13.1", "1");
  std::filesystem::create_symlink("libnvrtc.so.13.0.88", root / "a/libnvrtc.so.13");
  FingerprintCache fingerprints;
  SearchPlaces places = In({});
  places.explicit_path = root / "a/libnvrtc.so.13";
  const auto files = FindNvrtc(places, fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->builtins.size(), 1u);
  EXPECT_EQ(files->builtins[0].name, "libnvrtc-builtins.so.13.0");
}

TEST(NvrtcSearchTest, AnUnknownMinorVersionCoversAllBuiltins) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "0");
  WriteFile(root / "a/libnvrtc-builtins.so.13.1", SmallLibrary("one more", "data"));
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(In({root / "a"}), fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->builtins.size(), 2u);
  EXPECT_THAT(files->Id(), HasSubstr("so.13.0"));
  EXPECT_THAT(files->Id(), HasSubstr("so.13.1"));
}

TEST(NvrtcSearchTest, EqualFilesHaveEqualIdsWhereverTheyLie) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "x");
  Install(root / "b/deep", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "x");
  Install(root / "c", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "x");
  WriteFile(root / "c/libnvrtc-builtins.so.13.0", SmallLibrary("builtins y", "data"));
  FingerprintCache fingerprints;
  const auto a = FindNvrtc(In({root / "a"}), fingerprints);
  const auto b = FindNvrtc(In({root / "b/deep"}), fingerprints);
  const auto c = FindNvrtc(In({root / "c"}), fingerprints);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->Id(), b->Id());
  EXPECT_NE(a->Id(), c->Id()) << "other builtins";
  EXPECT_THAT(a->Id(), Not(HasSubstr(root.path())));
}

TEST(NvrtcSearchTest, ExplicitPathIsTheOnlyPlace) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "a");
  FingerprintCache fingerprints;
  SearchPlaces places = In({root / "a"});
  places.explicit_path = root / "b/libnvrtc.so.13";
  const auto files = FindNvrtc(places, fingerprints);
  EXPECT_EQ(files.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(files.status().message()), HasSubstr(root / "b/libnvrtc.so.13"));
}

TEST(NvrtcSearchTest, ExplicitPathMayBeAFolder) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "a");
  FingerprintCache fingerprints;
  SearchPlaces places = In({});
  places.explicit_path = root / "a";
  const auto files = FindNvrtc(places, fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->library, root / "a/libnvrtc.so.13");
}

TEST(NvrtcSearchTest, RelativePathIsMadeAbsolute) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "a");
  FingerprintCache fingerprints;
  SearchPlaces places = In({});
  places.explicit_path =
      std::filesystem::relative(root / "a/libnvrtc.so.13", std::filesystem::current_path())
          .string();
  const auto files = FindNvrtc(places, fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->library.front(), '/');
}

TEST(NvrtcSearchTest, GoesOnWhenBuiltinsAreMissing) {
  TempFolder root;
  WriteFile(root / "a/libnvrtc.so.13", SmallLibrary("alone", "code"));
  WriteFile(root / "a/libnvrtc-builtins.so.12.9", SmallLibrary("of another version", "data"));
  FingerprintCache fingerprints;
  const auto alone = FindNvrtc(In({root / "a"}), fingerprints);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("libnvrtc-builtins.so.13.MINOR"));
  Install(root / "b", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "b");
  const auto files = FindNvrtc(In({root / "a", root / "b"}), fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->library, root / "b/libnvrtc.so.12");
}

TEST(NvrtcSearchTest, BuiltinsMayLieInTheLoadersPath) {
  TempFolder root;
  WriteFile(root / "a/libnvrtc.so.13", SmallLibrary("alone", "code"));
  WriteFile(root / "l/libnvrtc-builtins.so.13.0", SmallLibrary("elsewhere", "data"));
  FingerprintCache fingerprints;
  SearchPlaces places = In({root / "a"});
  places.loader_folders = {root / "l"};
  const auto files = FindNvrtc(places, fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->builtins[0].path, root / "l/libnvrtc-builtins.so.13.0");
}

TEST(NvrtcSearchTest, TruncatedBuiltinsAreToldBeforeTheyAreMapped) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "a");
  std::filesystem::resize_file(root / "a/libnvrtc-builtins.so.13.0", 150);
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(In({root / "a"}), fingerprints);
  EXPECT_EQ(files.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(files.status().message()),
              HasSubstr("libnvrtc-builtins.so.13.0 is truncated"));
}

TEST(NvrtcSearchTest, TooOldVersionsArePassedOver) {
  TempFolder root;
  Install(root / "a", "libnvrtc.so.12", "libnvrtc-builtins.so.12.3", "a");
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(In({root / "a"}), fingerprints);
  EXPECT_EQ(files.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(files.status().message()), HasSubstr("is NVRTC 12.3, older than"));
}

TEST(NvrtcSearchTest, NothingFoundListsThePlacesAndWhatToInstall) {
  TempFolder root;
  FingerprintCache fingerprints;
  SearchPlaces places = In({root / "a", root / "b"});
  places.system_folders = {root / "s"};
  const auto files = FindNvrtc(places, fingerprints);
  EXPECT_EQ(files.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(files.status().message());
  EXPECT_THAT(message, HasSubstr(root / "a"));
  EXPECT_THAT(message, HasSubstr(root / "b"));
  EXPECT_THAT(message, HasSubstr("/nonexistent/ld.so.cache"));
  EXPECT_THAT(message, HasSubstr(root / "s"));
  EXPECT_THAT(message, HasSubstr("pip install nvidia-cuda-nvrtc"));
}

TEST(NvrtcSearchTest, ProcessPlacesFollowTheEnvironment) {
  const ScopedEnv home("CUDA_HOME", "/home/cuda");
  const ScopedEnv path("CUDA_PATH", "/path/cuda");
  const ScopedEnv loader("LD_LIBRARY_PATH", "/loader/a::/loader/b");
  const SearchPlaces places = SearchPlaces::FromProcess("/given/libnvrtc.so");
  EXPECT_EQ(places.explicit_path, "/given/libnvrtc.so");
  EXPECT_THAT(places.folders,
              ElementsAre(std::filesystem::read_symlink("/proc/self/exe").parent_path().string(),
                          "/home/cuda/lib64", "/home/cuda/lib", "/path/cuda/lib64",
                          "/path/cuda/lib", "/loader/a", "/loader/b"));
  EXPECT_THAT(places.loader_folders, ElementsAre("/loader/a", "/loader/b"));
  EXPECT_EQ(places.loader_cache, "/etc/ld.so.cache");
  ASSERT_FALSE(places.system_folders.empty());
  EXPECT_EQ(places.system_folders[0], "/usr/local/cuda/lib64");
}

}  // namespace
}  // namespace tilewright::compile

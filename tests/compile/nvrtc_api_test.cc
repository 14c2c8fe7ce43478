#include "compile/nvrtc_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>

#include <string>

#include "tests/compile/test_files.h"

namespace tilewright::compile {
namespace {

using ::testing::HasSubstr;

// `library` as the search would find it, beside builtins that nobody gets to map.
NvrtcFiles Files(const TempFolder& folder, const std::string& library,
                 const std::string& builtins) {
  LinkOrCopy(library, folder / "libnvrtc.so");
  WriteFile(folder / builtins, SmallLibrary("id", "data"));
  SearchPlaces places;
  places.explicit_path = folder.path();
  FingerprintCache fingerprints;
  return *FindNvrtc(places, fingerprints);
}

// The file that the loader mapped for `name`.
std::string PathOf(const char* name) {
  void* const library = dlopen(name, RTLD_NOW);
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return "";
  return map->l_name;
}

TEST(NvrtcApiTest, VersionIsCheckedByWhatTheLibrarySays) {
  // The names claim 12.8.
  TempFolder folder;
  FingerprintCache fingerprints;
  const auto api =
      OpenNvrtc(Files(folder, TILEWRIGHT_OLD_LIBNVRTC, "libnvrtc-builtins.so.12.8"), fingerprints);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(api.status().message());
  EXPECT_THAT(message, HasSubstr(folder / "libnvrtc.so is NVRTC 12.3, older than the 12.4"));
  EXPECT_THAT(message, HasSubstr("pip install nvidia-cuda-nvrtc"));
}

TEST(NvrtcApiTest, LibraryOfAnotherKindIsUnavailable) {
  TempFolder folder;
  FingerprintCache fingerprints;
  const auto api =
      OpenNvrtc(Files(folder, PathOf("libm.so.6"), "libnvrtc-builtins.so.13.0"), fingerprints);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(api.status().message()),
              HasSubstr(folder / "libnvrtc.so has no function nvrtcVersion"));
}

TEST(NvrtcApiTest, LibraryThatTheLoaderRefusesIsUnavailable) {
  TempFolder folder;
  WriteFile(folder / "libnvrtc.so.13", SmallLibrary("sound by its headers", "no code"));
  WriteFile(folder / "libnvrtc-builtins.so.13.0", SmallLibrary("id", "data"));
  SearchPlaces places;
  places.explicit_path = folder.path();
  FingerprintCache fingerprints;
  const auto files = FindNvrtc(places, fingerprints);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto api = OpenNvrtc(*files, fingerprints);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(api.status().message()),
              HasSubstr("cannot load " + (folder / "libnvrtc.so.13")));
}

TEST(NvrtcApiTest, BuiltinsOfAnotherVersionAreNotEnough) {
  FingerprintCache fingerprints;
  absl::StatusOr<NvrtcFiles> files = FindNvrtc(SearchPlaces::FromProcess(""), fingerprints);
  if (!files.ok()) GTEST_SKIP() << "no NVRTC here: " << files.status();
  for (BuiltinsFile& file : files->builtins) file.name = "libnvrtc-builtins.so.99.9";
  const auto api = OpenNvrtc(*files, fingerprints);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(api.status().message()), HasSubstr("needs libnvrtc-builtins.so."));
}

TEST(NvrtcApiTest, ErrorsCarryNvrtcsTextAndTheCall) {
  NvrtcApi api;
  api.nvrtcGetErrorString = [](nvrtcResult) { return "NVRTC_ERROR_OF_THE_TEST"; };
  EXPECT_TRUE(api.Check(NVRTC_SUCCESS, "nvrtcVersion").ok());
  const absl::Status status = api.Check(NVRTC_ERROR_INVALID_INPUT, "nvrtcCreateProgram");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(status.message()), "nvrtcCreateProgram failed: NVRTC_ERROR_OF_THE_TEST");
}

}  // namespace
}  // namespace tilewright::compile

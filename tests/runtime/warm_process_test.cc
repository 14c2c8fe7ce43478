// A process whose kernels are all in the store does not map libnvrtc: the program starts itself
// twice and looks at the maps of both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "compile/nvrtc_compiler.h"
#include "tests/runtime/test_runtime.h"
#include "tests/support/run_command.h"

namespace tilewright {
namespace {

constexpr char kChildTest[] = "DISABLED_WarmProcessChildTest.PreparesAndTellsItsMaps";

// Runs only when asked for by name. The store is where TILEWRIGHT_CACHE_DIR says.
TEST(DISABLED_WarmProcessChildTest, PreparesAndTellsItsMaps) {
  device::FakeDriver driver;
  driver.api().cuCtxSetCurrent(driver.MakeContext(0));
  auto options = RuntimeOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  options->tune_policy = TunePolicy::kOff;  // one kernel is one compile
  const auto runtime = MakeRuntime(driver, *options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto prepared = (*runtime)->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_TRUE((*runtime)->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
  std::ifstream file("/proc/self/maps");
  const std::string maps((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_THAT(maps, ::testing::HasSubstr("libc.so"));
  const RuntimeCounters counters = (*runtime)->counters();
  std::printf("child compiles=%d store_hits=%d nvrtc=%d\n", static_cast<int>(counters.compiles),
              static_cast<int>(counters.store_hits),
              maps.find("libnvrtc") != std::string::npos ? 1 : 0);
}

// What the child prints, for a store in `directory`.
std::string RunChild(const std::string& directory) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "TILEWRIGHT_CACHE_DIR='" + directory + "' '" + program +
                              "' --gtest_also_run_disabled_tests --gtest_filter=" + kChildTest +
                              " 2>&1";
  const auto [output, exit_code] = tilewright::testing::RunCommand(command);
  EXPECT_EQ(exit_code, 0) << output;
  return output;
}

TEST(WarmProcessTest, DoesNotMapNvrtc) {
  if (!compile::NvrtcCompiler({}).Identity().ok()) GTEST_SKIP() << "no NVRTC";
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / ("tilewright_warm_" + std::to_string(getpid()));
  const std::string cold = RunChild(directory);
  EXPECT_THAT(cold, ::testing::HasSubstr("child compiles=1 store_hits=0 nvrtc=1"));
  const std::string warm = RunChild(directory);
  EXPECT_THAT(warm, ::testing::HasSubstr("child compiles=0 store_hits=1 nvrtc=0"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace tilewright

// R39: a program that uses the library may end in any order, and does so in silence. Each way of
// ending has a process of its own (exit_program/).
#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_command.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_directory.h"

namespace {

tilewright::testing::CommandOutput RunToItsEnd(const std::string& cache_dir,
                                               const std::string& way) {
  // What a library keeps to the end of the process looks lost once it is unloaded, or when the
  // threads that hold it are not in the child of a fork.
  const std::string leaks = TILEWRIGHT_ADDRESS_SANITIZER ? "ASAN_OPTIONS=detect_leaks=0 " : "";
  return tilewright::testing::RunCommand(
      leaks +
      "LD_LIBRARY_PATH='" TILEWRIGHT_RECORDING_LIBCUDA_DIR "' '" TILEWRIGHT_EXIT_PROGRAM
      "' '" TILEWRIGHT_SHARED_LIBRARY "' '" TILEWRIGHT_MISBEHAVING_LIBNVRTC "' '" +
      cache_dir + "' " + way + " 2>&1");
}

class ExitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExitTest, IsSilent) {
  const tilewright::testing::TempDirectory directory;
  for (const char* store : {"cold", "warm"}) {
    const auto end = RunToItsEnd(directory.path() + "/store", GetParam());
    EXPECT_EQ(end.text, "") << store;
    EXPECT_EQ(end.exit_code, 0) << store;  // negative: a signal
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ExitTest,
                         ::testing::Values("dlclose", "exit", "thread", "late", "fork", "compiling",
                                           "first200", "first350", "first500", "hung"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace

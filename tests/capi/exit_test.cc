// R39: a program that uses the library may end in any order, and does so in silence. Each way of
// ending has a process of its own (exit_program/).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tests/support/temp_directory.h"

namespace {

struct End {
  std::string text;
  int status = -1;  // as of wait
};

End RunToItsEnd(const std::string& cache_dir, const std::string& way) {
  const std::string command = "LD_LIBRARY_PATH='" TILEWRIGHT_RECORDING_LIBCUDA_DIR
                              "' '" TILEWRIGHT_EXIT_PROGRAM "' '" TILEWRIGHT_SHARED_LIBRARY
                              "' '" TILEWRIGHT_MISBEHAVING_LIBNVRTC "' '" +
                              cache_dir + "' " + way + " 2>&1";
  End end;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return end;
  char line[1024];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) end.text += line;
  end.status = pclose(pipe);
  return end;
}

class ExitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExitTest, IsSilent) {
  const tilewright::testing::TempDirectory directory;
  for (const char* store : {"cold", "warm"}) {
    const End end = RunToItsEnd(directory.path() + "/store", GetParam());
    EXPECT_EQ(end.text, "") << store;
    EXPECT_TRUE(WIFEXITED(end.status)) << store << ": signal " << WTERMSIG(end.status);
    EXPECT_EQ(WEXITSTATUS(end.status), 0) << store;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ExitTest,
                         ::testing::Values("dlclose", "exit", "thread", "late", "fork"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace

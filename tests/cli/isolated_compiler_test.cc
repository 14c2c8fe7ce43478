// R32: the program as its own compiler's process, found beside itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "compile/compiler_helper.h"
#include "compile/nvrtc_compiler.h"
#include "program_runner.h"

namespace tilewright::cli {
namespace {

constexpr char kSpec[] = "fwd fp16 b=1 h=2 s=64 d=16";

TEST(IsolatedCompilerTest, CompilesInTheProgramBesideThisOne) {
  if (!compile::NvrtcCompiler({}).Identity().ok()) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(*compile::FindCompilerHelper(""), TILEWRIGHT_PROGRAM);
  const ScopedVariable memory("TILEWRIGHT_CACHE_MODE", "memory");
  const ScopedVariable isolate("TILEWRIGHT_ISOLATE_COMPILER", "1");
  const Outcome outcome = Invoke({"compile", "--json", kSpec});
  EXPECT_EQ(outcome.exit_code, kExitFine) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.json()["compiled"], 1);
}

TEST(IsolatedCompilerTest, SaysThatTheHelperIsMissing) {
  const ScopedVariable memory("TILEWRIGHT_CACHE_MODE", "memory");
  const ScopedVariable isolate("TILEWRIGHT_ISOLATE_COMPILER", "1");
  const ScopedVariable helper("TILEWRIGHT_COMPILER_HELPER", "/nonexistent/tilewright");
  const Outcome outcome = Invoke({"compile", kSpec});
  if (outcome.out.find("no usable libnvrtc") != std::string::npos) GTEST_SKIP() << "no NVRTC";
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  EXPECT_THAT(outcome.out, testing::HasSubstr("/nonexistent/tilewright"));
}

// Whoever starts it by hand sends nothing that is a request.
TEST(IsolatedCompilerTest, TheVerbRefusesWhatIsNoRequest) {
  const std::string command = std::string("'") + TILEWRIGHT_PROGRAM + "' " + compile::kHelperVerb +
                              " < /dev/null > /dev/null 2>&1";
  EXPECT_NE(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace tilewright::cli

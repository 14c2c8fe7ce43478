#include "compile/compiler_helper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>

#include "compile/compile_pool.h"
#include "tests/support/sanitizers.h"
#include "tests/support/standin_nvrtc.h"

namespace tilewright::compile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tilewright::testing::AskFor;
using tilewright::testing::RequestOf;
using tilewright::testing::StandInCompiler;
using tilewright::testing::ThisProgram;

class CompilerHelperTest : public ::testing::Test {
 protected:
  absl::StatusOr<artifact::KernelBinary> Compile(const std::string& words) {
    return pool_.Compile(RequestOf(AskFor(words)));
  }
  CompilePool pool_{StandInCompiler(),
                    {.timeout_ms = 2000, .isolate = true, .helper = ThisProgram()}};
};

TEST_F(CompilerHelperTest, ACrashIsAnErrorAndTheNextCompileWorks) {
  // The second is what truncated builtins do to whoever has them mapped.
  const struct {
    const char* word;
    int signal;
  } cases[] = {{"ABORT", SIGABRT}, {"BUS_ERROR", SIGBUS}};
  int crashes = 0;
  for (const auto& crash : cases) {
    const absl::Status status = Compile(crash.word).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
#if TILEWRIGHT_ADDRESS_SANITIZER || TILEWRIGHT_THREAD_SANITIZER
    const std::string end = "the compiler's helper process";  // a sanitizer handles some itself
#else
    const std::string end = "was killed by signal " + std::to_string(crash.signal);
#endif
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(end), HasSubstr("while it compiled k for sm_90a"),
                      HasSubstr(TILEWRIGHT_MISBEHAVING_LIBNVRTC)));
    EXPECT_EQ(pool_.counters().helper_crashes, ++crashes);
    const auto next = Compile("nothing");
    EXPECT_TRUE(next.ok()) << next.status();
  }
}

TEST_F(CompilerHelperTest, AHangEndsWithTheDeadlineAndLeavesNoProcess) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(Compile("HANG").status()));
  EXPECT_TRUE(Compile("nothing").ok());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_EQ(pool_.counters().helper_crashes, 0);
}

TEST_F(CompilerHelperTest, TheCallersProcessNeverMapsTheCompiler) {
  const NvrtcCompiler compiler = StandInCompiler();
  CompilePool pool(compiler, {.isolate = true, .helper = ThisProgram()});
  ASSERT_TRUE(pool.Compile(RequestOf(AskFor("nothing"))).ok());
  EXPECT_FALSE(compiler.loaded());
}

TEST_F(CompilerHelperTest, WorksWhereTheProgramIgnoresItsChildren) {
  struct sigaction ignore = {};
  struct sigaction before = {};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(SIGCHLD, &ignore, &before), 0);
  EXPECT_TRUE(Compile("nothing").ok());
  const absl::Status crash = Compile("ABORT").status();
  const absl::Status hang = Compile("HANG").status();
  ASSERT_EQ(sigaction(SIGCHLD, &before, nullptr), 0);
  EXPECT_EQ(crash.code(), absl::StatusCode::kInternal) << crash;
  EXPECT_TRUE(absl::IsDeadlineExceeded(hang)) << hang;
}

TEST_F(CompilerHelperTest, AProgramThatIsNoHelperIsAnError) {
  CompilePool silent(StandInCompiler(), {.isolate = true, .helper = "/bin/true"});
  const absl::Status status = silent.Compile(RequestOf(AskFor("nothing"))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/bin/true"), HasSubstr("ended with status 0")));
  // It reads nothing of what it is sent, more than a socket holds.
  artifact::KernelSource large = AskFor(std::string(size_t{4} << 20, 'x'));
  EXPECT_EQ(silent.Compile(RequestOf(large)).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CompilerHelperTest, AMissingHelperIsUnavailableAndSaysSo) {
  CompilePool missing(StandInCompiler(), {.isolate = true, .helper = "/nonexistent/tilewright"});
  const absl::Status status = missing.Compile(RequestOf(AskFor("nothing"))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/nonexistent/tilewright"), HasSubstr("TILEWRIGHT_COMPILER_HELPER")));
}

TEST(FindCompilerHelperTest, LooksBesideTheProgram) {
  const std::string folder = std::filesystem::path(ThisProgram()).parent_path();
  const auto found = FindCompilerHelper("");
  if (found.ok()) {
    EXPECT_EQ(*found, folder + "/tilewright");
  } else {
    EXPECT_THAT(std::string(found.status().message()), HasSubstr(folder + "/tilewright"));
  }
  EXPECT_EQ(*FindCompilerHelper("/bin/true"), "/bin/true");
}

TEST_F(CompilerHelperTest, ACompilerThatChangedSinceItsIdentityIsRefused) {
  bool crashed = false;
  const auto binary = CompileInHelper(
      ThisProgram(), {.path = TILEWRIGHT_MISBEHAVING_LIBNVRTC, .id = "another build"},
      RequestOf(AskFor("nothing")), {}, &crashed);
  EXPECT_EQ(binary.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(binary.status().message()), HasSubstr("another build"));
  EXPECT_FALSE(crashed);
}

// ---- what is sent ---------------------------------------------------------------------------

HelperRequest SomeRequest() {
  return {.nvrtc_path = "/lib/libnvrtc.so",
          .compiler_id = "id",
          .target = "sm_90a",
          .options = {"-a", "", "-b=c"},
          .source = {.entry_name = "k",
                     .unit_name = "k.cu",
                     .text = std::string("text\0with a zero", 16),
                     .generated_headers = {{"user/a.cuh", "x"}}},
          .bundle = {{"core/b.cuh", ""}, {"core/c.cuh", "y"}}};
}

TEST(HelperMessagesTest, ARequestComesBackWhole) {
  const HelperRequest sent = SomeRequest();
  const auto read = DecodeRequest(EncodeRequest(sent));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(EncodeRequest(*read), EncodeRequest(sent));
  EXPECT_EQ(read->options, sent.options);
  EXPECT_EQ(read->source.text, sent.source.text);
  EXPECT_EQ(read->bundle.back().text, "y");
}

TEST(HelperMessagesTest, AnAnswerComesBackWhole) {
  artifact::KernelBinary binary;
  binary.entry_name = "k";
  binary.cubin = std::string(
      "\x7f"
      "ELF\0",
      5);
  binary.usage = {1, 2, 3, 4, 5};
  binary.compile_ms = 12.5;
  const auto read = DecodeAnswer(EncodeAnswer(binary));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->cubin, binary.cubin);
  EXPECT_EQ(read->usage.spill_load_bytes, 5);
  EXPECT_EQ(read->compile_ms, 12.5);
}

TEST(HelperMessagesTest, WhatIsCutOffOrDamagedIsNeverRead) {
  const std::string request = EncodeRequest(SomeRequest());
  artifact::KernelBinary binary;
  binary.cubin = "bytes";
  const std::string answer = EncodeAnswer(binary);
  const std::string error = EncodeAnswer(absl::InternalError("why"));
  for (size_t bytes = 0; bytes < request.size(); ++bytes) {
    EXPECT_FALSE(DecodeRequest(std::string_view(request).substr(0, bytes)).ok()) << bytes;
  }
  for (const std::string& whole : {answer, error}) {
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      const auto read = DecodeAnswer(std::string_view(whole).substr(0, bytes));
      EXPECT_THAT(std::string(read.status().message()), HasSubstr("cannot be read")) << bytes;
    }
    // Every byte flipped in turn: read or refused, within the bytes that are there.
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
      (void)DecodeAnswer(damaged).ok();
    }
  }
  EXPECT_FALSE(DecodeAnswer(answer + "x").ok());
}

}  // namespace
}  // namespace tilewright::compile

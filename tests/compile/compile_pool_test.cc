#include "compile/compile_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/standin_nvrtc.h"

namespace tilewright::compile {
namespace {

using ::testing::HasSubstr;
using tilewright::testing::AskFor;
using tilewright::testing::RequestOf;
using tilewright::testing::StandInCompiler;
using tilewright::testing::ThisProgram;
using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

TEST(CompileThreadsTest, DefaultsToTheCoresButAtMostEight) {
  EXPECT_EQ(CompileThreads(3), 3);
  EXPECT_GE(CompileThreads(0), 1);
  EXPECT_LE(CompileThreads(0), 8);
  EXPECT_EQ(CompileThreads(1 << 20), 1024);
}

// Both ways of compiling keep the same promises.
class CompilePoolTest : public ::testing::TestWithParam<bool> {
 protected:
  CompilePoolOptions Options(int timeout_ms = 20'000) const {
    return {.threads = 2,
            .timeout_ms = timeout_ms,
            .isolate = GetParam(),
            .helper = GetParam() ? ThisProgram() : ""};
  }
};

TEST_P(CompilePoolTest, Compiles) {
  CompilePool pool(StandInCompiler(), Options());
  const auto binary = pool.Compile(RequestOf(AskFor("nothing")));
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_EQ(binary->entry_name, "k");
  EXPECT_EQ(binary->target, "sm_90a");
  EXPECT_EQ(binary->compiler, "nvrtc 13.90.7");
  EXPECT_EQ(binary->usage.registers, 8);
  EXPECT_THAT(binary->cubin, ::testing::StartsWith("\x7f"
                                                   "ELF"));
  EXPECT_THAT(binary->log, HasSubstr("Compiling entry function 'k'"));
}

TEST_P(CompilePoolTest, ADeadlineEndsACompileAndTheNextWorks) {
  CompilePool pool(StandInCompiler(), Options(/*timeout_ms=*/1000));
  const auto start = Clock::now();
  const absl::Status status = pool.Compile(RequestOf(AskFor("WAIT"))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("k for sm_90a took longer than"));
  EXPECT_GE(Seconds(start), 0.9);
  EXPECT_LT(Seconds(start), 15);
  EXPECT_TRUE(pool.Compile(RequestOf(AskFor("nothing"))).ok());
  EXPECT_EQ(pool.counters().timeouts, 1);
  EXPECT_EQ(pool.counters().cancelled, 0);
}

TEST_P(CompilePoolTest, CancelAllEndsWhatRunsAndWhatWaits) {
  CompilePool pool(StandInCompiler(), Options());
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {  // two run, four wait
    callers.emplace_back([&] {
      const absl::Status status = pool.Compile(RequestOf(AskFor("WAIT"))).status();
      if (absl::IsCancelled(status)) ++cancelled;
    });
  }
  // Again and again, for those that had not begun when it was called.
  for (int i = 0; i < 400 && cancelled < 6; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    pool.CancelAll();
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(pool.counters().cancelled, 6);
  EXPECT_TRUE(pool.Compile(RequestOf(AskFor("nothing"))).ok());
}

TEST_P(CompilePoolTest, RunsNoMoreThanItsThreads) {
  CompilePool pool(StandInCompiler(), Options());
  ASSERT_TRUE(pool.Compile(RequestOf(AskFor("nothing"))).ok());
  const auto start = Clock::now();
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] { EXPECT_TRUE(pool.Compile(RequestOf(AskFor("SLOW"))).ok()); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(Seconds(start), 3 * 0.2);  // 6 of 200 ms, 2 at a time
}

INSTANTIATE_TEST_SUITE_P(Ways, CompilePoolTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InHelper" : "InProcess"; });

// A compiler that cannot be ended in its own process is left alone; the caller is not.
TEST(CompilePoolInProcessTest, AHungCompilerHoldsNoCallerUp) {
  CompilePool pool(StandInCompiler(), {.threads = 1, .timeout_ms = 200});
  EXPECT_TRUE(absl::IsDeadlineExceeded(pool.Compile(RequestOf(AskFor("HANG"))).status()));
  const auto next = pool.Compile(RequestOf(AskFor("nothing")));
  EXPECT_TRUE(next.ok()) << next.status();
}

// ---- with the NVRTC of this machine ---------------------------------------------------------

// Takes seconds to compile.
artifact::KernelSource LongKernel() {
  return {.entry_name = "k",
          .unit_name = "k.cu",
          .text =
              "template <int N> struct Sum {\n"
              "  static __device__ float Of(const float* p, float x) {\n"
              "    return Sum<N - 1>::Of(p, x * p[N] + p[N + 1]) + Sum<N - 1>::Of(p + N, x);\n"
              "  }\n};\n"
              "template <> struct Sum<0> {\n"
              "  static __device__ float Of(const float*, float x) { return x; }\n};\n"
              "extern \"C\" __global__ void k(float* p) { *p = Sum<16>::Of(p, *p); }\n",
          .generated_headers = {}};
}

artifact::KernelSource ShortKernel() {
  return {.entry_name = "k",
          .unit_name = "k.cu",
          .text = "extern \"C\" __global__ void k(float* p) { *p += 1; }\n",
          .generated_headers = {}};
}

TEST(CompilePoolNvrtcTest, CancelsInTheMiddleOfACompile) {
  const NvrtcCompiler compiler({});
  if (!compiler.Version().ok()) GTEST_SKIP() << "no NVRTC: " << compiler.Version().status();
  CompilePool pool(compiler, {.threads = 1});
  const auto before = pool.Compile(RequestOf(ShortKernel()));
  ASSERT_TRUE(before.ok()) << before.status();
  Clock::time_point asked;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    asked = Clock::now();
    pool.CancelAll();
  });
  const absl::Status status = pool.Compile(RequestOf(LongKernel())).status();
  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_LT(Seconds(asked), 10);
  const auto after = pool.Compile(RequestOf(ShortKernel()));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->cubin, before->cubin);
}

TEST(CompilePoolNvrtcTest, TheHelperMakesTheSameKernelAndTheSameErrors) {
  const NvrtcCompiler compiler({});
  if (!compiler.Identity().ok()) GTEST_SKIP() << "no NVRTC: " << compiler.Identity().status();
  CompilePool helper(compiler, {.isolate = true, .helper = ThisProgram()});
  CompilePool here(compiler, {});
  const auto there = helper.Compile(RequestOf(ShortKernel()));
  ASSERT_TRUE(there.ok()) << there.status();
  const auto local = here.Compile(RequestOf(ShortKernel()));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(there->cubin, local->cubin);
  EXPECT_EQ(there->log, local->log);
  EXPECT_EQ(there->compiler, local->compiler);
  EXPECT_EQ(there->usage.registers, local->usage.registers);
  EXPECT_GT(there->compile_ms, 0);
  artifact::KernelSource bad = ShortKernel();
  bad.text = "nonsense";
  const absl::Status far_error = helper.Compile(RequestOf(bad)).status();
  const absl::Status near_error = here.Compile(RequestOf(bad)).status();
  EXPECT_EQ(far_error, near_error);  // payload included
  EXPECT_TRUE(far_error.GetPayload("tilewright/compile_log").has_value());
}

}  // namespace
}  // namespace tilewright::compile

// Tuning on a real device: within its budget, right, with its hands off the caller's memory and
// captures. The device must not be another's meanwhile: budgets are kept and free memory is looked
// at (bench/gpu_suite.py runs suites named ...AloneTest after all others).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/device_problem.h"
#include "gpu_environment.h"
#include "more_driver.h"
#include "spec/canonical.h"
#include "tune/record.h"

namespace tilewright::gpu_tests {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr char kSpec[] = "fwd bf16 b=2 h=8/4 s=700/700 d=80/80 causal lse";

class TuningAloneTest : public GpuTest {
 protected:
  RuntimeOptions Tuned(TunePolicy policy) {
    RuntimeOptions options = OptionsFor(directory_.path());
    options.tune_policy = policy;
    return options;
  }
  size_t FreeBytes() { return *device::FreeDeviceMemory(gpu().api()); }

  TemporaryDirectory directory_;
};

TEST_F(TuningAloneTest, AFirstRunKeepsItsBudgetAndTheCallersMemoryAsItWas) {
  const AttentionSpec spec = *ParseSpec(kSpec);
  // The caller's: a block of known bytes around arrays of the spec.
  auto problem = cli::MakeRandomProblem(spec, WithSeed(5));
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  constexpr size_t kGuard = size_t{64} << 20;
  auto guard = device::DeviceBuffer::Allocate(gpu().api(), kGuard);
  ASSERT_TRUE(guard.ok()) << guard.status();
  ASSERT_TRUE(guard->Fill(0x5a, stream()).ok());
  ASSERT_EQ(gpu().api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  const auto before = OutputBytes(*problem);

  auto runtime = Runtime::Create(Tuned(TunePolicy::kFirstRun));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const size_t free_before = FreeBytes();
  const auto start = steady_clock::now();
  const auto attention = (*runtime)->Prepare(spec, stream());
  const double ms = duration<double, std::milli>(steady_clock::now() - start).count();
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ((*runtime)->counters().tunes, 1) << attention->Explain();
  EXPECT_LT(ms, 4200) << attention->Explain();

  ASSERT_TRUE(on_device->Download(*problem, stream()).ok());
  EXPECT_EQ(OutputBytes(*problem), before) << "the caller's outputs were written to";
  std::vector<char> bytes(kGuard);
  ASSERT_TRUE(guard->CopyToHost(bytes.data(), bytes.size(), stream()).ok());
  EXPECT_EQ(std::string(bytes.data(), bytes.size()).find_first_not_of(0x5a), std::string::npos)
      << "the caller's memory was written to";
  // Of the loaded kernel some pages may stay.
  EXPECT_LT(static_cast<double>(free_before) - static_cast<double>(FreeBytes()), 16e6);

  // And what it chose is right.
  CheckProblem(**runtime, *problem, stream());
}

TEST_F(TuningAloneTest, EveryCandidateOfARecordWasCheckedAndTheWinnerIsNotSlower) {
  auto runtime = Runtime::Create(Tuned(TunePolicy::kOff));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  TuneOptions options;
  options.budget_ms = 15'000;
  const auto result = (*runtime)->Tune(*ParseSpec(kSpec), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->measured);
  EXPECT_LE(result->winner_ms, result->default_ms * 1.02);
  const auto record = tune::ParseRecord(result->record);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->checked_against, "attn_fwd_simple");
  for (const tune::CandidateResult& one : record->candidates) {
    EXPECT_NE(one.outcome, tune::Outcome::kWrong) << one.plan << ": " << one.reason;
    EXPECT_NE(one.outcome, tune::Outcome::kFailed) << one.plan << ": " << one.reason;
  }
}

// An element mask in attn_fwd_sm90 takes ptxas longer than the whole budget.
TEST_F(TuningAloneTest, AFirstRunKeepsItsBudgetWhereTheDefaultDoesNotCompileWithinIt) {
  if (SkipUnlessSlow()) GTEST_SKIP() << kSlowReason;
  auto problem = cli::MakeRandomProblem(
      *ParseSpec("fwd fp16 b=8 h=4/4 s=49/49 d=32/32 bias=fp16:1,4,49,49 mask=bool:8,1,1,49"),
      WithSeed(7));
  ASSERT_TRUE(problem.ok()) << problem.status();
  RuntimeOptions options = Tuned(TunePolicy::kFirstRun);
  options.tune_budget_ms = 2500;
  options.tune_candidates = 3;
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto start = steady_clock::now();
  const auto attention = (*runtime)->Prepare(problem->spec(), stream());
  const double ms = duration<double, std::milli>(steady_clock::now() - start).count();
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_LT(ms, 2700) << attention->Explain();
  EXPECT_TRUE((*runtime)->WaitForTuning(60'000));
  EXPECT_EQ((*runtime)->counters().tunes, 1) << attention->Explain();
  CheckProblem(**runtime, *problem, stream());
}

TEST_F(TuningAloneTest, MemoryComesFromTheApplicationsPoolAndGoesBackToIt) {
  const device::DriverApi& api = gpu().api();
  std::atomic<int> held = 0;
  std::atomic<int> taken = 0;
  RuntimeOptions options = Tuned(TunePolicy::kOff);
  options.device_allocate = [&](size_t bytes) -> void* {
    CUdeviceptr at = 0;
    if (api.cuMemAlloc(&at, bytes) != CUDA_SUCCESS) return nullptr;
    ++held;
    ++taken;
    return reinterpret_cast<void*>(at);
  };
  options.device_release = [&](void* memory) {
    --held;
    api.cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
  };
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  TuneOptions how;
  how.max_candidates = 2;
  const auto result = (*runtime)->Tune(*ParseSpec(kSpec), how);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(taken, 3);
  EXPECT_EQ(held, 0);
}

TEST_F(TuningAloneTest, FeaturesOfEveryKindAreMeasured) {
  auto runtime = Runtime::Create(Tuned(TunePolicy::kOff));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (const char* text :
       {"fwd fp16 b=8 h=4/4 s=49/49 d=32/32 bias=fp16:1,4,49,49",
        "fwd bf16 b=4 h=8/2 s=300/300 d=64/64 layout=thd varlen causal",
        "fwd bf16 b=2 h=4/4 s=257/257 d=64/64 alibi softcap=30 sinks window=100,0",
        "fwd bf16 b=4 h=16/1 s=1/1024 d=576/512 paged=64 varlen",
        "bwd bf16 b=2 h=8/2 s=300/300 d=64/64 causal",
        "bwd fp16 b=3 h=4/4 s=200/200 d=80/80 layout=thd varlen alibi alibi_grad",
        "bwd bf16 b=2 h=4/4 s=128/128 d=32/32 deterministic bias=bf16:1,4,128,128:grad"}) {
    TuneOptions options;
    options.max_candidates = 3;
    const auto result = (*runtime)->Tune(*ParseSpec(text), options);
    ASSERT_TRUE(result.ok()) << text << ": " << result.status();
    const auto record = tune::ParseRecord(result->record);
    ASSERT_TRUE(record.ok()) << record.status();
    for (const tune::CandidateResult& one : record->candidates) {
      EXPECT_NE(one.outcome, tune::Outcome::kWrong)
          << text << " " << one.plan << ": " << one.reason;
    }
  }
}

TEST_F(TuningAloneTest, UnderCaptureItRefusesAndTheCaptureStaysValid) {
  auto runtime = Runtime::Create(Tuned(TunePolicy::kFirstRun));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const AttentionSpec spec = *ParseSpec(kSpec);
  ASSERT_EQ(MoreDriver::Get().begin_capture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const absl::Status prepared = (*runtime)->Prepare(spec, stream()).status();
  const absl::Status tuned = (*runtime)->Tune(spec, {}, stream()).status();
  const auto graph = Graph::End(gpu().api(), stream());
  EXPECT_EQ(prepared.code(), absl::StatusCode::kFailedPrecondition) << prepared;
  EXPECT_EQ(tuned.code(), absl::StatusCode::kFailedPrecondition) << tuned;
  EXPECT_TRUE(graph.ok()) << "the refusals broke the capture: " << graph.status();
  EXPECT_EQ((*runtime)->counters().tunes, 0);
}

TEST_F(TuningAloneTest, ABackgroundTuningBesideACaptureSwapsAndLeavesItValid) {
  auto runtime = Runtime::Create(Tuned(TunePolicy::kBackground));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  auto problem = cli::MakeRandomProblem(*ParseSpec(kSpec), WithSeed(6));
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  ASSERT_EQ(gpu().api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  const auto attention = (*runtime)->Prepare(problem->spec(), stream());
  ASSERT_TRUE(attention.ok()) << attention.status();
  ASSERT_EQ(MoreDriver::Get().begin_capture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const absl::Status run = (*runtime)->Run(*attention, on_device->args(), stream());
  const bool idle = (*runtime)->WaitForTuning(30'000);
  const absl::Status again = (*runtime)->Run(*attention, on_device->args(), stream());
  const auto graph = Graph::End(gpu().api(), stream());
  EXPECT_TRUE(run.ok()) << run;
  EXPECT_TRUE(idle);
  EXPECT_TRUE(again.ok()) << again;
  ASSERT_TRUE(graph.ok()) << "the tuning broke the capture: " << graph.status();
  EXPECT_EQ((*runtime)->counters().tunes, 1);
  ASSERT_TRUE(graph->Launch(stream()).ok());
  ASSERT_EQ(gpu().api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tilewright::gpu_tests

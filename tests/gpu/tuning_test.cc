// Tuning on a real device: within its budget, right, with its hands off the caller's memory and
// captures. The device must not be another's meanwhile: budgets are kept and free memory is looked
// at (bench/gpu_suite.py runs suites named ...AloneTest after all others).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/record_files.h"
#include "cli/device_problem.h"
#include "emit/emit_kernel.h"
#include "emit/template_bundle.h"
#include "gpu_environment.h"
#include "more_driver.h"
#include "plan/planner.h"
#include "scenarios.h"
#include "spec/canonical.h"
#include "tune/record.h"

namespace tilewright::gpu_tests {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

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

// Writes the templates into `directory`, with `statement` at the beginning of the kernel of one of
// the plans that FaultOptions try first for FaultSpec, which is returned. It has another tile than
// the default, so that the code of the two can be told apart.
absl::StatusOr<plan::KernelPlan> Plant(const std::string& directory, const std::string& statement) {
  const device::DeviceInfo& device = GpuEnvironment::Get().device();
  const AttentionSpec spec = spec::Canonicalise(FaultSpec());
  plan::PlanRequest request = {spec, device.traits, device.board};
  request.family = plan::Family::kFwdSm80;
  const auto decision = plan::Best(request);
  if (!decision.ok()) return decision.status();
  std::vector<plan::KernelPlan> candidates = plan::Candidates(request, *decision);
  candidates.resize(3);
  const auto planted =
      std::find_if(candidates.begin() + 1, candidates.end(), [&](const plan::KernelPlan& one) {
        return one.after.empty() && one.block_n != candidates.front().block_n;
      });
  if (planted == candidates.end()) return absl::NotFoundError("all have the same tile");
  const std::string head = "void Run(const Params& params) {\n";
  size_t places = 0;
  for (const artifact::SourceFile& file : emit::EmbeddedTemplates().files) {
    std::string text = file.text;
    const size_t at =
        file.name == emit::TemplateFileOf(*planted) ? text.find(head) : std::string::npos;
    if (at != std::string::npos) {
      text.insert(at + head.size(),
                  absl::StrCat("  if constexpr (Config::kBlockM == ", planted->block_m,
                               " && Config::kBlockN == ", planted->block_n,
                               " && Config::kWarps == ", planted->warps, " && Config::kStages == ",
                               planted->stages, ") {\n    ", statement, "\n  }\n"));
      ++places;
    }
    const std::filesystem::path path = std::filesystem::path(directory) / file.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  if (places != 1) return absl::NotFoundError("the family's kernel has another head by now");
  return *planted;
}

tune::Outcome OutcomeIn(const tune::TuningRecord& record, const plan::KernelPlan& plan) {
  for (const tune::CandidateResult& one : record.candidates) {
    if (one.plan == plan.ToString()) return one.outcome;
  }
  return tune::Outcome::kUntried;
}

TEST_F(TuningAloneTest, ACandidateThatDoesNothingIsTheQuickestAndDoesNotWin) {
  const auto planted = Plant(FaultTemplates(directory_.path()), "return;");
  ASSERT_TRUE(planted.ok()) << planted.status();
  auto runtime = Runtime::Create(FaultOptions(directory_.path()));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto result = (*runtime)->Tune(FaultSpec());
  ASSERT_TRUE(result.ok()) << result.status();
  const auto record = tune::ParseRecord(result->record);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(OutcomeIn(*record, *planted), tune::Outcome::kWrong);
  EXPECT_NE(record->winner, planted->ToString());
}

TEST_F(TuningAloneTest, ACandidateThatFaultsIsWrittenDownAndLeftAloneByTheNextProcess) {
  const std::string& directory = directory_.path();
  const auto planted =
      Plant(FaultTemplates(directory), "*reinterpret_cast<volatile int*>(64ll) = 1;");
  ASSERT_TRUE(planted.ok()) << planted.status();

  const ChildResult faulted = RunChild("fault_while_tuning", directory);
  EXPECT_EQ(faulted.status, 0) << faulted.output;
  EXPECT_THAT(faulted.output, HasSubstr(planted->ToString() + " took the device's context down"));
  const auto record_there = [&](bool finished) -> std::optional<tune::TuningRecord> {
    const cache::RecordFiles files({.directory = FaultStore(directory)});
    for (const auto& key : files.List()) {
      const auto text = files.Read(key);
      const auto record = text.ok() ? tune::ParseRecord(*text) : text.status();
      if (record.ok() && record->winner.empty() != finished) return *record;
    }
    return std::nullopt;
  };
  const auto left = record_there(/*finished=*/false);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(OutcomeIn(*left, *planted), tune::Outcome::kFailed);

  const ChildResult next = RunChild("tune_after_a_fault", directory);
  EXPECT_EQ(next.status, 0) << next.output;
  const auto record = record_there(/*finished=*/true);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(OutcomeIn(*record, *planted), tune::Outcome::kFailed)
      << "as the first one has found out";
  EXPECT_NE(record->winner, planted->ToString());
  EXPECT_GT(std::count_if(record->candidates.begin(), record->candidates.end(),
                          [](const tune::CandidateResult& one) { return one.samples > 0; }),
            1);
}

}  // namespace
}  // namespace tilewright::gpu_tests

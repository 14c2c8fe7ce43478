// Policies of tuning, over the recording driver and the stand-in for the compiler: a launch takes
// what a test says, and computes nothing, so that all kernels agree.
#include "runtime/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arch/board_profile.h"
#include "cache/record_files.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tests/runtime/test_runtime.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_directory.h"
#include "tune/bucket.h"
#include "tune/gpu_lock.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TuningTest : public ::testing::Test {
 protected:
  // One whose kernels can be told by their names.
  static constexpr plan::Family kFamily = plan::Family::kFwdSm80;

  void SetUp() override {
    driver_.api().cuCtxSetCurrent(driver_.MakeContext(0));
    spec_ = *ParseSpec("fwd fp16 b=2 h=4/4 s=256/256 d=64/64");
    const auto traits = *arch::FindArchTraits("sm_90a");
    const auto board = *arch::DefaultBoardProfile("sm_90a");
    plan::PlanRequest request = {spec_, traits, board};
    request.family = kFamily;
    const auto decision = plan::Best(request);
    ASSERT_TRUE(decision.ok()) << decision.status();
    candidates_ = plan::Candidates(request, *decision);
    ASSERT_GE(candidates_.size(), 3u);
    // The default takes 1 ms, the third half of it, the others more.
    for (size_t n = 0; n < candidates_.size(); ++n) {
      cost_[Marker(candidates_[n])] = n == 0 ? 1.0 : n == 2 ? 0.5 : 1.5;
    }
    driver_.set_launch_ms([this](const device::FakeLaunch& launch) {
      ++launches_;
      for (const auto& [marker, ms] : cost_) {
        if (launch.kernel.find(marker) != std::string::npos) return ms;
      }
      return 1.0;
    });
  }

  // The end of an entry's name: its plan.
  static std::string Marker(const plan::KernelPlan& plan) {
    return "__m" + std::to_string(plan.block_m) + "n" + std::to_string(plan.block_n) + "w" +
           std::to_string(plan.warps) + "s" + std::to_string(plan.stages);
  }

  RuntimeOptions Options(TunePolicy policy) {
    RuntimeOptions options;
    options.log_sink = lines_.sink();
    options.log_level = LogLevel::kInfo;
    options.nvrtc_path = TILEWRIGHT_MISBEHAVING_LIBNVRTC;
    options.cache_dir = directory_.path() + "/store";
    options.tune_policy = policy;
    options.family = std::string(plan::FamilyName(kFamily));
    options.tune_max_bytes = int64_t{8} << 20;  // so that little is filled
    options.tune_budget_ms = 20'000;            // on a slow machine too
    options.compile_threads = 4;
    return options;
  }
  std::unique_ptr<Runtime> Make(const RuntimeOptions& options) {
    auto runtime = RuntimeParts::CreateRuntime(options, PartsOn(driver_));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }
  // As another tuner would, so that nothing is measured until the lock is let go. Another test
  // program may be tuning on a driver like this one, and is waited for.
  std::optional<tune::GpuLock> HoldGpu() {
    const auto devices = *device::DeviceManager::Create(&driver_.api());
    auto lock = tune::GpuLock::Acquire(devices->devices()[0].uuid,
                                       std::chrono::steady_clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(lock.has_value());
    return lock;
  }
  static std::string PlanOf(const PreparedAttention& attention) {
    return attention.state()->Newest().decision.plan.ToString();
  }
  // The end of a runtime waits a second at most for what is being written, which a busy machine may
  // not keep to. One flush waits as long, and none where nothing is left to write.
  static void WaitUntilStored(Runtime& runtime) {
    for (int n = 0; n < 60; ++n) runtime.Flush();
  }
  std::string DefaultPlan() const { return candidates_[0].ToString(); }
  std::string BestPlan() const { return candidates_[2].ToString(); }

  tilewright::testing::TempDirectory directory_;
  device::FakeDriver driver_;
  LogLines lines_;
  AttentionSpec spec_;
  std::vector<plan::KernelPlan> candidates_;
  std::map<std::string, double> cost_;
  std::atomic<int> launches_ = 0;
};

TEST_F(TuningTest, FirstRunMeasuresOnceAndKeepsTheRecord) {
  {
    const auto runtime = Make(Options(TunePolicy::kFirstRun));
    const auto attention = runtime->Prepare(spec_);
    ASSERT_TRUE(attention.ok()) << attention.status();
    EXPECT_EQ(PlanOf(*attention), BestPlan());
    EXPECT_THAT(attention->Explain(), HasSubstr("tuned     measured by this process"));
    EXPECT_EQ(runtime->counters().tunes, 1);
    // Another spec of the bucket.
    AttentionSpec near = spec_;
    near.seqlen_q = near.seqlen_kv = 250;
    EXPECT_EQ(PlanOf(*runtime->Prepare(near)), BestPlan());
    EXPECT_EQ(runtime->counters().tunes, 1);
    EXPECT_EQ(runtime->counters().record_hits, 1);
    WaitUntilStored(*runtime);
  }
  // A process that comes later: no measurement, no compile.
  const int launches = launches_;
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), BestPlan());
  EXPECT_THAT(attention->Explain(), HasSubstr("tuned     exact record (user)"));
  const RuntimeCounters counters = runtime->counters();
  EXPECT_EQ(counters.tunes, 0);
  EXPECT_EQ(counters.compiles, 0);
  EXPECT_EQ(counters.record_hits, 1);
  EXPECT_EQ(launches_, launches);
}

TEST_F(TuningTest, TakesNothingForGood) {
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  ASSERT_TRUE(runtime->Prepare(spec_).ok());
  EXPECT_EQ(driver_.live_allocations(), 0);
  EXPECT_EQ(driver_.live_streams(), 0);
  EXPECT_EQ(driver_.live_events(), 0);
  EXPECT_EQ(driver_.live_libraries(), 1) << "the winner's kernel";
}

TEST_F(TuningTest, BackgroundServesTheDefaultAndSwapsInHandlesThatAreOut) {
  const auto runtime = Make(Options(TunePolicy::kBackground));
  // Measuring waits until the first answer was looked at.
  auto lock = HoldGpu();
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  EXPECT_EQ(runtime->counters().tunes, 0);
  const AttentionArgs args = DenseArgs(spec_);
  ASSERT_TRUE(runtime->Run(*attention, args, nullptr).ok());
  EXPECT_THAT(driver_.launches().back().kernel, HasSubstr(Marker(candidates_[0])));
  lock.reset();
  ASSERT_TRUE(runtime->WaitForTuning(60'000));
  EXPECT_EQ(runtime->counters().tunes, 1);
  EXPECT_EQ(runtime->counters().tuned_swaps, 1);
  EXPECT_EQ(PlanOf(*attention), BestPlan());
  ASSERT_TRUE(runtime->Run(*attention, args, nullptr).ok());
  EXPECT_THAT(driver_.launches().back().kernel, HasSubstr(Marker(candidates_[2])));
  EXPECT_EQ(PlanOf(*runtime->Prepare(spec_)), BestPlan());
}

TEST_F(TuningTest, NothingIsSwappedWithinACapture) {
  const auto runtime = Make(Options(TunePolicy::kBackground));
  auto lock = HoldGpu();
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  const AttentionArgs args = DenseArgs(spec_);
  CUstream stream = nullptr;
  ASSERT_EQ(driver_.api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto kernel_of_run = [&](CUstream on) {
    EXPECT_TRUE(runtime->Run(*attention, args, on).ok());
    return driver_.launches().back().kernel;
  };
  driver_.SetCapturing(stream, true);
  EXPECT_THAT(kernel_of_run(stream), HasSubstr(Marker(candidates_[0])));
  lock.reset();
  ASSERT_TRUE(runtime->WaitForTuning(60'000));
  EXPECT_EQ(runtime->counters().tuned_swaps, 1);
  EXPECT_THAT(kernel_of_run(stream), HasSubstr(Marker(candidates_[0])));
  // Others are not held up by it, and it takes part when its capture has ended.
  EXPECT_THAT(kernel_of_run(nullptr), HasSubstr(Marker(candidates_[2])));
  driver_.SetCapturing(stream, false);
  EXPECT_THAT(kernel_of_run(stream), HasSubstr(Marker(candidates_[2])));
  EXPECT_FALSE(driver_.capture_spoilt());
  driver_.api().cuStreamDestroy(stream);
}

TEST_F(TuningTest, RunsBesideASwapAreOfOneKernelOrTheOther) {
  const auto runtime = Make(Options(TunePolicy::kBackground));
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  const CUcontext context = driver_.context_stack().back();
  for (int n = 0; n < 2; ++n) {
    threads.emplace_back([&] {
      driver_.api().cuCtxSetCurrent(context);
      const AttentionArgs args = DenseArgs(spec_);
      while (!done) {
        EXPECT_TRUE(runtime->Run(*attention, args, nullptr).ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  EXPECT_TRUE(runtime->WaitForTuning(60'000));
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PlanOf(*attention), BestPlan());
}

TEST_F(TuningTest, OtherPoliciesNeverMeasure) {
  for (const TunePolicy policy : {TunePolicy::kOff, TunePolicy::kCachedOnly}) {
    const auto runtime = Make(Options(policy));
    const auto attention = runtime->Prepare(spec_);
    ASSERT_TRUE(attention.ok()) << attention.status();
    EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  }
  EXPECT_EQ(launches_, 0);
  ASSERT_TRUE(Make(Options(TunePolicy::kFirstRun))->Prepare(spec_).ok());
  const int launches = launches_;
  EXPECT_EQ(PlanOf(*Make(Options(TunePolicy::kCachedOnly))->Prepare(spec_)), BestPlan());
  EXPECT_EQ(PlanOf(*Make(Options(TunePolicy::kFrozen))->Prepare(spec_)), BestPlan());
  EXPECT_EQ(PlanOf(*Make(Options(TunePolicy::kOff))->Prepare(spec_)), DefaultPlan())
      << "shipped records only";
  EXPECT_EQ(launches_, launches);
}

TEST_F(TuningTest, FrozenCompilesNothingAndTakesTheDefaultsKernelWhereOnlyThatIsStored) {
  const auto frozen = Make(Options(TunePolicy::kFrozen));
  EXPECT_EQ(frozen->Prepare(spec_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(frozen->Tune(spec_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(frozen->counters().compiles + frozen->counters().compile_failures, 0);

  // A record in one store, the default's kernel in another: as when a pack was made without a GPU.
  ASSERT_TRUE(Make(Options(TunePolicy::kFirstRun))->Prepare(spec_).ok());
  RuntimeOptions options = Options(TunePolicy::kOff);
  options.cache_dir = directory_.path() + "/other";
  ASSERT_TRUE(Make(options)->Prepare(spec_).ok());
  std::filesystem::copy(directory_.path() + "/store/v1/t", options.cache_dir + "/v1/t",
                        std::filesystem::copy_options::recursive);
  options.tune_policy = TunePolicy::kFrozen;
  const auto attention = Make(options)->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  EXPECT_THAT(attention->Explain(), HasSubstr("its kernel is not stored"));
}

TEST_F(TuningTest, ManyThreadsThatWantOneSpecTuneOnce) {
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  const CUcontext context = driver_.context_stack().back();
  std::vector<std::thread> threads;
  std::atomic<int> best = 0;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([&] {
      driver_.api().cuCtxSetCurrent(context);
      const auto attention = runtime->Prepare(spec_);
      best += attention.ok() && PlanOf(*attention) == BestPlan() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(best, 8);
  EXPECT_EQ(runtime->counters().tunes, 1);
}

TEST_F(TuningTest, WhileAnotherProcessMeasuresTheDefaultServes) {
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.tune_budget_ms = 500;  // a compile ends in it, under sanitizers too
  const auto lock = HoldGpu();
  const auto runtime = Make(options);
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  EXPECT_EQ(runtime->counters().tune_postponed, 1);
  EXPECT_EQ(launches_, 0);
  EXPECT_THAT(attention->Explain(), HasSubstr("another tuner is measuring"));
}

TEST_F(TuningTest, WhatWasPostponedIsMadeUpForInTheBackground) {
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.tune_budget_ms = 50;
  auto lock = HoldGpu();
  const auto runtime = Make(options);
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  // By then with a budget that is counted from its turn on.
  lock.reset();
  ASSERT_TRUE(runtime->WaitForTuning(60'000));
  EXPECT_EQ(runtime->counters().tunes, 1);
  EXPECT_EQ(runtime->counters().tuned_swaps, 1);
}

TEST_F(TuningTest, TwoProcessesThatTuneOnOneGpuTakeTurns) {
  struct Shared {
    std::atomic<int> measuring = 0;  // processes with something on the device
    std::atomic<int> most = 0;
    std::atomic<int> launches = 0;
    std::atomic<int> started = 0;
  };
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const shared = new (memory) Shared;
  std::vector<pid_t> children;
  for (int n = 0; n < 2; ++n) {
    children.push_back(tilewright::testing::StartChild([&] {
      driver_.set_on_launch([&](const device::FakeLaunch&) {
        ++shared->launches;
        shared->most = std::max(shared->most.load(), ++shared->measuring);
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        --shared->measuring;
      });
      // A store of its own each: both measure.
      RuntimeOptions options = Options(TunePolicy::kFirstRun);
      options.cache_dir = directory_.path() + "/store" + std::to_string(n);
      const auto runtime = Make(options);
      ++shared->started;
      for (int ms = 0; shared->started < 2 && ms < 60'000; ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const bool prepared = runtime->Prepare(spec_).ok();
      return prepared && runtime->counters().tunes == 1 ? 0 : 1;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(tilewright::testing::WaitForChild(child), 0);
  EXPECT_EQ(shared->most, 1);
  EXPECT_GT(shared->launches, 2 * 24) << "both have measured";
  munmap(memory, sizeof(Shared));
}

// A default that takes long to compile, and the plan that serves until it is there.
class StarterTest : public TuningTest {
 protected:
  void SetUp() override {
    TuningTest::SetUp();
    FindPlans();
  }
  void FindPlans() {
    const auto traits = *arch::FindArchTraits("sm_90a");
    const auto board = *arch::DefaultBoardProfile("sm_90a");
    const plan::PlanRequest request = {spec_, traits, board};
    const auto decision = plan::Best(request);
    ASSERT_TRUE(decision.ok()) << decision.status();
    default_ = decision->plan.ToString();
    const auto starter = plan::StarterOf(request, *decision);
    ASSERT_TRUE(starter.has_value());
    starter_ = starter->ToString();
    ASSERT_NE(starter_, default_);
  }
  RuntimeOptions AnyFamily(TunePolicy policy) {
    RuntimeOptions options = Options(policy);
    options.family.clear();
    options.tune_candidates = 2;
    return options;
  }
  std::string default_;
  std::string starter_;
};

TEST_F(StarterTest, ServesInTheBackgroundPolicyUntilTheDefaultIsCompiled) {
  {
    auto lock = HoldGpu();
    const auto runtime = Make(AnyFamily(TunePolicy::kBackground));
    const auto attention = runtime->Prepare(spec_);
    ASSERT_TRUE(attention.ok()) << attention.status();
    // What it is now: the handle follows.
    EXPECT_EQ(attention->state()->decision.plan.ToString(), starter_);
    EXPECT_THAT(attention->state()->decision.tuned, HasSubstr("compiled sooner"));
    ASSERT_TRUE(runtime->Run(*attention, DenseArgs(spec_), nullptr).ok());
    // The default does not wait for its turn to be measured.
    for (int n = 0; n < 600 && PlanOf(*attention) == starter_; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(PlanOf(*attention), default_);
    EXPECT_EQ(runtime->counters().tunes, 0);
    lock.reset();
    ASSERT_TRUE(runtime->WaitForTuning(60'000));
    EXPECT_EQ(runtime->counters().tunes, 1);
    EXPECT_NE(PlanOf(*attention), starter_);
  }
  // Nothing to wait for: the record and its kernel are there.
  const auto runtime = Make(AnyFamily(TunePolicy::kBackground));
  EXPECT_NE(PlanOf(*runtime->Prepare(spec_)), starter_);
  EXPECT_EQ(runtime->counters().compiles, 0);
}

TEST_F(StarterTest, ServesWhereTheBudgetEndsBeforeTheDefaultIsCompiled) {
  // Every kernel takes the stand-in for the compiler 0.2 s.
  spec_.score_snippet = {"score /* ask:SLOW */", "rule.cu"};
  FindPlans();
  RuntimeOptions options = AnyFamily(TunePolicy::kFirstRun);
  options.tune_budget_ms = 1;
  const auto runtime = Make(options);
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(attention->state()->decision.plan.ToString(), starter_);
  EXPECT_THAT(attention->state()->decision.tuned,
              HasSubstr("the budget ended before the default was compiled"));
  ASSERT_TRUE(runtime->WaitForTuning(60'000));
  EXPECT_NE(PlanOf(*attention), starter_);
}

TEST_F(StarterTest, IsNotForThoseWhoDoNotTuneOrSaidWhatTheyWant) {
  EXPECT_EQ(PlanOf(*Make(AnyFamily(TunePolicy::kOff))->Prepare(spec_)), default_);
  RuntimeOptions options = AnyFamily(TunePolicy::kBackground);
  options.cache_dir = directory_.path() + "/other";
  const auto runtime = Make(options);
  const AttentionSpec specs[] = {spec_};
  ASSERT_TRUE(runtime->Warmup(specs).ok());
  EXPECT_EQ(runtime->Prepare(spec_)->state()->decision.plan.ToString(), default_);
}

TEST_F(TuningTest, WhatAnotherProcessHasMeasuredMeanwhileIsTaken) {
  const auto waiting = Make(Options(TunePolicy::kFirstRun));
  // It has looked before the other one wrote.
  EXPECT_EQ(PlanOf(*Make(Options(TunePolicy::kFirstRun))->Prepare(spec_)), BestPlan());
  const int launches = launches_;
  {
    // No turn on the GPU is waited for.
    const auto lock = HoldGpu();
    TuneOptions briefly;
    briefly.budget_ms = 500;
    const auto result = waiting->Tune(spec_, briefly);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->measured);
    EXPECT_EQ(result->winner, BestPlan());
  }
  EXPECT_EQ(waiting->counters().compiles, 0);
  EXPECT_EQ(launches_, launches);
  TuneOptions force;
  force.force = true;
  EXPECT_TRUE(waiting->Tune(spec_, force)->measured);
}

TEST_F(TuningTest, WhatAnotherProcessMeasuresWhileItsTurnIsWaitedForIsTaken) {
  RuntimeOptions elsewhere = Options(TunePolicy::kFirstRun);
  elsewhere.cache_dir = directory_.path() + "/other";
  ASSERT_TRUE(Make(elsewhere)->Prepare(spec_).ok());
  const int launches = launches_;
  const RuntimeOptions options = Options(TunePolicy::kFirstRun);
  const auto waiting = Make(options);
  auto lock = HoldGpu();
  absl::StatusOr<TuneResult> result = absl::UnknownError("");
  std::thread thread([&, context = driver_.context_stack().back()] {
    driver_.api().cuCtxSetCurrent(context);
    result = waiting->Tune(spec_);
  });
  // It has looked once and goes on to compile; what it measures begins with its turn.
  for (int n = 0; n < 600 && waiting->counters().compiles == 0; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::filesystem::copy(
      elsewhere.cache_dir + "/v1/t", options.cache_dir + "/v1/t",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  lock.reset();
  thread.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->measured);
  EXPECT_EQ(result->winner, BestPlan());
  EXPECT_EQ(launches_, launches);
}

TEST_F(TuningTest, ACaptureIsRefusedAndStaysValid) {
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  CUstream stream = nullptr;
  ASSERT_EQ(driver_.api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  driver_.SetCapturing(stream, true);
  driver_.SetGlobalCapture(true);
  EXPECT_EQ(runtime->Prepare(spec_, stream).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->Tune(spec_, {}, stream).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->counters().capture_refusals, 2);
  EXPECT_FALSE(driver_.capture_spoilt());
  EXPECT_EQ(launches_, 0);
  driver_.SetCapturing(stream, false);
  driver_.SetGlobalCapture(false);
  driver_.api().cuStreamDestroy(stream);
}

TEST_F(TuningTest, ATuningInTheBackgroundLeavesACaptureElsewhereValid) {
  const auto runtime = Make(Options(TunePolicy::kBackground));
  ASSERT_TRUE(runtime->Prepare(spec_).ok());
  driver_.SetGlobalCapture(true);
  EXPECT_TRUE(runtime->WaitForTuning(60'000));
  EXPECT_FALSE(driver_.capture_spoilt());
  EXPECT_EQ(runtime->counters().tunes, 1);
}

TEST_F(TuningTest, WithoutMemoryTheDefaultServes) {
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.tune_max_bytes = 1000;
  const auto runtime = Make(options);
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  EXPECT_THAT(attention->Explain(), HasSubstr("not measured"));
  EXPECT_EQ(runtime->counters().tune_failures, 1);
  EXPECT_EQ(driver_.live_allocations(), 0);
}

TEST_F(TuningTest, WhatMustNotDependOnMeasurementsIsNotMeasured) {
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  spec_.batch_invariant = true;
  ASSERT_TRUE(runtime->Prepare(spec_).ok());
  EXPECT_EQ(runtime->counters().tunes, 0);
  EXPECT_EQ(launches_, 0);
}

TEST_F(TuningTest, AllFirstCallsTogetherKeepToTheirTotal) {
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.tune_total_ms = 1;
  const auto runtime = Make(options);
  ASSERT_TRUE(runtime->Prepare(spec_).ok());
  EXPECT_EQ(runtime->counters().tunes, 1);
  AttentionSpec other = spec_;
  other.dim_qk = other.dim_v = 32;
  const auto attention = runtime->Prepare(other);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(runtime->counters().tunes, 1);
  EXPECT_EQ(runtime->counters().tune_postponed, 1);
}

TEST_F(TuningTest, OutsideOfTheTunedRangeTheNearestRecordServesWithOneWarning) {
  ASSERT_TRUE(Make(Options(TunePolicy::kFirstRun))->Prepare(spec_).ok());
  const auto runtime = Make(Options(TunePolicy::kCachedOnly));
  AttentionSpec longer = spec_;
  longer.seqlen_q = longer.seqlen_kv = 512;
  EXPECT_EQ(PlanOf(*runtime->Prepare(longer)), BestPlan());
  longer.batch = 4;
  EXPECT_EQ(PlanOf(*runtime->Prepare(longer)), BestPlan());
  EXPECT_EQ(runtime->counters().nearest_hits, 2);
  EXPECT_EQ(lines_.Count("outside_tuned_range"), 1);
}

TEST_F(TuningTest, AKilledTunerLeavesNothingInTheWayAndIsTakenUp) {
  const pid_t child = tilewright::testing::StartChild([&] {
    // Half way through the checks.
    driver_.set_on_launch([&](const device::FakeLaunch& launch) {
      if (launch.kernel.find(Marker(candidates_[3])) != std::string::npos) raise(SIGKILL);
    });
    return Make(Options(TunePolicy::kFirstRun))->Prepare(spec_).ok() ? 0 : 1;
  });
  ASSERT_EQ(tilewright::testing::WaitForChild(child), -SIGKILL);
  const cache::RecordFiles files({.directory = directory_.path() + "/store"});
  ASSERT_EQ(files.List().size(), 1u) << "what was found out is saved after each candidate";
  const auto text = files.Read(files.List()[0]);
  ASSERT_TRUE(text.ok()) << text.status();
  const tune::TuningRecord left = *tune::ParseRecord(*text);
  EXPECT_EQ(left.winner, "");
  const auto suspect =
      std::find_if(left.candidates.begin(), left.candidates.end(),
                   [](const auto& one) { return one.outcome == tune::Outcome::kSuspect; });
  ASSERT_NE(suspect, left.candidates.end()) << "it died while it tried one";
  ASSERT_EQ(suspect->plan, candidates_[3].ToString());

  // What may have been why it died is not launched again, unless somebody insists.
  std::atomic<int> tried = 0;
  driver_.set_on_launch([&](const device::FakeLaunch& launch) {
    tried += launch.kernel.find(Marker(*plan::ParsePlan(suspect->plan))) != std::string::npos;
  });
  const auto runtime = Make(Options(TunePolicy::kFirstRun));
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), BestPlan());
  EXPECT_EQ(runtime->counters().tunes, 1);
  EXPECT_EQ(tried, 0) << suspect->plan;
  EXPECT_GT(runtime->counters().store_hits, 0) << "kernels that the killed one had compiled";
}

TEST_F(TuningTest, AProgramWithoutCompilerKeepsToTheStoredDefault) {
  {
    const auto compiles = Make(Options(TunePolicy::kOff));
    ASSERT_TRUE(compiles->Prepare(spec_).ok());
    WaitUntilStored(*compiles);
  }
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.nvrtc_path = "/nowhere/libnvrtc.so";
  const auto runtime = Make(options);
  const auto attention = runtime->Prepare(spec_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(PlanOf(*attention), DefaultPlan());
  EXPECT_EQ(runtime->counters().tunes, 0);
}

TEST_F(TuningTest, ScratchComesFromTheCallersAllocator) {
  std::atomic<int> held = 0;
  std::atomic<int> ever = 0;
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.device_allocate = [&](size_t bytes) -> void* {
    CUdeviceptr at = 0;
    if (driver_.api().cuMemAlloc(&at, bytes) != CUDA_SUCCESS) return nullptr;
    ++held;
    ++ever;
    return reinterpret_cast<void*>(at);
  };
  EXPECT_EQ(Runtime::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.device_release = [&](void* memory) {
    --held;
    driver_.api().cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
  };
  const auto runtime = Make(options);
  ASSERT_TRUE(runtime->Prepare(spec_).ok());
  EXPECT_EQ(runtime->counters().tunes, 1);
  EXPECT_GT(ever, 2);
  EXPECT_EQ(held, 0);
}

TEST_F(TuningTest, DecodingIsTunedWithItsPlansOfSeveralKernels) {
  RuntimeOptions options = Options(TunePolicy::kFirstRun);
  options.tune_max_bytes = int64_t{64} << 20;
  options.tune_candidates = 6;
  for (const char* text : {"fwd bf16 b=32 h=71/1 s=1/2048 d=64/64 causal",
                           "fwd bf16 b=4 h=32/8 s=1/900 d=128/128 paged=16 varlen lse"}) {
    const auto runtime = Make(options);
    const auto attention = runtime->Prepare(*ParseSpec(text));
    ASSERT_TRUE(attention.ok()) << attention.status();
    EXPECT_EQ(runtime->counters().tunes, 1) << attention->Explain();
  }
}

// ---- R67 ------------------------------------------------------------------------------------

TEST_F(TuningTest, ACallerThatMakesLengthsExactIsWarned) {
  RuntimeOptions options = Options(TunePolicy::kOff);
  options.churn_per_minute = 3;
  const auto runtime = Make(options);
  for (int n = 0; n < 8; ++n) {
    AttentionSpec exact = spec_;
    exact.exact = true;
    exact.seqlen_q = exact.seqlen_kv = 100 + n;
    ASSERT_TRUE(runtime->Prepare(exact).ok());
  }
  EXPECT_EQ(runtime->counters().churn_alarms, 1);
  EXPECT_EQ(lines_.Count("churn"), 1);
  // What is asked for on purpose is no churn.
  const auto warm = Make(options);
  std::vector<AttentionSpec> specs;
  for (int n = 0; n < 6; ++n) {
    specs.push_back(spec_);
    specs.back().exact = true;
    specs.back().seqlen_q = specs.back().seqlen_kv = 100 + n;
  }
  ASSERT_TRUE(warm->Warmup(specs).ok());
  EXPECT_EQ(warm->counters().churn_alarms, 0);
}

TEST_F(TuningTest, TenThousandSizesOfOneModelNeedNoMoreThanThePlannedKernels) {
  const auto traits = *arch::FindArchTraits("sm_90a");
  const auto board = *arch::DefaultBoardProfile("sm_90a");
  const AttentionSpec model =
      spec::Canonicalise(*ParseSpec("fwd bf16 b=1 h=32/8 s=64/128 d=128/128 causal"));
  std::set<std::string> planned;
  for (const AttentionSpec& spec : tune::ReachableSpecs(model, 64, 8192)) {
    const plan::PlanRequest request = {spec, traits, board};
    for (const plan::KernelPlan& plan : plan::Candidates(request, *plan::Best(request))) {
      planned.insert(plan.ToString());
    }
  }
  // 8 of attn_decode_sm90, 22 of attn_decode, 7 of attn_decode_wide, 13 of attn_fwd_small; 35 of
  // attn_fwd_sm90 and 78 of attn_fwd_sm80, most of their tiles thrice: whole, and in parts with
  // either kernel that merges them. Nothing here depends on a length but the family, whether there
  // are parts, and whether whole items fill the board, so a plan that takes one from the spec shows
  // at once.
  EXPECT_LE(planned.size(), 163u);
  std::mt19937_64 random(11);
  std::set<std::string> reached;
  RuntimeOptions options = Options(TunePolicy::kOff);
  options.family.clear();
  const auto runtime = Make(options);
  for (int n = 0; n < 10'000; ++n) {
    const AttentionSpec spec = tune::WithSizes(model, 1 + static_cast<int64_t>(random() % 64),
                                               1 + static_cast<int64_t>(random() % 8192),
                                               1 + static_cast<int64_t>(random() % 8192));
    const auto attention = runtime->Prepare(spec);
    ASSERT_TRUE(attention.ok()) << attention.status();
    reached.insert(PlanOf(*attention));
  }
  EXPECT_GT(reached.size(), 1u);
  for (const std::string& plan : reached) EXPECT_EQ(planned.count(plan), 1u) << plan;
  EXPECT_LE(runtime->counters().compiles, static_cast<int64_t>(planned.size()));
  EXPECT_EQ(runtime->counters().churn_alarms, 0);
}

}  // namespace
}  // namespace tilewright

// Threads, contexts, runtimes side by side, processes one after the other, and exits.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/accuracy.h"
#include "cli/device_problem.h"
#include "cli/random_problem.h"
#include "runtime/runtime_impl.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/guarded_outputs.h"
#include "tests/gpu/more_driver.h"
#include "tests/gpu/scenarios.h"

namespace tilewright::gpu_tests {
namespace {

AttentionSpec SmallSpec(int64_t dim = 48) {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.seqlen_q = 60;
  spec.seqlen_kv = 90;
  spec.dim_qk = spec.dim_v = dim;
  spec.causal = true;
  spec.lse = true;
  return spec;
}

void ExpectRight(const cli::HostProblem& problem) {
  const auto rows = reference::AllRows(problem.spec(), problem.args());
  const auto accuracy = cli::CheckAccuracy(problem, rows);
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
}

class LifetimeTest : public GpuTest {
 protected:
  static std::unique_ptr<Runtime> NewRuntime(const std::string& directory) {
    auto runtime = Runtime::Create(OptionsFor(directory));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? *std::move(runtime) : nullptr;
  }

  // Every thread walks all specs from another start, on a stream of its own.
  void PrepareAndRunInThreads(Runtime& runtime, int num_threads, int num_specs) {
    std::vector<std::thread> threads;
    for (int n = 0; n < num_threads; ++n) {
      threads.emplace_back([&, n] {
        const device::DriverApi& api = gpu().api();
        ASSERT_EQ(api.cuCtxSetCurrent(gpu().context()), CUDA_SUCCESS);
        auto own = device::OwnedStream::Create(api);
        ASSERT_TRUE(own.ok()) << own.status();
        for (int m = 0; m < num_specs; ++m) {
          const AttentionSpec spec = SmallSpec(16 + 4 * ((n + m) % num_specs));
          auto problem = cli::MakeRandomProblem(spec, WithSeed(static_cast<uint64_t>(n * 64 + m)));
          ASSERT_TRUE(problem.ok()) << problem.status();
          const absl::Status run = RunOnDevice(runtime, *problem, own->get());
          ASSERT_TRUE(run.ok()) << run;
          ExpectRight(*problem);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // On a new thread, which has no context: Prepare must work there and leave it so; with the
  // primary context made current, Run must give the right answer.
  void PrepareAndRunOnAFreshThread(Runtime& runtime) {
    std::thread([&] {
      const device::DriverApi& api = gpu().api();
      CUcontext before = nullptr;
      ASSERT_EQ(api.cuCtxGetCurrent(&before), CUDA_SUCCESS);
      ASSERT_EQ(before, nullptr);
      const auto prepared = runtime.Prepare(SmallSpec());
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      CUcontext after = nullptr;
      ASSERT_EQ(api.cuCtxGetCurrent(&after), CUDA_SUCCESS);
      EXPECT_EQ(after, nullptr) << "Prepare left a context behind";

      ASSERT_EQ(api.cuCtxSetCurrent(gpu().context()), CUDA_SUCCESS);
      auto own = device::OwnedStream::Create(api);
      ASSERT_TRUE(own.ok()) << own.status();
      auto problem = cli::MakeRandomProblem(SmallSpec());
      ASSERT_TRUE(problem.ok()) << problem.status();
      const absl::Status run = RunOnDevice(runtime, *problem, own->get());
      ASSERT_TRUE(run.ok()) << run;
      ExpectRight(*problem);
      ASSERT_EQ(api.cuCtxGetCurrent(&after), CUDA_SUCCESS);
      EXPECT_EQ(after, gpu().context()) << "Prepare or Run changed the caller's context";
    }).join();
  }
};

TEST_F(LifetimeTest, AFreshThreadIsServedColdFromDiskAndFromMemory) {
  TemporaryDirectory directory;
  {
    const auto cold = NewRuntime(directory.path());
    ASSERT_NE(cold, nullptr);
    PrepareAndRunOnAFreshThread(*cold);
    EXPECT_EQ(cold->counters().compiles, 1);
    PrepareAndRunOnAFreshThread(*cold);
    EXPECT_EQ(cold->counters().compiles, 1);
    EXPECT_EQ(cold->counters().loads, 1);
    // Each thread prepared twice, itself and in RunOnDevice; only the first of the four was not in
    // memory.
    EXPECT_EQ(cold->counters().prepares, 4);
    EXPECT_EQ(cold->counters().memory_hits, 3);
  }
  const auto warm = NewRuntime(directory.path());
  ASSERT_NE(warm, nullptr);
  PrepareAndRunOnAFreshThread(*warm);
  EXPECT_EQ(warm->counters().store_hits, 1);
  EXPECT_EQ(warm->counters().compiles, 0);
}

TEST_F(LifetimeTest, ThreadsThatPrepareOneSpecShareOneCompile) {
  TemporaryDirectory directory;
  const auto runtime = NewRuntime(directory.path());
  ASSERT_NE(runtime, nullptr);
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int n = 0; n < 16; ++n) {
    threads.emplace_back([&] {
      if (!runtime->Prepare(SmallSpec(52)).ok()) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(runtime->counters().compiles, 1);
  EXPECT_EQ(runtime->counters().loads, 1);
}

TEST_F(LifetimeTest, ThreadsThatPrepareManySpecsGetTheirOwn) {
  TemporaryDirectory directory;
  const auto runtime = NewRuntime(directory.path());
  ASSERT_NE(runtime, nullptr);
  PrepareAndRunInThreads(*runtime, /*num_threads=*/8, /*num_specs=*/4);
  EXPECT_EQ(runtime->counters().compiles, 4);
}

// Room for fewer kernels than are in use: they are loaded, launched and unloaded all the time.
TEST_F(LifetimeTest, SixtyFourThreadsPrepareRunAndEvict) {
  RuntimeOptions options = OptionsFor("");
  options.cache_in_memory = true;
  RuntimeParts parts;
  parts.open_devices = [] { return device::DeviceManager::Create(); };
  parts.limits = {.kernels = 3, .specs = 6};
  const auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  PrepareAndRunInThreads(**runtime, /*num_threads=*/64, /*num_specs=*/12);
  EXPECT_EQ((*runtime)->counters().compiles, 12);
  EXPECT_GT((*runtime)->counters().evictions, 0);
}

TEST_F(LifetimeTest, ThreadsRunOnePreparedAttentionOnTheirOwnStreams) {
  const auto prepared = runtime().Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  std::vector<std::vector<std::byte>> results(8);
  std::vector<std::thread> threads;
  for (size_t n = 0; n < results.size(); ++n) {
    threads.emplace_back([&, n] {
      const device::DriverApi& api = gpu().api();
      ASSERT_EQ(api.cuCtxSetCurrent(gpu().context()), CUDA_SUCCESS);
      auto own = device::OwnedStream::Create(api);
      ASSERT_TRUE(own.ok()) << own.status();
      auto problem = cli::MakeRandomProblem(SmallSpec());
      ASSERT_TRUE(problem.ok()) << problem.status();
      const auto on_device = cli::DeviceProblem::Upload(api, *problem, own->get());
      ASSERT_TRUE(on_device.ok()) << on_device.status();
      for (int repeat = 0; repeat < 50; ++repeat) {
        const absl::Status run = runtime().Run(*prepared, on_device->args(), own->get());
        ASSERT_TRUE(run.ok()) << run;
      }
      ASSERT_TRUE(on_device->Download(*problem, own->get()).ok());
      ExpectRight(*problem);
      results[n] = OutputBytes(*problem)[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST_F(LifetimeTest, TheDefaultStreamServes) {
  auto problem = cli::MakeRandomProblem(SmallSpec());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const absl::Status run = RunOnDevice(runtime(), *problem, nullptr);
  ASSERT_TRUE(run.ok()) << run;
  ExpectRight(*problem);
}

TEST_F(LifetimeTest, AnotherContextIsRefusedAndServedByAPrepareOfItsOwn) {
  TemporaryDirectory directory;
  const auto own_runtime = NewRuntime(directory.path());
  ASSERT_NE(own_runtime, nullptr);
  const auto prepared = own_runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  CUcontext other = nullptr;
  ASSERT_EQ(MoreDriver::Get().create_context(&other, 0, gpu().device().ordinal), CUDA_SUCCESS);
  {  // cuCtxCreate made it current.
    auto own = device::OwnedStream::Create(gpu().api());
    ASSERT_TRUE(own.ok()) << own.status();
    auto problem = cli::MakeRandomProblem(SmallSpec());
    ASSERT_TRUE(problem.ok()) << problem.status();
    const auto poisoned = OutputBytes(*problem);
    {
      const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, own->get());
      ASSERT_TRUE(on_device.ok()) << on_device.status();
      const absl::Status refused = own_runtime->Run(*prepared, on_device->args(), own->get());
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_NE(std::string(refused.message()).find("context"), std::string::npos) << refused;
      ASSERT_TRUE(on_device->Download(*problem, own->get()).ok());
      EXPECT_EQ(OutputBytes(*problem), poisoned) << "something was launched";
    }
    const absl::Status own_run = RunOnDevice(*own_runtime, *problem, own->get());
    EXPECT_TRUE(own_run.ok()) << own_run;
    ExpectRight(*problem);
  }
  CUcontext popped = nullptr;
  gpu().api().cuCtxPopCurrent(&popped);
  EXPECT_EQ(popped, other);
  EXPECT_EQ(MoreDriver::Get().destroy_context(other), CUDA_SUCCESS);

  // The primary context's kernel is unharmed.
  auto problem = cli::MakeRandomProblem(SmallSpec());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const absl::Status run = RunOnDevice(*own_runtime, *problem, stream());
  EXPECT_TRUE(run.ok()) << run;
  ExpectRight(*problem);
}

TEST_F(LifetimeTest, AThreadWithoutAContextCannotRun) {
  const auto prepared = runtime().Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  auto problem = cli::MakeRandomProblem(SmallSpec());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  absl::Status refused;
  std::thread([&] { refused = runtime().Run(*prepared, on_device->args(), nullptr); }).join();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
}

TEST_F(LifetimeTest, TwoRuntimesShareAStoreAndDieInAnyOrder) {
  TemporaryDirectory directory;
  auto first = NewRuntime(directory.path());
  ASSERT_NE(first, nullptr);
  const auto from_first = first->Prepare(SmallSpec());
  ASSERT_TRUE(from_first.ok()) << from_first.status();
  first->Flush();
  const auto second = NewRuntime(directory.path());
  ASSERT_NE(second, nullptr);
  ASSERT_TRUE(second->Prepare(SmallSpec()).ok());
  EXPECT_EQ(first->counters().compiles, 1);
  EXPECT_EQ(second->counters().compiles, 0);
  EXPECT_EQ(second->counters().store_hits, 1);
  first.reset();

  // A handle keeps its kernel loaded when the runtime that made it is gone; any runtime runs it.
  auto problem = cli::MakeRandomProblem(SmallSpec());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const absl::Status run = second->Run(*from_first, on_device->args(), stream());
  ASSERT_TRUE(run.ok()) << run;
  ASSERT_TRUE(on_device->Download(*problem, stream()).ok());
  ExpectRight(*problem);
}

TEST_F(LifetimeTest, ASecondProcessStartsWarmWithoutTheCompiler) {
  TemporaryDirectory directory;
  const ChildResult cold = RunChild("return_from_main", directory.path());
  ASSERT_EQ(cold.status, 0) << cold.output;
  const ChildResult warm = RunChild("warm_start", directory.path());
  EXPECT_EQ(warm.status, 0) << warm.output;
}

class ExitTest : public GpuTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(ExitTest, IsCleanAndSilent) {
  TemporaryDirectory directory;
  const ChildResult child = RunChild(GetParam(), directory.path());
  EXPECT_EQ(child.status, 0);
  EXPECT_EQ(child.output, "");
}

INSTANTIATE_TEST_SUITE_P(Scenarios, ExitTest, ::testing::ValuesIn(ExitScenarios()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace tilewright::gpu_tests

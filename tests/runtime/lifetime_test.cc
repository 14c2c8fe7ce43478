// Many devices, threads and runtimes, and a driver that goes away: what a program may do around its
// calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/disk_store.h"
#include "tests/runtime/test_runtime.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/process_state.h"
#include "tests/support/sanitizers.h"
#include "tests/support/standin_nvrtc.h"
#include "tests/support/temp_directory.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;

// Compiles in no time: these tests are about everything else.
RuntimeOptions StandInOptions() {
  RuntimeOptions options = TestOptions();
  options.nvrtc_path = TILEWRIGHT_MISBEHAVING_LIBNVRTC;
  return options;
}

AttentionSpec SpecOfDim(int64_t dim_v) {
  AttentionSpec spec = SmallSpec();
  spec.dim_v = dim_v;
  return spec;
}

class LifetimeTest : public ::testing::Test {
 protected:
  void SetUp() override { driver_.api().cuCtxSetCurrent(driver_.MakeContext(0)); }

  std::unique_ptr<Runtime> Make(const RuntimeOptions& options, KernelTable::Limits limits = {}) {
    RuntimeParts parts = PartsOn(driver_);
    parts.limits = limits;
    auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }

  device::FakeDriver driver_{{device::FakeDevice(), device::FakeDevice()}};
};

// R34
TEST_F(LifetimeTest, TwoDevicesShareOneCompileAndKeepTheirOwnKernels) {
  const auto runtime = Make(StandInOptions());
  std::vector<PreparedAttention> prepared;
  std::vector<CUcontext> contexts;
  for (const int ordinal : {0, 1, 0, 1}) {
    if (contexts.size() < 2) contexts.push_back(driver_.MakeContext(ordinal));
    driver_.api().cuCtxSetCurrent(contexts[static_cast<size_t>(ordinal)]);
    auto attention = runtime->Prepare(SmallSpec());
    ASSERT_TRUE(attention.ok()) << attention.status();
    prepared.push_back(*attention);
    const absl::Status run = runtime->Run(*attention, DenseArgs(SmallSpec()), nullptr);
    EXPECT_TRUE(run.ok()) << run;
    EXPECT_EQ(driver_.launches().back().context, contexts[static_cast<size_t>(ordinal)]);
  }
  EXPECT_NE(prepared[0].state(), prepared[1].state());
  EXPECT_EQ(prepared[0].state(), prepared[2].state());
  EXPECT_EQ(prepared[1].state(), prepared[3].state());
  const RuntimeCounters counters = runtime->counters();
  EXPECT_EQ(counters.compiles, 1);
  EXPECT_EQ(counters.loads, 2);
  EXPECT_EQ(counters.memory_hits, 2);
  // A kernel of the one is refused on the other.
  const absl::Status wrong = runtime->Run(prepared[0], DenseArgs(SmallSpec()), nullptr);
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
}

// R35: nothing is left for the first launch, also when the kernel comes from the store.
TEST_F(LifetimeTest, PrepareLeavesNoLoadingToTheFirstLaunch) {
  const tilewright::testing::TempDirectory directory;
  RuntimeOptions options = StandInOptions();
  options.cache_in_memory = false;
  options.cache_dir = directory.path();
  for (const bool cold : {true, false}) {
    const auto runtime = Make(options);
    const auto prepared = runtime->Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(runtime->counters().compiles, cold ? 1 : 0);
    const size_t before = driver_.calls().size();
    ASSERT_TRUE(runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
    const std::vector<std::string> calls = driver_.calls();
    for (size_t i = before; i < calls.size(); ++i) {
      EXPECT_THAT(calls[i], ::testing::AnyOf("cuCtxGetCurrent", "cuCtxGetId", "cuStreamIsCapturing",
                                             "cuLaunchKernelEx"));
    }
  }
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// R38
TEST_F(LifetimeTest, TenThousandShapesKeepMemoryAndModulesBounded) {
  const auto runtime = Make(StandInOptions(), {.kernels = 4, .specs = 64});
  [[maybe_unused]] int64_t before = 0;  // sanitizers keep memory of their own
  for (int64_t i = 0; i < 10'000; ++i) {
    AttentionSpec spec = SpecOfDim(8 * (1 + i % 6));
    spec.seqlen_kv = 1 + i;
    const auto prepared = runtime->Prepare(spec);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_TRUE(runtime->Run(*prepared, DenseArgs(spec), nullptr).ok());
    ASSERT_LE(driver_.live_libraries(), 5);
    if (i % 100 == 0) driver_.ForgetCalls();
    if (i == 2'000) before = ResidentBytes();
  }
  EXPECT_EQ(driver_.live_libraries(), 4);
  EXPECT_EQ(runtime->counters().compiles, 6);
  EXPECT_GT(runtime->counters().evictions, 1000);
#if !TILEWRIGHT_ADDRESS_SANITIZER && !TILEWRIGHT_THREAD_SANITIZER
  EXPECT_LT(ResidentBytes() - before, int64_t{8} << 20);
#endif
}

// R38, for ThreadSanitizer: launches race with the eviction of what they launch.
TEST_F(LifetimeTest, SixtyFourThreadsPrepareRunAndEvict) {
  const auto runtime = Make(StandInOptions(), {.kernels = 3, .specs = 16});
  const CUcontext contexts[] = {driver_.MakeContext(0), driver_.MakeContext(1)};
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      driver_.api().cuCtxSetCurrent(contexts[t % 2]);
      PreparedAttention kept;
      AttentionSpec kept_spec;
      for (int i = 0; i < 20; ++i) {
        const AttentionSpec spec = SpecOfDim(8 * (1 + (t + i) % 6));
        const auto prepared = runtime->Prepare(spec);
        if (!prepared.ok() || !runtime->Run(*prepared, DenseArgs(spec), nullptr).ok()) ++failures;
        // A handle of an earlier turn still launches, evicted or not.
        if (kept.valid() && !runtime->Run(kept, DenseArgs(kept_spec), nullptr).ok()) ++failures;
        if (prepared.ok() && i % 3 == 0) {
          kept = *prepared;
          kept_spec = spec;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_LE(driver_.live_libraries(), 3);
  EXPECT_GT(runtime->counters().evictions, 0);
}

// R38: a graph outlives handles, evictions and runtimes.
TEST_F(LifetimeTest, AKernelThatWasCapturedIsNeverUnloaded) {
  const auto stream = FakePointer<CUstream_st>(99);
  auto runtime = Make(StandInOptions(), {.kernels = 1, .specs = 4});
  const auto run = [&](int64_t dim, Stream on) {
    const auto prepared = runtime->Prepare(SpecOfDim(dim), on);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_TRUE(runtime->Run(*prepared, DenseArgs(SpecOfDim(dim)), on).ok());
  };
  run(16, stream);
  driver_.SetCapturing(stream, true);
  run(16, stream);
  driver_.SetCapturing(stream, false);
  run(24, stream);  // evicts the captured one, which stays
  EXPECT_EQ(runtime->counters().evictions, 1);
  EXPECT_EQ(driver_.live_libraries(), 2);
  run(32, stream);  // evicts one that no graph holds
  EXPECT_EQ(driver_.live_libraries(), 2);
  runtime.reset();
  EXPECT_EQ(driver_.live_libraries(), 1);
}

// R39: at exit, and after its context was destroyed, the driver refuses everything.
TEST_F(LifetimeTest, ADriverThatIsGoneIsToleratedByWhatIsLeft) {
  for (const CUresult gone :
       {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_HANDLE}) {
    auto runtime = Make(StandInOptions());
    auto prepared = runtime->Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok());
    for (const char* function : {"cuLibraryUnload", "cuThreadExchangeStreamCaptureMode",
                                 "cuCtxGetCurrent", "cuCtxGetId"}) {
      driver_.Fail(function, gone, -1);
    }
    EXPECT_FALSE(runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
    EXPECT_FALSE(runtime->Prepare(SpecOfDim(24)).ok());
    runtime.reset();
    prepared = PreparedAttention();
    for (const char* function : {"cuLibraryUnload", "cuThreadExchangeStreamCaptureMode",
                                 "cuCtxGetCurrent", "cuCtxGetId"}) {
      driver_.StopFailing(function);
    }
  }
}

// R40
TEST_F(LifetimeTest, TwoRuntimesOnOneStoreDoNotDisturbEachOther) {
  const tilewright::testing::TempDirectory directory;
  RuntimeOptions options = StandInOptions();
  options.cache_in_memory = false;
  options.cache_dir = directory.path();
  auto first = Make(options);
  const auto second = Make(options);
  const auto of_first = first->Prepare(SmallSpec());
  ASSERT_TRUE(of_first.ok()) << of_first.status();
  first->Flush();
  const auto of_second = second->Prepare(SmallSpec());
  ASSERT_TRUE(of_second.ok()) << of_second.status();
  EXPECT_EQ(first->counters().compiles, 1);
  EXPECT_EQ(second->counters().compiles, 0);
  EXPECT_EQ(second->counters().store_disk_hits, 1);
  first.reset();
  // The handle of the one outlives it, and either runs the other's.
  EXPECT_TRUE(second->Run(*of_first, DenseArgs(SmallSpec()), nullptr).ok());
  EXPECT_TRUE(second->Run(*of_second, DenseArgs(SmallSpec()), nullptr).ok());
}

TEST_F(LifetimeTest, AChildOfAForkMakesARuntimeOfItsOwn) {
#if TILEWRIGHT_THREAD_SANITIZER
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a program that has had some";
#endif
  const auto runtime = Make(StandInOptions());
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  const std::string told = tilewright::testing::RunInChild([&]() -> std::string {
    alarm(20);
    const absl::Status old = runtime->Prepare(SmallSpec()).status();
    if (old.code() != absl::StatusCode::kFailedPrecondition) return old.ToString();
    const auto fresh = Make(StandInOptions());
    const auto prepared = fresh->Prepare(SmallSpec());
    return prepared.ok() ? "fine" : prepared.status().ToString();
  });
  EXPECT_EQ(told, "fine");
}

// R16: the store is on a server that went away. The end of the runtime does not wait for it, and
// what the server's answer wakes up finds nothing that was destroyed.
TEST_F(LifetimeTest, AStoreThatHangsDoesNotHoldUpTheEnd) {
  // What is left behind lives on with the process.
  static auto* const directory = new tilewright::testing::TempDirectory;
  static auto* const kept = new std::vector<std::unique_ptr<tilewright::testing::FaultyFileSystem>>;
  // While an entry is written, and while the totals are.
  for (const char* call : {"Sync", "Rename totals"}) {
    kept->push_back(std::make_unique<tilewright::testing::FaultyFileSystem>(&FileSystem::Posix()));
    auto* const hanging = kept->back().get();
    auto lines = std::make_unique<std::atomic<int>>(0);
    RuntimeOptions options = StandInOptions();
    options.log_level = LogLevel::kDebug;
    options.log_sink = [lines = lines.get()](LogLevel, std::string_view) { ++*lines; };
    RuntimeParts parts = PartsOn(driver_);
    auto store = cache::DiskStore::Open({.directory = directory->path() + "/" + call},
                                        Logger(options.log_level, options.log_sink), hanging);
    ASSERT_TRUE(store.ok()) << store.status();
    parts.store = *std::move(store);
    auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    hanging->HangOn(call);
    auto prepared = (*runtime)->Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_TRUE((*runtime)->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
    const auto start = std::chrono::steady_clock::now();
    runtime->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << call;
    EXPECT_TRUE(hanging->WaitUntilOneHangs(std::chrono::seconds(30))) << call;
    prepared = PreparedAttention();
    EXPECT_EQ(driver_.live_libraries(), 0) << "only the store is left behind";
    const int said = *lines;
    hanging->Release();
    // The entry, or the totals, get there after all.
    const std::string file = directory->path() + "/" + call + "/v1/totals";
    for (int i = 0; i < 1000 && std::string(call) != "Sync" && access(file.c_str(), F_OK) != 0;
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(access(file.c_str(), F_OK) == 0, std::string(call) != "Sync");
    EXPECT_EQ(*lines, said);
    lines.reset();
  }
}

// R36, with the compiler in this process and in one of its own.
TEST_F(LifetimeTest, TheProcessStaysAsItWas) {
  using tilewright::testing::ProcessState;
  const tilewright::testing::TempDirectory directory;
  for (const bool isolate : {false, true}) {
    const ProcessState before = ProcessState::Now();
    RuntimeOptions options = StandInOptions();
    options.cache_in_memory = false;
    options.cache_dir = directory.path() + (isolate ? "/isolated" : "/shared");
    options.isolate_compiler = isolate;
    options.compiler_helper = tilewright::testing::ThisProgram();
    {
      const auto runtime = Make(options);
      const auto prepared = runtime->Prepare(SmallSpec());
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
      const std::vector<AttentionSpec> specs = {SpecOfDim(24), SpecOfDim(32)};
      ASSERT_TRUE(runtime->Warmup(specs).ok());
      EXPECT_TRUE(before == ProcessState::Now());
    }
    EXPECT_TRUE(before == ProcessState::Now());
  }
}

// ---- R32 through the interface --------------------------------------------------------------

AttentionSpec SpecThatAsksFor(const std::string& word) {
  AttentionSpec spec = SmallSpec();
  spec.mask_snippet = {"return j <= i;  // ask:" + word, "ask.cu"};
  return spec;
}

TEST_F(LifetimeTest, ACompileBeyondItsTimeIsDeadlineExceededAndTheNextWorks) {
  RuntimeOptions options = StandInOptions();
  options.compile_timeout_ms = 300;
  const auto runtime = Make(options);
  const absl::Status status = runtime->Prepare(SpecThatAsksFor("WAIT")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("compile_timeout_ms"));
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
}

TEST_F(LifetimeTest, CancelCompilesEndsAWarmup) {
  RuntimeOptions options = StandInOptions();
  options.compile_threads = 2;
  const auto runtime = Make(options);
  std::vector<AttentionSpec> specs = {SmallSpec()};
  for (int i = 0; i < 4; ++i) specs.push_back(SpecThatAsksFor("WAIT " + std::to_string(i)));
  std::atomic<bool> done = false;
  std::thread canceller([&] {
    while (!done) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      // The one that ends by itself does so first, however slow the machine is.
      if (runtime->counters().compiles > 0) runtime->CancelCompiles();
    }
  });
  const absl::Status status = runtime->Warmup(specs);
  done = true;
  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(runtime->counters().compile_cancels, 4);
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_EQ(runtime->counters().memory_hits, 1);  // what was finished stays
}

TEST_F(LifetimeTest, ACrashOfTheCompilersProcessIsOneCallsError) {
  RuntimeOptions options = StandInOptions();
  options.isolate_compiler = true;
  options.compiler_helper = tilewright::testing::ThisProgram();
  const auto runtime = Make(options);
  const absl::Status status = runtime->Prepare(SpecThatAsksFor("BUS_ERROR")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the compiler's helper process"));
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_EQ(runtime->counters().helper_crashes, 1);
}

}  // namespace
}  // namespace tilewright

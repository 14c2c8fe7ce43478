// R63: each scenario moves its counters and no others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/open_store.h"
#include "tests/runtime/test_runtime.h"
#include "tests/support/child_process.h"
#include "tests/support/standin_nvrtc.h"
#include "tests/support/temp_directory.h"

namespace tilewright {
namespace {

namespace fs = std::filesystem;
using Moved = std::map<std::string, int64_t>;

// All that count events; the sums of milliseconds apart.
Moved Fields(const RuntimeCounters& c) {
#define FIELD(name) \
  { #name, c.name }
  return {FIELD(prepares),
          FIELD(memory_hits),
          FIELD(store_hits),
          FIELD(store_misses),
          FIELD(compiles),
          FIELD(loads),
          FIELD(load_rejects),
          FIELD(fallbacks),
          FIELD(capture_refusals),
          FIELD(evictions),
          FIELD(compile_failures),
          FIELD(compile_timeouts),
          FIELD(compile_cancels),
          FIELD(helper_crashes),
          FIELD(store_memory_hits),
          FIELD(store_pack_hits),
          FIELD(store_disk_hits),
          FIELD(misses_absent),
          FIELD(misses_corrupt),
          FIELD(misses_foreign),
          FIELD(misses_differ),
          FIELD(misses_unreadable),
          FIELD(publishes),
          FIELD(publish_failures),
          FIELD(publish_drops),
          FIELD(store_evictions),
          FIELD(lock_waits),
          FIELD(lock_timeouts),
          FIELD(warnings_suppressed),
          FIELD(tunes),
          FIELD(tune_failures),
          FIELD(tune_postponed),
          FIELD(record_hits),
          FIELD(nearest_hits),
          FIELD(tuned_swaps),
          FIELD(churn_alarms)};
#undef FIELD
}

// The fields above and four of milliseconds are all there are: a new one must join the tests.
static_assert(sizeof(RuntimeCounters) == (36 + 4) * sizeof(int64_t));

class CountersTest : public ::testing::Test {
 protected:
  void SetUp() override { driver_.api().cuCtxSetCurrent(driver_.MakeContext(0)); }

  RuntimeOptions Options() {
    RuntimeOptions options;
    options.log_sink = lines_.sink();
    options.nvrtc_path = TILEWRIGHT_MISBEHAVING_LIBNVRTC;
    options.cache_dir = directory_.path() + "/store";
    options.tune_policy = TunePolicy::kOff;
    return options;
  }
  std::unique_ptr<Runtime> Make(const RuntimeOptions& options, KernelTable::Limits limits = {}) {
    RuntimeParts parts = PartsOn(driver_);
    parts.limits = limits;
    auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }
  // What `action` moves, and by how much.
  template <typename Action>
  Moved MovedBy(Runtime& runtime, const Action& action) {
    runtime.Flush();
    const Moved before = Fields(runtime.counters());
    action();
    runtime.Flush();
    Moved moved;
    for (const auto& [name, value] : Fields(runtime.counters())) {
      if (value != before.at(name)) moved[name] = value - before.at(name);
    }
    return moved;
  }
  Moved MovedByPrepare(Runtime& runtime, const AttentionSpec& spec = SmallSpec(),
                       absl::StatusCode code = absl::StatusCode::kOk) {
    return MovedBy(runtime, [&] {
      const absl::Status status = runtime.Prepare(spec).status();
      EXPECT_EQ(status.code(), code) << status;
    });
  }
  // Stores the kernel of SmallSpec and returns its file.
  fs::path StoreOne() {
    EXPECT_TRUE(Make(Options())->Prepare(SmallSpec()).ok());
    for (const auto& entry : fs::recursive_directory_iterator(Options().cache_dir)) {
      if (entry.is_regular_file() && entry.file_size() > 1000) return entry.path();
    }
    ADD_FAILURE() << "nothing was stored";
    return {};
  }
  static AttentionSpec Asking(const std::string& word) {
    AttentionSpec spec = SmallSpec();
    spec.mask_snippet = {"return j <= i;  // ask:" + word, "ask.cu"};
    return spec;
  }

  const tilewright::testing::TempDirectory directory_;
  device::FakeDriver driver_;
  LogLines lines_;
};

TEST_F(CountersTest, AColdPrepareThenAHitInMemory) {
  const auto runtime = Make(Options());
  EXPECT_EQ(MovedByPrepare(*runtime), (Moved{{"prepares", 1},
                                             {"store_misses", 1},
                                             {"misses_absent", 1},
                                             {"compiles", 1},
                                             {"loads", 1},
                                             {"publishes", 1}}));
  EXPECT_GT(runtime->counters().compile_ms, 0);
  EXPECT_GT(runtime->counters().publish_ms, 0);
  EXPECT_EQ(MovedByPrepare(*runtime), (Moved{{"prepares", 1}, {"memory_hits", 1}}));
}

TEST_F(CountersTest, AHitOnDisk) {
  StoreOne();
  EXPECT_EQ(MovedByPrepare(*Make(Options())),
            (Moved{{"prepares", 1}, {"store_hits", 1}, {"store_disk_hits", 1}, {"loads", 1}}));
}

TEST_F(CountersTest, AHitInAPack) {
  StoreOne();
  RuntimeOptions options = Options();
  options.cache_packs = {options.cache_dir};
  options.cache_dir = directory_.path() + "/other";
  EXPECT_EQ(MovedByPrepare(*Make(options)),
            (Moved{{"prepares", 1}, {"store_hits", 1}, {"store_pack_hits", 1}, {"loads", 1}}));
}

TEST_F(CountersTest, ACorruptEntry) {
  const fs::path file = StoreOne();
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_EQ(MovedByPrepare(*Make(Options())), (Moved{{"prepares", 1},
                                                     {"store_misses", 1},
                                                     {"misses_corrupt", 1},
                                                     {"compiles", 1},
                                                     {"loads", 1},
                                                     {"publishes", 1}}));
}

TEST_F(CountersTest, AForeignEntry) {
  const fs::path file = StoreOne();
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);  // anybody may have written it
  EXPECT_EQ(MovedByPrepare(*Make(Options())), (Moved{{"prepares", 1},
                                                     {"store_misses", 1},
                                                     {"misses_foreign", 1},
                                                     {"warnings_suppressed", 1},  // asked twice
                                                     {"compiles", 1},
                                                     {"loads", 1},
                                                     {"publishes", 1}}));
}

TEST_F(CountersTest, AStoreThatCannotBeWritten) {
  // A file where the store wants a folder of its own.
  RuntimeOptions options = Options();
  StoreOne();
  fs::path shards;
  for (const auto& entry : fs::recursive_directory_iterator(options.cache_dir)) {
    if (entry.is_regular_file() && entry.file_size() > 1000) shards = entry.path().parent_path();
  }
  const auto runtime = Make(options);
  fs::remove_all(shards.parent_path());
  std::ofstream(shards.parent_path()) << "in the way";
  Moved moved = MovedByPrepare(*runtime);
  EXPECT_EQ(moved["compiles"], 1);
  EXPECT_EQ(moved["publish_failures"], 1);
  EXPECT_EQ(moved["publishes"], 0);
}

TEST_F(CountersTest, ACompileThatFails) {
  RuntimeOptions options = Options();
  options.compile_timeout_ms = 100;
  const auto timed = Make(options);
  EXPECT_EQ(MovedByPrepare(*timed, Asking("WAIT"), absl::StatusCode::kDeadlineExceeded),
            (Moved{{"prepares", 1},
                   {"store_misses", 1},
                   {"misses_absent", 1},
                   {"compile_failures", 1},
                   {"compile_timeouts", 1}}));
  options.compile_timeout_ms = 0;
  const auto cancelled = Make(options);
  const Moved moved = MovedBy(*cancelled, [&] {
    std::atomic<bool> done = false;
    std::thread canceller([&] {
      while (!done) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        cancelled->CancelCompiles();
      }
    });
    EXPECT_TRUE(absl::IsCancelled(cancelled->Prepare(Asking("WAIT")).status()));
    done = true;
    canceller.join();
  });
  EXPECT_EQ(moved, (Moved{{"prepares", 1},
                          {"store_misses", 1},
                          {"misses_absent", 1},
                          {"compile_failures", 1},
                          {"compile_cancels", 1}}));
  options.isolate_compiler = true;
  options.compiler_helper = tilewright::testing::ThisProgram();
  EXPECT_EQ(MovedByPrepare(*Make(options), Asking("ABORT"), absl::StatusCode::kInternal),
            (Moved{{"prepares", 1},
                   {"store_misses", 1},
                   {"misses_absent", 1},
                   {"compile_failures", 1},
                   {"helper_crashes", 1}}));
}

TEST_F(CountersTest, AnEntryThatTheDriverRefuses) {
  StoreOne();
  const auto runtime = Make(Options());
  driver_.Fail("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(MovedByPrepare(*runtime), (Moved{{"prepares", 1},
                                             {"store_hits", 1},
                                             {"store_disk_hits", 1},
                                             {"load_rejects", 1},
                                             {"compiles", 1},
                                             {"loads", 1},
                                             {"publishes", 1}}));
}

TEST_F(CountersTest, AnEvictionFromMemory) {
  const auto runtime = Make(Options(), {.kernels = 1, .specs = 16});
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  AttentionSpec other = SmallSpec();
  other.dim_v = 24;
  Moved moved = MovedByPrepare(*runtime, other);
  EXPECT_EQ(moved["evictions"], 1);
  EXPECT_EQ(moved["store_evictions"], 0);
}

TEST_F(CountersTest, ARefusalInACapture) {
  const auto runtime = Make(Options());
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  driver_.SetCapturing(nullptr, true);
  AttentionSpec other = SmallSpec();
  other.dim_v = 24;
  EXPECT_EQ(MovedByPrepare(*runtime, other, absl::StatusCode::kFailedPrecondition),
            (Moved{{"prepares", 1}, {"capture_refusals", 1}}));
  driver_.SetCapturing(nullptr, false);
}

TEST_F(CountersTest, AWaitForAnotherProcess) {
  RuntimeOptions options = Options();
  options.lock_timeout_ms = 100;
  const auto runtime = Make(options);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  // The same kernel, in a process that takes its time to compile it.
  const pid_t child = tilewright::testing::StartChild([&] {
    alarm(30);
    device::ContextHandle context = driver_.MakeContext(0);
    driver_.api().cuCtxSetCurrent(context);
    const auto other = Make(options);
    char byte = 'x';
    (void)!write(ready[1], &byte, 1);
    return other->Prepare(Asking("SLOW")).ok() ? 0 : 1;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Moved moved = MovedByPrepare(*runtime, Asking("SLOW"));
  EXPECT_EQ(tilewright::testing::WaitForChild(child), 0);
  for (const int end : ready) close(end);
  EXPECT_EQ(moved["lock_waits"], 1);
  EXPECT_EQ(moved["lock_timeouts"], 1);
  EXPECT_GE(runtime->counters().lock_wait_ms, 90);
}

// R64: a fault that repeats is logged once, and counted.
TEST_F(CountersTest, ARepeatedWarningIsSuppressedAndCounted) {
  std::vector<AttentionSpec> specs;
  for (const int64_t dim : {8, 16, 24, 32, 40}) {
    specs.push_back(SmallSpec());
    specs.back().dim_v = dim;
  }
  ASSERT_TRUE(Make(Options())->Warmup(specs).ok());
  for (const auto& entry : fs::recursive_directory_iterator(Options().cache_dir)) {
    if (entry.is_regular_file() && entry.file_size() > 1000) {
      fs::resize_file(entry.path(), entry.file_size() - 1);
    }
  }
  const auto runtime = Make(Options());
  ASSERT_TRUE(runtime->Warmup(specs).ok());
  EXPECT_EQ(lines_.Count("store_corrupt"), 1);
  EXPECT_EQ(runtime->counters().warnings_suppressed, 4);
  EXPECT_EQ(runtime->counters().misses_corrupt, 5);
}

}  // namespace
}  // namespace tilewright

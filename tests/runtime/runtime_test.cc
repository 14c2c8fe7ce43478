#include "tilewright/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "base/env.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "device/driver_api.h"
#include "tests/runtime/test_runtime.h"

namespace tilewright {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    const compile::NvrtcCompiler compiler({});
    const auto identity = compiler.Identity();
    if (!identity.ok()) GTEST_SKIP() << "no NVRTC: " << identity.status();
    MakeCurrent(0);
  }

  // A context of device `ordinal`, current in this thread from here on.
  device::ContextHandle MakeCurrent(int ordinal) {
    const device::ContextHandle context = driver_.MakeContext(ordinal);
    driver_.api().cuCtxSetCurrent(context);
    return context;
  }

  // With a store of its own, empty.
  std::unique_ptr<Runtime> MakeCold(const RuntimeOptions& options = TestOptions()) {
    auto runtime = MakeRuntime(driver_, options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }
  // On the store of this test.
  std::unique_ptr<Runtime> MakeOnStore(const RuntimeOptions& options = TestOptions()) {
    return MakeOn(&store_, options);
  }
  // On a store that all tests share, so that few of them wait for the compiler: one of this
  // process, or the directory that TILEWRIGHT_CACHE_DIR names (make check-warm).
  std::unique_ptr<Runtime> Make(const RuntimeOptions& options = TestOptions()) {
    static cache::ArtifactStore* const store = [] {
      const std::optional<std::string> directory = GetEnv("TILEWRIGHT_CACHE_DIR");
      if (!directory) return static_cast<cache::ArtifactStore*>(new cache::MemoryStore(0));
      return cache::OpenStore({.directory = *directory}, Logger()).store.release();
    }();
    return MakeOn(store, options);
  }
  std::unique_ptr<Runtime> MakeOn(cache::ArtifactStore* store, const RuntimeOptions& options) {
    RuntimeParts parts = PartsOn(driver_);
    parts.store = std::make_unique<SharedStore>(store);
    auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }

  device::FakeDriver driver_;
  cache::MemoryStore store_{0};
};

// ---- Create ---------------------------------------------------------------------------------

TEST(RuntimeCreateTest, NeedsNeitherDriverNorCompiler) {
  RuntimeOptions options = TestOptions();
  options.nvrtc_path = "/nonexistent/libnvrtc.so";
  const auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->counters().prepares, 0);
}

TEST(RuntimeCreateTest, RefusesOptionsThatContradictEachOther) {
  const auto message_of = [](const std::function<void(RuntimeOptions*)>& edit) {
    RuntimeOptions options = TestOptions();
    edit(&options);
    const absl::Status status = Runtime::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return Text(status);
  };
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->device_ordinal = -1; }),
              HasSubstr("device_ordinal = -1: must be >= 0"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->compile_threads = -2; }),
              HasSubstr("compile_threads = -2"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->compile_timeout_ms = -5; }),
              HasSubstr("compile_timeout_ms = -5"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->lock_timeout_ms = -1; }),
              HasSubstr("lock_timeout_ms = -1"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->cache_max_bytes = -1; }),
              HasSubstr("cache_max_bytes = -1"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->cache_read_only = true; }),
              HasSubstr("cache_read_only = true"));
  EXPECT_THAT(message_of([](RuntimeOptions* o) { o->cache_packs = {"/packs/a"}; }),
              HasSubstr("cache_packs = /packs/a"));
}

TEST(RuntimeCreateTest, NamesATemplateDirectoryThatHoldsNone) {
  RuntimeOptions options = TestOptions();
  options.template_dir = "/nonexistent/templates";
  const absl::Status status = Runtime::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(status), HasSubstr("/nonexistent/templates"));
}

// ---- Prepare --------------------------------------------------------------------------------

TEST_F(RuntimeTest, PreparesOnceAndThenServesFromMemory) {
  const auto runtime = MakeCold();
  const auto first = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(first.ok()) << first.status();
  AttentionSpec spelled_out = SmallSpec();
  spelled_out.scale = 0.25f;  // the default of dim 16
  const auto second = runtime->Prepare(spelled_out);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->state(), second->state());
  const RuntimeCounters counters = runtime->counters();
  EXPECT_EQ(counters.prepares, 2);
  EXPECT_EQ(counters.memory_hits, 1);
  EXPECT_EQ(counters.compiles, 1);
  EXPECT_EQ(counters.store_misses, 1);
  EXPECT_EQ(counters.loads, 1);
  EXPECT_GT(counters.compile_ms, 0);
}

TEST_F(RuntimeTest, SpecsThatDifferInLengthsShareAKernel) {
  const auto runtime = Make();
  AttentionSpec longer = SmallSpec();
  longer.seqlen_kv = 1000;
  const auto first = runtime->Prepare(SmallSpec());
  const auto second = runtime->Prepare(longer);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->state(), second->state());
  EXPECT_EQ(first->state()->kernels[0].resident, second->state()->kernels[0].resident);
  EXPECT_EQ(runtime->counters().loads, 1);
  EXPECT_EQ(driver_.loaded_libraries(), 1);
}

TEST_F(RuntimeTest, SixtyFourThreadsShareOneCompileAndOneLoad) {
  const auto runtime = MakeCold();
  const device::ContextHandle context = MakeCurrent(0);
  std::vector<const PreparedAttention::State*> states(64);
  std::vector<std::thread> threads;
  for (auto& state : states) {
    threads.emplace_back([&] {
      driver_.api().cuCtxSetCurrent(context);
      const auto prepared = runtime->Prepare(SmallSpec());
      if (prepared.ok()) state = prepared->state();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(states[0], nullptr);
  for (const auto* state : states) EXPECT_EQ(state, states[0]);
  EXPECT_EQ(runtime->counters().prepares, 64);
  EXPECT_EQ(runtime->counters().compiles, 1);
  EXPECT_EQ(runtime->counters().loads, 1);
  EXPECT_EQ(driver_.loaded_libraries(), 1);
}

TEST_F(RuntimeTest, EachContextHasItsOwnKernel) {
  const auto runtime = MakeOnStore();
  const auto first = runtime->Prepare(SmallSpec());
  MakeCurrent(0);
  const auto second = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->state(), second->state());
  EXPECT_EQ(runtime->counters().loads, 2);
  EXPECT_EQ(runtime->counters().compiles, 1);
}

TEST_F(RuntimeTest, AContextAtTheAddressOfADestroyedOneGetsItsOwnKernel) {
  const device::ContextHandle context = MakeCurrent(0);
  const auto runtime = Make();
  const auto before = runtime->Prepare(SmallSpec());
  driver_.RecreateContext(context);
  const auto after = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_NE(before->state(), after->state());
  EXPECT_EQ(runtime->counters().memory_hits, 0);
  EXPECT_EQ(runtime->counters().loads, 2);
  // The handle of the context that is gone launches nothing.
  const absl::Status status = runtime->Run(*before, DenseArgs(SmallSpec()), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("Prepare the spec again"));
  EXPECT_TRUE(driver_.launches().empty());
  EXPECT_TRUE(runtime->Run(*after, DenseArgs(SmallSpec()), nullptr).ok());
}

TEST_F(RuntimeTest, AThreadWithoutAContextGetsThePrimaryOne) {
  const auto runtime = Make();
  std::thread([&] {
    const auto prepared = runtime->Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(driver_.retained_primaries(), 1);
    EXPECT_TRUE(driver_.context_stack().empty());  // and it is not made current
    CUcontext primary = nullptr;
    driver_.api().cuDevicePrimaryCtxRetain(&primary, 0);
    EXPECT_EQ(prepared->state()->kernels[0].resident->loaded->context(), primary);
  }).join();
}

TEST_F(RuntimeTest, TheStoreServesTheNextRuntime) {
  ASSERT_TRUE(MakeOnStore()->Prepare(SmallSpec()).ok());
  const auto runtime = MakeOnStore();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(runtime->counters().store_hits, 1);
  EXPECT_EQ(runtime->counters().compiles, 0);
  EXPECT_THAT(prepared->Explain(), HasSubstr("origin    store, compiled by nvrtc"));
}

TEST_F(RuntimeTest, FrozenNeverCompilesAndNamesTheSpec) {
  RuntimeOptions options = TestOptions();
  options.tune_policy = TunePolicy::kFrozen;
  const auto frozen = MakeOnStore(options);
  const absl::Status status = frozen->Prepare(SmallSpec()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), AllOf(HasSubstr(SpecText(SmallSpec())), HasSubstr("frozen")));
  EXPECT_EQ(frozen->counters().compiles, 0);
  EXPECT_EQ(driver_.loaded_libraries(), 0);
  ASSERT_TRUE(MakeOnStore()->Prepare(SmallSpec()).ok());
  EXPECT_TRUE(frozen->Prepare(SmallSpec()).ok());
}

TEST_F(RuntimeTest, ExplainTellsPlanResourcesAndOrigin) {
  const auto runtime = MakeCold();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared->spec_text(), SpecText(SmallSpec()));
  EXPECT_THAT(prepared->Explain(),
              AllOf(HasSubstr(prepared->spec_text()), HasSubstr("attn_fwd_simple"),
                    HasSubstr("sm_90a on Fake H200"), HasSubstr("registers"),
                    HasSubstr("compiled by nvrtc"), HasSubstr("(store: absent)")));
}

TEST_F(RuntimeTest, LogsOneEventForEachStage) {
  LogLines lines;
  RuntimeOptions options = TestOptions();
  options.log_level = LogLevel::kDebug;
  options.log_sink = lines.sink();
  const auto runtime = MakeCold(options);
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  for (const char* event : {"plan", "store_miss", "compile", "load", "prepare"}) {
    EXPECT_EQ(lines.Count(event), 1) << event;
  }
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_EQ(lines.Count("prepare"), 1);  // hits are silent
}

TEST_F(RuntimeTest, ForgetsTheKernelsThatWereUsedLongestAgo) {
  RuntimeParts parts = PartsOn(driver_);
  parts.limits = {.kernels = 2, .specs = 100};
  parts.store = std::make_unique<SharedStore>(&store_);
  const auto runtime = *RuntimeParts::CreateRuntime(TestOptions(), std::move(parts));
  const auto spec_of = [](int64_t dim) {
    AttentionSpec spec = SmallSpec();
    spec.dim_v = dim;
    return spec;
  };
  ASSERT_TRUE(runtime->Prepare(spec_of(16)).ok());
  ASSERT_TRUE(runtime->Prepare(spec_of(24)).ok());
  ASSERT_TRUE(runtime->Prepare(spec_of(16)).ok());  // now the most recent
  ASSERT_TRUE(runtime->Prepare(spec_of(32)).ok());
  EXPECT_EQ(runtime->counters().evictions, 1);
  EXPECT_EQ(driver_.live_libraries(), 2);
  ASSERT_TRUE(runtime->Prepare(spec_of(16)).ok());
  EXPECT_EQ(runtime->counters().memory_hits, 2);
  ASSERT_TRUE(runtime->Prepare(spec_of(24)).ok());  // forgotten: loaded again, from the store
  EXPECT_EQ(runtime->counters().loads, 4);
  EXPECT_EQ(runtime->counters().compiles, 3);
}

TEST_F(RuntimeTest, AHandleOutlivesItsRuntimeAndItsEviction) {
  auto runtime = Make();
  auto prepared = *runtime->Prepare(SmallSpec());
  const auto other = Make();
  runtime.reset();
  EXPECT_EQ(driver_.live_libraries(), 1);
  EXPECT_TRUE(other->Run(prepared, DenseArgs(SmallSpec()), nullptr).ok());
  prepared = PreparedAttention();
  EXPECT_EQ(driver_.live_libraries(), 0);
}

// Case 35 of the list of cases that broke others.
TEST(RuntimeArchitecturesTest, OneStoreServesDevicesOfTwoArchitectures) {
  if (!compile::NvrtcCompiler({}).Identity().ok()) GTEST_SKIP() << "no NVRTC";
  device::FakeDevice ampere;
  ampere.name = "Fake A100";
  ampere.compute_major = 8;
  ampere.smem_per_block_optin = 166912;
  device::FakeDriver driver({device::FakeDevice(), ampere});
  const auto runtime = *MakeRuntime(driver);
  std::vector<std::string> explanations;
  for (const int ordinal : {0, 1}) {
    driver.api().cuCtxSetCurrent(driver.MakeContext(ordinal));
    const auto prepared = runtime->Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    explanations.push_back(prepared->Explain());
  }
  EXPECT_THAT(explanations[0], HasSubstr("for sm_90a on Fake H200"));
  EXPECT_THAT(explanations[1], HasSubstr("for sm_80 on Fake A100"));
  EXPECT_EQ(runtime->counters().compiles, 2);
}

// ---- Warmup ---------------------------------------------------------------------------------

TEST_F(RuntimeTest, WarmupTriesAllAndReturnsTheFirstError) {
  const auto runtime = MakeCold();
  AttentionSpec causal = SmallSpec();
  causal.causal = true;
  AttentionSpec bad = SmallSpec();
  bad.heads_q = 5;
  AttentionSpec worse = SmallSpec();
  worse.dim_qk = 0;
  const std::vector<AttentionSpec> specs = {SmallSpec(), bad, worse, causal, SmallSpec()};
  const absl::Status status = runtime->Warmup(specs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(status), HasSubstr("heads_q = 5"));
  EXPECT_EQ(runtime->counters().compiles, 2);
  const int64_t hits = runtime->counters().memory_hits;
  ASSERT_TRUE(runtime->Prepare(causal).ok());
  EXPECT_EQ(runtime->counters().memory_hits, hits + 1);
  EXPECT_TRUE(runtime->Warmup({}).ok());
}

// ---- Run ------------------------------------------------------------------------------------

TEST_F(RuntimeTest, RunLaunchesOnTheStreamWithThePackedArguments) {
  const auto runtime = Make();
  AttentionSpec spec = SmallSpec();
  spec.causal = true;
  const auto prepared = runtime->Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  driver_.set_params_bytes(sizeof(abi::AttnFwdParams));
  const auto stream = FakePointer<CUstream_st>(99);
  AttentionArgs args = DenseArgs(spec);
  args.batch = 3;
  args.seqlen_q = 100;
  const absl::Status status = runtime->Run(*prepared, args, stream);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(driver_.launches().size(), 1u);
  const device::FakeLaunch launch = driver_.launches()[0];
  const plan::KernelPlan& plan = prepared->state()->decision.plan;
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.block[0], static_cast<unsigned>(plan.threads()));
  EXPECT_EQ(launch.grid[0],
            static_cast<unsigned>(3 * 4 * ((100 + plan.block_m - 1) / plan.block_m)));
  EXPECT_EQ(launch.smem_bytes, static_cast<unsigned>(plan.smem_bytes));
  abi::AttnFwdParams core;
  std::memcpy(&core, launch.params.data(), sizeof(core));
  EXPECT_EQ(core.q, args.q.data);
  EXPECT_EQ(core.o, args.o.data);
  EXPECT_EQ(core.batch, 3);
  EXPECT_EQ(core.seqlen_q, 100);
}

TEST_F(RuntimeTest, AppendIsOneLaunchOfItsOwnHandle) {
  const auto runtime = Make();
  const CacheAppendSpec spec = {.heads_kv = 2, .dim_qk = 64, .dim_v = 64};
  const auto append = runtime->PrepareAppend(spec);
  ASSERT_TRUE(append.ok()) << append.status();
  EXPECT_EQ(append->spec_text(), "append bf16 h=0/2 d=64/64");
  EXPECT_THAT(append->Explain(), HasSubstr("cache_append"));
  const int64_t hits = runtime->counters().memory_hits;
  ASSERT_TRUE(runtime->PrepareAppend(spec).ok());
  EXPECT_EQ(runtime->counters().memory_hits, hits + 1);
  EXPECT_THAT(Text(runtime->PrepareAppend({.dim_qk = 0}).status()), HasSubstr("dim_qk = 0"));

  CacheAppendArgs args;
  EXPECT_TRUE(runtime->Append(*append, args, nullptr).ok());
  EXPECT_TRUE(driver_.launches().empty());
  args.batch = 3;
  args.seqlen = 80;
  args.k = args.v = {FakePointer<void>(1), {12800, 128, 64}};
  args.k_cache = args.v_cache = {FakePointer<void>(2), {65536, 128, 64}};
  args.capacity = 512;
  const absl::Status run = runtime->Append(*append, args, nullptr);
  ASSERT_TRUE(run.ok()) << run;
  ASSERT_EQ(driver_.launches().size(), 1u);
  EXPECT_EQ(driver_.launches()[0].grid[0], 240u);  // few tokens: a block each

  const auto attention = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_THAT(Text(runtime->Append(*attention, args, nullptr)), HasSubstr("PrepareAppend"));
  EXPECT_THAT(Text(runtime->Merge(*append, {}, nullptr)), HasSubstr("PrepareMerge"));
  EXPECT_THAT(Text(runtime->Run(*append, DenseArgs(SmallSpec()), nullptr)),
              HasSubstr("comes from PrepareAppend: must come from Prepare"));
}

// One query row of few heads over many keys: cut into parts, merged by a second kernel.
AttentionSpec SplitSpec() {
  AttentionSpec spec = SmallSpec();
  spec.seqlen_q = 40;
  spec.seqlen_kv = 4096;
  return spec;
}

TEST_F(RuntimeTest, APlanOfTwoKernelsLaunchesBothOnTheSameWorkspace) {
  RuntimeOptions options = TestOptions();
  options.family = "attn_fwd_sm80";
  const auto runtime = Make(options);
  const AttentionSpec spec = SplitSpec();
  const auto prepared = runtime->Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto& kernels = prepared->state()->kernels;
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_THAT(prepared->Explain(), HasSubstr(" + attn_combine"));
  EXPECT_EQ(runtime->counters().loads, 2);

  AttentionArgs args = DenseArgs(spec);
  const absl::StatusOr<size_t> bytes = prepared->workspace_bytes(args);
  ASSERT_TRUE(bytes.ok());
  EXPECT_GT(*bytes, 0u);
  EXPECT_THAT(Text(runtime->Run(*prepared, args, nullptr)), HasSubstr("workspace = null"));
  EXPECT_TRUE(driver_.launches().empty());

  args.workspace = FakePointer<void>(1 << 20);
  driver_.set_params_bytes(static_cast<size_t>(kernels[1].layout.size));
  ASSERT_GE(kernels[0].layout.size, kernels[1].layout.size);
  ASSERT_TRUE(runtime->Run(*prepared, args, nullptr).ok());
  const std::vector<device::FakeLaunch> launches = driver_.launches();
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_THAT(launches[0].kernel, HasSubstr("attn_fwd_sm80"));
  EXPECT_THAT(launches[1].kernel, HasSubstr("attn_combine"));
  const auto parts_of = [&](int n) {
    abi::PartsArgs parts;
    for (const emit::ParamSlot& slot : kernels[n].layout.slots) {
      if (slot.kind != emit::ParamSlotKind::kParts) continue;
      std::memcpy(&parts, launches[n].params.data() + slot.offset, sizeof(parts));
    }
    return parts;
  };
  EXPECT_GT(parts_of(0).parts, 1);
  EXPECT_EQ(parts_of(1).parts, parts_of(0).parts);
  EXPECT_EQ(parts_of(0).o, args.workspace);
  EXPECT_EQ(parts_of(1).lse, parts_of(0).lse);

  // Few keys at run time: the first kernel writes the result itself.
  args.seqlen_kv = 100;
  EXPECT_EQ(*prepared->workspace_bytes(args), 0u);
  ASSERT_TRUE(runtime->Run(*prepared, args, nullptr).ok());
  EXPECT_EQ(driver_.launches().size(), 3u);
}

TEST_F(RuntimeTest, RunCallsTheDriverTwiceAndNothingElse) {
  const auto runtime = Make();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  const size_t before = driver_.calls().size();
  ASSERT_TRUE(runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
  const std::vector<std::string> calls = driver_.calls();
  EXPECT_THAT(std::vector<std::string>(calls.begin() + before, calls.end()),
              testing::ElementsAre("cuCtxGetCurrent", "cuCtxGetId", "cuLaunchKernelEx"));
}

// Case 7: empty problems succeed, launch nothing and look at no pointer.
TEST_F(RuntimeTest, SizesOfZeroLaunchNothing) {
  const auto runtime = Make();
  AttentionSpec varlen = SmallSpec();
  varlen.varlen = true;
  varlen.layout = Layout::kThd;
  const auto dense = runtime->Prepare(SmallSpec());
  const auto packed = runtime->Prepare(varlen);
  ASSERT_TRUE(dense.ok() && packed.ok()) << packed.status();
  AttentionArgs args;
  args.seqlen_q = args.seqlen_kv = 64;
  EXPECT_TRUE(runtime->Run(*dense, args, nullptr).ok());
  args.batch = 2;
  args.seqlen_q = 0;
  EXPECT_TRUE(runtime->Run(*dense, args, nullptr).ok());
  args.seqlen_q = 64;
  args.cu_seqlens_q = FakePointer<int32_t>(6);
  args.total_q = 0;
  EXPECT_TRUE(runtime->Run(*packed, args, nullptr).ok());
  EXPECT_TRUE(driver_.launches().empty());
}

TEST_F(RuntimeTest, SpecsOfSizesOfZeroArePrepared) {
  const auto runtime = Make();
  const std::vector<std::function<void(AttentionSpec*)>> edits = {
      [](AttentionSpec* s) { s->batch = 0; },
      [](AttentionSpec* s) { s->seqlen_q = 0; },
      [](AttentionSpec* s) { s->seqlen_kv = 0; },
      [](AttentionSpec* s) { s->heads_q = s->heads_kv = 0; },
      [](AttentionSpec* s) { s->batch = s->seqlen_q = s->seqlen_kv = 0; },
      [](AttentionSpec* s) { s->seqlen_kv = 0, s->exact = true; },
  };
  for (const auto& edit : edits) {
    AttentionSpec spec = SmallSpec();
    edit(&spec);
    const auto prepared = runtime->Prepare(spec);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const size_t launches = driver_.launches().size();
    const absl::Status status = runtime->Run(*prepared, DenseArgs(spec), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    // Without keys every row still gets its zeros.
    const bool has_rows = spec.batch > 0 && spec.heads_q > 0 && spec.seqlen_q > 0;
    EXPECT_EQ(driver_.launches().size() - launches, has_rows ? 1u : 0u) << prepared->spec_text();
    EXPECT_FALSE(prepared->Explain().empty());
  }
}

TEST_F(RuntimeTest, RunRefusesWhatIsWrongAndLaunchesNothing) {
  const auto runtime = Make();
  AttentionSpec spec = SmallSpec();
  spec.lse = true;
  const auto prepared = runtime->Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const struct {
    std::function<void(AttentionArgs*)> edit;
    const char* field_and_value;
    const char* rule;
  } cases[] = {
      {[](AttentionArgs* a) { a->q.data = nullptr; }, "q.data = null", "must be set"},
      {[](AttentionArgs* a) { a->k.data = nullptr; }, "k.data = null", "must be set"},
      {[](AttentionArgs* a) { a->v.data = nullptr; }, "v.data = null", "must be set"},
      {[](AttentionArgs* a) { a->o.data = nullptr; }, "o.data = null", "must be set"},
      {[](AttentionArgs* a) { a->lse = nullptr; }, "lse = null", "must be set"},
      {[](AttentionArgs* a) { a->q.data = static_cast<const char*>(a->q.data) + 1; },
       "q.data = 0x7f0001000001", "must be a multiple of 2 bytes"},
      {[](AttentionArgs* a) { a->seqlen_q = -1; }, "seqlen_q = -1", "must be >= 0"},
      {[](AttentionArgs* a) { a->seqlen_kv = -7; }, "seqlen_kv = -7", "must be >= 0"},
      {[](AttentionArgs* a) { a->batch = -2; }, "batch = -2", "must be >= 0"},
      {[](AttentionArgs* a) { a->v.strides.seq = -32; }, "v.strides.seq = -32", "must be >= 0"},
      {[](AttentionArgs* a) { a->q.strides.batch = int64_t{1} << 62; }, "q.strides",
       "every byte offset fits 63 bits"},
      {[](AttentionArgs* a) { a->seqlen_kv = int64_t{1} << 60; }, "k.strides",
       "every byte offset fits 63 bits"},
      {[](AttentionArgs* a) { a->k.strides.dim = 2; }, "k.strides.dim = 2", "must be 1"},
      {[](AttentionArgs* a) { a->o.strides.head = 0; }, "o.strides.head = 0", "must be > 0"},
  };
  for (const auto& wrong : cases) {
    AttentionArgs args = DenseArgs(spec);
    wrong.edit(&args);
    const absl::Status status = runtime->Run(*prepared, args, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.field_and_value;
    EXPECT_THAT(Text(status), AllOf(HasSubstr(wrong.field_and_value), HasSubstr(wrong.rule)));
  }
  EXPECT_EQ(runtime->Run(PreparedAttention(), DenseArgs(spec), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(driver_.launches().empty());
}

TEST_F(RuntimeTest, RunRefusesAnotherContext) {
  const auto runtime = Make();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  MakeCurrent(0);
  const absl::Status other = runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(other), HasSubstr("context"));
  std::thread([&] {
    const absl::Status none = runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr);
    EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(none), HasSubstr("no current context"));
  }).join();
  EXPECT_TRUE(driver_.launches().empty());
}

TEST_F(RuntimeTest, ExactAcceptsOnlyItsSizes) {
  const auto runtime = Make();
  AttentionSpec spec = SmallSpec();
  spec.exact = true;
  const auto prepared = runtime->Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(runtime->Run(*prepared, DenseArgs(spec), nullptr).ok());
  AttentionArgs args = DenseArgs(spec);
  args.seqlen_kv = 63;
  const absl::Status status = runtime->Run(*prepared, args, nullptr);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("seqlen_kv = 63"), HasSubstr("64")));
  EXPECT_EQ(driver_.launches().size(), 1u);
}

TEST_F(RuntimeTest, ALaunchThatTheDriverRefusesIsInternal) {
  const auto runtime = Make();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  driver_.Fail("cuLaunchKernelEx", CUDA_ERROR_LAUNCH_FAILED);
  const absl::Status status = runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Text(status), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
}

TEST_F(RuntimeTest, WorkspaceLooksAtSizesOnly) {
  const auto runtime = Make();
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  AttentionArgs args;
  args.batch = 2;
  args.seqlen_q = args.seqlen_kv = 64;
  EXPECT_EQ(*prepared->workspace_bytes(args), 0u);
  args.seqlen_q = -1;
  EXPECT_THAT(Text(prepared->workspace_bytes(args).status()), HasSubstr("seqlen_q = -1"));
}

TEST_F(RuntimeTest, AttentionPreparesAndRuns) {
  const auto runtime = Make();
  EXPECT_TRUE(Attention(*runtime, SmallSpec(), DenseArgs(SmallSpec()), nullptr).ok());
  EXPECT_TRUE(Attention(*runtime, SmallSpec(), DenseArgs(SmallSpec()), nullptr).ok());
  EXPECT_EQ(driver_.launches().size(), 2u);
  EXPECT_EQ(runtime->counters().memory_hits, 1);
}

// ---- what Prepare refuses -------------------------------------------------------------------

TEST_F(RuntimeTest, PrepareRefusesIllFormedSpecs) {
  const auto runtime = Make();
  const struct {
    std::function<void(AttentionSpec*)> edit;
    const char* message;
  } cases[] = {
      {[](AttentionSpec* s) { s->heads_q = 5; }, "heads_q = 5: must be a multiple of heads_kv = 2"},
      {[](AttentionSpec* s) { s->seqlen_q = -1; }, "seqlen_q = -1: must be >= 0"},
      {[](AttentionSpec* s) { s->dim_qk = 0; }, "dim_qk = 0: must be >= 1"},
      {[](AttentionSpec* s) { s->seqlen_kv = int64_t{1} << 60; }, "fits 63 bits"},
      {[](AttentionSpec* s) { s->dropout = 1; }, "dropout = 1: must be in [0, 1)"},
  };
  for (const auto& wrong : cases) {
    AttentionSpec spec = SmallSpec();
    wrong.edit(&spec);
    const absl::Status status = runtime->Prepare(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.message;
    EXPECT_THAT(Text(status), HasSubstr(wrong.message));
  }
  EXPECT_EQ(driver_.loaded_libraries(), 0);
}

TEST_F(RuntimeTest, BackwardIsUnimplemented) {
  AttentionSpec spec = SmallSpec();
  spec.operation = Operation::kBackward;
  const absl::Status status = Make()->Prepare(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
}

// Case 34, as the caller of the runtime sees it.
TEST_F(RuntimeTest, ASnippetThatDoesNotCompileNamesItsFileAndLine) {
  const auto runtime = MakeCold();
  AttentionSpec spec = SmallSpec();
  spec.mask_snippet = {"bool keep = i >= j;\nreturn keep && undeclared_name;", "prefix_rule.cu"};
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = runtime->Prepare(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("prefix_rule.cu(2)"), HasSubstr("undeclared_name"),
                                    HasSubstr("while preparing")));
    EXPECT_TRUE(status.GetPayload("tilewright/compile_log").has_value());
  }
  EXPECT_EQ(driver_.loaded_libraries(), 0);
  EXPECT_EQ(runtime->counters().compiles, 0);
}

TEST_F(RuntimeTest, WithoutNvrtcAMissIsUnavailable) {
  RuntimeOptions options = TestOptions();
  options.nvrtc_path = "/nonexistent/libnvrtc.so";
  const absl::Status status = MakeCold(options)->Prepare(SmallSpec()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(status), HasSubstr("/nonexistent/libnvrtc.so"));
}

TEST_F(RuntimeTest, AnOldDriverIsUnavailableAndNamesBothVersions) {
  RuntimeParts parts;
  parts.open_devices = []() -> absl::StatusOr<std::shared_ptr<device::DeviceManager>> {
    return device::OpenDriver(TILEWRIGHT_OLD_LIBCUDA).status();
  };
  const auto runtime = *RuntimeParts::CreateRuntime(TestOptions(), std::move(parts));
  const absl::Status status = runtime->Prepare(SmallSpec()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("11.8"), HasSubstr("12.4")));
}

TEST_F(RuntimeTest, AMissingDriverIsLookedForAgain) {
  int attempts = 0;
  RuntimeParts parts;
  parts.open_devices = [&]() -> absl::StatusOr<std::shared_ptr<device::DeviceManager>> {
    if (++attempts == 1) return absl::UnavailableError("no CUDA driver");
    return device::DeviceManager::Create(&driver_.api());
  };
  const auto runtime = *RuntimeParts::CreateRuntime(TestOptions(), std::move(parts));
  EXPECT_EQ(runtime->Prepare(SmallSpec()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_EQ(attempts, 2);
}

TEST_F(RuntimeTest, AStoreThatCannotBeWrittenDoesNotFailTheCall) {
  LogLines lines;
  RuntimeOptions options;
  options.cache_dir = "/proc/tilewright";
  options.log_level = LogLevel::kWarning;
  options.log_sink = lines.sink();
  const auto runtime = MakeCold(options);
  const auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr).ok());
  EXPECT_EQ(lines.Count("store_memory_only"), 1);
}

// ---- capture --------------------------------------------------------------------------------

// Case 36: the first call of a shape under graph capture.
TEST_F(RuntimeTest, PrepareInACaptureServesMemoryAndRefusesTheRest) {
  const auto runtime = Make();
  const auto stream = FakePointer<CUstream_st>(99);
  ASSERT_TRUE(runtime->Prepare(SmallSpec()).ok());
  AttentionSpec unknown = SmallSpec();
  unknown.dim_v = 24;

  driver_.SetCapturing(stream, true);
  const size_t before = driver_.calls().size();
  const absl::Status refused = runtime->Prepare(unknown, stream).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr("captured"));
  // Questions only: nothing that a capture could take amiss.
  const std::vector<std::string> calls = driver_.calls();
  for (size_t i = before; i < calls.size(); ++i) {
    EXPECT_THAT(calls[i], testing::AnyOf("cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxGetId",
                                         "cuStreamIsCapturing"));
  }
  EXPECT_FALSE(driver_.capture_spoilt());
  EXPECT_EQ(runtime->counters().capture_refusals, 1);

  const auto hit = runtime->Prepare(SmallSpec(), stream);
  ASSERT_TRUE(hit.ok()) << hit.status();
  EXPECT_TRUE(runtime->Run(*hit, DenseArgs(SmallSpec()), stream).ok());
  EXPECT_EQ(driver_.launches().size(), 1u);
  EXPECT_FALSE(driver_.capture_spoilt());

  driver_.SetCapturing(stream, false);
  EXPECT_TRUE(runtime->Prepare(unknown, stream).ok());
  EXPECT_EQ(runtime->counters().capture_refusals, 1);
}

TEST_F(RuntimeTest, ACaptureThatShowsOnTheLegacyStreamIsSeenWithoutBeingTold) {
  const auto runtime = Make();
  driver_.SetCapturing(nullptr, true);
  EXPECT_EQ(runtime->Prepare(SmallSpec()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->Prepare(SmallSpec(), FakePointer<CUstream_st>(99)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<AttentionSpec> specs = {SmallSpec()};
  EXPECT_EQ(runtime->Warmup(specs).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->counters().capture_refusals, 3);
  EXPECT_EQ(driver_.loaded_libraries(), 0);
  driver_.SetCapturing(nullptr, false);
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
}

TEST_F(RuntimeTest, PrepareDoesNotSpoilACaptureOfAnotherThread) {
  const auto runtime = Make();
  driver_.SetGlobalCapture(true);
  EXPECT_TRUE(runtime->Prepare(SmallSpec()).ok());
  EXPECT_FALSE(driver_.capture_spoilt());
}

// ---- fork -----------------------------------------------------------------------------------

TEST_F(RuntimeTest, AForkedChildIsRefusedAndLeavesInPeace) {
  auto runtime = Make();
  auto prepared = runtime->Prepare(SmallSpec());
  ASSERT_TRUE(prepared.ok());
  const int unloads = driver_.CallCount("cuLibraryUnload");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(10);
    int wrong = 0;
    const absl::Status prepare = runtime->Prepare(SmallSpec()).status();
    wrong |= prepare.code() != absl::StatusCode::kFailedPrecondition ? 1 : 0;
    wrong |= Text(prepare).find("fork") == std::string::npos ? 2 : 0;
    const absl::Status run = runtime->Run(*prepared, DenseArgs(SmallSpec()), nullptr);
    wrong |= run.code() != absl::StatusCode::kFailedPrecondition ? 4 : 0;
    runtime->Flush();
    runtime.reset();
    prepared = PreparedAttention();
    wrong |= driver_.CallCount("cuLibraryUnload") != unloads ? 8 : 0;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// ---- the text of specs ----------------------------------------------------------------------

TEST(SpecTextTest, ReadsWhatItPrints) {
  AttentionSpec spec = SmallSpec();
  spec.causal = true;
  const auto parsed = ParseSpec(SpecText(spec));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(SpecText(*parsed), SpecText(spec));
}

TEST(SpecTextTest, NamesAMissingSnippetFile) {
  const absl::Status status =
      ParseSpec("fwd bf16 b=1 h=1 s=16 d=16 score=@/nonexistent/rule.cu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(Text(status), HasSubstr("/nonexistent/rule.cu"));
}

}  // namespace
}  // namespace tilewright

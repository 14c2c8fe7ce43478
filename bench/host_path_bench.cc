// Host time of every step from a spec to a launch, on any machine: the driver is a stand-in whose
// calls cost next to nothing, so that what remains is ours.
//
//   host_path_bench [--benchmark_filter=...] [--benchmark_out=FILE --benchmark_out_format=json]
//
// Exits with 1 when a step takes longer than the limit it has (kLimits).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "build/kernel_builder.h"
#include "cache/memory_store.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "runtime/pack_args.h"
#include "runtime/runtime_impl.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/device/fake_driver.h"
#include "tilewright/runtime.h"

namespace tilewright {
namespace {

constexpr char kTarget[] = "sm_90a";

// Most that the steps with a promise may take, in nanoseconds of CPU time: none of them waits for
// anything, and other programs on the machine do not count.
struct Limit {
  std::string_view name;
  double ns;
};
constexpr Limit kLimits[] = {
    {"Run/simple", 1e3}, {"Run/everything", 1e3},     {"PrepareHit", 1e3},    {"KeyOfSource", 50e3},
    {"StoreHit", 200e3}, {"PrepareWarmRuntime", 3e6}, {"PrepareCold", 600e6},
};

[[noreturn]] void Die(std::string_view what, const absl::Status& status) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               status.ToString().c_str());
  std::exit(2);
}

template <typename T>
T OrDie(std::string_view what, absl::StatusOr<T> value) {
  if (!value.ok()) Die(what, value.status());
  return *std::move(value);
}

// ---- specs and arguments --------------------------------------------------------------------

AttentionSpec SimpleSpec() {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 32;
  spec.heads_kv = 8;
  spec.seqlen_q = spec.seqlen_kv = 4096;
  spec.dim_qk = spec.dim_v = 128;
  spec.causal = true;
  spec.lse = true;
  return spec;
}

// As many features as one call can have.
AttentionSpec FullSpec() {
  AttentionSpec spec = SimpleSpec();
  spec.varlen = true;
  spec.page_size = 64;
  spec.window_left = 1023;
  spec.softcap = 30;
  spec.alibi = true;
  spec.sinks = true;
  spec.dropout = 0.1f;
  spec.block_mask_q = spec.block_mask_kv = 128;
  spec.bias = {{ElementType::kBf16, 2, 32, 4096, 4096, BatchMap::kMod},
               {ElementType::kBool, 1, 1, 1, 4096, BatchMap::kMod}};
  return spec;
}

template <typename T>
T* FakePointer(uintptr_t index) {
  return reinterpret_cast<T*>(uintptr_t{0x7f0000000000} + (index << 32));
}

AttentionArgs ArgsOf(const AttentionSpec& spec) {
  const std::array<Strides, 4> strides = spec::EffectiveStrides(spec);
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  args.q = {FakePointer<void>(1), strides[0]};
  args.k = {FakePointer<void>(2), strides[1]};
  args.v = {FakePointer<void>(3), strides[2]};
  args.o = {FakePointer<void>(4), strides[3]};
  args.lse = FakePointer<float>(5);
  args.seqused_kv = FakePointer<int32_t>(6);
  args.page_table = FakePointer<int32_t>(7);
  args.page_table_stride = 64;
  args.alibi_slopes = FakePointer<float>(8);
  args.sinks = FakePointer<float>(9);
  args.block_mask = FakePointer<uint8_t>(10);
  args.block_mask_strides = {0, 1024, 32};
  args.bias[0] = {FakePointer<void>(11), int64_t{1} << 29, int64_t{1} << 24, 4096, 1};
  args.bias[1] = {FakePointer<void>(12), 0, 0, 0, 1};
  return args;
}

plan::KernelPlan PlanOf(const AttentionSpec& spec) {
  const arch::ArchTraits traits = OrDie("traits", arch::FindArchTraits(kTarget));
  const arch::BoardProfile board = OrDie("board", arch::DefaultBoardProfile(kTarget));
  return OrDie("plan", plan::Best({spec, traits, board})).plan;
}

// ---- the driver -----------------------------------------------------------------------------

// The calls on the way of Run and of a hit, without the recorder's lock and lists. One context.
CUcontext quiet_context = nullptr;
CUresult QuietGetCurrent(CUcontext* context) {
  *context = quiet_context;
  return CUDA_SUCCESS;
}
CUresult QuietGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult QuietGetId(CUcontext, unsigned long long* id) {
  *id = 1;
  return CUDA_SUCCESS;
}
CUresult QuietLaunch(const CUlaunchConfig* config, CUfunction, void** arguments, void**) {
  benchmark::DoNotOptimize(config);
  benchmark::DoNotOptimize(arguments);
  return CUDA_SUCCESS;
}

struct QuietDriver {
  QuietDriver() : api(recorder.api()) {
    quiet_context = recorder.MakeContext(0);
    recorder.api().cuCtxSetCurrent(quiet_context);
    api.cuCtxGetCurrent = QuietGetCurrent;
    api.cuCtxGetDevice = QuietGetDevice;
    api.cuCtxGetId = QuietGetId;
    api.cuLaunchKernelEx = QuietLaunch;
  }
  device::FakeDriver recorder;
  device::DriverApi api;
};

QuietDriver& Driver() {
  static QuietDriver* const driver = new QuietDriver();
  return *driver;
}

RuntimeOptions QuietOptions() {
  RuntimeOptions options;
  options.log_level = LogLevel::kOff;
  options.tune_policy = TunePolicy::kOff;
  return options;
}

std::unique_ptr<Runtime> MakeRuntime(const RuntimeOptions& options) {
  RuntimeParts parts;
  parts.open_devices = [] { return device::DeviceManager::Create(&Driver().api); };
  return OrDie("runtime", RuntimeParts::CreateRuntime(options, std::move(parts)));
}

// One runtime for everything that looks at memory only.
Runtime& SharedRuntime() {
  static Runtime* const runtime = [] {
    RuntimeOptions options = QuietOptions();
    options.cache_in_memory = true;
    return MakeRuntime(options).release();
  }();
  return *runtime;
}

// A store on disk that has the kernel of SimpleSpec(), removed at exit.
const std::string& WarmDirectory() {
  static const std::string* const directory = [] {
    auto* path = new std::string(std::filesystem::temp_directory_path() /
                                 ("tilewright_bench_" + std::to_string(getpid())));
    RuntimeOptions options = QuietOptions();
    options.cache_dir = *path;
    OrDie("warm-up", MakeRuntime(options)->Prepare(SimpleSpec()));
    return path;
  }();
  return *directory;
}

// ---- steps of Prepare -----------------------------------------------------------------------

void SpecHash(benchmark::State& state) {
  const AttentionSpec spec = spec::Canonicalise(FullSpec());
  for (auto _ : state) benchmark::DoNotOptimize(spec::SpecHash{}(spec));
}
BENCHMARK(SpecHash);

void ValidateAndCanonicalise(benchmark::State& state) {
  const AttentionSpec spec = FullSpec();
  for (auto _ : state) {
    if (!spec::Validate(spec).ok()) state.SkipWithError("invalid");
    benchmark::DoNotOptimize(spec::Canonicalise(spec));
  }
}
BENCHMARK(ValidateAndCanonicalise);

void Plan(benchmark::State& state) {
  const AttentionSpec spec = spec::Canonicalise(SimpleSpec());
  for (auto _ : state) benchmark::DoNotOptimize(PlanOf(spec));
}
BENCHMARK(Plan);

void Emit(benchmark::State& state) {
  const AttentionSpec spec = spec::Canonicalise(SimpleSpec());
  const plan::KernelPlan plan = PlanOf(spec);
  for (auto _ : state) {
    benchmark::DoNotOptimize(OrDie("emit", emit::EmitKernel(spec, plan)));
  }
}
BENCHMARK(Emit);

struct Builder {
  explicit Builder(cache::ArtifactStore* store)
      : builder(&emit::EmbeddedTemplates(), store, &compiler, &logger, {}) {}
  const Logger logger{LogLevel::kOff};
  const compile::NvrtcCompiler compiler{{}};
  build::KernelBuilder builder;
};

void KeyOfSource(benchmark::State& state) {
  cache::MemoryStore store(0);
  Builder b(&store);
  const AttentionSpec spec = spec::Canonicalise(SimpleSpec());
  const plan::KernelPlan plan = PlanOf(spec);
  const artifact::KernelSource source = OrDie("emit", emit::EmitKernel(spec, plan));
  for (auto _ : state) benchmark::DoNotOptimize(b.builder.Key(source, plan).digest());
}
BENCHMARK(KeyOfSource);

// Read, verify and parse; no driver.
void StoreHit(benchmark::State& state) {
  cache::StoreOptions options;
  options.directory = WarmDirectory();
  const Logger logger(LogLevel::kOff);
  const cache::OpenedStore opened = cache::OpenStore(options, logger);
  const AttentionSpec spec = spec::Canonicalise(SimpleSpec());
  const plan::KernelPlan plan = PlanOf(spec);
  Builder b(opened.disk);
  const build::KernelRequest request = OrDie("request", b.builder.MakeRequest(spec, plan));
  for (auto _ : state) benchmark::DoNotOptimize(OrDie("build", b.builder.Build(request)));
  if (b.builder.counters().compiles > 0) state.SkipWithError("the store did not serve");
}
BENCHMARK(StoreHit);

void PrepareHit(benchmark::State& state) {
  Runtime& runtime = SharedRuntime();
  const AttentionSpec spec = SimpleSpec();
  OrDie("prepare", runtime.Prepare(spec));
  for (auto _ : state) benchmark::DoNotOptimize(runtime.Prepare(spec));
}
BENCHMARK(PrepareHit);
BENCHMARK(PrepareHit)->Threads(2)->UseRealTime();

// A spec whose kernel is loaded, with lengths that nobody has asked for yet.
void PrepareUnseenLength(benchmark::State& state) {
  Runtime& runtime = SharedRuntime();
  AttentionSpec spec = SimpleSpec();
  OrDie("prepare", runtime.Prepare(spec));
  for (auto _ : state) {
    ++spec.seqlen_kv;
    benchmark::DoNotOptimize(OrDie("prepare", runtime.Prepare(spec)));
  }
}
BENCHMARK(PrepareUnseenLength);

// All that a new process with a warm store pays, but for starting the driver.
void PrepareWarmRuntime(benchmark::State& state) {
  RuntimeOptions options = QuietOptions();
  options.cache_dir = WarmDirectory();
  for (auto _ : state) {
    const auto runtime = MakeRuntime(options);
    OrDie("prepare", runtime->Prepare(SimpleSpec()));
    if (runtime->counters().store_hits != 1) state.SkipWithError("the store did not serve");
  }
}
BENCHMARK(PrepareWarmRuntime)->Unit(benchmark::kMillisecond);

// The compiler runs on a thread of its own: its time is that of the process.
void PrepareCold(benchmark::State& state) {
  RuntimeOptions options = QuietOptions();
  options.cache_in_memory = true;
  for (auto _ : state) {
    const auto runtime = MakeRuntime(options);
    OrDie("prepare", runtime->Prepare(SimpleSpec()));
  }
}
BENCHMARK(PrepareCold)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond)->Iterations(3);

void Compile(benchmark::State& state) {
  const compile::NvrtcCompiler compiler({});
  const AttentionSpec spec = spec::Canonicalise(SimpleSpec());
  const artifact::KernelSource source = OrDie("emit", emit::EmitKernel(spec, PlanOf(spec)));
  const compile::CompileRequest request = {source, emit::EmbeddedTemplates().files, kTarget,
                                           compile::CompileOptions(kTarget, false)};
  for (auto _ : state) benchmark::DoNotOptimize(OrDie("compile", compiler.Compile(request)));
}
BENCHMARK(Compile)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// ---- steps of Run ---------------------------------------------------------------------------

void ValidateArgs(benchmark::State& state, const AttentionSpec& raw) {
  const AttentionSpec spec = spec::Canonicalise(raw);
  const AttentionArgs args = ArgsOf(spec);
  for (auto _ : state) benchmark::DoNotOptimize(spec::ValidateArgs(spec, args));
}
BENCHMARK_CAPTURE(ValidateArgs, simple, SimpleSpec());
BENCHMARK_CAPTURE(ValidateArgs, everything, FullSpec());

void Pack(benchmark::State& state, const AttentionSpec& raw) {
  const AttentionSpec spec = spec::Canonicalise(raw);
  const AttentionArgs args = ArgsOf(spec);
  const emit::ParamLayout layout = emit::MakeParamLayout(spec);
  alignas(16) std::byte params[kMaxParamBytes];
  for (auto _ : state) {
    PackArgs(spec, layout, args, params);
    benchmark::DoNotOptimize(params);
  }
  state.counters["bytes"] = layout.size;
}
BENCHMARK_CAPTURE(Pack, simple, SimpleSpec());
BENCHMARK_CAPTURE(Pack, everything, FullSpec());

void Run(benchmark::State& state, const AttentionSpec& spec) {
  Runtime& runtime = SharedRuntime();
  const PreparedAttention prepared = OrDie("prepare", runtime.Prepare(spec));
  const AttentionArgs args = ArgsOf(spec);
  for (auto _ : state) {
    if (!runtime.Run(prepared, args, nullptr).ok()) state.SkipWithError("Run failed");
  }
}
BENCHMARK_CAPTURE(Run, simple, SimpleSpec());
BENCHMARK_CAPTURE(Run, everything, FullSpec());

// ---- limits ---------------------------------------------------------------------------------

// Prints as usual, and keeps what is over its limit.
class LimitReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    benchmark::ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.error_occurred) {
        failures_.push_back(run.benchmark_name() + ": " + run.error_message);
        continue;
      }
      if (run.run_type != Run::RT_Iteration || run.threads > 1) continue;
      const std::string name = run.benchmark_name();
      const double ns =
          run.GetAdjustedCPUTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e9;
      for (const Limit& limit : kLimits) {
        // Names end in the options of the run: "PrepareCold/iterations:3".
        const bool same = name.compare(0, limit.name.size(), limit.name) == 0 &&
                          (name.size() == limit.name.size() || name[limit.name.size()] == '/');
        if (!same || ns <= limit.ns) continue;
        char line[256];
        std::snprintf(line, sizeof(line), "%s: %.0f ns, the limit is %.0f ns", name.c_str(), ns,
                      limit.ns);
        failures_.push_back(line);
      }
    }
  }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  std::vector<std::string> failures_;
};

}  // namespace
}  // namespace tilewright

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  tilewright::LimitReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  std::error_code ignored;
  std::filesystem::remove_all(
      std::filesystem::temp_directory_path() / ("tilewright_bench_" + std::to_string(getpid())),
      ignored);
  for (const std::string& failure : reporter.failures()) {
    std::fprintf(stderr, "over its limit: %s\n", failure.c_str());
  }
  return reporter.failures().empty() ? 0 : 1;
}

#include "tilewright/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/elapsed.h"
#include "base/env.h"
#include "base/keep_forever.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/single_flight.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "build/kernel_builder.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "emit/code_spec.h"
#include "emit/emit_cache_append.h"
#include "emit/template_bundle.h"
#include "plan/cache_append_planner.h"
#include "plan/launch_shape.h"
#include "runtime/cache_append.h"
#include "runtime/kernel_table.h"
#include "runtime/merge.h"
#include "runtime/pack_args.h"
#include "runtime/pack_sm90.h"
#include "runtime/runtime_impl.h"
#include "runtime/tuning.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

using StateOr = absl::StatusOr<std::shared_ptr<const PreparedAttention::State>>;
using KernelOr = absl::StatusOr<std::shared_ptr<const ResidentKernel>>;

[[gnu::cold, gnu::noinline]] absl::Status ForkedError(pid_t pid) {
  return absl::FailedPreconditionError(
      absl::StrCat("this Runtime was made by process ", pid, " and cannot be used by its child ",
                   getpid(), ": the CUDA driver does not survive a fork; make a Runtime here"));
}

absl::Status ValidateOptions(const RuntimeOptions& options) {
  const struct {
    const char* field;
    int64_t value;
  } sizes[] = {{"cache_max_bytes", options.cache_max_bytes},
               {"device_ordinal", options.device_ordinal},
               {"tune_budget_ms", options.tune_budget_ms},
               {"tune_total_ms", options.tune_total_ms},
               {"tune_candidates", options.tune_candidates},
               {"tune_max_bytes", options.tune_max_bytes},
               {"churn_per_minute", options.churn_per_minute},
               {"compile_threads", options.compile_threads},
               {"compile_timeout_ms", options.compile_timeout_ms},
               {"lock_timeout_ms", options.lock_timeout_ms}};
  for (const auto& size : sizes) {
    if (size.value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("RuntimeOptions::", size.field, " = ", size.value, ": must be >= 0"));
    }
  }
  TILEWRIGHT_RETURN_IF_ERROR(
      Annotate(plan::ParseFamily(options.family).status(), "RuntimeOptions"));
  if ((options.device_allocate == nullptr) != (options.device_release == nullptr)) {
    return absl::InvalidArgumentError(
        "RuntimeOptions::device_allocate and device_release: both must be set, or neither");
  }
  if (options.cache_in_memory && options.cache_read_only) {
    return absl::InvalidArgumentError(
        "RuntimeOptions::cache_read_only = true: must be false with cache_in_memory, whose store "
        "starts empty");
  }
  for (const std::string& digest : options.pack_sha256) {
    if (!Digest::FromHex(digest).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("RuntimeOptions::pack_sha256 = ", digest, ": must be 64 hex digits"));
    }
  }
  if (options.cache_in_memory && !options.cache_packs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("RuntimeOptions::cache_packs = ", options.cache_packs[0],
                     ", ...: must be empty with cache_in_memory, which reads no disk"));
  }
  return absl::OkStatus();
}

// Calls work(0) .. work(count - 1), on up to `threads` threads, this one included.
void ForEachInParallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto loop = [&] {
    for (size_t n = next++; n < count; n = next++) work(n);
  };
  std::vector<std::thread> helpers;
  while (helpers.size() + 1 < std::min(count, static_cast<size_t>(threads))) {
    try {
      helpers.emplace_back(loop);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: the ones there do the work
    }
  }
  loop();
  for (std::thread& helper : helpers) helper.join();
}

// "measured now: 1.23 ms, the default takes 1.5 ms"
std::string DescribeMeasurement(const tune::TuningRecord& record) {
  return absl::StrCat("measured by this process in ", static_cast<int64_t>(record.tune_ms),
                      " ms: ", record.winner_ms, " ms, the default ", record.default_ms, " ms, ",
                      record.candidates.size(), " candidates", record.note.empty() ? "" : "; ",
                      record.note);
}

}  // namespace

// ---- PreparedAttention ----------------------------------------------------------------------

PreparedAttention::State::~State() {
  if (getpid() != pid) new auto(std::move(kernels));
}

const PreparedAttention::State& PreparedAttention::State::ForRun(Stream stream) const {
  const State* state = this;
  while (const State* const next = state->newer.load(std::memory_order_acquire)) {
    const bool captured = std::any_of(
        state->kernels.begin(), state->kernels.end(),
        [](const PreparedKernel& kernel) { return kernel.resident->loaded->captured(); });
    if (captured && stream != nullptr) {
      const absl::StatusOr<bool> capturing = devices->IsCapturing(stream);
      if (capturing.ok() && *capturing) break;
    }
    state = next;
  }
  return *state;
}

const std::string& PreparedAttention::spec_text() const { return state_->spec_text; }

std::string PreparedAttention::Explain() const {
  const State& s = state_->Newest();
  std::string text = absl::StrCat(s.spec_text, "\n");
  if (s.kernels.empty()) {
    absl::StrAppend(&text, "nothing to launch: the spec has no heads\n");
    return text;
  }
  absl::StrAppend(&text, "plan      ", s.decision.plan.ToString(), "\n");
  absl::StrAppend(&text, "why       ", s.decision.why,
                  s.decision.fallback ? " (fallback: no faster family serves this spec)" : "",
                  "\n");
  if (!s.decision.tuned.empty()) absl::StrAppend(&text, "tuned     ", s.decision.tuned, "\n");
  for (const plan::Refusal& refusal : s.decision.refusals) {
    absl::StrAppend(&text, "refused   ", AbslView(plan::FamilyName(refusal.family)), ": ",
                    refusal.reason, "\n");
  }
  for (const PreparedKernel& kernel : s.kernels) {
    const build::BuiltKernel& built = kernel.resident->built;
    const artifact::KernelBinary& binary = built.binary;
    absl::StrAppend(&text, "kernel    ", binary.entry_name, " for ", binary.target, " on ",
                    s.device_name, "\n");
    absl::StrAppend(&text, "resources ", binary.usage.registers, " registers, ",
                    kernel.plan.smem_bytes + binary.usage.static_smem_bytes,
                    " bytes of shared memory, ",
                    binary.usage.spill_store_bytes + binary.usage.spill_load_bytes,
                    " bytes spilled, ", kernel.layout.size, " bytes of parameters\n");
    if (built.origin == build::BinaryOrigin::kStore) {
      absl::StrAppend(&text, "origin    store, compiled by ", binary.compiler, "\n");
    } else {
      absl::StrAppend(&text, "origin    compiled by ", binary.compiler, " in ", binary.compile_ms,
                      " ms (store: ", built.miss_reason, ")\n");
    }
    absl::StrAppend(&text, "key       ", built.key.ToHex(), "\n");
  }
  return text;
}

absl::StatusOr<size_t> PreparedAttention::workspace_bytes(const AttentionArgs& args) const {
  const struct {
    const char* field;
    int64_t value;
  } sizes[] = {{"batch", args.batch}, {"seqlen_q", args.seqlen_q}, {"seqlen_kv", args.seqlen_kv}};
  for (const auto& size : sizes) {
    if (size.value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(size.field, " = ", size.value, ": must be >= 0"));
    }
  }
  const PreparedAttention::State& newest = state_->Newest();
  return plan::PlanCall(newest.decision.plan, newest.spec, args).workspace_bytes;
}

// ---- Runtime --------------------------------------------------------------------------------

struct Runtime::Impl {
  Impl(const RuntimeOptions& options, RuntimeParts parts)
      : options(options),
        logger(options.log_level, options.log_sink),
        compiler({options.nvrtc_path}),
        open_devices(std::move(parts.open_devices)),
        table(parts.limits) {}

  absl::StatusOr<device::DeviceManager*> Devices();
  // `key` has a canonical, valid spec, and no context.
  StateOr Prepare(SpecKey key, Stream stream);
  absl::Status RefuseCapture(const device::DeviceManager& devices, Stream stream);
  StateOr PrepareOn(const device::DeviceManager::Current& where, const SpecKey& key,
                    bool deliberate);
  // `deliberate`: the caller said that it wants many kernels, or this very one.
  StateOr MakeState(const device::DeviceManager::Current& where, const SpecKey& key,
                    bool deliberate);

  // The steps of MakeState. A state that is not inserted is a trial of the tuner's.
  struct Assembled {
    std::shared_ptr<PreparedAttention::State> state;
    std::vector<TableKernel> kernels;
  };
  plan::PlanRequest RequestFor(const device::DeviceManager::Current& where,
                               const AttentionSpec& spec) const;
  absl::StatusOr<plan::Decision> Decide(const device::DeviceManager::Current& where,
                                        const AttentionSpec& spec);
  // Lets records and measurements choose among the candidates. `starts`: a plan that is compiled
  // sooner is to serve until the decision's is there.
  Tuning::Measure ApplyTuning(const Tuning::Job& job, bool deliberate, plan::Decision* decision,
                              bool* starts);
  // Whether all kernels of the plan need only to be loaded.
  bool IsStored(const AttentionSpec& spec, const plan::KernelPlan& plan);
  Tuning::Job JobFor(const device::DeviceManager::Current& where, const SpecKey& key,
                     const plan::Decision& decision);
  absl::StatusOr<Assembled> Assemble(const device::DeviceManager::Current& where,
                                     const SpecKey& key, plan::Decision decision);
  void Insert(const SpecKey& key, const Assembled& assembled, bool deliberate);
  // Puts the winner of a tuning that ran in the background, or `decision`, in the place of what was
  // prepared.
  void Swap(const Tuning::Job& job, const SpecKey& key, const plan::Decision& before,
            const tune::TuningRecord& record);
  void SwapTo(const device::DeviceManager::Current& where, const SpecKey& key,
              plan::Decision decision);
  void CountNewKernel(const AttentionSpec& spec);

  // The kernels of state->decision.plan, compiled several at a time; fills state->kernels.
  absl::StatusOr<std::vector<TableKernel>> MakeKernels(const device::DeviceManager::Current& where,
                                                       PreparedAttention::State* state);
  KernelOr MakeKernel(const device::DeviceManager::Current& where,
                      const build::KernelRequest& request);

  const RuntimeOptions options;
  const pid_t pid = getpid();
  const Logger logger;
  const compile::NvrtcCompiler compiler;
  emit::TemplateBundle own_bundle;  // of options.template_dir
  std::unique_ptr<cache::ArtifactStore> store;
  std::unique_ptr<build::KernelBuilder> builder;

  const std::function<absl::StatusOr<std::shared_ptr<device::DeviceManager>>()> open_devices;
  Mutex devices_mutex;
  std::shared_ptr<device::DeviceManager> devices_owner ABSL_GUARDED_BY(devices_mutex);
  // Set once, after devices_owner: hits need no lock to see it.
  std::atomic<device::DeviceManager*> devices = nullptr;

  KernelTable table;
  SingleFlight<SpecKey, StateOr> spec_flights;
  SingleFlight<KernelKey, KernelOr> kernel_flights;

  std::atomic<int64_t> prepares = 0;
  std::atomic<int64_t> memory_hits = 0;
  std::atomic<int64_t> fallbacks = 0;
  std::atomic<int64_t> capture_refusals = 0;
  std::atomic<int64_t> evictions = 0;
  std::atomic<int64_t> tuned_swaps = 0;
  Mutex swap_mutex;  // of State::newer_owner

  Mutex churn_mutex;
  std::chrono::steady_clock::time_point churn_since ABSL_GUARDED_BY(churn_mutex);
  int churn_kernels ABSL_GUARDED_BY(churn_mutex) = 0;  // new ones since then
  std::atomic<int64_t> churn_alarms = 0;

  std::unique_ptr<Tuning> tuning;  // last: its threads use what is above
};

namespace {

// Run without the checks of its handle.
absl::Status RunState(const PreparedAttention::State& state, const AttentionArgs& args,
                      Stream stream) {
  TILEWRIGHT_RETURN_IF_ERROR(spec::ValidateArgs(state.spec, args));
  const plan::CallPlan call = plan::PlanCall(state.decision.plan, state.spec, args);
  if (call.workspace_bytes > 0 && args.workspace == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("workspace = null: must point to the ",
                                                   call.workspace_bytes,
                                                   " bytes that workspace_bytes(args) asks for"));
  }
  alignas(16) std::byte params[kMaxParamBytes];
  for (const PreparedKernel& kernel : state.kernels) {
    const plan::LaunchShape shape = plan::ComputeLaunchShape(kernel.plan, state.spec, args, call);
    if (shape.grid == 0) continue;
    PackArgs(kernel.spec, kernel.layout, args, params, call);
    TILEWRIGHT_RETURN_IF_ERROR(
        PackSm90(state.devices->api(), kernel.plan, kernel.spec, kernel.layout, args, params));
    TILEWRIGHT_RETURN_IF_ERROR(kernel.resident->loaded->Launch(
        {shape.grid, shape.block, shape.smem_bytes, shape.overlaps}, params, stream));
  }
  return absl::OkStatus();
}

// A prepared plan in the hands of the tuner.
class StateTrial : public tune::Trial {
 public:
  explicit StateTrial(std::shared_ptr<const PreparedAttention::State> state)
      : state_(std::move(state)) {}
  absl::StatusOr<size_t> WorkspaceBytes(const AttentionArgs& args) const override {
    return PreparedAttention(state_).workspace_bytes(args);
  }
  absl::Status Launch(const AttentionArgs& args, device::StreamHandle stream) const override {
    return RunState(*state_, args, stream);
  }

 private:
  const std::shared_ptr<const PreparedAttention::State> state_;
};

// Makes the plans of one spec as Prepare would.
class RuntimeWorkshop : public tune::Workshop {
 public:
  using Loader = std::function<absl::StatusOr<std::shared_ptr<const PreparedAttention::State>>(
      const plan::KernelPlan&)>;
  RuntimeWorkshop(build::KernelBuilder* builder, AttentionSpec spec, Loader load)
      : builder_(builder), spec_(std::move(spec)), load_(std::move(load)) {}

  absl::StatusOr<tune::KernelFacts> Compile(const plan::KernelPlan& plan) override {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<build::KernelRequest> requests,
                                builder_->MakeRequests(spec_, plan));
    tune::KernelFacts facts;
    for (const build::KernelRequest& request : requests) {
      TILEWRIGHT_ASSIGN_OR_RETURN(const build::BuiltKernel built, builder_->Build(request));
      const artifact::ResourceUsage& usage = built.binary.usage;
      facts.registers = std::max(facts.registers, usage.registers);
      facts.spill_bytes += usage.spill_store_bytes + usage.spill_load_bytes;
      if (built.origin == build::BinaryOrigin::kCompiled) {
        facts.compile_ms += built.binary.compile_ms;
      }
      facts.log += built.binary.log;
    }
    return facts;
  }
  absl::StatusOr<std::shared_ptr<const tune::Trial>> Load(const plan::KernelPlan& plan) override {
    TILEWRIGHT_ASSIGN_OR_RETURN(auto state, load_(plan));
    return std::make_shared<StateTrial>(std::move(state));
  }

 private:
  build::KernelBuilder* const builder_;
  const AttentionSpec spec_;
  const Loader load_;
};

// Whether a handle that is out may run the newer plan, whatever workspace its caller has for it:
// plans of one kernel need none.
bool MayReplace(const plan::KernelPlan& plan) { return plan.Kernels().size() == 1 && !plan.split; }

}  // namespace

absl::StatusOr<device::DeviceManager*> Runtime::Impl::Devices() {
  if (device::DeviceManager* opened = devices.load(std::memory_order_acquire)) return opened;
  MutexLock lock(&devices_mutex);
  if (devices_owner == nullptr) {
    TILEWRIGHT_ASSIGN_OR_RETURN(devices_owner, open_devices());
    devices.store(devices_owner.get(), std::memory_order_release);
  }
  return devices_owner.get();
}

absl::Status Runtime::Impl::RefuseCapture(const device::DeviceManager& manager, Stream stream) {
  TILEWRIGHT_ASSIGN_OR_RETURN(bool capturing, manager.IsCapturing(stream));
  // A capture on another stream shows on the legacy stream when the two depend on each other.
  if (!capturing && stream != nullptr) {
    TILEWRIGHT_ASSIGN_OR_RETURN(capturing, manager.IsCapturing(nullptr));
  }
  if (!capturing) return absl::OkStatus();
  capture_refusals.fetch_add(1, std::memory_order_relaxed);
  return absl::FailedPreconditionError(
      "a stream is being captured and this spec is not in memory: loading its kernel would break "
      "the capture; call Prepare or Warmup before the capture begins");
}

StateOr Runtime::Impl::Prepare(SpecKey key, Stream stream) {
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceManager* const manager, Devices());
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceManager::Current where,
                              manager->CurrentOrPrimary(options.device_ordinal));
  key.context_id = where.context_id;
  if (auto state = table.Find(key)) {
    memory_hits.fetch_add(1, std::memory_order_relaxed);
    return state;
  }
  // A thread without a context captures nothing, and the driver could not be asked.
  if (stream != nullptr || manager->CurrentContext() != nullptr) {
    TILEWRIGHT_RETURN_IF_ERROR(RefuseCapture(*manager, stream));
  }
  return PrepareOn(where, key, /*deliberate=*/false);
}

StateOr Runtime::Impl::PrepareOn(const device::DeviceManager::Current& where, const SpecKey& key,
                                 bool deliberate) {
  StateOr state = spec_flights.Do(key, [&]() -> StateOr {
    // Another thread may have finished it since the caller looked.
    if (auto found = table.Find(key)) return found;
    return MakeState(where, key, deliberate);
  });
  if (!state.ok()) {
    return Annotate(state.status(), absl::StrCat("while preparing ", key.ToText()));
  }
  return state;
}

plan::PlanRequest Runtime::Impl::RequestFor(const device::DeviceManager::Current& where,
                                            const AttentionSpec& spec) const {
  // ValidateOptions has parsed it before.
  const absl::StatusOr<std::optional<plan::Family>> family = plan::ParseFamily(options.family);
  return {.spec = spec,
          .traits = where.device->traits,
          .board = where.device->board,
          .allow_fallback = options.allow_fallback,
          .family = family.ok() ? *family : std::nullopt};
}

absl::StatusOr<plan::Decision> Runtime::Impl::Decide(const device::DeviceManager::Current& where,
                                                     const AttentionSpec& spec) {
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::Decision decision, plan::Best(RequestFor(where, spec)));
  const std::string spec_text = spec::ToText(spec);
  logger.Event(LogLevel::kDebug, "plan",
               {{"spec", spec_text},
                {"plan", decision.plan.ToString()},
                {"candidates", decision.candidates.size()},
                {"why", decision.why}});
  for (const plan::Refusal& refusal : decision.refusals) {
    logger.Event(LogLevel::kDebug, "refused",
                 {{"spec", spec_text},
                  {"family", AbslView(plan::FamilyName(refusal.family))},
                  {"reason", refusal.reason}});
  }
  if (decision.fallback) {
    fallbacks.fetch_add(1, std::memory_order_relaxed);
    logger.EventOnce(LogLevel::kInfo, spec_text, "fallback",
                     {{"spec", spec_text}, {"plan", decision.plan.ToString()}});
  }
  return decision;
}

Tuning::Job Runtime::Impl::JobFor(const device::DeviceManager::Current& where, const SpecKey& key,
                                  const plan::Decision& decision) {
  Tuning::Job job;
  job.where = where;
  job.spec = key.spec;
  job.candidates = plan::Candidates(RequestFor(where, key.spec), decision);
  const plan::PlanRequest request = RequestFor(where, key.spec);
  job.reference = plan::ReferenceOf(request, decision);
  if (MayReplace(decision.plan)) job.starter = plan::StarterOf(request, decision);
  job.workshop = std::make_shared<RuntimeWorkshop>(
      builder.get(), key.spec,
      [this, where, key, decision](const plan::KernelPlan& plan)
          -> absl::StatusOr<std::shared_ptr<const PreparedAttention::State>> {
        plan::Decision other = decision;
        other.plan = plan;
        TILEWRIGHT_ASSIGN_OR_RETURN(Assembled assembled, Assemble(where, key, std::move(other)));
        return assembled.state;
      });
  return job;
}

Tuning::Measure Runtime::Impl::ApplyTuning(const Tuning::Job& job, bool deliberate,
                                           plan::Decision* decision, bool* starts) {
  const Tuning::Verdict verdict = tuning->Judge(job.where, job.spec, job.candidates);
  if (verdict.match.plan.has_value()) {
    decision->TakeMeasured(*verdict.match.plan, verdict.match.ToText());
  }
  if (!verdict.why_not.empty()) {
    decision->tuned = absl::StrCat(decision->tuned, decision->tuned.empty() ? "" : "; ",
                                   "not measured: ", verdict.why_not);
  }
  *starts = verdict.measure == Tuning::Measure::kLater && !deliberate &&
            options.tune_policy == TunePolicy::kBackground;
  if (verdict.measure != Tuning::Measure::kNow) return verdict.measure;
  TuneOptions how;
  how.budget_ms = options.tune_budget_ms;
  how.max_candidates = options.tune_candidates;
  const absl::StatusOr<Tuning::Measured> measured = tuning->MeasureNow(
      job, how, deliberate ? Tuning::Caller::kWarmup : Tuning::Caller::kFirstCall);
  if (!measured.ok()) {
    decision->tuned = absl::StrCat(decision->tuned, decision->tuned.empty() ? "" : "; ",
                                   "not measured: ", measured.status().message());
    // The time was too short, or another process had the GPU: nobody has to wait for the next try.
    if (absl::IsUnavailable(measured.status()) || absl::IsDeadlineExceeded(measured.status())) {
      *starts = !deliberate;
      return Tuning::Measure::kLater;
    }
  } else if (const auto winner = plan::ParsePlan(measured->record.winner); winner.ok()) {
    decision->TakeMeasured(*winner, DescribeMeasurement(measured->record));
  }
  return Tuning::Measure::kNo;
}

absl::StatusOr<Runtime::Impl::Assembled> Runtime::Impl::Assemble(
    const device::DeviceManager::Current& where, const SpecKey& key, plan::Decision decision) {
  auto state = std::make_shared<PreparedAttention::State>();
  state->spec = key.spec;
  state->purpose = key.purpose;
  state->append = key.append;
  state->spec_text = key.ToText();
  state->device_name = where.device->board.name;
  state->pid = pid;
  {
    MutexLock lock(&devices_mutex);
    state->devices = devices_owner;
  }
  std::vector<TableKernel> kernels;
  if (key.spec.heads_q > 0) {
    state->decision = std::move(decision);
    TILEWRIGHT_ASSIGN_OR_RETURN(kernels, MakeKernels(where, state.get()));
  }
  return Assembled{std::move(state), std::move(kernels)};
}

void Runtime::Impl::Insert(const SpecKey& key, const Assembled& assembled, bool deliberate) {
  const std::shared_ptr<PreparedAttention::State>& state = assembled.state;
  for (const TableKernel& kernel : assembled.kernels) {
    if (!deliberate && table.FindKernel(kernel.key) == nullptr) CountNewKernel(state->spec);
  }
  const int64_t evicted = table.Insert(key, state, assembled.kernels);
  evictions.fetch_add(evicted, std::memory_order_relaxed);
  if (evicted > 0) logger.Event(LogLevel::kInfo, "evict", {{"kernels", evicted}});
}

void Runtime::Impl::CountNewKernel(const AttentionSpec& spec) {
  if (options.churn_per_minute == 0) return;
  const auto now = std::chrono::steady_clock::now();
  int kernels = 0;
  {
    MutexLock lock(&churn_mutex);
    if (churn_kernels == 0 || now - churn_since >= std::chrono::minutes(1)) {
      churn_since = now;
      churn_kernels = 0;
    }
    kernels = ++churn_kernels;
  }
  if (kernels != options.churn_per_minute + 1) return;  // once a minute
  churn_alarms.fetch_add(1, std::memory_order_relaxed);
  logger.Event(LogLevel::kWarning, "churn",
               {{"kernels_in_a_minute", kernels},
                {"spec", spec::ToText(spec)},
                {"hint", spec.exact ? "exact makes batch and lengths part of the kernel"
                                    : "is something that varies part of the spec?"}});
}

void Runtime::Impl::Swap(const Tuning::Job& job, const SpecKey& key, const plan::Decision& before,
                         const tune::TuningRecord& record) {
  const absl::StatusOr<plan::KernelPlan> winner = plan::ParsePlan(record.winner);
  if (!winner.ok()) return;
  plan::Decision decision = before;
  decision.TakeMeasured(*winner, DescribeMeasurement(record));
  SwapTo(job.where, key, std::move(decision));
}

void Runtime::Impl::SwapTo(const device::DeviceManager::Current& where, const SpecKey& key,
                           plan::Decision decision) {
  const plan::KernelPlan plan = decision.plan;
  const std::shared_ptr<const PreparedAttention::State> old = table.Find(key);
  absl::StatusOr<Assembled> assembled = Assemble(where, key, std::move(decision));
  if (!assembled.ok()) {
    logger.Event(LogLevel::kWarning, "tuned_not_loaded",
                 {{"spec", spec::ToText(key.spec)}, {"reason", assembled.status().message()}});
    return;
  }
  Insert(key, *assembled, /*deliberate=*/true);
  if (old == nullptr || old->decision.plan == plan) return;
  tuned_swaps.fetch_add(1, std::memory_order_relaxed);
  logger.Event(
      LogLevel::kInfo, "tuned_swap",
      {{"spec", old->spec_text}, {"from", old->decision.plan.ToString()}, {"to", plan.ToString()}});
  MutexLock lock(&swap_mutex);
  if (old->newer_owner == nullptr && MayReplace(plan)) {
    old->newer_owner = assembled->state;
    old->newer.store(assembled->state.get(), std::memory_order_release);
  }
}

bool Runtime::Impl::IsStored(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const absl::StatusOr<std::vector<build::KernelRequest>> requests =
      builder->MakeRequests(spec, plan);
  return requests.ok() && std::all_of(requests->begin(), requests->end(),
                                      [this](const auto& one) { return builder->IsStored(one); });
}

StateOr Runtime::Impl::MakeState(const device::DeviceManager::Current& where, const SpecKey& key,
                                 bool deliberate) {
  const auto start = std::chrono::steady_clock::now();
  plan::Decision decision;
  Tuning::Job job;
  Tuning::Measure measure = Tuning::Measure::kNo;
  bool starts = false;
  if (key.purpose == Purpose::kMerge) {
    decision = PlanMerge(key.spec, std::string(where.device->traits.target));
  } else if (key.purpose == Purpose::kAppend) {
    TILEWRIGHT_ASSIGN_OR_RETURN(
        decision, plan::DecideCacheAppend(key.append, std::string(where.device->traits.target),
                                          where.device->board.num_sms));
  } else if (key.spec.heads_q > 0) {
    TILEWRIGHT_ASSIGN_OR_RETURN(decision, Decide(where, key.spec));
    job = JobFor(where, key, decision);
    measure = ApplyTuning(job, deliberate, &decision, &starts);
  }
  starts = starts && job.starter.has_value() && MayReplace(decision.plan) &&
           !IsStored(key.spec, decision.plan);
  plan::Decision served = decision;
  if (starts) {
    served.plan = *job.starter;
    absl::StrAppend(&served.tuned, served.tuned.empty() ? "" : "; ",
                    "compiled sooner than what will take its place: ", decision.plan.ToString());
  }
  absl::StatusOr<Assembled> assembled = Assemble(where, key, served);
  if (!assembled.ok() && options.tune_policy == TunePolicy::kFrozen &&
      absl::IsFailedPrecondition(assembled.status()) &&
      decision.plan != decision.candidates.front()) {
    // What was compiled ahead of time may be what the cost model says, by who had no record.
    decision.plan = decision.candidates.front();
    absl::StrAppend(&decision.tuned, "; its kernel is not stored, the default's is");
    absl::StatusOr<Assembled> untuned = Assemble(where, key, decision);
    if (untuned.ok()) assembled = std::move(untuned);
  }
  TILEWRIGHT_RETURN_IF_ERROR(assembled.status());
  Insert(key, *assembled, deliberate);
  const std::shared_ptr<PreparedAttention::State>& state = assembled->state;
  if (measure == Tuning::Measure::kLater) {
    tuning->MeasureLater(
        job,
        [this, where, key, decision, starts] {
          if (starts) SwapTo(where, key, decision);
        },
        [this, job, key, decision](const tune::TuningRecord& record) {
          Swap(job, key, decision, record);
        });
  }
  logger.Event(LogLevel::kInfo, "prepare",
               {{"spec", state->spec_text},
                {"plan", state->decision.plan.ToString()},
                {"tuned", state->decision.tuned},
                {"device", where.device->ordinal},
                {"ms", MillisecondsSince(start)}});
  return std::shared_ptr<const PreparedAttention::State>(state);
}

absl::StatusOr<std::vector<TableKernel>> Runtime::Impl::MakeKernels(
    const device::DeviceManager::Current& where, PreparedAttention::State* state) {
  std::vector<build::KernelRequest> requests;
  if (state->purpose == Purpose::kAppend) {
    const plan::KernelPlan& plan = state->decision.plan;
    requests.push_back(
        builder->MakeRequest(state->spec_text, plan, emit::EmitCacheAppend(state->append, plan)));
    state->frequencies = RotaryFrequencies(state->append);
  } else {
    TILEWRIGHT_ASSIGN_OR_RETURN(requests, builder->MakeRequests(state->spec, state->decision.plan));
  }
  std::vector<TableKernel> kernels(requests.size());
  for (size_t n = 0; n < requests.size(); ++n) {
    const build::KernelRequest& request = requests[n];
    kernels[n].key = {where.context_id, request.key, request.plan.smem_bytes};
    PreparedKernel kernel;
    kernel.plan = request.plan;
    if (state->purpose == Purpose::kAppend) {
      kernel.layout.size = emit::CacheAppendParamBytes(state->append);
    } else {
      kernel.spec = emit::SpecOfKernel(state->spec, request.plan);
      kernel.layout = emit::MakeParamLayout(kernel.spec, request.plan);
    }
    if (kernel.layout.size > kMaxParamBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the parameters take ", kernel.layout.size,
                                                       " bytes, a kernel may have ",
                                                       kMaxParamBytes));
    }
    state->kernels.push_back(std::move(kernel));
  }
  std::vector<absl::Status> results(requests.size());
  ForEachInParallel(requests.size(), compile::CompileThreads(options.compile_threads),
                    [&](size_t n) {
                      const KernelKey& key = kernels[n].key;
                      KernelOr kernel = kernel_flights.Do(key, [&]() -> KernelOr {
                        if (auto found = table.FindKernel(key)) return found;
                        return MakeKernel(where, requests[n]);
                      });
                      results[n] = kernel.status();
                      if (kernel.ok()) kernels[n].kernel = *std::move(kernel);
                    });
  for (const absl::Status& result : results) TILEWRIGHT_RETURN_IF_ERROR(result);
  for (size_t n = 0; n < kernels.size(); ++n) state->kernels[n].resident = kernels[n].kernel;
  return kernels;
}

KernelOr Runtime::Impl::MakeKernel(const device::DeviceManager::Current& where,
                                   const build::KernelRequest& request) {
  TILEWRIGHT_ASSIGN_OR_RETURN(
      build::KernelBuilder::Loaded loaded,
      builder->BuildAndLoad(request, devices.load(std::memory_order_acquire)->api(), where));
  loaded.built.binary.cubin.clear();
  return std::make_shared<const ResidentKernel>(
      ResidentKernel{std::move(loaded.kernel), std::move(loaded.built)});
}

Runtime::Runtime(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Runtime::~Runtime() {
  // See KernelBuilder's destructor: nothing of it lives in a forked child.
  if (getpid() != impl_->pid) {
    (void)impl_.release();
    return;
  }
  // In this order: a stopped tuning begins no compile.
  impl_->tuning->Stop();
  impl_->builder->CancelCompiles();
  if (!impl_->builder->Shutdown()) KeepForever(std::move(impl_->store));
}

absl::StatusOr<std::unique_ptr<Runtime>> RuntimeParts::CreateRuntime(const RuntimeOptions& options,
                                                                     RuntimeParts parts) {
  TILEWRIGHT_RETURN_IF_ERROR(ValidateOptions(options));
  std::unique_ptr<cache::ArtifactStore> store = std::move(parts.store);
  auto impl = std::make_unique<Runtime::Impl>(options, std::move(parts));
  for (const std::string& name : UnknownEnvVariables()) {
    impl->logger.Event(LogLevel::kWarning, "unknown_variable", {{"name", name}});
  }
  const emit::TemplateBundle* bundle = &emit::EmbeddedTemplates();
  if (!options.template_dir.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(impl->own_bundle, emit::ReadTemplates(options.template_dir));
    bundle = &impl->own_bundle;
  }
  if (store == nullptr) {
    store = cache::OpenStore({.directory = options.cache_dir,
                              .packs = options.cache_packs,
                              .embedded_pack = options.embedded_pack,
                              .pack_sha256 = options.pack_sha256,
                              .read_only = options.cache_read_only,
                              .in_memory = options.cache_in_memory,
                              .max_bytes = options.cache_max_bytes,
                              .group_shared = options.cache_group_shared},
                             impl->logger)
                .store;
  }
  impl->store = std::move(store);
  impl->builder = std::make_unique<build::KernelBuilder>(
      bundle, impl->store.get(), &impl->compiler, &impl->logger,
      build::BuilderOptions{.lineinfo = options.lineinfo,
                            .frozen = options.tune_policy == TunePolicy::kFrozen,
                            .explain_misses = impl->logger.enabled(LogLevel::kInfo),
                            .lock_timeout_ms = options.lock_timeout_ms,
                            .pool = {.threads = options.compile_threads,
                                     .timeout_ms = options.compile_timeout_ms,
                                     .isolate = options.isolate_compiler,
                                     .helper = options.compiler_helper}});
  impl->tuning = std::make_unique<Tuning>(
      impl->options, bundle, &impl->logger, [impl = impl.get()]() -> const device::DriverApi& {
        return impl->devices.load(std::memory_order_acquire)->api();
      });
  return std::unique_ptr<Runtime>(new Runtime(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(const RuntimeOptions& options) {
  RuntimeParts parts;
  parts.open_devices = [] { return device::DeviceManager::Create(); };
  return RuntimeParts::CreateRuntime(options, std::move(parts));
}

absl::StatusOr<PreparedAttention> Runtime::Prepare(const AttentionSpec& spec, Stream stream) {
  if (getpid() != impl_->pid) return ForkedError(impl_->pid);
  impl_->prepares.fetch_add(1, std::memory_order_relaxed);
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(auto state,
                              impl_->Prepare({.spec = spec::Canonicalise(spec)}, stream));
  return PreparedAttention(std::move(state));
}

absl::StatusOr<PreparedAttention> Runtime::PrepareMerge(const MergeSpec& spec, Stream stream) {
  if (getpid() != impl_->pid) return ForkedError(impl_->pid);
  impl_->prepares.fetch_add(1, std::memory_order_relaxed);
  TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec attention, AttentionOfMerge(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      auto state,
      impl_->Prepare({.spec = std::move(attention), .purpose = Purpose::kMerge}, stream));
  return PreparedAttention(std::move(state));
}

absl::StatusOr<PreparedAttention> Runtime::PrepareAppend(const CacheAppendSpec& spec,
                                                         Stream stream) {
  if (getpid() != impl_->pid) return ForkedError(impl_->pid);
  impl_->prepares.fetch_add(1, std::memory_order_relaxed);
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      auto state,
      impl_->Prepare({.purpose = Purpose::kAppend, .append = spec::Canonicalise(spec)}, stream));
  return PreparedAttention(std::move(state));
}

absl::Status Runtime::Warmup(absl::Span<const AttentionSpec> specs) {
  if (specs.empty()) return absl::OkStatus();
  if (getpid() != impl_->pid) return ForkedError(impl_->pid);
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceManager* const manager, impl_->Devices());
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceManager::Current where,
                              manager->CurrentOrPrimary(impl_->options.device_ordinal));
  if (manager->CurrentContext() != nullptr) {
    TILEWRIGHT_RETURN_IF_ERROR(impl_->RefuseCapture(*manager, nullptr));
  }
  std::vector<absl::Status> results(specs.size());
  const auto work = [&](size_t i) {
    impl_->prepares.fetch_add(1, std::memory_order_relaxed);
    results[i] = spec::Validate(specs[i]);
    if (!results[i].ok()) return;
    const SpecKey key = {where.context_id, spec::Canonicalise(specs[i])};
    if (impl_->table.Find(key) != nullptr) {
      impl_->memory_hits.fetch_add(1, std::memory_order_relaxed);
    } else {
      results[i] = impl_->PrepareOn(where, key, /*deliberate=*/true).status();
    }
  };
  ForEachInParallel(specs.size(), compile::CompileThreads(impl_->options.compile_threads), work);
  for (const absl::Status& result : results) TILEWRIGHT_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::StatusOr<TuneResult> Runtime::Tune(const AttentionSpec& spec, const TuneOptions& options,
                                         Stream stream) {
  Impl& impl = *impl_;
  if (getpid() != impl.pid) return ForkedError(impl.pid);
  if (impl.options.tune_policy == TunePolicy::kFrozen) {
    return absl::FailedPreconditionError("tune_policy is kFrozen: nothing is measured");
  }
  for (const int value : {options.budget_ms, options.max_candidates}) {
    if (value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("TuneOptions: budget_ms and max_candidates must be >= 0, one is ", value));
    }
  }
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceManager* const manager, impl.Devices());
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceManager::Current where,
                              manager->CurrentOrPrimary(impl.options.device_ordinal));
  if (stream != nullptr || manager->CurrentContext() != nullptr) {
    TILEWRIGHT_RETURN_IF_ERROR(impl.RefuseCapture(*manager, stream));
  }
  const SpecKey key = {where.context_id, spec::Canonicalise(spec)};
  if (key.spec.heads_q == 0) return absl::InvalidArgumentError("heads_q = 0: nothing to measure");
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("while tuning ", spec::ToText(key.spec)));
  };
  absl::StatusOr<plan::Decision> decision = impl.Decide(where, key.spec);
  if (!decision.ok()) return annotate(decision.status());
  const Tuning::Job job = impl.JobFor(where, key, *decision);
  const absl::StatusOr<Tuning::Measured> measured =
      impl.tuning->MeasureNow(job, options, Tuning::Caller::kOnDemand);
  if (!measured.ok()) return annotate(measured.status());
  const tune::TuningRecord& record = measured->record;
  if (!options.hot) impl.Swap(job, key, *decision, record);
  return TuneResult{.measured = measured->fresh,
                    .winner = record.winner,
                    .default_plan = record.default_plan,
                    .winner_ms = record.winner_ms,
                    .default_ms = record.default_ms,
                    .record = record.ToJson()};
}

bool Runtime::WaitForTuning(int timeout_ms) {
  return getpid() != impl_->pid || impl_->tuning->WaitUntilIdle(timeout_ms);
}

absl::Status Runtime::Run(const PreparedAttention& attention, const AttentionArgs& args,
                          Stream stream) const {
  if (!attention.valid()) {
    return absl::InvalidArgumentError("attention is empty: must come from Prepare");
  }
  if (getpid() != attention.state()->pid) return ForkedError(attention.state()->pid);
  const PreparedAttention::State& state = attention.state()->ForRun(stream);
  if (state.purpose != Purpose::kAttend) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention comes from ",
                     state.purpose == Purpose::kMerge ? "PrepareMerge" : "PrepareAppend",
                     ": must come from Prepare"));
  }
  return RunState(state, args, stream);
}

absl::Status Runtime::Merge(const PreparedAttention& merge, const MergeArgs& args,
                            Stream stream) const {
  if (!merge.valid() || merge.state()->purpose != Purpose::kMerge) {
    return absl::InvalidArgumentError("merge: must come from PrepareMerge");
  }
  const PreparedAttention::State& state = *merge.state();
  if (getpid() != state.pid) return ForkedError(state.pid);
  TILEWRIGHT_RETURN_IF_ERROR(ValidateMergeArgs(state.spec, args));
  if (state.kernels.empty()) return absl::OkStatus();
  const PreparedKernel& kernel = state.kernels[0];
  // However many there are: also of one part, or none, the result must be written.
  plan::CallPlan call;
  call.parts = 2;
  const plan::LaunchShape shape =
      plan::ComputeLaunchShape(kernel.plan, state.spec, AttentionArgsOfMerge(args), call);
  if (shape.grid == 0) return absl::OkStatus();
  alignas(16) std::byte params[kMaxParamBytes];
  PackMergeArgs(kernel.spec, kernel.layout, args, params);
  return kernel.resident->loaded->Launch(
      {shape.grid, shape.block, shape.smem_bytes, shape.overlaps}, params, stream);
}

absl::Status Runtime::Append(const PreparedAttention& append, const CacheAppendArgs& args,
                             Stream stream) const {
  if (!append.valid() || append.state()->purpose != Purpose::kAppend) {
    return absl::InvalidArgumentError("append: must come from PrepareAppend");
  }
  const PreparedAttention::State& state = *append.state();
  if (getpid() != state.pid) return ForkedError(state.pid);
  TILEWRIGHT_RETURN_IF_ERROR(spec::ValidateArgs(state.append, args));
  const PreparedKernel& kernel = state.kernels[0];
  const plan::LaunchShape shape = plan::CacheAppendLaunch(kernel.plan, args);
  if (shape.grid == 0) return absl::OkStatus();
  alignas(16) std::byte params[kMaxParamBytes];
  PackAppendArgs(state.append, state.frequencies, args,
                 plan::CacheAppendTileTokens(kernel.plan, args), params);
  return kernel.resident->loaded->Launch(
      {shape.grid, shape.block, shape.smem_bytes, shape.overlaps}, params, stream);
}

void Runtime::CancelCompiles() {
  if (getpid() == impl_->pid) impl_->builder->CancelCompiles();
}

RuntimeCounters Runtime::counters() const {
  const build::BuilderCounters built = impl_->builder->counters();
  const cache::StoreStats stored = impl_->store->Counters();
  RuntimeCounters counters;
  counters.prepares = impl_->prepares.load(std::memory_order_relaxed);
  counters.memory_hits = impl_->memory_hits.load(std::memory_order_relaxed);
  counters.store_hits = built.store_hits;
  counters.store_misses = built.store_misses;
  counters.compiles = built.compiles;
  counters.compile_ms = built.compile_ms;
  counters.loads = built.loads;
  counters.load_rejects = built.load_rejects;
  counters.fallbacks = impl_->fallbacks.load(std::memory_order_relaxed);
  counters.capture_refusals = impl_->capture_refusals.load(std::memory_order_relaxed);
  counters.evictions = impl_->evictions.load(std::memory_order_relaxed);
  counters.compile_failures = built.compile_failures;
  counters.compile_timeouts = built.compile_timeouts;
  counters.compile_cancels = built.compile_cancels;
  counters.helper_crashes = built.helper_crashes;
  counters.store_memory_hits = stored.memory_hits;
  counters.store_pack_hits = stored.pack_hits;
  counters.store_disk_hits = stored.disk_hits;
  counters.misses_absent = built.misses_absent;
  counters.misses_corrupt = built.misses_corrupt;
  counters.misses_foreign = built.misses_foreign;
  counters.misses_differ = built.misses_differ;
  counters.misses_unreadable = built.misses_unreadable;
  counters.publishes = stored.publishes;
  counters.publish_ms = stored.publish_ms;
  counters.publish_failures = stored.publish_failures;
  counters.publish_drops = built.publish_drops;
  counters.store_evictions = stored.evictions;
  counters.lock_waits = stored.lock_waits;
  counters.lock_wait_ms = stored.lock_wait_ms;
  counters.lock_timeouts = stored.lock_timeouts;
  counters.warnings_suppressed = impl_->logger.suppressed();
  const Tuning::Counters tuned = impl_->tuning->counters();
  counters.tunes = tuned.tunes;
  counters.tune_ms = tuned.tune_ms;
  counters.tune_failures = tuned.failures;
  counters.tune_postponed = tuned.postponed;
  counters.record_hits = tuned.record_hits;
  counters.nearest_hits = tuned.nearest_hits;
  counters.tuned_swaps = impl_->tuned_swaps.load(std::memory_order_relaxed);
  counters.churn_alarms = impl_->churn_alarms.load(std::memory_order_relaxed);
  return counters;
}

void Runtime::Flush() {
  if (getpid() == impl_->pid) impl_->builder->Flush();
}

absl::Status Attention(Runtime& runtime, const AttentionSpec& spec, const AttentionArgs& args,
                       Stream stream) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention attention, runtime.Prepare(spec, stream));
  return runtime.Run(attention, args, stream);
}

}  // namespace tilewright

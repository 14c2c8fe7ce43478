#include "build/kernel_builder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/elapsed.h"
#include "base/keep_forever.h"
#include "base/mutex.h"
#include "base/single_flight.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "build/entry_codec.h"
#include "build/miss_explainer.h"
#include "build/publisher.h"
#include "cache/entry_format.h"
#include "emit/emit_kernel.h"
#include "spec/canonical.h"
#include "tilewright/version.h"

namespace tilewright::build {
namespace {

// Raised when the meaning of a field of the manifest, or of a section of an entry, changes.
constexpr char kKeySchema[] = "1";

// Entries that the reason of a miss is looked for in; about 0.1 ms each.
constexpr size_t kMostEntriesCompared = 256;

using SharedKernel = std::shared_ptr<const BuiltKernel>;

// The counter of a miss, by the text that ArtifactStore::Get gives.
int64_t& MissCounter(BuilderCounters& counters, std::string_view reason) {
  const auto begins = [&](std::string_view with) { return reason.substr(0, with.size()) == with; };
  if (begins("corrupt")) return counters.misses_corrupt;
  if (begins("foreign")) return counters.misses_foreign;
  if (begins("manifest") || begins("variant")) return counters.misses_differ;
  if (begins("unreadable")) return counters.misses_unreadable;
  return counters.misses_absent;
}

// Whether the driver refused the image itself, as opposed to failing to load it here and now.
bool IsRejected(const absl::Status& status) {
  return status.GetPayload("tilewright/load_rejected").has_value();
}

std::string DriverVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// What `cache stats` sums up over processes. Empty when nothing happened: a process that built
// nothing writes nothing.
cache::Totals TotalsOf(const BuilderCounters& builder, const cache::StoreStats& store) {
  const cache::Totals all = {
      {"store_memory_hits", static_cast<double>(store.memory_hits)},
      {"store_pack_hits", static_cast<double>(store.pack_hits)},
      {"store_disk_hits", static_cast<double>(store.disk_hits)},
      {"misses_absent", static_cast<double>(builder.misses_absent)},
      {"misses_corrupt", static_cast<double>(builder.misses_corrupt)},
      {"misses_foreign", static_cast<double>(builder.misses_foreign)},
      {"misses_differ", static_cast<double>(builder.misses_differ)},
      {"misses_unreadable", static_cast<double>(builder.misses_unreadable)},
      {"compiles", static_cast<double>(builder.compiles)},
      {"compile_ms", builder.compile_ms},
      {"compile_failures", static_cast<double>(builder.compile_failures)},
      {"loads", static_cast<double>(builder.loads)},
      {"load_rejects", static_cast<double>(builder.load_rejects)},
      {"publishes", static_cast<double>(store.publishes)},
      {"publish_ms", store.publish_ms},
      {"publish_failures", static_cast<double>(store.publish_failures)},
      {"publish_drops", static_cast<double>(builder.publish_drops)},
      {"store_evictions", static_cast<double>(store.evictions)},
      {"lock_waits", static_cast<double>(store.lock_waits)},
      {"lock_wait_ms", store.lock_wait_ms},
      {"lock_timeouts", static_cast<double>(store.lock_timeouts)},
      {"warnings_suppressed", static_cast<double>(store.warnings_suppressed)},
  };
  const bool nothing =
      std::all_of(all.begin(), all.end(), [](const auto& total) { return total.second == 0; });
  return nothing ? cache::Totals{} : all;
}

}  // namespace

struct KernelBuilder::Impl {
  Impl(const emit::TemplateBundle* bundle, cache::ArtifactStore* store,
       const compile::NvrtcCompiler* compiler, const Logger* logger, const BuilderOptions& options)
      : bundle(bundle),
        store(store),
        compiler(compiler),
        logger(logger),
        options(options),
        pool(*compiler, options.pool),
        publisher(store, logger) {}

  BuilderCounters Counters() const;
  absl::StatusOr<SharedKernel> BuildShared(const KernelRequest& request);
  absl::StatusOr<SharedKernel> BuildOnce(const KernelRequest& request);
  std::optional<BuiltKernel> FromStore(const KernelRequest& request,
                                       const std::optional<std::string>& variant,
                                       std::string* miss_reason);
  // Adds to the reason of a miss what differs from the nearest entry of the same kernel.
  void AppendNearest(const KernelRequest& request, const std::optional<std::string>& variant,
                     std::string* reason);
  absl::StatusOr<SharedKernel> CompileAndPublish(
      const KernelRequest& request, const std::string& variant, std::string miss_reason,
      std::unique_ptr<cache::ArtifactStore::KeyLock> lock);
  absl::StatusOr<SharedKernel> Recompile(const KernelRequest& request, const std::string& why);
  absl::StatusOr<std::shared_ptr<const device::LoadedKernel>> Load(
      const KernelRequest& request, const BuiltKernel& kernel, const device::DriverApi& api,
      const device::DeviceManager::Current& where);

  const emit::TemplateBundle* const bundle;
  cache::ArtifactStore* const store;
  const compile::NvrtcCompiler* const compiler;
  const Logger* const logger;
  const BuilderOptions options;
  const pid_t pid = getpid();

  compile::CompilePool pool;
  SingleFlight<Digest, absl::StatusOr<SharedKernel>> flights;
  // Apart from `flights`, where a thread that has just read the refused entry may be under way.
  SingleFlight<Digest, absl::StatusOr<SharedKernel>> recompile_flights;

  mutable Mutex mutex;
  // Compiled and not yet published: the store does not have them, and this process holds their key
  // locks.
  absl::flat_hash_map<Digest, SharedKernel> pending ABSL_GUARDED_BY(mutex);
  BuilderCounters counters ABSL_GUARDED_BY(mutex);

  bool ended = false;      // Shutdown was called,
  bool abandoned = false;  // and the writer thread hangs in the store

  Publisher publisher;  // last: its thread uses what is above
};

KernelBuilder::KernelBuilder(const emit::TemplateBundle* bundle, cache::ArtifactStore* store,
                             const compile::NvrtcCompiler* compiler, const Logger* logger,
                             const BuilderOptions& options)
    : impl_(std::make_unique<Impl>(bundle, store, compiler, logger, options)) {}

KernelBuilder::~KernelBuilder() {
  // In a forked child the writer thread is missing and a mutex may be held by a thread that is
  // missing too: nothing of it may be touched.
  if (getpid() != impl_->pid) {
    (void)impl_.release();
    return;
  }
  (void)Shutdown(std::numeric_limits<int>::max());
  // The thread that was left comes back to it.
  if (impl_->abandoned) KeepForever(std::move(impl_));
}

bool KernelBuilder::Shutdown(int timeout_ms) {
  if (impl_->ended) return !impl_->abandoned;
  impl_->ended = true;
  const auto totals = [impl = impl_.get()] {
    return TotalsOf(impl->Counters(), impl->store->Counters());
  };
  if (impl_->options.add_to_totals && !totals().empty()) impl_->publisher.AddToTotals(totals);
  impl_->abandoned = !impl_->publisher.Shutdown(timeout_ms);
  return !impl_->abandoned;
}

LabelledHash KernelBuilder::Key(const artifact::KernelSource& source,
                                const plan::KernelPlan& plan) const {
  const std::vector<std::string> options =
      compile::CompileOptions(plan.target, impl_->options.lineinfo);
  LabelledHash hash;
  hash.Add("key_schema", kKeySchema)
      .Add("product", TILEWRIGHT_VERSION_STRING)
      .Add("family", plan::FamilyName(plan.family))
      .Add("entry", source.entry_name)
      .Add("target", plan.target)
      .Add("options", absl::StrJoin(options, "\n"))
      .Add("templates", impl_->bundle->digest.ToHex())
      .Add("unit_name", source.unit_name)
      .Add("unit_sha256", Sha256(source.text).ToHex());
  // The texts themselves are sections of the entry; the manifest stays short enough to read.
  for (const artifact::SourceFile& header : source.generated_headers) {
    hash.Add("header_name", header.name).Add("header_sha256", Sha256(header.text).ToHex());
  }
  return hash;
}

absl::StatusOr<KernelRequest> KernelBuilder::MakeRequest(const AttentionSpec& spec,
                                                         const plan::KernelPlan& plan) const {
  TILEWRIGHT_ASSIGN_OR_RETURN(artifact::KernelSource source, emit::EmitKernel(spec, plan));
  return MakeRequest(spec::ToText(spec), plan, std::move(source));
}

KernelRequest KernelBuilder::MakeRequest(std::string spec_text, const plan::KernelPlan& plan,
                                         artifact::KernelSource source) const {
  KernelRequest request;
  request.spec_text = std::move(spec_text);
  request.plan = plan;
  request.source = std::move(source);
  request.options = compile::CompileOptions(plan.target, impl_->options.lineinfo);
  request.manifest = Key(request.source, plan);
  request.key = request.manifest.digest();
  return request;
}

absl::StatusOr<std::vector<KernelRequest>> KernelBuilder::MakeRequests(
    const AttentionSpec& spec, const plan::KernelPlan& plan) const {
  std::vector<KernelRequest> requests;
  for (const plan::KernelPlan& kernel : plan.Kernels()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(requests.emplace_back(), MakeRequest(spec, kernel));
  }
  return requests;
}

std::optional<BuiltKernel> KernelBuilder::Impl::FromStore(const KernelRequest& request,
                                                          const std::optional<std::string>& variant,
                                                          std::string* miss_reason) {
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<cache::EntryPtr> entry =
      store->Get({request.key, variant}, request.manifest.manifest());
  if (!entry.ok()) {
    *miss_reason = std::string(entry.status().message());
    return std::nullopt;
  }
  absl::StatusOr<artifact::KernelBinary> binary =
      DecodeEntry(**entry, request.source.entry_name, request.plan.target);
  if (!binary.ok()) {
    // Its digest holds, so it was written like this; it would fail again each time.
    *miss_reason = absl::StrCat("corrupt: ", binary.status().message());
    publisher.Remove(request.key, cache::VariantHex((*entry)->variant));
    return std::nullopt;
  }
  {
    MutexLock lock(&mutex);
    ++counters.store_hits;
  }
  logger->Event(LogLevel::kInfo, "store_hit",
                {{"key", request.key.ToHex()},
                 {"entry", request.source.entry_name},
                 {"ms", MillisecondsSince(start)}});
  return BuiltKernel{*std::move(binary), BinaryOrigin::kStore, request.key, (*entry)->variant, ""};
}

void KernelBuilder::Impl::AppendNearest(const KernelRequest& request,
                                        const std::optional<std::string>& variant,
                                        std::string* reason) {
  const std::string nearest = DescribeNearest(
      *store, {request.manifest.manifest(), variant, request.source.text}, kMostEntriesCompared);
  if (!nearest.empty()) absl::StrAppend(reason, "; ", nearest);
}

absl::StatusOr<SharedKernel> KernelBuilder::Impl::CompileAndPublish(
    const KernelRequest& request, const std::string& variant, std::string miss_reason,
    std::unique_ptr<cache::ArtifactStore::KeyLock> lock) {
  const compile::CompileRequest compile_request = {request.source, bundle->files,
                                                   request.plan.target, request.options};
  absl::StatusOr<artifact::KernelBinary> binary = pool.Compile(compile_request);
  if (!binary.ok()) {
    MutexLock guard(&mutex);
    ++counters.compile_failures;
    return binary.status();
  }
  const artifact::ResourceUsage& usage = binary->usage;
  logger->Event(LogLevel::kInfo, "compile",
                {{"entry", request.source.entry_name},
                 {"target", request.plan.target},
                 {"ms", binary->compile_ms},
                 {"regs", usage.registers},
                 {"spills", usage.spill_store_bytes + usage.spill_load_bytes},
                 {"compiler", binary->compiler},
                 {"spec", request.spec_text}});
  // Asked for after the compile, which may have been the one that spoilt the process.
  const absl::StatusOr<compile::CompilerIdentity> now = compiler->Identity();
  const bool reproducible = now.ok() && now->reproducible;
  if (!reproducible) {
    logger->EventOnce(LogLevel::kWarning, "not_published", "not_published",
                      {{"entry", request.source.entry_name},
                       {"reason", "an option that NVRTC carries into later compiles was given"}});
  }
  cache::Entry entry = EncodeEntry(
      {request.manifest.manifest(), variant, request.spec_text, request.plan.ToString()},
      request.source, *binary);
  auto kernel = std::make_shared<const BuiltKernel>(BuiltKernel{
      *std::move(binary), BinaryOrigin::kCompiled, request.key, variant, std::move(miss_reason)});
  {
    MutexLock guard(&mutex);
    ++counters.compiles;
    counters.compile_ms += kernel->binary.compile_ms;
    if (!reproducible) {
      ++counters.publish_drops;
      return kernel;
    }
    pending.insert_or_assign(request.key, kernel);
  }
  publisher.Put(std::move(entry), std::move(lock), [this, kernel] {
    MutexLock guard(&mutex);
    // A recompiled kernel of the same key may have taken the place.
    auto it = pending.find(kernel->key);
    if (it != pending.end() && it->second == kernel) pending.erase(it);
  });
  return kernel;
}

absl::StatusOr<SharedKernel> KernelBuilder::Impl::BuildOnce(const KernelRequest& request) {
  {
    MutexLock lock(&mutex);
    auto it = pending.find(request.key);
    if (it != pending.end()) return it->second;
  }
  const absl::StatusOr<compile::CompilerIdentity> identity = compiler->Identity();
  std::optional<std::string> variant;
  if (identity.ok()) variant = identity->id;

  std::string reason;
  std::optional<BuiltKernel> stored = FromStore(request, variant, &reason);
  std::unique_ptr<cache::ArtifactStore::KeyLock> lock;
  if (!stored.has_value() && !options.frozen && identity.ok()) {
    // Another process may be compiling it; where it is, the entry is there when the lock is ours.
    lock = store->Lock(request.key, options.lock_timeout_ms);
    std::string second_reason;
    if (lock != nullptr) stored = FromStore(request, variant, &second_reason);
  }
  if (stored.has_value()) return std::make_shared<const BuiltKernel>(*std::move(stored));

  {
    MutexLock guard(&mutex);
    ++counters.store_misses;
    ++MissCounter(counters, reason);
  }
  if (options.explain_misses) AppendNearest(request, variant, &reason);
  logger->Event(
      LogLevel::kInfo, "store_miss",
      {{"key", request.key.ToHex()}, {"entry", request.source.entry_name}, {"reason", reason}});
  if (options.frozen) {
    return absl::FailedPreconditionError(
        absl::StrCat("frozen, and the kernel of \"", request.spec_text, "\" for ",
                     request.plan.target, " is not stored (", reason, "; key ", request.key.ToHex(),
                     "); compile it ahead of time or unset the frozen policy"));
  }
  if (!identity.ok()) {
    return Annotate(identity.status(),
                    absl::StrCat("no compiler for a kernel that is not stored (", reason, ")"));
  }
  return CompileAndPublish(request, *variant, std::move(reason), std::move(lock));
}

absl::StatusOr<SharedKernel> KernelBuilder::Impl::BuildShared(const KernelRequest& request) {
  return flights.Do(request.key, [&] { return BuildOnce(request); });
}

bool KernelBuilder::IsStored(const KernelRequest& request) {
  {
    MutexLock lock(&impl_->mutex);
    if (impl_->pending.find(request.key) != impl_->pending.end()) return true;
  }
  const absl::StatusOr<compile::CompilerIdentity> identity = impl_->compiler->Identity();
  std::optional<std::string> variant;
  if (identity.ok()) variant = identity->id;
  return impl_->store->Get({request.key, variant}, request.manifest.manifest()).ok();
}

absl::StatusOr<BuiltKernel> KernelBuilder::Build(const AttentionSpec& spec,
                                                 const plan::KernelPlan& plan) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const KernelRequest request, MakeRequest(spec, plan));
  return Build(request);
}

absl::StatusOr<BuiltKernel> KernelBuilder::Build(const KernelRequest& request) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const SharedKernel kernel, impl_->BuildShared(request));
  return *kernel;
}

absl::StatusOr<std::shared_ptr<const device::LoadedKernel>> KernelBuilder::Impl::Load(
    const KernelRequest& request, const BuiltKernel& kernel, const device::DriverApi& api,
    const device::DeviceManager::Current& where) {
  const auto start = std::chrono::steady_clock::now();
  auto loaded = device::LoadedKernel::Load(api, where, kernel.binary.cubin,
                                           {request.source.entry_name, request.plan.smem_bytes});
  if (loaded.ok()) {
    logger->Event(LogLevel::kInfo, "load",
                  {{"entry", request.source.entry_name},
                   {"device", where.device->ordinal},
                   {"ms", MillisecondsSince(start)}});
    MutexLock lock(&mutex);
    ++counters.loads;
  } else if (IsRejected(loaded.status())) {
    MutexLock lock(&mutex);
    ++counters.load_rejects;
  }
  return loaded;
}

absl::StatusOr<SharedKernel> KernelBuilder::Impl::Recompile(const KernelRequest& request,
                                                            const std::string& why) {
  if (options.frozen) {
    return absl::FailedPreconditionError(absl::StrCat(
        "frozen, and the stored kernel of \"", request.spec_text, "\" cannot be used: ", why));
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const compile::CompilerIdentity identity, compiler->Identity());
  return recompile_flights.Do(
      request.key, [&] { return CompileAndPublish(request, identity.id, why, nullptr); });
}

absl::StatusOr<KernelBuilder::Loaded> KernelBuilder::BuildAndLoad(
    const AttentionSpec& spec, const plan::KernelPlan& plan, const device::DriverApi& api,
    const device::DeviceManager::Current& where) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const KernelRequest request, MakeRequest(spec, plan));
  return BuildAndLoad(request, api, where);
}

absl::StatusOr<KernelBuilder::Loaded> KernelBuilder::BuildAndLoad(
    const KernelRequest& request, const device::DriverApi& api,
    const device::DeviceManager::Current& where) {
  TILEWRIGHT_ASSIGN_OR_RETURN(SharedKernel kernel, impl_->BuildShared(request));
  auto loaded = impl_->Load(request, *kernel, api, where);
  if (!loaded.ok() && IsRejected(loaded.status()) && kernel->origin == BinaryOrigin::kStore) {
    impl_->publisher.Remove(request.key, cache::VariantHex(kernel->variant));
    const std::string why = absl::StrCat("rejected by the driver: ", loaded.status().message());
    TILEWRIGHT_ASSIGN_OR_RETURN(kernel, impl_->Recompile(request, why));
    loaded = impl_->Load(request, *kernel, api, where);
  }
  if (loaded.ok()) return Loaded{*kernel, *std::move(loaded)};
  if (!IsRejected(loaded.status())) return loaded.status();
  // Nothing that is refused stays: another driver may take what this one does not, but it then
  // compiles for itself.
  impl_->publisher.Remove(request.key, cache::VariantHex(kernel->variant));
  const device::DeviceInfo& device = *where.device;
  return Annotate(
      loaded.status(),
      absl::StrCat("driver ", DriverVersionText(device.driver_version), " refuses the ",
                   kernel->binary.target, " kernel that ", kernel->binary.compiler,
                   " made for device ", device.ordinal, " (", device.board.name,
                   ", compute capability ", device.compute_major, ".", device.compute_minor,
                   "); use a driver at least as new as the compiler, or an older compiler"));
}

bool KernelBuilder::Flush(int timeout_ms) { return impl_->publisher.Flush(timeout_ms); }

void KernelBuilder::CancelCompiles() { impl_->pool.CancelAll(); }

BuilderCounters KernelBuilder::counters() const { return impl_->Counters(); }

BuilderCounters KernelBuilder::Impl::Counters() const {
  const compile::CompilePool::Counters of_pool = pool.counters();
  MutexLock lock(&mutex);
  BuilderCounters now = counters;
  now.compile_timeouts = of_pool.timeouts;
  now.compile_cancels = of_pool.cancelled;
  now.helper_crashes = of_pool.helper_crashes;
  now.publish_drops += publisher.dropped();
  return now;
}

}  // namespace tilewright::build

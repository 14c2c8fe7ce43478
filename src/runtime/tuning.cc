#include "runtime/tuning.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/elapsed.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cache/open_store.h"
#include "cache/record_files.h"
#include "cache/store_directory.h"
#include "compile/compile_pool.h"
#include "spec/canonical.h"
#include "tune/bucket.h"
#include "tune/device_bench.h"
#include "tune/gpu_lock.h"
#include "tune/shipped_records.h"

namespace tilewright {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Nobody waits for a measurement in the background; what was postponed was so for want of time.
constexpr int kLeastBackgroundBudgetMs = 10'000;

// Records made under other rules of planning are kept apart.
std::string PolicyText(const RuntimeOptions& options, bool hot) {
  std::string policy = hot ? "hot" : "cold";
  if (!options.family.empty()) absl::StrAppend(&policy, " family=", options.family);
  if (!options.template_dir.empty()) absl::StrAppend(&policy, " templates");
  return policy;
}

// Why a spec's plan may not depend on what was measured somewhere.
bool MustNotBeMeasured(const AttentionSpec& spec) {
  return spec.deterministic || spec.batch_invariant;
}

bool IsEmpty(const AttentionSpec& spec) {
  return spec.batch == 0 || spec.seqlen_q == 0 || spec.seqlen_kv == 0 || spec.heads_q == 0;
}

}  // namespace

std::unique_ptr<tune::TuningDb> OpenTuningDb(const RuntimeOptions& options, const Logger* logger) {
  const cache::StoreLocation location =
      cache::LocateStore({.directory = options.cache_dir, .in_memory = options.cache_in_memory});
  std::unique_ptr<cache::RecordFiles> user;
  if (!location.directory.empty()) {
    user = std::make_unique<cache::RecordFiles>(
        cache::RecordFilesOptions{.directory = location.directory,
                                  .read_only = options.cache_read_only,
                                  .group_shared = options.cache_group_shared});
  }
  std::vector<std::unique_ptr<cache::RecordFiles>> packs;
  // A pinned digest is of a pack file: directories have none, and are not trusted then.
  if (!options.cache_in_memory && options.pack_sha256.empty()) {
    for (const std::string& pack : options.cache_packs) {
      // Pack files hold kernels only.
      std::error_code error;
      if (!std::filesystem::is_directory(pack, error)) continue;
      packs.push_back(std::make_unique<cache::RecordFiles>(
          cache::RecordFilesOptions{.directory = cache::WithoutLinks(pack), .pack = true}));
    }
  }
  return std::make_unique<tune::TuningDb>(std::move(user), std::move(packs), tune::ShippedRecords(),
                                          logger);
}

tune::Match FindRecord(tune::TuningDb& db, const RuntimeOptions& options, tune::CodeDigests& code,
                       const AttentionSpec& spec, const tune::Environment& environment,
                       const std::vector<plan::KernelPlan>& candidates) {
  if (spec.batch_invariant || IsEmpty(spec) || candidates.empty()) return {};
  tune::Query query;
  query.bucket = tune::BucketOf(spec);
  query.spec = spec::ToText(spec);
  query.environment = environment;
  query.candidates = candidates;
  query.candidate_set = tune::CandidateSetDigest(candidates);
  query.code = code.Of(candidates);
  query.policy = PolicyText(options, /*hot=*/false);
  query.measured_here = options.tune_policy != TunePolicy::kOff && !MustNotBeMeasured(spec);
  return db.Find(query);
}

Tuning::Tuning(const RuntimeOptions& options, const emit::TemplateBundle* bundle,
               const Logger* logger, std::function<const device::DriverApi&()> api)
    : options_(options),
      code_(bundle),
      logger_(logger),
      api_(std::move(api)),
      allocator_{options.device_allocate, options.device_release},
      db_(OpenTuningDb(options, logger)),
      tuner_(compile::CompileThreads(options.compile_threads), logger) {}

void Tuning::Stop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  later_.clear();
  tuner_.Stop();
  changed_.SignalAll();
}

Tuning::~Tuning() {
  Stop();
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

Tuning::Verdict Tuning::Judge(const device::DeviceManager::Current& where,
                              const AttentionSpec& spec,
                              const std::vector<plan::KernelPlan>& candidates) {
  Verdict verdict;
  const device::DeviceInfo& device = *where.device;
  verdict.match = FindRecord(
      *db_, options_, code_, spec,
      tune::MakeEnvironment(device.board, device.traits.target, device.driver_version), candidates);
  const bool of_bucket = verdict.match.quality >= tune::MatchQuality::kBucket;
  MutexLock lock(&mutex_);
  if (of_bucket) {
    ++counters_.record_hits;
  } else if (verdict.match.quality != tune::MatchQuality::kNone) {
    ++counters_.nearest_hits;
    logger_->EventOnce(LogLevel::kWarning, tune::BucketOf(spec).kind, "outside_tuned_range",
                       {{"spec", spec::ToText(spec)}, {"record", verdict.match.ToText()}});
  }
  const bool measures = options_.tune_policy == TunePolicy::kFirstRun ||
                        options_.tune_policy == TunePolicy::kBackground;
  if (!measures || MustNotBeMeasured(spec) || IsEmpty(spec) || candidates.size() < 2) {
    return verdict;
  }
  if (of_bucket) {
    // What was measured with other code still serves, and is measured again when there is time.
    // Shipped records and packs are for whoever made them to renew.
    const bool renew = verdict.match.source == "user" && !verdict.match.stale.empty();
    verdict.measure = renew ? Measure::kLater : Measure::kNo;
    return verdict;
  }
  if (given_up_.contains(tune::BucketOf(spec).ToText())) return verdict;
  // Before anything is compiled for it.
  if (const auto bytes = tune::ScratchBytes(spec, {}); !bytes.ok()) {
    verdict.why_not = std::string(bytes.status().message());
    return verdict;
  }
  if (options_.tune_policy == TunePolicy::kBackground) {
    verdict.measure = Measure::kLater;
  } else if (spent_ms_ >= options_.tune_total_ms) {
    ++counters_.postponed;
    logger_->EventOnce(LogLevel::kWarning, "tune_total_spent", "tune_total_spent",
                       {{"ms", spent_ms_}, {"tune_total_ms", options_.tune_total_ms}});
  } else {
    verdict.measure = options_.tune_budget_ms > 0 ? Measure::kNow : Measure::kNo;
  }
  return verdict;
}

std::optional<tune::TuningRecord> Tuning::AlreadyThere(const tune::TuneRequest& request) {
  // Another process may have written it.
  db_->Refresh();
  std::optional<tune::TuningRecord> record =
      db_->Finished(tune::BucketOf(request.spec), request.environment, request.policy);
  const bool same = record.has_value() && !record->winner.empty() && record->code == request.code &&
                    record->candidate_set == tune::CandidateSetDigest(request.candidates);
  return same ? record : std::nullopt;
}

absl::StatusOr<Tuning::Measured> Tuning::MeasureWithin(const Job& job, const TuneOptions& options,
                                                       tune::TimePoint deadline, bool patient) {
  const device::DeviceInfo& device = *job.where.device;
  tune::TuneRequest request;
  request.spec = job.spec;
  request.traits = device.traits;
  request.environment =
      tune::MakeEnvironment(device.board, device.traits.target, device.driver_version);
  request.candidates = job.candidates;
  request.reference = job.reference;
  request.starter = job.starter;
  request.code = code_.Of(job.candidates);
  request.policy = PolicyText(options_, options.hot);
  request.max_candidates = options.max_candidates;
  request.deadline = deadline;
  request.patient = patient;
  if (!options.force) {
    if (auto there = AlreadyThere(request)) return Measured{*std::move(there), /*fresh=*/false};
  }
  request.unfinished =
      db_->Unfinished(tune::BucketOf(job.spec), request.environment, request.policy);
  if (options.force && request.unfinished.has_value()) {
    // Whoever insists may have mended what took a process down.
    std::erase_if(request.unfinished->candidates, [](const tune::CandidateResult& one) {
      return one.outcome == tune::Outcome::kSuspect;
    });
  }
  if (options.progress) {
    request.progress = [&](const tune::Progress& progress) {
      options.progress({.candidates = progress.candidates,
                        .settled = progress.settled,
                        .rounds = progress.rounds,
                        .elapsed_ms = progress.elapsed_ms,
                        .budget_ms = progress.budget_ms,
                        .best = progress.best,
                        .best_relative = progress.best_relative,
                        .done = progress.stage == tune::Progress::Stage::kDone});
    };
  }
  request.save = [&](const tune::TuningRecord& record) { (void)db_->SaveUnfinished(record); };
  tune::BenchOptions bench;
  bench.max_bytes = options_.tune_max_bytes;
  bench.cold = !options.hot;
  bench.scratch.lengths_q = options.lengths_q;
  bench.scratch.lengths_kv = options.lengths_kv;
  if (allocator_.allocate) bench.scratch.allocator = &allocator_;
  const std::string reference_name =
      job.reference.has_value() ? std::string(plan::FamilyName(job.reference->family)) : "";
  std::optional<tune::GpuLock> turn;
  steady_clock::time_point turn_began;
  std::optional<tune::TuningRecord> there;
  request.take_turn = [&]() -> absl::Status {
    turn = tune::GpuLock::Acquire(device.uuid, patient ? tune::TimePoint::max() : deadline,
                                  [this] { return tuner_.stopped(); });
    if (!turn.has_value()) {
      return absl::UnavailableError(
          "another tuner is measuring on this GPU, and went on for the whole budget");
    }
    turn_began = steady_clock::now();
    if (!options.force && (there = AlreadyThere(request)).has_value()) {
      return absl::AlreadyExistsError("another process has measured it meanwhile");
    }
    return absl::OkStatus();
  };
  request.end_turn = [&] {
    // Before it is let go: whoever puts turns of several processes together finds no two at once.
    logger_->Event(LogLevel::kDebug, "tune_turn",
                   {{"gpu", device.uuid}, {"held_ms", MillisecondsSince(turn_began)}});
    turn.reset();
  };
  absl::StatusOr<tune::TuningRecord> record = tuner_.Tune(
      request, job.workshop,
      [&](const tune::Trial& first,
          const tune::Trial* reference) -> absl::StatusOr<std::unique_ptr<tune::TestBench>> {
        return tune::DeviceBench::Create(api_(), job.where, job.spec, first, reference,
                                         reference != nullptr ? reference_name : "the default",
                                         bench);
      });
  if (there.has_value()) return Measured{*std::move(there), /*fresh=*/false};
  TILEWRIGHT_RETURN_IF_ERROR(record.status());
  if (const absl::Status saved = db_->Save(*record); !saved.ok()) {
    logger_->EventOnce(LogLevel::kWarning, "tuning_record_not_written", "tuning_record_not_written",
                       {{"spec", record->spec}, {"reason", saved.message()}});
  }
  return Measured{*std::move(record)};
}

absl::StatusOr<Tuning::Measured> Tuning::MeasureNow(const Job& job, const TuneOptions& options,
                                                    Caller caller) {
  const auto start = steady_clock::now();
  const bool patient = caller == Caller::kWarmup || caller == Caller::kBackground;
  const absl::StatusOr<Measured> record = MeasureWithin(
      job, options,
      options.budget_ms > 0 ? start + milliseconds(options.budget_ms) : tune::TimePoint::max(),
      patient);
  const double ms = MillisecondsSince(start);
  MutexLock lock(&mutex_);
  if (caller == Caller::kFirstCall || caller == Caller::kWarmup) spent_ms_ += ms;
  if (record.ok()) {
    counters_.tunes += record->fresh ? 1 : 0;
    counters_.tune_ms += ms;
  } else if (absl::IsUnavailable(record.status()) || absl::IsDeadlineExceeded(record.status())) {
    ++counters_.postponed;
  } else if (!absl::IsCancelled(record.status())) {
    ++counters_.failures;
    given_up_.insert(tune::BucketOf(job.spec).ToText());
  }
  if (!record.ok()) {
    logger_->Event(
        LogLevel::kInfo, "tune_failed",
        {{"spec", spec::ToText(job.spec)}, {"reason", record.status().message()}, {"ms", ms}});
  }
  return record;
}

void Tuning::MeasureLater(Job job, std::function<void()> before,
                          std::function<void(const tune::TuningRecord&)> done) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  later_.push_back({std::move(job), std::move(before), std::move(done)});
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { WorkLater(); });
    } catch (const std::system_error&) {
      later_.clear();  // no thread to be had: the plans there stay
    }
  }
  changed_.SignalAll();
}

void Tuning::WorkLater() {
  while (true) {
    Later next;
    {
      MutexLock lock(&mutex_);
      while (later_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      next = std::move(later_.front());
      later_.pop_front();
      busy_ = true;
    }
    TuneOptions options;
    options.budget_ms = std::max(options_.tune_budget_ms, kLeastBackgroundBudgetMs);
    options.max_candidates = options_.tune_candidates;
    next.before();
    const absl::StatusOr<Measured> record = MeasureNow(next.job, options, Caller::kBackground);
    if (record.ok()) next.done(record->record);
    MutexLock lock(&mutex_);
    busy_ = false;
    changed_.SignalAll();
  }
}

bool Tuning::WaitUntilIdle(int timeout_ms) {
  const auto deadline = steady_clock::now() + milliseconds(timeout_ms);
  MutexLock lock(&mutex_);
  while (busy_ || !later_.empty()) {
    if (!changed_.WaitUntil(&mutex_, deadline) && steady_clock::now() >= deadline) return false;
  }
  return true;
}

Tuning::Counters Tuning::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

}  // namespace tilewright

#include "tune/tuning_db.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tilewright::tune {
namespace {

constexpr char kUser[] = "user";
constexpr char kPack[] = "pack";
constexpr char kShipped[] = "shipped";

// Of records without a winner: no query asks with it.
std::string UnfinishedPolicy(std::string_view policy) {
  return absl::StrCat(AbslView(policy), " unfinished");
}

plan::KernelPlan Unsplit(plan::KernelPlan plan) {
  plan.split = false;
  plan.slots = 0;
  plan.before.clear();
  plan.after.clear();
  return plan;
}

// The winner where it is one of the candidates; none when it is not legal (any more).
std::optional<plan::KernelPlan> LegalWinner(const TuningRecord& record,
                                            absl::Span<const plan::KernelPlan> candidates) {
  const absl::StatusOr<plan::KernelPlan> winner = plan::ParsePlan(record.winner);
  if (!winner.ok()) return std::nullopt;
  if (std::find(candidates.begin(), candidates.end(), *winner) != candidates.end()) return *winner;
  // Whether keys are worth cutting into parts is a matter of sizes; both ways are legal for all.
  const plan::KernelPlan whole = Unsplit(*winner);
  const auto same = [&](const plan::KernelPlan& plan) { return Unsplit(plan) == whole; };
  if (std::none_of(candidates.begin(), candidates.end(), same)) return std::nullopt;
  return *winner;
}

std::vector<std::string> Staleness(const TuningRecord& record, const Query& query) {
  std::vector<std::string> stale;
  const Environment& then = record.environment;
  const Environment& now = query.environment;
  if (then.product != now.product) stale.emplace_back("product");
  if (now.driver_version != 0 && then.driver_version != now.driver_version) {
    stale.emplace_back("driver_version");
  }
  if (record.candidate_set != query.candidate_set) stale.emplace_back("candidate_set");
  if (record.code != query.code) stale.emplace_back("code");
  return stale;
}

// Larger is better: quality first, then the smaller distance.
struct Rank {
  MatchQuality quality = MatchQuality::kNone;
  double distance = 0;
  bool operator>(const Rank& other) const {
    return quality != other.quality ? quality > other.quality : distance < other.distance;
  }
};

Rank RankOf(const TuningRecord& record, const Query& query) {
  Rank rank;
  if (record.policy != query.policy || record.environment.target != query.environment.target) {
    return rank;
  }
  rank.distance = Distance(record.bucket, query.bucket);
  const bool same_gpu = record.environment.SameGpu(query.environment);
  if (same_gpu && record.bucket == query.bucket) {
    rank.quality = record.spec == query.spec ? MatchQuality::kExact : MatchQuality::kBucket;
  } else if (same_gpu && rank.distance <= kNearestOctaves) {
    rank.quality = MatchQuality::kNearest;
  } else if (!same_gpu && rank.distance <= kOtherBoardOctaves) {
    rank.quality = MatchQuality::kOtherBoard;
  }
  return rank;
}

absl::StatusOr<std::string> ReadRecord(const cache::RecordFiles* files,
                                       absl::Span<const ShippedRecord> embedded,
                                       const Digest& key) {
  if (files != nullptr) return files->Read(key);
  const std::string name = embedded.empty() ? "" : key.ToHex();
  for (const ShippedRecord& record : embedded) {
    if (record.key == name) return cache::OpenRecord(record.file);
  }
  return absl::NotFoundError("no such record");
}

}  // namespace

std::string_view MatchQualityName(MatchQuality quality) {
  switch (quality) {
    case MatchQuality::kNone:
      return "none";
    case MatchQuality::kOtherBoard:
      return "other_board";
    case MatchQuality::kNearest:
      return "nearest";
    case MatchQuality::kBucket:
      return "bucket";
    case MatchQuality::kExact:
      return "exact";
  }
  return "unknown";
}

std::string Match::ToText() const {
  std::string text;
  if (quality == MatchQuality::kNone) {
    text = "no record: the cost model's estimate";
  } else {
    text = absl::StrCat(AbslView(MatchQualityName(quality)), " record (", source, ") of ",
                        record.bucket.ToText());
    if (quality == MatchQuality::kOtherBoard) {
      absl::StrAppend(&text, " on ", record.environment.gpu);
    }
    absl::StrAppend(&text, ", measured ", record.date, ": ");
    if (record.winner == record.default_plan) {
      absl::StrAppendFormat(&text, "the default is the quickest, %.4g ms", record.default_ms);
    } else {
      absl::StrAppendFormat(&text, "%.4g ms, the default takes %.4g ms", record.winner_ms,
                            record.default_ms);
    }
    absl::StrAppendFormat(&text, " (noise band %.1f %%)", 100 * record.band);
    if (!stale.empty()) absl::StrAppend(&text, "; stale: ", absl::StrJoin(stale, ", "));
  }
  for (const std::string& why : passed_over) absl::StrAppend(&text, "; passed over: ", why);
  return text;
}

TuningDb::TuningDb(std::unique_ptr<cache::RecordFiles> user,
                   std::vector<std::unique_ptr<cache::RecordFiles>> packs,
                   absl::Span<const ShippedRecord> shipped, const Logger* logger)
    : user_(std::move(user)), packs_(std::move(packs)), logger_(logger) {
  sources_.push_back({.name = kUser, .files = user_.get()});
  for (const auto& pack : packs_) sources_.push_back({.name = kPack, .files = pack.get()});
  sources_.push_back({.name = kShipped, .embedded = shipped});
}

std::optional<TuningRecord> TuningDb::Load(Source& source, const Digest& key) {
  if (const auto found = source.records.find(key); found != source.records.end()) {
    return found->second;
  }
  if (source.complete) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadRecord(source.files, source.embedded, key);
  if (!text.ok()) {
    if (!absl::IsNotFound(text.status())) {
      logger_->EventOnce(LogLevel::kWarning, key.ToHex(), "tuning_record_unusable",
                         {{"key", key.ToHex()}, {"reason", text.status().message()}});
    }
    return std::nullopt;
  }
  absl::StatusOr<TuningRecord> record = ParseRecord(*text);
  // Under a foreign name it would be found for a bucket that it is not of.
  if (record.ok() && record->Key() != key) {
    record = absl::InvalidArgumentError("tuning record: it lies under the name of another");
  }
  if (!record.ok()) {
    logger_->EventOnce(LogLevel::kWarning, key.ToHex(), "tuning_record_unusable",
                       {{"key", key.ToHex()}, {"reason", record.status().message()}});
    return std::nullopt;
  }
  source.records[key] = *record;
  return *std::move(record);
}

void TuningDb::LoadKind(Source& source, std::string_view kind) {
  // As ToJson writes it; looking for it is much quicker than parsing.
  const std::string text = absl::StrCat("\"kind\": ", nlohmann::json(kind).dump());
  for (const ShippedRecord& shipped : source.embedded) {
    const std::optional<Digest> key = Digest::FromHex(shipped.key);
    if (key.has_value() && shipped.file.find(text) != std::string_view::npos) {
      (void)Load(source, *key);
    }
  }
  if (source.complete || source.files == nullptr) return;
  for (const Digest& key : source.files->List()) (void)Load(source, key);
  source.complete = true;
}

Match TuningDb::Find(const Query& query) {
  const Digest key = RecordKey(query.bucket, query.environment, query.policy);
  MutexLock lock(&mutex_);
  Match best;
  Rank best_rank;
  const auto consider = [&](const Source& source, const TuningRecord& record) {
    const Rank rank = RankOf(record, query);
    if (rank.quality == MatchQuality::kNone || !(rank > best_rank) || record.winner.empty()) {
      return;
    }
    std::optional<plan::KernelPlan> plan = LegalWinner(record, query.candidates);
    if (!plan.has_value()) {
      if (rank.quality >= MatchQuality::kBucket) {
        best.passed_over.push_back(absl::StrCat(AbslView(MatchQualityName(rank.quality)),
                                                " record (", source.name, "): ", record.winner,
                                                " is no candidate any more"));
      }
      return;
    }
    best_rank = rank;
    best.quality = rank.quality;
    best.record = record;
    best.plan = std::move(plan);
    best.source = source.name;
    best.stale = Staleness(record, query);
  };
  const auto usable = [&](const Source& source) {
    return query.measured_here || source.name == kShipped;
  };
  for (Source& source : sources_) {
    if (!usable(source)) continue;
    if (const std::optional<TuningRecord> record = Load(source, key)) consider(source, *record);
  }
  if (best.quality >= MatchQuality::kBucket) return best;
  for (Source& source : sources_) {
    if (!usable(source)) continue;
    LoadKind(source, query.bucket.kind);
    // In an order that does not depend on the hash: equals must not flip between processes.
    std::map<Digest, const TuningRecord*> ordered;
    for (const auto& [other, record] : source.records) ordered.emplace(other, &record);
    for (const auto& [other, record] : ordered) consider(source, *record);
  }
  return best;
}

std::optional<TuningRecord> TuningDb::Finished(const Bucket& bucket, const Environment& environment,
                                               std::string_view policy) {
  MutexLock lock(&mutex_);
  return Load(sources_.front(), RecordKey(bucket, environment, policy));
}

std::optional<TuningRecord> TuningDb::Unfinished(const Bucket& bucket,
                                                 const Environment& environment,
                                                 std::string_view policy) {
  MutexLock lock(&mutex_);
  return Load(sources_.front(), RecordKey(bucket, environment, UnfinishedPolicy(policy)));
}

absl::Status TuningDb::Save(const TuningRecord& record) {
  const Digest unfinished =
      RecordKey(record.bucket, record.environment, UnfinishedPolicy(record.policy));
  {
    MutexLock lock(&mutex_);
    sources_.front().records[record.Key()] = record;
    sources_.front().records.erase(unfinished);
  }
  if (user_ == nullptr) return absl::OkStatus();
  TILEWRIGHT_RETURN_IF_ERROR(user_->Write(record.Key(), record.ToJson(), /*durable=*/true));
  return user_->Remove(unfinished);
}

absl::Status TuningDb::SaveUnfinished(TuningRecord record) {
  record.policy = UnfinishedPolicy(record.policy);
  {
    MutexLock lock(&mutex_);
    sources_.front().records[record.Key()] = record;
  }
  if (user_ == nullptr) return absl::OkStatus();
  return user_->Write(record.Key(), record.ToJson(), /*durable=*/false);
}

void TuningDb::Refresh() {
  MutexLock lock(&mutex_);
  Source& user = sources_.front();
  if (user.files == nullptr) return;
  user.records.clear();
  user.complete = false;
}

}  // namespace tilewright::tune

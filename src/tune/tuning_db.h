// Where tuning records are looked for, and how good a match is.
#ifndef TILEWRIGHT_TUNE_TUNING_DB_H_
#define TILEWRIGHT_TUNE_TUNING_DB_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/mutex.h"
#include "cache/record_files.h"
#include "plan/kernel_plan.h"
#include "tune/bucket.h"
#include "tune/record.h"
#include "tune/shipped_records.h"

namespace tilewright::tune {

enum class MatchQuality {
  kNone,
  kOtherBoard,  // of another board with the same target: same kind of problem, sizes near
  kNearest,     // of this GPU: same kind of problem, sizes near
  kBucket,      // of this GPU and bucket
  kExact,       // and measured at these sizes
};
std::string_view MatchQualityName(MatchQuality quality);

struct Match {
  MatchQuality quality = MatchQuality::kNone;
  TuningRecord record;                   // none for kNone
  std::optional<plan::KernelPlan> plan;  // the record's winner; one of the candidates asked with,
                                         // but for the parts that its keys are cut into
  std::string source;                    // "user", "pack", "shipped"
  std::vector<std::string> stale;        // what differs: "driver_version", "candidate_set", ...
  std::vector<std::string> passed_over;  // records that matched better and could not be used: why

  // "bucket record of ..., measured 2026-11-29: attn_... is 1.08 times as fast as the default"
  std::string ToText() const;
};

// A record further than this, in octaves of batch and lengths, is no neighbour.
inline constexpr double kNearestOctaves = 3;
inline constexpr double kOtherBoardOctaves = 1;

struct Query {
  Bucket bucket;
  std::string spec;  // in words
  Environment environment;
  absl::Span<const plan::KernelPlan> candidates;  // legal ones
  std::string candidate_set;
  std::string code;           // digest of the templates now
  bool measured_here = true;  // records of the user's store and packs, not only shipped ones
  std::string policy = "cold";
};

// Thread-safe. Reads files; nothing here may be called on the path of Run.
class TuningDb {
 public:
  // `user` may be null: then what is saved is remembered in memory only. `shipped` must outlive
  // this; of them no more is read than a query asks for.
  TuningDb(std::unique_ptr<cache::RecordFiles> user,
           std::vector<std::unique_ptr<cache::RecordFiles>> packs,
           absl::Span<const ShippedRecord> shipped, const Logger* logger);

  // The best match. A record whose winner is none of the candidates (any more) is passed over.
  Match Find(const Query& query);

  // The record of this very bucket and GPU in the user's store.
  std::optional<TuningRecord> Finished(const Bucket& bucket, const Environment& environment,
                                       std::string_view policy);
  // What a tuning of it had found out when it was killed: a record without a winner, which lies
  // beside the finished one until there is a newer one.
  std::optional<TuningRecord> Unfinished(const Bucket& bucket, const Environment& environment,
                                         std::string_view policy);

  // Remembers the record, and writes it where there is a store to write to. A failure to write is
  // returned; the record is remembered all the same.
  absl::Status Save(const TuningRecord& record);
  absl::Status SaveUnfinished(TuningRecord record);

  // Forgets what is remembered of the user's records, so that those of other processes are seen.
  void Refresh();

 private:
  struct Source {
    std::string name;
    const cache::RecordFiles* files = nullptr;  // null: records only, or `embedded`
    absl::Span<const ShippedRecord> embedded = {};
    absl::flat_hash_map<Digest, TuningRecord> records = {};  // read so far
    bool complete = false;                                   // every file was read
  };

  std::optional<TuningRecord> Load(Source& source, const Digest& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that can be near a bucket of this kind.
  void LoadKind(Source& source, std::string_view kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<cache::RecordFiles> user_;
  const std::vector<std::unique_ptr<cache::RecordFiles>> packs_;
  const Logger* const logger_;
  Mutex mutex_;
  std::vector<Source> sources_ ABSL_GUARDED_BY(mutex_);  // user, packs, shipped
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_TUNING_DB_H_

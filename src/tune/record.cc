#include "tune/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/labelled_hash.h"
#include "base/status_macros.h"
#include "tilewright/version.h"

namespace tilewright::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr size_t kDigestDigits = 16;

struct OutcomeRow {
  Outcome outcome;
  std::string_view name;
};
constexpr OutcomeRow kOutcomes[] = {
    {Outcome::kUntried, "untried"}, {Outcome::kChecked, "checked"},   {Outcome::kTimed, "timed"},
    {Outcome::kStopped, "stopped"}, {Outcome::kRejected, "rejected"}, {Outcome::kFailed, "failed"},
    {Outcome::kWrong, "wrong"},     {Outcome::kSuspect, "suspect"},
};

// Reads the fields of one object; the first problem stays.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  void Read(const char* field, std::string* value) {
    if (const Json* found = Find(field, &Json::is_string)) *value = found->get<std::string>();
  }
  void Read(const char* field, double* value) {
    if (const Json* found = Find(field, &Json::is_number)) *value = found->get<double>();
  }
  void Read(const char* field, int64_t* value) {
    if (const Json* found = Find(field, &Json::is_number_integer)) *value = found->get<int64_t>();
  }
  void Read(const char* field, int* value) {
    if (const Json* found = Find(field, &Json::is_number_integer)) *value = found->get<int>();
  }
  void Read(const char* field, bool* value) {
    if (const Json* found = Find(field, &Json::is_boolean)) *value = found->get<bool>();
  }
  const Json* Object(const char* field) { return Find(field, &Json::is_object); }
  const Json* Array(const char* field) { return Find(field, &Json::is_array); }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* field, bool (Json::*is)() const noexcept) {
    const auto found = object_.find(field);
    if (found != object_.end() && ((*found).*is)()) return &*found;
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("tuning record: \"", field, "\" is missing or of the wrong type"));
    }
    return nullptr;
  }

  const Json& object_;
  absl::Status status_;
};

absl::StatusOr<CandidateResult> ReadCandidate(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("tuning record: a candidate is no object");
  }
  CandidateResult result;
  std::string outcome;
  Reader reader(json);
  reader.Read("plan", &result.plan);
  reader.Read("outcome", &outcome);
  reader.Read("reason", &result.reason);
  reader.Read("ms", &result.ms);
  reader.Read("relative", &result.relative);
  reader.Read("band", &result.band);
  reader.Read("samples", &result.samples);
  reader.Read("registers", &result.registers);
  reader.Read("compile_ms", &result.compile_ms);
  TILEWRIGHT_RETURN_IF_ERROR(reader.status());
  for (const OutcomeRow& row : kOutcomes) {
    if (row.name == outcome) {
      result.outcome = row.outcome;
      return result;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tuning record: outcome \"", outcome, "\" is none that is known"));
}

}  // namespace

bool Environment::SameGpu(const Environment& other) const {
  return gpu == other.gpu && target == other.target && num_sms == other.num_sms &&
         memory_clock_khz == other.memory_clock_khz && memory_bus_bits == other.memory_bus_bits &&
         l2_bytes == other.l2_bytes;
}

Environment MakeEnvironment(const arch::BoardProfile& board, std::string_view target,
                            int driver_version) {
  return {.gpu = board.name,
          .target = std::string(target),
          .num_sms = board.num_sms,
          .memory_clock_khz = board.memory_clock_khz,
          .memory_bus_bits = board.memory_bus_bits,
          .l2_bytes = board.l2_bytes,
          .product = TILEWRIGHT_VERSION_STRING,
          .driver_version = driver_version};
}

std::string_view OutcomeName(Outcome outcome) {
  for (const OutcomeRow& row : kOutcomes) {
    if (row.outcome == outcome) return row.name;
  }
  return "unknown";
}

Digest RecordKey(const Bucket& bucket, const Environment& environment, std::string_view policy) {
  return LabelledHash()
      .Add("bucket", bucket.ToText())
      .Add("gpu", environment.gpu)
      .Add("target", environment.target)
      .Add("num_sms", std::to_string(environment.num_sms))
      .Add("memory_clock_khz", std::to_string(environment.memory_clock_khz))
      .Add("memory_bus_bits", std::to_string(environment.memory_bus_bits))
      .Add("l2_bytes", std::to_string(environment.l2_bytes))
      .Add("policy", policy)
      .digest();
}

Digest TuningRecord::Key() const { return RecordKey(bucket, environment, policy); }

std::string CandidateSetDigest(absl::Span<const plan::KernelPlan> candidates) {
  std::vector<std::string> texts;
  for (const plan::KernelPlan& plan : candidates) texts.push_back(plan.ToString());
  std::sort(texts.begin(), texts.end());
  return Sha256(absl::StrJoin(texts, "\n")).ToHex().substr(0, kDigestDigits);
}

std::string TuningRecord::ToJson() const {
  Json list = Json::array();
  for (const CandidateResult& one : candidates) {
    list.push_back({{"plan", one.plan},
                    {"outcome", std::string(OutcomeName(one.outcome))},
                    {"reason", one.reason},
                    {"ms", one.ms},
                    {"relative", one.relative},
                    {"band", one.band},
                    {"samples", one.samples},
                    {"registers", one.registers},
                    {"compile_ms", one.compile_ms}});
  }
  const Json json = {{"schema", kSchema},
                     {"bucket",
                      {{"kind", bucket.kind},
                       {"batch", bucket.batch},
                       {"seqlen_q", bucket.seqlen_q},
                       {"seqlen_kv", bucket.seqlen_kv}}},
                     {"spec", spec},
                     {"timed", timed},
                     {"environment",
                      {{"gpu", environment.gpu},
                       {"target", environment.target},
                       {"num_sms", environment.num_sms},
                       {"memory_clock_khz", environment.memory_clock_khz},
                       {"memory_bus_bits", environment.memory_bus_bits},
                       {"l2_bytes", environment.l2_bytes},
                       {"product", environment.product},
                       {"driver_version", environment.driver_version}}},
                     {"policy", policy},
                     {"candidate_set", candidate_set},
                     {"code", code},
                     {"checked_against", checked_against},
                     {"winner", winner},
                     {"default", default_plan},
                     {"winner_ms", winner_ms},
                     {"default_ms", default_ms},
                     {"band", band},
                     {"rounds", rounds},
                     {"disturbed", disturbed},
                     {"clocks",
                      {{"why_unknown", clocks.why_unknown},
                       {"least_sm_mhz", clocks.least_sm_mhz},
                       {"most_sm_mhz", clocks.most_sm_mhz},
                       {"most_celsius", clocks.most_celsius},
                       {"limits", clocks.limits}}},
                     {"budget_cut", budget_cut},
                     {"note", note},
                     {"date", date},
                     {"tune_ms", tune_ms},
                     {"candidates", std::move(list)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TuningRecord> ParseRecord(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("tuning record: no JSON object");
  TuningRecord record;
  int schema = 0;
  Reader reader(json);
  reader.Read("schema", &schema);
  if (reader.status().ok() && schema != kSchema) {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning record: schema is ", schema, ", this version reads ", kSchema));
  }
  if (const Json* bucket = reader.Object("bucket")) {
    Reader fields(*bucket);
    fields.Read("kind", &record.bucket.kind);
    fields.Read("batch", &record.bucket.batch);
    fields.Read("seqlen_q", &record.bucket.seqlen_q);
    fields.Read("seqlen_kv", &record.bucket.seqlen_kv);
    TILEWRIGHT_RETURN_IF_ERROR(fields.status());
  }
  reader.Read("spec", &record.spec);
  reader.Read("timed", &record.timed);
  if (const Json* environment = reader.Object("environment")) {
    Environment& env = record.environment;
    Reader fields(*environment);
    fields.Read("gpu", &env.gpu);
    fields.Read("target", &env.target);
    fields.Read("num_sms", &env.num_sms);
    fields.Read("memory_clock_khz", &env.memory_clock_khz);
    fields.Read("memory_bus_bits", &env.memory_bus_bits);
    fields.Read("l2_bytes", &env.l2_bytes);
    fields.Read("product", &env.product);
    fields.Read("driver_version", &env.driver_version);
    TILEWRIGHT_RETURN_IF_ERROR(fields.status());
  }
  reader.Read("policy", &record.policy);
  reader.Read("candidate_set", &record.candidate_set);
  reader.Read("code", &record.code);
  reader.Read("checked_against", &record.checked_against);
  reader.Read("winner", &record.winner);
  reader.Read("default", &record.default_plan);
  reader.Read("winner_ms", &record.winner_ms);
  reader.Read("default_ms", &record.default_ms);
  reader.Read("band", &record.band);
  reader.Read("rounds", &record.rounds);
  reader.Read("disturbed", &record.disturbed);
  // Records of before clocks were looked at have none.
  record.clocks.why_unknown = "not recorded";
  if (const auto clocks = json.find("clocks"); clocks != json.end() && clocks->is_object()) {
    Reader fields(*clocks);
    fields.Read("why_unknown", &record.clocks.why_unknown);
    fields.Read("least_sm_mhz", &record.clocks.least_sm_mhz);
    fields.Read("most_sm_mhz", &record.clocks.most_sm_mhz);
    fields.Read("most_celsius", &record.clocks.most_celsius);
    fields.Read("limits", &record.clocks.limits);
    TILEWRIGHT_RETURN_IF_ERROR(fields.status());
  }
  reader.Read("budget_cut", &record.budget_cut);
  reader.Read("note", &record.note);
  reader.Read("date", &record.date);
  reader.Read("tune_ms", &record.tune_ms);
  if (const Json* candidates = reader.Array("candidates")) {
    for (const Json& one : *candidates) {
      TILEWRIGHT_ASSIGN_OR_RETURN(CandidateResult result, ReadCandidate(one));
      record.candidates.push_back(std::move(result));
    }
  }
  TILEWRIGHT_RETURN_IF_ERROR(reader.status());
  return record;
}

}  // namespace tilewright::tune

// What tuning costs and what it is worth, on a machine with a GPU:
//   first_call    an unknown spec to its first answer in a new process with an empty store, beyond
//                 cuInit and the context: kBackground against one compile, kFirstRun against its
//                 budget, then both with the store warm
//   regret        the winner of a bounded tuning (the default options), and the default, held
//                 against the quickest of all candidates in one measurement of all
//   flips         how often repeated tunings of one spec end with another winner than most, and
//   what
//                 that costs
//   turns         whether two processes ever had the device for measuring at once (they must not)
//   kept          device memory that a tuning keeps (none)
//
//   tuner_bench measure [--first-call] [--regret [--from A] [--to B] [--jobs N] [--family NAME]]
//                       [--flips N] [--shapes FILE] [--kernels STORE] --raw OUT
//   tuner_bench results [--commit HASH] --results FILE RAW...
//
// Measurements append lines of JSON to OUT as they are made, so that they may be spread over
// several runs; `results` makes the result file of them; of equal measurements the last one counts.
// Specs are measured by other processes, --jobs of them, and one that dies costs the line of one
// spec. --regret takes the specs A <= n < B of the file (all); those of several processes wait for
// one another's turns on the GPU, which does not make tunings look better. --kernels is a store
// that `tilewright compile --matrix FILE --candidates 0` has filled, or begun to fill: what it
// lacks is compiled into it before a tuning is judged. Tunings are then those of a process that has
// the time to compile all that it wants to try (kBackground has). Without it they compile, and what
// the budget leaves is tried.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/elapsed.h"
#include "base/status_macros.h"
#include "bench/read_flags.h"
#include "bench/result_file.h"
#include "compile/nvrtc_compiler.h"
#include "device/driver_api.h"
#include "device/memory.h"
#include "tilewright/runtime.h"
#include "tune/record.h"
#include "tune/scratch.h"

namespace tilewright::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kFirstCallSpec[] = "fwd bf16 b=3 h=12/4 s=1777/1777 d=96/96 causal lse";
// Of other families, for the budget of kFirstRun, once each.
constexpr const char* kFirstRunSpecs[] = {
    "fwd bf16 b=5 h=24/4 s=1/3001 d=128/128 causal paged=16 varlen",
    "fwd fp16 b=512 h=3/3 s=49/49 d=32/32 bias=fp16:1,3,49,49",
    "fwd fp16 b=6 h=8/8 s=333/333 d=72/72 alibi softcap=20",
    "bwd bf16 b=3 h=12/4 s=777/777 d=96/96 causal",
};
constexpr int kFirstCalls = 5;  // of each policy, in processes of their own
constexpr double kBackgroundLimitMs = 1000;
constexpr double kBackgroundCompiles = 1.2;
constexpr double kFirstRunLimitMs = 4000;
constexpr double kWarmLimitMs = 30;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The driver with the primary context of device 0 current.
absl::StatusOr<std::shared_ptr<device::DeviceManager>> OpenMachine() {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::shared_ptr<device::DeviceManager> devices,
                              device::DeviceManager::Create());
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto current, devices->CurrentOrPrimary(0));
  TILEWRIGHT_CU_RETURN_IF_ERROR(devices->api(), cuCtxSetCurrent, current.context);
  TILEWRIGHT_CU_RETURN_IF_ERROR(devices->api(), cuCtxSynchronize);
  return devices;
}

RuntimeOptions OptionsFor(const std::string& cache_dir, TunePolicy policy) {
  RuntimeOptions options;
  options.cache_dir = cache_dir;
  options.tune_policy = policy;
  return options;
}

// ---- in a child: one first call -----------------------------------------------------------------

// `measured`: waits for what a tuning in the background finds out, so that the store has it.
absl::StatusOr<Json> FirstCall(const std::string& policy, const std::string& cache_dir,
                               bool measured, const std::string& text) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto devices, OpenMachine());
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ParseSpec(text));
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::OwnedStream stream,
                              device::OwnedStream::Create(devices->api()));
  TILEWRIGHT_ASSIGN_OR_RETURN(const tune::ScratchProblem problem,
                              tune::ScratchProblem::Create(devices->api(), spec, {}, stream.get()));
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t free_before, device::FreeDeviceMemory(devices->api()));
  const TunePolicy chosen = policy == "background"  ? TunePolicy::kBackground
                            : policy == "first_run" ? TunePolicy::kFirstRun
                                                    : TunePolicy::kOff;
  const auto start = Clock::now();
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                              Runtime::Create(OptionsFor(cache_dir, chosen)));
  TILEWRIGHT_ASSIGN_OR_RETURN(PreparedAttention attention, runtime->Prepare(spec, stream.get()));
  const double prepare_ms = MillisecondsSince(start);
  const auto run = [&]() -> absl::Status {
    AttentionArgs args = problem.args();
    TILEWRIGHT_ASSIGN_OR_RETURN(const size_t bytes, attention.workspace_bytes(args));
    TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceBuffer workspace,
                                device::DeviceBuffer::Allocate(devices->api(), bytes));
    args.workspace = workspace.data();
    TILEWRIGHT_RETURN_IF_ERROR(runtime->Run(attention, args, stream.get()));
    return stream.Synchronize();
  };
  TILEWRIGHT_RETURN_IF_ERROR(run());
  const double first_ms = MillisecondsSince(start);
  const RuntimeCounters after = runtime->counters();
  if (measured) {
    if (!runtime->WaitForTuning(60'000)) return absl::DeadlineExceededError("still tuning");
    TILEWRIGHT_RETURN_IF_ERROR(run());
  }
  const double idle_ms = MillisecondsSince(start);
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t free_after, device::FreeDeviceMemory(devices->api()));
  const RuntimeCounters end = runtime->counters();
  return Json{{"kind", "first_call"},
              {"spec", text},
              {"policy", policy},
              {"prepare_ms", prepare_ms},
              {"first_ms", first_ms},
              {"compiles", after.compiles},
              {"compile_ms", after.compile_ms},
              {"record_hits", after.record_hits},
              {"tunes", end.tunes},
              {"tuned_swaps", end.tuned_swaps},
              {"idle_ms", idle_ms},
              {"kept_bytes", static_cast<int64_t>(free_before) - static_cast<int64_t>(free_after)},
              {"explain", attention.Explain()}};
}

absl::StatusOr<Json> Machine() {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto devices, OpenMachine());
  const auto nvrtc = compile::NvrtcCompiler({}).Version();
  return Json{{"kind", "machine"},
              {"device", devices->devices()[0].board.name},
              {"driver", InstalledDriverVersion()},
              {"nvrtc", nvrtc.ok() ? *nvrtc : std::string("unknown")}};
}

// ---- in a child: one spec -----------------------------------------------------------------------

// When the device was held for measuring: milliseconds of the system's clock, which processes
// share.
class Turns {
 public:
  LogSink sink() {
    return [this](LogLevel, std::string_view line) {
      const double end = std::chrono::duration<double, std::milli>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
      constexpr std::string_view kHeld = " held_ms=";
      const size_t at = line.find(kHeld);
      if (line.substr(0, 10) != "tune_turn " || at == std::string_view::npos) return;
      const double held = std::strtod(std::string(line.substr(at + kHeld.size())).c_str(), nullptr);
      const std::lock_guard<std::mutex> lock(mutex_);
      turns_.push_back({end - held, end});
    };
  }
  Json Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(turns_, Json::array());
  }

 private:
  std::mutex mutex_;
  Json turns_ = Json::array();
};

absl::StatusOr<tune::TuningRecord> TuneOnce(Runtime& runtime, const AttentionSpec& spec,
                                            int budget_ms, int candidates) {
  TuneOptions how;
  how.force = true;
  how.budget_ms = budget_ms;
  how.max_candidates = candidates;
  TILEWRIGHT_ASSIGN_OR_RETURN(const TuneResult result, runtime.Tune(spec, how));
  return tune::ParseRecord(result.record);
}

// Relative time of a plan in a record; NaN when it was not timed.
double RelativeOf(const tune::TuningRecord& record, const std::string& plan) {
  for (const tune::CandidateResult& one : record.candidates) {
    if (one.plan == plan && one.samples > 0) return one.relative;
  }
  return std::nan("");
}

double BestOf(const tune::TuningRecord& record) {
  double best = 1;
  for (const tune::CandidateResult& one : record.candidates) {
    // Others were stopped for being slower, and the few samples of each say less than these.
    if (one.outcome == tune::Outcome::kTimed) best = std::min(best, one.relative);
  }
  return best;
}

Json FailedLine(const std::string& kind, const std::string& spec, const absl::Status& status) {
  return {{"kind", kind}, {"spec", spec}, {"error", std::string(status.message())}};
}

RuntimeOptions OptionsFrom(const std::string& kernels) {
  RuntimeOptions options;
  options.cache_in_memory = kernels.empty();
  options.cache_dir = kernels;
  options.cache_max_bytes = 0;
  // Of each child; there are some.
  options.compile_threads = 8;
  return options;
}

absl::StatusOr<Json> Regret(const std::string& text, const std::string& kernels,
                            const std::string& family) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ParseSpec(text));
  Turns turns;
  RuntimeOptions options = OptionsFrom(kernels);
  options.family = family;
  options.log_level = LogLevel::kDebug;
  options.log_sink = turns.sink();
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, Runtime::Create(options));
  const auto tune_all = [&] { return TuneOnce(*runtime, spec, 0, 0); };
  const auto tune_bounded = [&] {
    return TuneOnce(*runtime, spec, options.tune_budget_ms, options.tune_candidates);
  };
  // With a store the kernels are there by the time of the bounded one, otherwise none of them.
  absl::StatusOr<tune::TuningRecord> first = kernels.empty() ? tune_bounded() : tune_all();
  TILEWRIGHT_RETURN_IF_ERROR(first.status());
  absl::StatusOr<tune::TuningRecord> second = kernels.empty() ? tune_all() : tune_bounded();
  TILEWRIGHT_RETURN_IF_ERROR(second.status());
  const tune::TuningRecord& bounded = kernels.empty() ? *first : *second;
  const tune::TuningRecord& all = kernels.empty() ? *second : *first;
  for (const tune::CandidateResult& one : all.candidates) {
    if (one.outcome != tune::Outcome::kUntried) continue;
    return absl::InternalError(absl::StrCat(one.plan, " was not tried: ", one.reason));
  }
  const double best = BestOf(all);
  return Json{{"kind", "regret"},
              {"spec", text},
              {"tuned", bounded.winner},
              {"tuned_regret", RelativeOf(all, bounded.winner) / best - 1},
              {"default", all.default_plan},
              {"default_regret", 1 / best - 1},
              {"best_relative", best},
              {"default_ms", all.default_ms},
              {"band", all.band},
              {"candidates", all.candidates.size()},
              {"kernels", kernels.empty() ? "compiled" : "stored"},
              {"bounded_ms", bounded.tune_ms},
              {"bounded_cut", bounded.budget_cut},
              {"all_ms", all.tune_ms},
              {"turns", turns.Take()},
              {"record", Json::parse(all.ToJson(), nullptr, /*allow_exceptions=*/false)}};
}

absl::StatusOr<Json> Flips(const std::string& text, const std::string& kernels, int repeats) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ParseSpec(text));
  const RuntimeOptions options = OptionsFrom(kernels);
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, Runtime::Create(options));
  // Compiles what is not stored; the repetitions only measure.
  TILEWRIGHT_RETURN_IF_ERROR(TuneOnce(*runtime, spec, 0, options.tune_candidates).status());
  Json winners = Json::array();
  for (int n = 0; n < repeats; ++n) {
    TILEWRIGHT_ASSIGN_OR_RETURN(
        const tune::TuningRecord record,
        TuneOnce(*runtime, spec, options.tune_budget_ms, options.tune_candidates));
    Json relative = Json::object();
    for (const tune::CandidateResult& one : record.candidates) {
      if (one.samples > 0) relative[one.plan] = one.relative;
    }
    winners.push_back({{"winner", record.winner},
                       {"band", record.band},
                       {"ms", record.tune_ms},
                       {"relative", relative}});
  }
  return Json{{"kind", "flips"}, {"spec", text}, {"tunings", winners}};
}

// `kind` of each spec, one line each.
absl::Status MeasureSpecs(const std::string& kind, const std::string& kernels,
                          const std::string& option, absl::Span<const std::string> specs) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto devices, OpenMachine());
  for (const std::string& spec : specs) {
    absl::StatusOr<Json> line = kind == "regret" ? Regret(spec, kernels, /*family=*/option)
                                                 : Flips(spec, kernels, std::atoi(option.c_str()));
    if (!line.ok()) line = FailedLine(kind, spec, line.status());
    std::printf("%s\n", line->dump().c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status Child(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 3 && (arguments[0] == "regret" || arguments[0] == "flips")) {
    return MeasureSpecs(arguments[0], arguments[1], arguments[2],
                        absl::MakeConstSpan(arguments).subspan(3));
  }
  const auto one = [&]() -> absl::StatusOr<Json> {
    if (arguments[0] == "machine") return Machine();
    if (arguments.size() != 5) return absl::InvalidArgumentError(arguments[0]);
    return FirstCall(arguments[1], arguments[2], arguments[3] == "measured", arguments[4]);
  };
  TILEWRIGHT_ASSIGN_OR_RETURN(const Json json, one());
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

// ---- in this process ----------------------------------------------------------------------------

// Runs a child of this program and hands out each line of JSON that it prints; its exit status.
int RunChild(const std::string& program, const std::vector<std::string>& arguments,
             const std::function<void(const Json&)>& each) {
  std::string command = absl::StrCat("'", program, "' --child");
  for (const std::string& argument : arguments) absl::StrAppend(&command, " '", argument, "'");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return -1;
  char* text = nullptr;
  size_t size = 0;
  while (getline(&text, &size, pipe) > 0) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) each(line);
  }
  std::free(text);
  return pclose(pipe);
}

absl::StatusOr<Json> OneLineOf(const std::string& program,
                               const std::vector<std::string>& arguments) {
  Json line;
  const int status = RunChild(program, arguments, [&](const Json& json) { line = json; });
  if (status != 0 || !line.is_object()) {
    return absl::InternalError(absl::StrCat("a child ended with ", status));
  }
  return line;
}

class Raw {
 public:
  explicit Raw(const std::string& path) : file_(path, std::ios::app) {}
  void Add(const Json& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    file_ << line.dump() << "\n" << std::flush;
  }

 private:
  std::mutex mutex_;
  std::ofstream file_;
};

absl::Status MeasureFirstCalls(const std::string& program, Raw& raw) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / absl::StrCat("tuner_bench.", getpid());
  for (int repeat = 0; repeat < kFirstCalls; ++repeat) {
    for (const std::string policy : {"off", "background", "first_run"}) {
      const std::string store = folder / absl::StrCat(policy, repeat);
      // What is measured behind a first answer takes seconds and is looked at once.
      const bool measured = policy == "first_run" || (policy == "background" && repeat == 0);
      const std::vector<std::string> call = {"first_call", policy, store,
                                             measured ? "measured" : "at once", kFirstCallSpec};
      TILEWRIGHT_ASSIGN_OR_RETURN(Json cold, OneLineOf(program, call));
      cold["store"] = "empty";
      raw.Add(cold);
      if (!measured) continue;
      TILEWRIGHT_ASSIGN_OR_RETURN(Json warm, OneLineOf(program, call));
      warm["store"] = "warm";
      raw.Add(warm);
    }
  }
  for (const char* spec : kFirstRunSpecs) {
    TILEWRIGHT_ASSIGN_OR_RETURN(
        Json cold,
        OneLineOf(program, {"first_call", "first_run", folder / "others", "measured", spec}));
    cold["store"] = "empty";
    raw.Add(cold);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReadShapes(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> specs;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') specs.push_back(line);
  }
  if (specs.empty()) return absl::NotFoundError(absl::StrCat(path, " holds no specs"));
  return specs;
}

// In `jobs` processes, each with a share of the specs. One that dies has its spec marked and
// another goes on behind it.
void MeasureEach(const std::string& program, const std::string& kind,
                 const std::vector<std::string>& specs, size_t jobs, const std::string& kernels,
                 const std::string& option, Raw& raw) {
  const auto work = [&](size_t begin) {
    std::vector<std::string> mine;
    for (size_t n = begin; n < specs.size(); n += jobs) mine.push_back(specs[n]);
    while (!mine.empty()) {
      std::vector<std::string> arguments = {kind, kernels, option};
      arguments.insert(arguments.end(), mine.begin(), mine.end());
      size_t done = 0;
      const int status = RunChild(program, arguments, [&](const Json& line) {
        raw.Add(line);
        ++done;
      });
      mine.erase(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(done));
      if (mine.empty()) return;
      raw.Add(FailedLine(kind, mine.front(),
                         absl::InternalError(absl::StrCat("its process ended with ", status))));
      mine.erase(mine.begin());
    }
  };
  std::vector<std::thread> helpers;
  for (size_t n = 1; n < jobs; ++n) helpers.emplace_back(work, n);
  work(0);
  for (std::thread& helper : helpers) helper.join();
}

// ---- results ------------------------------------------------------------------------------------

struct Collected {
  Json machine = Json::object();
  std::vector<Json> first_calls;
  std::vector<Json> regrets;
  std::vector<Json> flips;
};

// Of the spec that all policies were measured with.
std::vector<double> Values(const std::vector<Json>& lines, const char* policy, const char* store,
                           const char* field) {
  std::vector<double> values;
  for (const Json& line : lines) {
    if (line.value("spec", "") == kFirstCallSpec && line.value("policy", "") == policy &&
        line.value("store", "") == store) {
      values.push_back(line.value(field, 0.0));
    }
  }
  return values;
}

double Worst(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

void AddFirstCallRows(const Collected& all, std::vector<Json>& rows) {
  const std::vector<Json>& lines = all.first_calls;
  if (lines.empty()) {
    rows.push_back(FailedRow("first_call", "not measured"));
    return;
  }
  const double background = Median(Values(lines, "background", "empty", "first_ms"));
  const double compile = Median(Values(lines, "off", "empty", "compile_ms"));
  rows.push_back(AtMostRow("background_first_result_ms", background, "ms", kBackgroundLimitMs));
  rows.push_back(
      AtMostRow("background_over_one_compile", background / compile, "x", kBackgroundCompiles));
  double slowest = 0;
  std::string slowest_spec;
  for (const Json& line : lines) {
    if (line.value("policy", "") != "first_run" || line.value("store", "") != "empty") continue;
    if (line.value("prepare_ms", 0.0) <= slowest) continue;
    slowest = line.value("prepare_ms", 0.0);
    slowest_spec = line.value("spec", "");
  }
  rows.push_back(AtMostRow("first_run_prepare_ms", slowest, "ms", kFirstRunLimitMs));
  rows.back()["spec"] = slowest_spec;
  std::vector<double> warm = Values(lines, "first_run", "warm", "first_ms");
  const std::vector<double> more = Values(lines, "background", "warm", "first_ms");
  warm.insert(warm.end(), more.begin(), more.end());
  rows.push_back(AtMostRow("warm_store_first_result_ms", Median(warm), "ms", kWarmLimitMs));
  double kept = 0;
  for (const Json& line : lines) {
    // The kernels themselves stay loaded, a few hundred kilobytes in pages of 2 MiB.
    kept = std::max(kept, line.value("kept_bytes", 0.0));
  }
  rows.push_back(AtMostRow("device_memory_kept_mib", kept / (1 << 20), "MiB", 8));
  for (Json& row : rows) {
    if (!row.contains("spec")) row["spec"] = kFirstCallSpec;
  }
}

void AddRegretRows(const Collected& all, std::vector<Json>& rows) {
  std::vector<double> tuned;
  std::vector<double> defaults;
  std::vector<double> took;
  for (const Json& line : all.regrets) {
    if (line.contains("error") || !line["tuned_regret"].is_number()) continue;
    tuned.push_back(line["tuned_regret"].get<double>());
    defaults.push_back(line["default_regret"].get<double>());
    if (line.value("kernels", "") == "compiled") took.push_back(line["bounded_ms"].get<double>());
  }
  if (tuned.empty()) {
    rows.push_back(FailedRow("regret", "not measured"));
    return;
  }
  rows.push_back(AtLeastRow("regret_entries", static_cast<double>(tuned.size()), "entries", 40));
  rows.push_back(AtMostRow("regret_median", 100 * Median(tuned), "%", 2));
  rows.push_back(AtMostRow("regret_worst", 100 * Worst(tuned), "%", 6));
  rows.push_back(AtMostRow("untuned_regret_median", 100 * Median(defaults), "%", 12));
  // Those of stored kernels say nothing about a budget.
  if (took.empty()) return;
  rows.push_back(AtMostRow("bounded_tuning_worst_ms", Worst(took), "ms", kFirstRunLimitMs));
}

void AddTurnRows(const Collected& all, std::vector<Json>& rows) {
  std::vector<std::pair<double, double>> turns;
  for (const Json& line : all.regrets) {
    if (!line.contains("turns")) continue;
    for (const Json& turn : line["turns"]) {
      turns.emplace_back(turn[0].get<double>(), turn[1].get<double>());
    }
  }
  if (turns.empty()) {
    rows.push_back(FailedRow("turns", "not measured"));
    return;
  }
  std::sort(turns.begin(), turns.end());
  int overlaps = 0;
  for (size_t n = 1; n < turns.size(); ++n) overlaps += turns[n].first < turns[n - 1].second;
  Json row = AtMostRow("turns_that_overlap", overlaps, "turns", 0);
  row["turns"] = turns.size();
  rows.push_back(row);
}

void AddFlipRows(const Collected& all, std::vector<Json>& rows) {
  int tunings = 0;
  int flips = 0;
  double worst_over_band = 0;
  for (const Json& line : all.flips) {
    if (line.contains("error")) continue;
    std::map<std::string, int> counts;
    for (const Json& one : line["tunings"]) ++counts[one["winner"].get<std::string>()];
    const auto usual = std::max_element(counts.begin(), counts.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    // What the usual winner and another one take, over all repetitions.
    const auto relative_of = [&](const std::string& plan) {
      std::vector<double> values;
      for (const Json& one : line["tunings"]) {
        if (one["relative"].contains(plan)) values.push_back(one["relative"][plan].get<double>());
      }
      return Median(values);
    };
    for (const Json& one : line["tunings"]) {
      ++tunings;
      const std::string winner = one["winner"].get<std::string>();
      if (winner == usual->first) continue;
      ++flips;
      const double cost = relative_of(winner) / relative_of(usual->first) - 1;
      worst_over_band = std::max(worst_over_band, cost / one["band"].get<double>());
    }
  }
  if (tunings == 0) {
    rows.push_back(FailedRow("flips", "not measured"));
    return;
  }
  rows.push_back(AtLeastRow("repeated_tunings", tunings, "tunings", 160));
  rows.push_back(AtMostRow("flip_rate", 100.0 * flips / tunings, "%", 5));
  rows.push_back(AtMostRow("worst_flip_cost_over_noise_band", worst_over_band, "x", 1));
}

absl::Status WriteResults(const std::vector<std::string>& raws, const std::string& commit,
                          const std::string& path) {
  Collected all;
  for (const std::string& raw : raws) {
    std::ifstream file(raw);
    for (std::string text; std::getline(file, text);) {
      const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!line.is_object()) continue;
      const std::string kind = line.value("kind", "");
      if (kind == "machine") all.machine = line;
      if (kind == "first_call") all.first_calls.push_back(line);
      const auto add = [&](std::vector<Json>& lines) {
        std::erase_if(lines, [&](const Json& one) { return one["spec"] == line["spec"]; });
        lines.push_back(line);
      };
      if (kind == "regret") add(all.regrets);
      if (kind == "flips") add(all.flips);
    }
  }
  std::vector<Json> rows;
  AddFirstCallRows(all, rows);
  AddRegretRows(all, rows);
  AddTurnRows(all, rows);
  AddFlipRows(all, rows);
  return WriteResultFile(
      path,
      {"tuner", commit, all.machine.value("device", "unknown"),
       all.machine.value("driver", "unknown"), all.machine.value("nvrtc", "unknown"),
       "tilewright compile --matrix bench/tuner_shapes.txt --candidates 0; tuner_bench measure "
       "--first-call --regret --jobs 3 --flips 20 --kernels STORE --raw raw.jsonl; "
       "tuner_bench "
       "results raw.jsonl --results bench/results/h200/tuner.json"},
      rows);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 2 && arguments[0] == "--child") {
    const absl::Status status = Child({arguments.begin() + 1, arguments.end()});
    return status.ok() ? 0 : Fail(status);
  }
  std::vector<std::string> words;
  bool first_calls = false;
  bool regret = false;
  std::string from = "0", to = "1000", flips, family, kernels, jobs = "1", raw_path;
  std::string shapes = "bench/tuner_shapes.txt";
  std::string results, commit = "unknown";
  const absl::Status read = ReadFlags(argc, argv,
                                      {{{"--from", &from},
                                        {"--to", &to},
                                        {"--flips", &flips},
                                        {"--shapes", &shapes},
                                        {"--family", &family},
                                        {"--kernels", &kernels},
                                        {"--jobs", &jobs},
                                        {"--raw", &raw_path},
                                        {"--results", &results},
                                        {"--commit", &commit}},
                                       {{"--first-call", &first_calls}, {"--regret", &regret}},
                                       &words});
  const std::string command = words.empty() ? "" : words.front();
  if (read.ok() && command == "results" && !results.empty()) {
    const absl::Status status = WriteResults({words.begin() + 1, words.end()}, commit, results);
    return status.ok() ? 0 : Fail(status);
  }
  if (!read.ok() || command != "measure" || raw_path.empty()) {
    if (!read.ok()) std::fprintf(stderr, "%s\n", std::string(read.message()).c_str());
    std::fprintf(stderr,
                 "tuner_bench measure [--first-call] [--regret [--from A] [--to B] [--jobs N] "
                 "[--family NAME]] [--flips N] [--shapes FILE] [--kernels STORE] --raw OUT\n"
                 "tuner_bench results [--commit HASH] --results FILE RAW...\n");
    return 2;
  }
  Raw raw(raw_path);
  if (const absl::StatusOr<Json> machine = OneLineOf(argv[0], {"machine"}); machine.ok()) {
    raw.Add(*machine);
  }
  if (first_calls) {
    const absl::Status status = MeasureFirstCalls(argv[0], raw);
    if (!status.ok()) return Fail(status);
  }
  if (!regret && flips.empty()) return 0;
  const absl::StatusOr<std::vector<std::string>> specs = ReadShapes(shapes);
  if (!specs.ok()) return Fail(specs.status());
  if (regret) {
    const size_t end = std::min<size_t>(specs->size(), std::strtoul(to.c_str(), nullptr, 10));
    const size_t begin = std::min<size_t>(end, std::strtoul(from.c_str(), nullptr, 10));
    MeasureEach(argv[0], "regret", {specs->begin() + begin, specs->begin() + end},
                std::max(1UL, std::strtoul(jobs.c_str(), nullptr, 10)), kernels, family, raw);
  }
  if (!flips.empty()) {
    // Eight entries, spread over the file; one at a time, as they must not wait for one another.
    std::vector<std::string> eight;
    for (size_t k = 0; k < 8; ++k) eight.push_back((*specs)[k * specs->size() / 8]);
    MeasureEach(argv[0], "flips", eight, 1, kernels, flips, raw);
  }
  return 0;
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) { return tilewright::bench::Main(argc, argv); }

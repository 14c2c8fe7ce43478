// tilewright tune: measures the candidates of specs on this GPU and keeps what it finds.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache/record_files.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/spec_arguments.h"
#include "cli/tune_report.h"
#include "spec/canonical.h"
#include "tune/record.h"

namespace tilewright::cli {
namespace {

constexpr char kCommand[] = "tune";

struct TuneCommandOptions {
  std::vector<std::string> specs;
  std::string shapes;
  std::string report;
  std::string from_records;
  std::string records_dir;
  int budget_ms = 10'000;
  int candidates = 0;
  int jobs = 2;
  bool force = false;
  bool hot = false;
  std::vector<int64_t> lengths_q;
  std::vector<int64_t> lengths_kv;
};

struct Tuned {
  std::string spec;  // as given, or canonical once it was read
  absl::Status status;
  TuneResult result;
  std::optional<tune::TuningRecord> record;
};

// One line that is written over until the spec is done: of several, the first in order.
class ProgressBar {
 public:
  ProgressBar(std::ostream& out, bool shown, size_t specs)
      : out_(out), shown_(shown), done_(specs, false) {}
  void Show(size_t number, const TuneProgress& progress) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!shown_ || First() != number) return;
    out_ << "\r\x1b[K" << ProgressLine(progress, number + 1, done_.size()) << std::flush;
  }
  // Ends the line of the spec, and calls `print` where no other is in its way.
  void Done(size_t number, const std::function<void()>& print) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (shown_) out_ << "\r\x1b[K" << std::flush;
    done_[number] = true;
    print();
  }

 private:
  size_t First() const {
    return static_cast<size_t>(std::find(done_.begin(), done_.end(), false) - done_.begin());
  }

  std::ostream& out_;
  const bool shown_;
  std::mutex mutex_;
  std::vector<bool> done_;
};

std::string RecordLine(const Tuned& tuned) {
  const TuneResult& result = tuned.result;
  std::string line =
      absl::StrFormat("%s\n  %s  %.4g ms", tuned.spec, result.winner, result.winner_ms);
  if (result.winner == result.default_plan) {
    absl::StrAppend(&line, ", the default");
  } else {
    absl::StrAppendFormat(&line, "; the default %s takes %.4g ms", result.default_plan,
                          result.default_ms);
  }
  if (!result.measured) absl::StrAppend(&line, " (a record was there; --force measures again)");
  return line + "\n";
}

Json ToJson(const Tuned& tuned) {
  Json one = {{"spec", tuned.spec}};
  if (!tuned.status.ok()) {
    one["error"] = {{"code", absl::StatusCodeToString(tuned.status.code())},
                    {"message", std::string(tuned.status.message())}};
    return one;
  }
  one["measured"] = tuned.result.measured;
  one["winner"] = tuned.result.winner;
  one["default"] = tuned.result.default_plan;
  one["winner_ms"] = tuned.result.winner_ms;
  one["default_ms"] = tuned.result.default_ms;
  one["record"] = Json::parse(tuned.result.record, nullptr, /*allow_exceptions=*/false);
  return one;
}

absl::Status WriteReport(const std::string& path, const std::vector<Tuned>& all,
                         const arch::ArchTraits& traits, const arch::BoardProfile& board) {
  std::vector<tune::TuningRecord> records;
  for (const Tuned& tuned : all) {
    if (tuned.record.has_value()) records.push_back(*tuned.record);
  }
  std::ofstream file(path, std::ios::binary);
  file << TuneReportHtml(records, traits, board);
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

// A file as in a store and in cache/tuned/.
absl::Status WriteRecord(const std::string& directory, const tune::TuningRecord& record) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string path = absl::StrCat(directory, "/", record.Key().ToHex(), ".twt");
  std::ofstream file(path, std::ios::binary);
  file << cache::SealRecord(record.ToJson());
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

// What becomes of records that lie in a file of `tilewright tune --json`: needs no GPU.
int ReportFrom(const TuneCommandOptions& options, const Console& console) {
  const absl::StatusOr<std::string> text = ReadTextFile(options.from_records);
  if (!text.ok()) return console.Fail(kCommand, text.status(), kExitUsage);
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  std::vector<Tuned> all;
  if (json.is_object() && json.contains("specs") && json["specs"].is_array()) {
    for (const Json& one : json["specs"]) {
      if (!one.is_object() || !one.contains("record")) continue;
      absl::StatusOr<tune::TuningRecord> record = tune::ParseRecord(one["record"].dump());
      if (!record.ok()) return console.Fail(kCommand, record.status());
      all.emplace_back();
      all.back().record = *std::move(record);
    }
  }
  if (all.empty()) {
    return console.Fail(
        kCommand,
        absl::InvalidArgumentError(absl::StrCat(options.from_records,
                                                " holds no records: it must be what "
                                                "tilewright tune --json prints")),
        kExitUsage);
  }
  const std::string& target = all.front().record->environment.target;
  const absl::StatusOr<arch::ArchTraits> traits = arch::FindArchTraits(target);
  if (!traits.ok()) return console.Fail(kCommand, traits.status());
  const absl::StatusOr<arch::BoardProfile> board = arch::DefaultBoardProfile(target);
  if (!board.ok()) return console.Fail(kCommand, board.status());
  absl::Status written;
  for (const Tuned& one : all) {
    if (!options.records_dir.empty()) written.Update(WriteRecord(options.records_dir, *one.record));
  }
  if (written.ok() && !options.report.empty()) {
    written = WriteReport(options.report, all, *traits, *board);
  }
  if (!written.ok()) return console.Fail(kCommand, written);
  console.out << all.size() << " records\n";
  return kExitFine;
}

// Some specs at a time: one is compiled while another is measured.
void TuneAll(const TuneCommandOptions& options, const std::vector<AttentionSpec>& specs,
             Runtime& runtime, const Console& console, std::vector<Tuned>& all) {
  ProgressBar bar(console.err,
                  !console.json && Progress::ModeFor(console.err) == Progress::Mode::kBar,
                  specs.size());
  const auto tune = [&](size_t n) {
    Tuned& tuned = all[n];
    tuned.spec = spec::ToText(specs[n]);
    TuneOptions how;
    how.budget_ms = options.budget_ms;
    how.max_candidates = options.candidates;
    how.force = options.force;
    how.hot = options.hot;
    how.lengths_q = options.lengths_q;
    how.lengths_kv = options.lengths_kv;
    how.progress = [&](const TuneProgress& progress) { bar.Show(n, progress); };
    absl::StatusOr<TuneResult> result = runtime.Tune(specs[n], how);
    tuned.status = result.status();
    if (result.ok()) {
      tuned.result = *std::move(result);
      const absl::StatusOr<tune::TuningRecord> record = tune::ParseRecord(tuned.result.record);
      if (record.ok()) tuned.record = *record;
      // At once: who ends this program early keeps what there is.
      if (record.ok() && !options.records_dir.empty()) {
        tuned.status = WriteRecord(options.records_dir, *record);
      }
    }
    bar.Done(n, [&] {
      if (console.json) return;
      if (tuned.status.ok()) {
        console.out << RecordLine(tuned) << std::flush;
      } else {
        console.err << "tilewright tune: " << tuned.status.message() << "\n";
      }
    });
  };
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t n = next++; n < specs.size(); n = next++) tune(n);
  };
  std::vector<std::thread> helpers;
  for (size_t n = 1; n < std::min(specs.size(), static_cast<size_t>(options.jobs)); ++n) {
    helpers.emplace_back(work);
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

int Tune(const TuneCommandOptions& options, const Console& console) {
  if (!options.from_records.empty()) return ReportFrom(options, console);
  const absl::StatusOr<std::vector<AttentionSpec>> read = ReadSpecs(options.specs, options.shapes);
  if (!read.ok()) return console.Fail(kCommand, read.status(), kExitUsage);
  const std::vector<AttentionSpec>& specs = *read;
  const absl::StatusOr<RuntimeOptions> runtime_options = RuntimeOptions::FromEnvironment();
  if (!runtime_options.ok()) return console.Fail(kCommand, runtime_options.status());
  absl::StatusOr<std::unique_ptr<GpuSession>> session = GpuSession::Open(*runtime_options);
  if (!session.ok()) return console.Fail(kCommand, session.status());

  std::vector<Tuned> all(specs.size());
  TuneAll(options, specs, (*session)->runtime(), console, all);
  const auto failed =
      std::count_if(all.begin(), all.end(), [](const Tuned& tuned) { return !tuned.status.ok(); });
  if (!options.report.empty()) {
    const device::DeviceInfo& device = (*session)->device();
    if (const absl::Status written = WriteReport(options.report, all, device.traits, device.board);
        !written.ok()) {
      return console.Fail(kCommand, written);
    }
  }
  if (console.json) {
    Json list = Json::array();
    for (const Tuned& tuned : all) list.push_back(ToJson(tuned));
    console.Print({{"command", kCommand},
                   {"ok", failed == 0},
                   {"device", (*session)->device().board.name},
                   {"specs", list}});
  }
  return failed == 0 ? kExitFine : kExitProblem;
}

}  // namespace

void AddTuneCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<TuneCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "tune", "Measure the candidates of specs on this GPU and keep the results in the store");
  command->add_option("SPEC", options->specs, "Specs, in words");
  command->add_option("--shapes", options->shapes, "A file with one spec a line");
  command->add_option("--budget", options->budget_ms, "Milliseconds a spec; 0: no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--candidates", options->candidates, "Candidates a spec; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--jobs", options->jobs, "Specs at a time: some compile while one is measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--lengths-q", options->lengths_q, "Query lengths of a varlen spec")
      ->delimiter(',');
  command->add_option("--lengths-kv", options->lengths_kv, "Key lengths of a varlen spec")
      ->delimiter(',');
  command->add_flag("--force", options->force, "Measure although there is a record");
  command->add_flag("--hot", options->hot, "Measure with the inputs in the L2 cache");
  command->add_option("--records", options->records_dir,
                      "Write the records into this folder too, one file each");
  command->add_option("--report", options->report, "Write a page with the landscape of each spec");
  command->add_option("--from", options->from_records,
                      "Measure nothing: take the records from what tune --json has printed");
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Tune(*options, console); };
  });
}

}  // namespace tilewright::cli

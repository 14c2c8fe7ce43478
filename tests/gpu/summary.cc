#include "tests/gpu/summary.h"

#include <cmath>
#include <limits>

#include "bench/result_file.h"

namespace tilewright::gpu_tests {
namespace {

using Json = nlohmann::ordered_json;

// The sweep promises at least this many specs.
constexpr int kSpecsPromised = 300;

double Share(double error, double bar) {
  if (error == 0) return 0;
  return bar > 0 ? error / bar : std::numeric_limits<double>::infinity();
}

Json WorstRow(const char* name, double share, const std::string& spec) {
  Json row = bench::AtMostRow(name, share, "share of the bar", 1);
  row["spec"] = spec;
  return row;
}

}  // namespace

Summary& Summary::Get() {
  static auto* summary = new Summary;
  return *summary;
}

void Summary::Update(Worst& worst, double share, const std::string& spec) {
  if (share > worst.share || std::isnan(share)) worst = {share, spec};
}

void Summary::Record(const std::string& spec, const cli::Accuracy& accuracy, bool passed) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++specs_;
  if (!passed && failures_++ == 0) first_failure_ = spec;
  Update(relative_, Share(accuracy.o_relative, accuracy.o_relative_bar), spec);
  Update(max_abs_, Share(accuracy.o_max_abs, accuracy.o_max_abs_bar), spec);
  if (accuracy.has_lse) Update(lse_, accuracy.lse_error, spec);
}

void Summary::RecordFailure(const std::string& spec) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++specs_;
  if (failures_++ == 0) first_failure_ = spec;
}

std::vector<Json> Summary::Rows(int tests_run, int tests_failed, int tests_skipped) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Json> rows;
  rows.push_back(
      bench::AtLeastRow("specs_checked", static_cast<double>(specs_), "specs", kSpecsPromised));
  rows.push_back(bench::AtMostRow("specs_failed", static_cast<double>(failures_), "specs", 0));
  if (failures_ > 0) rows.back()["spec"] = first_failure_;
  rows.push_back(WorstRow("worst_relative_error", relative_.share, relative_.spec));
  rows.push_back(WorstRow("worst_max_abs_error", max_abs_.share, max_abs_.spec));
  rows.push_back(WorstRow("worst_lse_error", lse_.share, lse_.spec));
  rows.push_back(bench::AtMostRow("tests_failed", tests_failed, "tests", 0));
  rows.back()["tests_run"] = tests_run;
  rows.back()["tests_skipped"] = tests_skipped;
  return rows;
}

}  // namespace tilewright::gpu_tests

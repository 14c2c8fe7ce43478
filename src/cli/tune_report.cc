#include "cli/tune_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "cli/roofline.h"
#include "plan/kernel_plan.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

using tune::CandidateResult;
using tune::Outcome;
using tune::TuningRecord;

constexpr int kBarCells = 20;

constexpr absl::string_view kStyle = R"(
:root { --ink: #1b1f24; --soft: #5b6570; --line: #d9dee3; --paper: #ffffff; --panel: #f5f7f9;
        --accent: #0b6e4f; --bad: #9b2c2c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa5b1; --line: #39424c; --paper: #14181c; --panel: #1c2228;
          --accent: #4cc49a; --bad: #e58a8a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1180px; color: var(--ink); background: var(--paper);
       font: 14px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 0 0 2px; }
h3 { font-size: 13px; margin: 18px 0 6px; color: var(--soft); font-weight: 600; }
code { font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .bad { color: var(--bad); }
section { border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; margin: 18px 0;
          background: var(--panel); }
.facts { display: flex; flex-wrap: wrap; gap: 6px 26px; margin: 8px 0 0; }
.facts b { display: block; font-size: 17px; font-variant-numeric: tabular-nums; }
.columns { display: flex; flex-wrap: wrap; gap: 8px 32px; align-items: flex-start; }
.scroll { overflow-x: auto; max-width: 100%; }
table.map { border-collapse: separate; border-spacing: 3px; font-variant-numeric: tabular-nums; }
.map th { font-weight: 500; color: var(--soft); font-size: 12px; padding: 2px 6px; text-align: right; }
.map td { width: 74px; height: 46px; text-align: center; border-radius: 5px; font-size: 13px;
          line-height: 1.15; border: 2px solid transparent; }
.map td small { display: block; font-size: 10.5px; opacity: .85; }
.map td.none { background: transparent; }
.map td.out { color: var(--soft); background: repeating-linear-gradient(45deg, transparent 0 5px,
              var(--line) 5px 7px); }
.map td.winner { border-color: var(--ink); font-weight: 700; }
table.list { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.list th { text-align: left; font-weight: 500; color: var(--soft); font-size: 12px; padding: 2px 8px; }
.list td { padding: 3px 8px; border-top: 1px solid var(--line); vertical-align: middle; }
.list td.n { text-align: right; white-space: nowrap; }
.chart { position: relative; height: 14px; min-width: 220px; }
.chart i { position: absolute; top: 2px; height: 10px; left: 0; border-radius: 2px; background: #7fa8c9; }
.chart i.winner { background: var(--accent); }
.chart u { position: absolute; top: 6px; height: 2px; background: var(--ink); }
.chart s { position: absolute; top: 0; height: 14px; width: 2px; background: var(--bad); }
ul { margin: 4px 0 0; padding-left: 18px; }
)";

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Ms(double ms) { return absl::StrFormat("%.4g", ms); }

// Green at the best time over yellow to red at twice of it; readable ink on each.
std::string HeatColour(double relative) {
  const double t = std::clamp(relative - 1, 0.0, 1.0);
  const int hue = static_cast<int>(std::lround(150 * (1 - std::sqrt(t))));
  return absl::StrFormat("background:hsl(%d 55%% 72%%);color:#14181c", hue);
}

bool WasTimed(const CandidateResult& result) { return result.samples > 0; }

// What tells plans of the same tile apart: the words of a plan without family, target, tile and
// shared memory.
std::string Variant(const std::string& plan) {
  std::vector<std::string> words = absl::StrSplit(plan, ' ');
  std::string variant;
  for (size_t n = 3; n < words.size(); ++n) {
    if (words[n].rfind("smem=", 0) == 0) break;
    absl::StrAppend(&variant, variant.empty() ? "" : " ", words[n]);
  }
  return variant;
}

// Candidates of one family and tile.
struct Cell {
  const CandidateResult* best = nullptr;  // the quickest that was timed
  int timed = 0;
  std::vector<const CandidateResult*> out;
  int untried = 0;
};

using Map = std::map<std::pair<int, int>, Cell>;  // by block_m, block_n

std::string CellHtml(const Cell& cell, double best_ms, const std::string& winner) {
  if (cell.best != nullptr) {
    const CandidateResult& best = *cell.best;
    return absl::StrFormat("<td class=\"%s\" style=\"%s\" title=\"%s\">%s<small>%s</small></td>",
                           best.plan == winner ? "winner" : "", HeatColour(best.ms / best_ms),
                           Escape(best.plan), Ms(best.ms), Escape(Variant(best.plan)));
  }
  if (!cell.out.empty()) {
    return absl::StrFormat("<td class=\"out\" title=\"%s\">%s<small>%d out</small></td>",
                           Escape(cell.out[0]->reason),
                           std::string(tune::OutcomeName(cell.out[0]->outcome)), cell.out.size());
  }
  return absl::StrFormat("<td class=\"out\">untried<small>%d</small></td>", cell.untried);
}

std::string MapHtml(const std::string& family, const Map& map, double best_ms,
                    const std::string& winner) {
  std::set<int> rows;
  std::set<int> columns;
  for (const auto& [tile, cell] : map) {
    rows.insert(tile.first);
    columns.insert(tile.second);
  }
  std::string html = absl::StrCat("<div><h3>", Escape(family),
                                  ": best time of each tile, ms (rows &times; keys)</h3>"
                                  "<div class=\"scroll\"><table class=\"map\"><tr><th></th>");
  for (const int column : columns) absl::StrAppend(&html, "<th>n ", column, "</th>");
  absl::StrAppend(&html, "</tr>");
  for (const int row : rows) {
    absl::StrAppend(&html, "<tr><th>m ", row, "</th>");
    for (const int column : columns) {
      const auto found = map.find({row, column});
      absl::StrAppend(&html, found == map.end() ? "<td class=\"none\"></td>"
                                                : CellHtml(found->second, best_ms, winner));
    }
    absl::StrAppend(&html, "</tr>");
  }
  return html + "</table></div></div>";
}

std::string MapsHtml(const TuningRecord& record, double best_ms) {
  std::map<std::string, Map> maps;
  for (const CandidateResult& result : record.candidates) {
    const absl::StatusOr<plan::KernelPlan> plan = plan::ParsePlan(result.plan);
    if (!plan.ok()) continue;
    Cell& cell = maps[std::string(plan::FamilyName(plan->family))][{plan->block_m, plan->block_n}];
    if (WasTimed(result)) {
      ++cell.timed;
      if (cell.best == nullptr || result.ms < cell.best->ms) cell.best = &result;
    } else if (result.outcome == Outcome::kUntried) {
      ++cell.untried;
    } else {
      cell.out.push_back(&result);
    }
  }
  std::string html = "<div class=\"columns\">";
  for (const auto& [family, map] : maps) {
    absl::StrAppend(&html, MapHtml(family, map, best_ms, record.winner));
  }
  return html + "</div>";
}

// Bars from 0 to the longest time, with the noise band at their ends and the roofline as a mark.
std::string ListHtml(const TuningRecord& record, double floor_ms) {
  std::vector<const CandidateResult*> timed;
  for (const CandidateResult& result : record.candidates) {
    if (WasTimed(result)) timed.push_back(&result);
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto* a, const auto* b) { return a->ms < b->ms; });
  if (timed.empty()) return "<p class=\"soft\">No candidate was timed.</p>";
  const double longest = 1.05 * std::max(timed.back()->ms, floor_ms);
  const auto percent = [&](double ms) { return absl::StrFormat("%.2f%%", 100 * ms / longest); };
  std::string html =
      "<h3>Times, with noise bands; the red mark is the roofline</h3><div class=\"scroll\">"
      "<table class=\"list\"><tr><th>plan</th><th>ms</th><th>of default</th><th>samples</th>"
      "<th>registers</th><th></th></tr>";
  for (const CandidateResult* result : timed) {
    const bool winner = result->plan == record.winner;
    const double low = result->ms * (1 - result->band);
    absl::StrAppend(
        &html, "<tr><td><code>", Escape(result->plan), "</code>",
        result->plan == record.default_plan ? " <span class=\"soft\">default</span>" : "",
        winner ? " <b>winner</b>" : "", "</td><td class=\"n\">", Ms(result->ms),
        "</td><td class=\"n\">", absl::StrFormat("%.3f", result->relative), "</td><td class=\"n\">",
        result->samples, "</td><td class=\"n\">", result->registers,
        "</td><td><div class=\"chart\"><i class=\"", winner ? "winner" : "",
        "\" style=\"width:", percent(result->ms), "\"></i><u style=\"left:", percent(low),
        ";width:", percent(std::max(2 * result->ms * result->band, 0.004 * longest)), "\"></u>",
        floor_ms > 0 ? absl::StrCat("<s style=\"left:", percent(floor_ms), "\"></s>") : "",
        "</div></td></tr>");
  }
  return html + "</table></div>";
}

std::string RejectedHtml(const TuningRecord& record) {
  // One reason is often that of many.
  std::map<std::string, std::vector<std::string>> plans;
  for (const CandidateResult& result : record.candidates) {
    if (WasTimed(result)) continue;
    plans[absl::StrCat(AbslView(tune::OutcomeName(result.outcome)),
                       result.reason.empty() ? "" : ": ", result.reason)]
        .push_back(result.plan);
  }
  if (plans.empty()) return "";
  std::string html = "<h3>Not timed, and why</h3><ul>";
  for (const auto& [reason, of] : plans) {
    absl::StrAppend(&html, "<li>", Escape(reason), " <span class=\"soft\">(", of.size(),
                    ")</span>");
    for (const std::string& plan : of) {
      absl::StrAppend(&html, "<br><code>", Escape(plan), "</code>");
    }
    absl::StrAppend(&html, "</li>");
  }
  return html + "</ul>";
}

// The least time that arithmetic and memory leave, and which of the two it is.
struct Floor {
  double ms = 0;
  std::string what;
  double flops = 0;
};

Floor FloorOf(const TuningRecord& record, const arch::ArchTraits& traits,
              const arch::BoardProfile& board) {
  Floor floor;
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(record.timed);
  const absl::StatusOr<plan::KernelPlan> plan = plan::ParsePlan(record.winner);
  if (!spec.ok() || !plan.ok() || spec->operation != Operation::kForward) return floor;
  const Roofline roofline = EstimateRoofline(*spec, *plan, traits, board);
  floor.flops = roofline.flops;
  const double arithmetic = roofline.matrix_ms.value_or(roofline.fp32_ms.value_or(0));
  floor.ms = std::max(arithmetic, roofline.memory_ms);
  floor.what = arithmetic > roofline.memory_ms ? "arithmetic" : "memory";
  return floor;
}

std::string Fact(absl::string_view name, const std::string& value) {
  return absl::StrCat("<div><span class=\"soft\">", name, "</span><b>", Escape(value),
                      "</b></div>");
}

std::string SectionHtml(const TuningRecord& record, const arch::ArchTraits& traits,
                        const arch::BoardProfile& board) {
  double best_ms = record.winner_ms;
  for (const CandidateResult& result : record.candidates) {
    if (WasTimed(result) && (best_ms <= 0 || result.ms < best_ms)) best_ms = result.ms;
  }
  const Floor floor = FloorOf(record, traits, board);
  std::string html = absl::StrCat("<section><h2><code>", Escape(record.spec), "</code></h2>");
  if (record.timed != record.spec) {
    absl::StrAppend(&html, "<div class=\"soft\">timed as <code>", Escape(record.timed),
                    "</code></div>");
  }
  absl::StrAppend(
      &html, "<div class=\"facts\">", Fact("winner, ms", Ms(record.winner_ms)),
      Fact("default, ms", Ms(record.default_ms)),
      Fact("gain",
           absl::StrFormat("%.1f %%",
                           100 * (record.default_ms / std::max(record.winner_ms, 1e-9) - 1))),
      Fact("noise band", absl::StrFormat("%.1f %%", 100 * record.band)));
  if (floor.ms > 0) {
    absl::StrAppend(
        &html, Fact(absl::StrCat("roofline (", floor.what, "), ms"), Ms(floor.ms)),
        Fact("of the roofline", absl::StrFormat("%.0f %%", 100 * floor.ms / record.winner_ms)),
        Fact("TFLOP/s", absl::StrFormat("%.0f", floor.flops / record.winner_ms / 1e9)));
  }
  absl::StrAppend(&html, Fact("candidates", std::to_string(record.candidates.size())),
                  Fact("rounds", std::to_string(record.rounds)),
                  Fact("discarded rounds", std::to_string(record.disturbed)), "</div>");
  absl::StrAppend(&html, "<p><code>", Escape(record.winner), "</code></p>");
  if (!record.note.empty()) {
    absl::StrAppend(&html, "<p class=\"soft\">", Escape(record.note), "</p>");
  }
  if (record.budget_cut) {
    absl::StrAppend(&html,
                    "<p class=\"bad\">The budget ended before all candidates were tried.</p>");
  }
  return absl::StrCat(html, MapsHtml(record, best_ms), ListHtml(record, floor.ms),
                      RejectedHtml(record), "<p class=\"soft\">", Escape(record.date),
                      " UTC, checked against ", Escape(record.checked_against), ", ",
                      Escape(record.policy), " L2, ",
                      absl::StrFormat("%.1f s", record.tune_ms / 1000), "</p></section>\n");
}

}  // namespace

std::string ProgressLine(const TuneProgress& progress, size_t number, size_t of) {
  const double share =
      progress.candidates > 0 ? static_cast<double>(progress.settled) / progress.candidates : 0;
  const int filled = static_cast<int>(share * kBarCells);
  std::string line = absl::StrCat("[", number, "/", of, "] ", std::string(filled, '#'),
                                  std::string(kBarCells - filled, '-'), " ", progress.settled, "/",
                                  progress.candidates, " candidates");
  if (progress.rounds > 0) absl::StrAppend(&line, ", ", progress.rounds, " rounds");
  if (progress.budget_ms > 0) {
    absl::StrAppendFormat(&line, ", %.1f s left",
                          std::max(0.0, progress.budget_ms - progress.elapsed_ms) / 1000);
  }
  if (!progress.best.empty()) {
    absl::StrAppendFormat(&line, ", best %s at %.2f", progress.best, progress.best_relative);
  }
  return line;
}

std::string TuneReportHtml(absl::Span<const TuningRecord> records, const arch::ArchTraits& traits,
                           const arch::BoardProfile& board) {
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Tilewright: what tuning found</title><style>",
      kStyle, "</style></head><body>\n<h1>What tuning found</h1>\n");
  if (!records.empty()) {
    const tune::Environment& env = records[0].environment;
    absl::StrAppend(&html, "<p class=\"soft\">", records.size(), " specs on ", Escape(env.gpu),
                    ", ", env.num_sms, " SMs, ", Escape(env.target), ", driver ",
                    env.driver_version / 1000, ".", env.driver_version % 1000 / 10, ", Tilewright ",
                    Escape(env.product), "</p>\n");
  }
  for (const TuningRecord& record : records) {
    absl::StrAppend(&html, SectionHtml(record, traits, board));
  }
  return html + "</body></html>\n";
}

}  // namespace tilewright::cli

// The page of `tilewright tune --report`: its text here, its look in a real browser where there is
// one.
#include "cli/tune_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "arch/board_profile.h"
#include "spec/canonical.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_directory.h"
#include "tune/record.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A landscape as a tuning leaves it: timed tiles, one that spills, one that is wrong, one untried.
tune::TuningRecord Landscape() {
  const AttentionSpec spec =
      spec::Canonicalise(*spec::ParseSpec("fwd bf16 b=2 h=16/16 s=4096/4096 d=128/128 causal"));
  tune::TuningRecord record;
  record.bucket = tune::BucketOf(spec);
  record.spec = record.timed = spec::ToText(spec);
  record.environment = tune::MakeEnvironment(*arch::DefaultBoardProfile("sm_90a"), "sm_90a", 13000);
  record.checked_against = "attn_fwd_simple";
  record.date = "2026-11-29 20:00:00";
  record.rounds = 20;
  record.band = 0.021;
  double ms = 1.4;
  for (const int m : {64, 128}) {
    for (const int n : {32, 64, 96, 128}) {
      plan::KernelPlan plan;
      plan.family = plan::Family::kFwdSm80;
      plan.target = "sm_90a";
      plan.block_m = m;
      plan.block_n = n;
      plan.warps = 4;
      plan.rows_per_warp = m / 4;
      plan.stages = 2;
      plan.smem_bytes = 1024 * (m + n);
      tune::CandidateResult result;
      result.plan = plan.ToString();
      result.outcome = tune::Outcome::kTimed;
      result.ms = ms;
      result.relative = ms / 1.4;
      result.band = 0.01;
      result.samples = 20;
      result.registers = 160;
      record.candidates.push_back(result);
      ms *= 0.95;
    }
  }
  const auto out = [&](size_t index, tune::Outcome outcome, const std::string& reason) {
    tune::CandidateResult& result = record.candidates[index];
    result = {.plan = result.plan, .outcome = outcome, .reason = reason};
  };
  out(3, tune::Outcome::kRejected, "spills 40 bytes a thread to local memory");
  out(4, tune::Outcome::kWrong, "o[3] is <nan>, the reference has 1");
  out(7, tune::Outcome::kUntried, "the budget ended before it was compiled");
  record.default_plan = record.candidates[0].plan;
  record.winner = record.candidates[6].plan;
  record.default_ms = 1.4;
  record.winner_ms = record.candidates[6].ms;
  return record;
}

std::string Page(const std::vector<tune::TuningRecord>& records) {
  return TuneReportHtml(records, *arch::FindArchTraits("sm_90a"),
                        *arch::DefaultBoardProfile("sm_90a"));
}

TEST(TuneReportTest, ShowsTimesRejectionsNoiseAndRoofline) {
  const tune::TuningRecord record = Landscape();
  const std::string page = Page({record});
  EXPECT_THAT(page, HasSubstr("fwd bf16 b=2 h=16/16 s=4096/4096 d=128/128 causal"));
  EXPECT_THAT(page, HasSubstr("m 64"));
  EXPECT_THAT(page, HasSubstr("n 128"));
  EXPECT_THAT(page, HasSubstr("spills 40 bytes"));
  EXPECT_THAT(page, HasSubstr("o[3] is &lt;nan&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<nan>")));
  EXPECT_THAT(page, HasSubstr("the budget ended"));
  EXPECT_THAT(page, HasSubstr("roofline (arithmetic), ms"));
  EXPECT_THAT(page, HasSubstr("2.1 %"));
  EXPECT_THAT(page, HasSubstr("class=\"winner\""));
  EXPECT_THAT(page, HasSubstr("NVIDIA H200"));
}

TEST(TuneReportTest, NeedsNothingBesideIt) {
  const std::string page = Page({Landscape(), Landscape()});
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "<script"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  // Every tag that is opened is closed, in order.
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)[^>]*>");
  const std::set<std::string> single = {"meta", "br"};
  for (std::sregex_iterator it(page.begin(), page.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (single.count(name) > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << "</" << name << ">";
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(TuneReportTest, AnEmptyOrOddRecordMakesAPageToo) {
  tune::TuningRecord record = Landscape();
  record.timed = "no spec";
  record.winner = "no plan";
  record.candidates.clear();
  EXPECT_THAT(Page({record}), HasSubstr("No candidate was timed"));
  EXPECT_THAT(Page({}), HasSubstr("What tuning found"));
}

TEST(ProgressLineTest, SaysCandidatesBestAndTimeLeft) {
  TuneProgress progress;
  progress.candidates = 12;
  progress.settled = 6;
  progress.budget_ms = 4000;
  progress.elapsed_ms = 1500;
  EXPECT_EQ(ProgressLine(progress, 2, 8), "[2/8] ##########---------- 6/12 candidates, 2.5 s left");
  progress.rounds = 14;
  progress.best = "attn_fwd_sm80 sm_90a m128n64";
  progress.best_relative = 0.93;
  EXPECT_THAT(ProgressLine(progress, 2, 8),
              HasSubstr("14 rounds, 2.5 s left, best attn_fwd_sm80 sm_90a m128n64 at 0.93"));
}

// ---- in a browser ---------------------------------------------------------------------------

std::string FindBrowser() {
  for (const char* name :
       {"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}) {
    const auto found = tilewright::testing::RunCommand(std::string("command -v ") + name);
    if (found.exit_code == 0) return found.text.substr(0, found.text.find('\n'));
  }
  return "";
}

// What is asked of a picture needs no decoder: its size in the header, and that it is no blank.
struct Png {
  uint32_t width = 0;
  uint32_t height = 0;
  size_t bytes = 0;
};

Png ReadPng(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Png png;
  if (text.size() < 24 || text.compare(1, 3, "PNG") != 0) return png;
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t n = 0; n < 4; ++n) value = value << 8 | static_cast<uint8_t>(text[at + n]);
    return value;
  };
  png.width = number(16);
  png.height = number(20);
  png.bytes = text.size();
  return png;
}

class BrowserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    browser_ = FindBrowser();
    if (browser_.empty()) {
      GTEST_SKIP() << "SKIPPED: no chromium or chromium-headless-shell is installed; the page of "
                      "tilewright tune --report was not looked at";
    }
    std::ofstream(directory_.path() + "/page.html") << Page({Landscape(), Landscape()});
  }
  tilewright::testing::CommandOutput Browse(const std::string& flags, const std::string& page) {
    return tilewright::testing::RunCommand(
        "timeout 120 '" + browser_ +
        "' --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
        "--user-data-dir='" +
        directory_.path() + "/profile' " + flags + " 'file://" + directory_.path() + "/" + page +
        "' 2>/dev/null");
  }

  tilewright::testing::TempDirectory directory_;
  std::string browser_;
};

TEST_F(BrowserTest, DrawsThePageAtDesktopAndPhoneWidths) {
  for (const auto& [width, height] : {std::pair{1200, 1600}, std::pair{500, 1600}}) {
    const std::string picture = directory_.path() + "/" + std::to_string(width) + ".png";
    Browse("--screenshot='" + picture + "' --window-size=" + std::to_string(width) + "," +
               std::to_string(height),
           "page.html");
    const Png png = ReadPng(picture);
    EXPECT_EQ(png.width, static_cast<uint32_t>(width));
    EXPECT_EQ(png.height, static_cast<uint32_t>(height));
    // A blank page of this size compresses to some 6 kB; text and maps to several times that.
    EXPECT_GT(png.bytes, 30'000u);
  }
}

TEST_F(BrowserTest, LaysOutTheMapWithoutOverflow) {
  // The page is asked by a frame around it, so that it stays without script itself.
  std::ofstream(directory_.path() + "/frame.html") << R"(<!doctype html><body><pre id="out"></pre>
<iframe id="f" src="page.html" style="width:1200px;height:1600px;border:0"></iframe><script>
document.getElementById('f').onload = () => {
  const d = document.getElementById('f').contentDocument, say = [];
  const cells = d.querySelectorAll('table.map td:not(.none)');
  let small = 0, colours = new Set();
  cells.forEach(c => { const r = c.getBoundingClientRect();
    if (r.width < 60 || r.height < 36) small++;
    colours.add(getComputedStyle(c).backgroundColor); });
  say.push('cells=' + cells.length, 'small=' + small, 'colours=' + (colours.size > 3),
           'overflow=' + (d.documentElement.scrollWidth > 1200),
           'bars=' + d.querySelectorAll('.chart i').length,
           'winners=' + d.querySelectorAll('.map td.winner').length);
  document.getElementById('out').textContent = say.join(' ');
};</script></body>)";
  const auto dom = Browse(
      "--allow-file-access-from-files --virtual-time-budget=5000 --window-size=1300,1800 "
      "--dump-dom",
      "frame.html");
  EXPECT_THAT(dom.text,
              HasSubstr("cells=16 small=0 colours=true overflow=false bars=10 winners=2"));
}

}  // namespace
}  // namespace tilewright::cli

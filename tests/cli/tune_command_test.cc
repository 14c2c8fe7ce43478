#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "cache/record_files.h"
#include "cli/toolchain.h"
#include "plan/planner.h"
#include "program_runner.h"
#include "runtime/tuning.h"
#include "spec/canonical.h"
#include "tests/support/child_process.h"
#include "tests/support/run_command.h"
#include "tune/bucket.h"
#include "tune/code_digest.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSpec[] = "fwd bf16 b=2 h=8/8 s=1000/1000 d=64/64 causal";

// A record for the board that is assumed without a GPU: the third candidate won.
tune::TuningRecord RecordForDefaultBoard(const std::string& text) {
  const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(text));
  const auto traits = *arch::FindArchTraits("sm_90a");
  const auto board = *arch::DefaultBoardProfile("sm_90a");
  const plan::PlanRequest request = {spec, traits, board};
  const auto decision = *plan::Best(request);
  const auto candidates = plan::Candidates(request, decision);
  tune::TuningRecord record;
  record.bucket = tune::BucketOf(spec);
  record.spec = record.timed = spec::ToText(spec);
  record.environment = tune::MakeEnvironment(board, "sm_90a", 13000);
  record.candidate_set = tune::CandidateSetDigest(candidates);
  record.code = tune::CodeDigests(&emit::EmbeddedTemplates()).Of(candidates);
  record.checked_against = "attn_fwd_simple";
  record.default_plan = candidates[0].ToString();
  record.winner = candidates[2].ToString();
  record.default_ms = 0.3;
  record.winner_ms = 0.25;
  record.band = 0.02;
  record.date = "2026-11-29 20:00:00";
  return record;
}

class TuneCommandTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  void Store(const tune::TuningRecord& record) {
    const cache::RecordFiles files({.directory = path("store")});
    ASSERT_TRUE(files.Write(record.Key(), record.ToJson(), true).ok());
  }

  const TemporaryFolder folder_;
  const ScopedVariable store_{"TILEWRIGHT_CACHE_DIR", folder_.path("store")};
};

TEST_F(TuneCommandTest, ExplainSaysWhichRecordMatchedAndHow) {
  EXPECT_THAT(Invoke({"explain", kSpec}).out, HasSubstr("tuned     no record"));
  const tune::TuningRecord record = RecordForDefaultBoard(kSpec);
  Store(record);
  const Outcome exact = Invoke({"explain", kSpec});
  EXPECT_EQ(exact.exit_code, 0) << exact.err;
  EXPECT_THAT(exact.out, HasSubstr("plan      " + record.winner));
  EXPECT_THAT(exact.out, HasSubstr(": measured, as \"tuned\" says; the cost model's is " +
                                   record.default_plan));
  EXPECT_THAT(exact.out, HasSubstr("tuned     exact record (user) of fwd bf16"));
  const Json json =
      Invoke({"explain", "fwd bf16 b=2 h=8/8 s=2048/2048 d=64/64 causal", "--json"}).json();
  EXPECT_EQ(json["record"]["match"], "nearest");
  EXPECT_EQ(json["plan"]["text"], record.winner);
}

TEST_F(TuneCommandTest, CompileMakesWhatTheRecordSays) {
  const tune::TuningRecord record = RecordForDefaultBoard(kSpec);
  Store(record);
  auto tools = Toolchain::Open();
  ASSERT_TRUE(tools.ok()) << tools.status();
  const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(kSpec));
  EXPECT_EQ((*tools)->Plan(spec, "sm_90a")->plan.ToString(), record.winner);
  const ScopedVariable off("TILEWRIGHT_TUNE_POLICY", "off");
  auto untuned = Toolchain::Open();
  EXPECT_EQ((*untuned)->Plan(spec, "sm_90a")->plan.ToString(), record.default_plan)
      << "shipped records only";
}

TEST_F(TuneCommandTest, CompilePlanListsWhatOtherSizesCanReach) {
  const Outcome outcome =
      Invoke({"compile", "--plan", "--max-batch", "16", "--max-seqlen", "4096", kSpec, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  const Json& spec = json["specs"][0];
  EXPECT_GT(spec["planned"], 1);
  EXPECT_LT(spec["planned"], 100);
  EXPECT_GE(spec["planned"], spec["defaults"]);
  EXPECT_EQ(spec["kernels"].size(), spec["planned"]);
  EXPECT_GT(spec["kernels"][0]["default_of"], 0);
  EXPECT_EQ(spec["kernels"][0]["key"].get<std::string>().size(), 64u);
  EXPECT_FALSE(std::filesystem::exists(path("store") + "/v1/k")) << "nothing was compiled";
}

TEST_F(TuneCommandTest, CompileCandidatesMakesWhatTuningWouldTry) {
  const ScopedVariable family("TILEWRIGHT_FAMILY", "attn_fwd_simple");
  constexpr char kSmall[] = "fwd fp32 b=1 h=1/1 s=64/64 d=32/32";
  const Outcome outcome =
      Invoke({"compile", kSmall, "--arch", "sm_90a", "--candidates", "2", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // What a runtime takes, and the two best; the family of the reference needs none.
  const Json json = outcome.json();
  ASSERT_EQ(json["kernels"].size(), 3u);
  EXPECT_EQ(json["compiled"].get<int>() + json["hits"].get<int>(), 3);
  EXPECT_EQ(json["kernels"][0]["key"], json["kernels"][1]["key"]) << "the default comes first";
  EXPECT_NE(json["kernels"][1]["key"], json["kernels"][2]["key"]);
  EXPECT_EQ(Invoke({"compile", kSmall, "--candidates", "-1"}).exit_code, 2);
}

TEST_F(TuneCommandTest, TheFlagsAreChecked) {
  EXPECT_EQ(Invoke({"tune"}).exit_code, 2);
  EXPECT_EQ(Invoke({"tune", "nonsense"}).exit_code, 2);
  EXPECT_EQ(Invoke({"tune", "--shapes", path("missing.txt")}).exit_code, 2);
  EXPECT_EQ(Invoke({"tune", kSpec, "--budget", "-1"}).exit_code, 2);
  EXPECT_EQ(Invoke({"tune", kSpec, "--jobs", "0"}).exit_code, 2);
  EXPECT_EQ(Invoke({"tune", "--from", path("missing.json")}).exit_code, 2);
}

TEST_F(TuneCommandTest, ThePageIsMadeFromRecordsWithoutAGpu) {
  const Json record = Json::parse(RecordForDefaultBoard(kSpec).ToJson());
  std::ofstream(path("tuned.json")) << Json{{"specs", {{{"spec", kSpec}, {"record", record}}}}};
  const Outcome made =
      Invoke({"tune", "--from", path("tuned.json"), "--report", path("page.html")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  std::ifstream file(path("page.html"));
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr("What tuning found"));
  EXPECT_THAT(page, HasSubstr(kSpec));
  // The records as files, ready to be shipped.
  EXPECT_EQ(Invoke({"tune", "--from", path("tuned.json"), "--records", path("records")}).exit_code,
            0);
  const std::string key = RecordForDefaultBoard(kSpec).Key().ToHex();
  EXPECT_TRUE(cache::OpenRecord(ReadWhole(path("records/" + key + ".twt"))).ok());
  std::ofstream(path("empty.json")) << "{}";
  EXPECT_EQ(Invoke({"tune", "--from", path("empty.json"), "--report", path("x")}).exit_code, 2);
}

// ---- the program on the recording driver: kernels compute nothing and all take the same time ----

class TuneProgramTest : public TuneCommandTest {
 protected:
  void SetUp() override {
    std::ofstream(path("shapes.txt")) << "# what an application meets\n"
                                      << kSmall << "\n\nfwd fp32 b=2 h=1/1 s=16/16 d=8/8\n";
  }
  // The budget is one that a busy machine does not reach.
  std::string Command(const std::string& arguments, int budget_ms = 600'000) const {
    return absl::StrCat("TILEWRIGHT_FAMILY=attn_fwd_simple LD_LIBRARY_PATH='",
                        TILEWRIGHT_RECORDING_LIBCUDA, "' '", TILEWRIGHT_PROGRAM,
                        "' tune --candidates 2 --budget ", budget_ms, " ", arguments);
  }
  // Without the driver's lines about launches.
  Json RunForJson(const std::string& arguments) const {
    const auto [text, exit_code] = tilewright::testing::RunCommand(
        Command(arguments + " --json") + " > '" + path("out") +
        "'; status=$?; grep -v '^launch ' '" + path("out") + "'; exit $status");
    EXPECT_EQ(exit_code, 0) << text;
    return Json::parse(text, nullptr, /*allow_exceptions=*/false);
  }

  static constexpr char kSmall[] = "fwd fp32 b=1 h=1/1 s=64/64 d=32/32";
};

TEST_F(TuneProgramTest, MeasuresTheSpecsOfAFileAndSaysWhatItFound) {
  const Json json = RunForJson("--shapes '" + path("shapes.txt") + "' --records '" +
                               path("records") + "' --report '" + path("page.html") + "'");
  ASSERT_TRUE(json.is_object()) << json;
  ExpectShape(json, "tune.txt");
  ASSERT_EQ(json["specs"].size(), 2u);
  const Json& first = json["specs"][0];
  EXPECT_EQ(first["spec"], kSmall);
  EXPECT_EQ(first["measured"], true);
  EXPECT_EQ(first["winner"], first["default"]) << "all are equal";
  const auto record = tune::ParseRecord(first["record"].dump());
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_GE(record->candidates.size(), 2u);
  EXPECT_EQ(record->candidates[1].outcome, tune::Outcome::kTimed);
  // A file for each, and a page with both.
  EXPECT_TRUE(cache::OpenRecord(ReadWhole(path("records/" + record->Key().ToHex() + ".twt"))).ok());
  const std::string page = ReadWhole(path("page.html"));
  EXPECT_THAT(page, HasSubstr(kSmall));
  EXPECT_THAT(page, HasSubstr("s=16/16 d=8/8"));

  // The store has the records now; --force measures all the same.
  EXPECT_EQ(RunForJson(kSmall)["specs"][0]["measured"], false);
  EXPECT_EQ(RunForJson(std::string(kSmall) + " --force")["specs"][0]["measured"], true);
  // And `explain` finds them.
  const ScopedVariable family("TILEWRIGHT_FAMILY", "attn_fwd_simple");
  EXPECT_THAT(Invoke({"explain", kSmall}).out, HasSubstr("tuned     "));
}

TEST_F(TuneProgramTest, DrawsABarOnATerminal) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    const std::string command = Command(std::string("'") + kSmall + "'");
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  std::string shown;
  char buffer[4096];
  // Reading from a terminal whose other end is closed is an error, not an end.
  for (ssize_t got; (got = read(terminal, buffer, sizeof(buffer))) > 0;) shown.append(buffer, got);
  close(terminal);
  EXPECT_EQ(tilewright::testing::WaitForChild(child), 0) << shown;
  EXPECT_THAT(shown, HasSubstr("\r\x1b[K[1/1] "));
  EXPECT_THAT(shown, HasSubstr("2/2 candidates, "));
  EXPECT_THAT(shown, HasSubstr("s left"));
  EXPECT_THAT(shown, HasSubstr("best attn_fwd_simple"));
  EXPECT_THAT(shown, HasSubstr("ms, the default"));
}

TEST_F(TuneProgramTest, WhereNoTerminalIsNothingIsDrawn) {
  const auto [text, exit_code] = tilewright::testing::RunCommand(
      Command(std::string("'") + kSmall + "' 'bwd fp32 b=1 h=1/1 s=8/8 d=8/8' 2>&1"));
  EXPECT_EQ(exit_code, kExitProblem) << text;
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("ms, the default"));
  EXPECT_THAT(text, HasSubstr("tilewright tune: ")) << "the family serves no backward";
}

TEST_F(TuneProgramTest, ABudgetThatIsTooShortIsSaid) {
  const auto [text, exit_code] = tilewright::testing::RunCommand(
      Command(std::string("'") + kSmall + "' 2>&1", /*budget_ms=*/1));
  EXPECT_EQ(exit_code, kExitProblem) << text;
  EXPECT_THAT(text, HasSubstr("the budget ended"));
}

}  // namespace
}  // namespace tilewright::cli

// The program end to end on the host path: shapes of the JSON, exit codes, the store.
#include "cli/program.h"

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cli/array_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program_runner.h"
#include "test_files.h"
#include "tests/support/run_command.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class ProgramTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  ScopedVariable store_{"TILEWRIGHT_CACHE_DIR", folder_.path("store")};
};

const std::string kMinilm = std::string(TILEWRIGHT_TEST_DATA) + "/minilm/";

TEST_F(ProgramTest, RunComputesOnTheHostAndStillStoresTheKernel) {
  const std::vector<std::string> arguments = {"run", "fwd bf16 b=1 h=2 s=33/40 d=16 causal lse",
                                              "--device", "host", "--json"};
  const Outcome first = Invoke(arguments);
  ASSERT_EQ(first.exit_code, kExitFine) << first.out;
  const Json json = first.json();
  ExpectShape(json, "run_host.txt");
  EXPECT_EQ(json["computed_on"], "host");
  EXPECT_THAT(json["note"].get<std::string>(), HasSubstr("host reference"));
  EXPECT_EQ(json["spec"], "fwd bf16 b=1 h=2/2 s=33/40 d=16/16 causal lse");
  EXPECT_EQ(json["plan"]["target"], "sm_90a");
  EXPECT_EQ(json["kernel"]["origin"], "compiled");
  EXPECT_EQ(json["accuracy"]["rows"], 66);

  const Json second = Invoke(arguments).json();
  EXPECT_EQ(second["kernel"]["origin"], "store");
  EXPECT_EQ(second["kernel"]["key"], json["kernel"]["key"]);

  const Outcome text =
      Invoke({"run", "fwd bf16 b=1 h=2 s=33/40 d=16 causal lse", "--device", "host"});
  EXPECT_EQ(text.exit_code, kExitFine);
  EXPECT_THAT(text.out, AllOf(HasSubstr("host reference"), HasSubstr("from the store"),
                              HasSubstr("fp64      ok")));
  EXPECT_THAT(text.err, IsEmpty());
}

TEST_F(ProgramTest, RunOnRealArraysMatchesTheModelAndWritesTheOutput) {
  std::vector<std::string> arguments = {"run",
                                        "--q",
                                        kMinilm + "q.npy",
                                        "--k",
                                        kMinilm + "k.npy",
                                        "--v",
                                        kMinilm + "v.npy",
                                        "--mask",
                                        kMinilm + "mask.npy",
                                        "--o",
                                        folder_.path("o.npy"),
                                        "--lse-out",
                                        folder_.path("lse.safetensors"),
                                        "--device",
                                        "host",
                                        "--json",
                                        "--expect",
                                        kMinilm + "o.npy",
                                        "lse"};
  const Outcome outcome = Invoke(arguments);
  ASSERT_EQ(outcome.exit_code, kExitFine) << outcome.out;
  EXPECT_LT(outcome.json()["expected"]["relative"].get<double>(), 1e-6);
  const absl::StatusOr<Array> o = ReadArray(folder_.path("o.npy"));
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_THAT(o->shape, ::testing::ElementsAre(2, 79, 12, 32));
  const absl::StatusOr<Array> lse = ReadArray(folder_.path("lse.safetensors"));
  ASSERT_TRUE(lse.ok()) << lse.status();
  EXPECT_THAT(lse->shape, ::testing::ElementsAre(2, 12, 79));

  // Without the padding mask the answer is another one.
  arguments = {"run",
               "--q",
               kMinilm + "q.npy",
               "--k",
               kMinilm + "k.npy",
               "--v",
               kMinilm + "v.npy",
               "--device",
               "host",
               "--json",
               "--expect",
               kMinilm + "o.npy"};
  const Outcome unmasked = Invoke(arguments);
  EXPECT_EQ(unmasked.exit_code, kExitProblem);
  EXPECT_EQ(unmasked.json()["expected"]["holds"], false);
  EXPECT_EQ(unmasked.json()["accuracy"]["holds"], true);
}

TEST_F(ProgramTest, ASnippetIsCompiledButNotComputedOnTheHost) {
  const std::string snippet = folder_.Write("rule.cu", "score * gain");
  const Outcome outcome = Invoke({"run", "fwd fp32 b=1 h=1 s=8 d=8 score=@" + snippet, "--scalar",
                                  "gain=0.5", "--device", "host", "--json"});
  EXPECT_EQ(outcome.exit_code, kExitProblem) << outcome.out;
  const Json json = outcome.json();
  EXPECT_EQ(json["ok"], false);
  EXPECT_THAT(json["check_note"].get<std::string>(), HasSubstr("only a GPU can run"));
  EXPECT_EQ(json["kernel"]["origin"], "compiled");
}

// On a driver that records and computes nothing, so that the outputs stay unwritten. Tuning is off:
// where the default's compile takes longer than its budget, a kernel that was ready first runs.
TEST_F(ProgramTest, ASnippetOnAGpuIsComparedWithTheSimpleFamily) {
  const std::string snippet = folder_.Write("rule.cu", "score * 0.5f");
  const std::string command = std::string("TILEWRIGHT_TUNE_POLICY=off LD_LIBRARY_PATH='") +
                              TILEWRIGHT_RECORDING_LIBCUDA + "' '" + TILEWRIGHT_PROGRAM +
                              "' run 'fwd bf16 b=1 h=2 s=128 d=64 score=@" + snippet + "' 2>&1";
  const auto [text, exit_code] = tilewright::testing::RunCommand(command);
  EXPECT_EQ(exit_code, kExitProblem) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("launch attn_fwd_simple__bf16_d64_score"),
                          HasSubstr("launch attn_fwd_sm90__bf16_d64_score"),
                          HasSubstr("WRONG: differs by inf from the simple family")));
}

TEST_F(ProgramTest, BenchTimesWhatPrepareGivesAfterACheck) {
  EXPECT_EQ(Invoke({"bench"}).exit_code, kExitUsage);
  EXPECT_THAT(Invoke({"bench", "fwd bf16", "h=x"}).err, HasSubstr("h=x"));
  const std::string shapes =
      folder_.Write("shapes.txt", "fwd fp16 b=1 h=1 s=9 d=8 strided_innermost\n");
  const std::string command = std::string("TILEWRIGHT_TUNE_POLICY=off LD_LIBRARY_PATH='") +
                              TILEWRIGHT_RECORDING_LIBCUDA + "' '" + TILEWRIGHT_PROGRAM +
                              "' bench --ms 0 'fwd bf16 b=1 h=2 s=64 d=64' 'bwd bf16 s=8' " +
                              "--shapes '" + shapes + "' 2>&1";
  const auto [text, exit_code] = tilewright::testing::RunCommand(command);
  EXPECT_EQ(exit_code, kExitFine) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("cold L2 cache"), HasSubstr("fwd bf16 b=1 h=2/2 s=64/64"),
                          HasSubstr("half of 10 launches"), HasSubstr("TFLOP/s"),
                          HasSubstr("the answer agrees with attn_fwd_simple"),
                          HasSubstr("bwd bf16 b=1 h=1/1 s=8/8"),
                          HasSubstr("there is no other family to compare")));
}

TEST_F(ProgramTest, ASnippetThatDoesNotCompileIsReportedWithItsFileAndLine) {
  const std::string snippet = folder_.Write("broken.cu", "float x = 1;\nreturn score * y;");
  const Outcome outcome =
      Invoke({"run", "fwd fp32 b=1 h=1 s=8 d=8 score=@" + snippet, "--device", "host", "--json"});
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  const Json error = outcome.json()["error"];
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_THAT(error["compile_log"].get<std::string>(), HasSubstr("broken.cu(2)"));
}

TEST_F(ProgramTest, EmitPrintsTheUnitOrWritesAllThatItIncludes) {
  const Outcome text = Invoke({"emit", "fwd", "bf16", "b=1", "h=2", "s=64", "d=64", "causal"});
  EXPECT_EQ(text.exit_code, kExitFine) << text.err;
  EXPECT_THAT(text.out, HasSubstr("extern \"C\" __global__"));
  const Outcome json = Invoke({"emit", "fwd bf16 b=1 h=2 s=64 d=64 causal", "--arch", "sm_80",
                               "--out", folder_.path("emitted"), "--json"});
  ASSERT_EQ(json.exit_code, kExitFine) << json.out;
  ExpectShape(json.json(), "emit.txt");
  const std::string unit = folder_.path("emitted/" + json.json()["unit"].get<std::string>());
  EXPECT_EQ(ReadWhole(unit), json.json()["source"].get<std::string>());
  const std::string family = json.json()["plan"]["family"].get<std::string>();
  EXPECT_TRUE(std::filesystem::exists(folder_.path("emitted/family/" + family + ".cuh")));
  EXPECT_THAT(json.json()["compile_with"].get<std::string>(), HasSubstr("-arch=sm_80"));
}

TEST_F(ProgramTest, CompileCountsWhatItDid) {
  const std::string matrix = folder_.Write("m.txt", "# two\nfwd bf16 b=1 h=2 s=64 d=16\n");
  const std::vector<std::string> arguments = {
      "compile", "fwd fp16 b=1 h=2 s=64 d=16", "--matrix", matrix, "--arch", "sm_80,sm_90a",
      "--json"};
  const Outcome cold = Invoke(arguments);
  ASSERT_EQ(cold.exit_code, kExitFine) << cold.out;
  ExpectShape(cold.json(), "compile.txt");
  EXPECT_EQ(cold.json()["specs"], 2);
  EXPECT_EQ(cold.json()["compiled"], 4);
  EXPECT_EQ(cold.json()["hits"], 0);
  EXPECT_EQ(cold.json()["failed"], 0);
  // A list takes one word, so that specs may follow it.
  const Json warm = Invoke({"compile", "--matrix", matrix, "--arch", "sm_80,sm_90a",
                            "fwd fp16 b=1 h=2 s=64 d=16", "--json"})
                        .json();
  EXPECT_EQ(warm["compiled"], 0);
  EXPECT_EQ(warm["hits"], 4);

  const Outcome failing = Invoke(
      {"compile", "fwd fp16 b=1 h=2 s=64 d=16", "bwd e4m3 b=1 h=2 s=64 d=16 out=fp16", "--json"});
  EXPECT_EQ(failing.exit_code, kExitProblem);
  EXPECT_EQ(failing.json()["hits"], 1);
  EXPECT_EQ(failing.json()["failed"], 1);
}

TEST_F(ProgramTest, ExplainKnowsWhetherTheKernelIsStored) {
  const std::vector<std::string> arguments = {"explain", "fwd bf16 b=1 h=2 s=64 d=16 causal",
                                              "--json"};
  const Json before = Invoke(arguments).json();
  EXPECT_THAT(before["store"]["state"].get<std::string>(), HasSubstr("not stored"));
  EXPECT_FALSE(before["store"].contains("registers"));
  ASSERT_EQ(Invoke({"compile", "fwd bf16 b=1 h=2 s=64 d=16 causal"}).exit_code, kExitFine);
  const Outcome after = Invoke(arguments);
  ASSERT_EQ(after.exit_code, kExitFine) << after.out;
  ExpectShape(after.json(), "explain.txt");
  EXPECT_EQ(after.json()["store"]["state"], "stored");
  EXPECT_GT(after.json()["store"]["registers"], 0);
  EXPECT_EQ(after.json()["store"]["key"], before["store"]["key"]);
  const Outcome text = Invoke({"explain", "fwd bf16 b=1 h=2 s=64 d=16 causal"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("plan"), HasSubstr("padding"), HasSubstr("registers")));
}

TEST_F(ProgramTest, SpecsOfAppendingAreCompiledEmittedAndExplained) {
  const std::string spec =
      "append bf16 h=4/2 d=64 cache=e4m3 scale=token paged=16 rotary=half_split";
  const std::string canonical =
      "append bf16 h=4/2 d=64/64 cache=e4m3 scale=token paged=16 rotary=half_split:0,64:10000";
  const std::vector<std::string> explain = {"explain", spec, "--json"};
  EXPECT_THAT(Invoke(explain).json()["store"]["state"].get<std::string>(), HasSubstr("not stored"));
  const Json compiled = Invoke({"compile", spec, "fwd bf16 b=1 h=2 s=64 d=16", "--json"}).json();
  EXPECT_EQ(compiled["compiled"], 2);
  EXPECT_EQ(compiled["kernels"][0]["spec"], canonical);
  const Json after = Invoke(explain).json();
  EXPECT_EQ(after["store"]["state"], "stored");
  EXPECT_EQ(after["plan"]["family"], "cache_append");
  EXPECT_EQ(after["store"]["key"], compiled["kernels"][0]["key"]);
  EXPECT_THAT(Invoke({"explain", spec}).out, AllOf(HasSubstr(canonical), HasSubstr("registers")));

  EXPECT_THAT(Invoke({"emit", spec}).out, HasSubstr("#include \"family/cache_append.cuh\""));
  const std::string directory = folder_.path("appended");
  const Json emitted = Invoke({"emit", spec, "--out", directory, "--json"}).json();
  EXPECT_TRUE(std::filesystem::exists(directory + "/" + emitted["unit"].get<std::string>()));
  EXPECT_TRUE(std::filesystem::exists(directory + "/family/cache_append.cuh"));

  EXPECT_EQ(Invoke({"emit", spec, "--plan", "any"}).exit_code, kExitUsage);
  const Outcome wrong = Invoke({"explain", "append bf16 heads=2"});
  EXPECT_EQ(wrong.exit_code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("word \"heads=2\""));
  EXPECT_EQ(Invoke({"verify", spec, "--device", "host"}).exit_code, kExitUsage);
}

TEST_F(ProgramTest, VerifyChecksEachSpecOnTheHostPath) {
  const Outcome outcome = Invoke({"verify", "fwd fp32 b=1 h=2 s=20 d=16 lse", "fwd", "bf16", "b=1",
                                  "h=2", "s=20", "d=16", "--device", "host", "--json"});
  ASSERT_EQ(outcome.exit_code, kExitFine) << outcome.out;
  ExpectShape(outcome.json(), "verify.txt");
  EXPECT_EQ(outcome.json()["specs"], 2);
  EXPECT_EQ(outcome.json()["failed"], 0);
}

TEST_F(ProgramTest, BackwardSpecsAreVerifiedAndRun) {
  const Outcome verified =
      Invoke({"verify", "bwd fp32 b=1 h=2/1 s=4/9 d=8 causal", "--device", "host", "--json"});
  ASSERT_EQ(verified.exit_code, kExitFine) << verified.out;
  EXPECT_THAT(verified.json()["results"][0]["finding"].get<std::string>(), HasSubstr("dv"));
  const Outcome run = Invoke({"run",
                              "bwd bf16 b=2 h=2 s=20 d=16 bias=fp32:1,2,20,20:grad sinks "
                              "sinks_grad alibi alibi_grad",
                              "--device", "host", "--json"});
  ASSERT_EQ(run.exit_code, kExitFine) << run.out;
  for (const char* name : {"dq", "dk", "dv", "dbias0", "dalibi", "dsinks"}) {
    EXPECT_EQ(run.json()["accuracy"][name]["holds"], true) << name;
  }
  // Too many for a host.
  EXPECT_EQ(Invoke({"run", "bwd bf16 b=8 h=32 s=4096 d=128", "--device", "host"}).exit_code,
            kExitProblem);
}

TEST_F(ProgramTest, CacheVerbsShowExtractAndClearWhatCompileStored) {
  ASSERT_EQ(Invoke({"compile", "fwd bf16 b=1 h=2 s=64 d=16"}).exit_code, kExitFine);
  const Json stats = Invoke({"cache", "stats", "--json"}).json();
  ExpectShape(stats, "cache_stats.txt");
  EXPECT_EQ(stats["entries"], 1);
  EXPECT_EQ(stats["totals"]["compiles"], 1);
  EXPECT_EQ(stats["totals"]["publishes"], 1);
  EXPECT_EQ(stats["directory"], folder_.path("store"));
  const Json list = Invoke({"cache", "ls", "--json"}).json();
  ExpectShape(list, "cache_ls.txt");
  ASSERT_EQ(list["entries"].size(), 1);
  EXPECT_EQ(list["entries"][0]["spec"], "fwd bf16 b=1 h=2/2 s=64/64 d=16/16");
  const std::string key = list["entries"][0]["key"].get<std::string>();

  const Json shown = Invoke({"cache", "show", key.substr(0, 8), "--json"}).json();
  EXPECT_EQ(shown["key"], key);
  EXPECT_TRUE(shown["sections"].contains("cubin"));
  EXPECT_GT(shown["manifest"].size(), 3);
  EXPECT_THAT(Invoke({"cache", "show", key.substr(0, 8)}).out, HasSubstr(key));

  const Outcome extracted =
      Invoke({"cache", "extract", key, "--out", folder_.path("kernel.cubin"), "--json"});
  EXPECT_EQ(extracted.exit_code, kExitFine);
  EXPECT_THAT(ReadWhole(folder_.path("kernel.cubin")), StartsWith("\x7f"
                                                                  "ELF"));
  EXPECT_EQ(
      Invoke({"cache", "extract", key, "--section", "source", "--out", folder_.path("kernel.cu")})
          .exit_code,
      kExitFine);
  EXPECT_THAT(ReadWhole(folder_.path("kernel.cu")), HasSubstr("__global__"));
  EXPECT_EQ(Invoke({"cache", "extract", key, "--section", "nothing"}).exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "show", "0123456789"}).exit_code, kExitProblem);

  EXPECT_EQ(Invoke({"cache", "clear"}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "stats", "--json"}).json()["entries"], 1);
  EXPECT_EQ(Invoke({"cache", "clear", "--yes", "--json"}).json()["removed"], 1);
  EXPECT_EQ(Invoke({"cache", "stats", "--json"}).json()["entries"], 0);
}

TEST_F(ProgramTest, DoctorFindsNvrtcAndTheStore) {
  const Outcome outcome = Invoke({"doctor", "--json"});
  const Json json = outcome.json();
  EXPECT_EQ(json["ok"], outcome.exit_code == kExitFine);
  for (const char* key :
       {"driver", "devices", "nvrtc", "store", "environment", "unknown_variables", "findings"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["nvrtc"]["found"], true) << json["nvrtc"].dump();
  EXPECT_THAT(json["nvrtc"]["version"].get<std::string>(),
              MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_EQ(json["store"]["directory"], folder_.path("store"));
  const Outcome text = Invoke({"doctor"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("nvrtc"), HasSubstr("TILEWRIGHT_CACHE_DIR=")));
}

TEST_F(ProgramTest, DoctorNamesWhatIsWrongAndTheRemedy) {
  const ScopedVariable unknown("TILEWRIGHT_CASHE_DIR", "/tmp");
  const ScopedVariable nvrtc("TILEWRIGHT_NVRTC_PATH", "/nowhere/libnvrtc.so");
  const Outcome outcome = Invoke({"doctor"});
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("TILEWRIGHT_CASHE_DIR"), HasSubstr("no usable NVRTC"),
                                 HasSubstr("remedy: ")));
}

TEST_F(ProgramTest, WithoutNvrtcOnlyWhatMustCompileFails) {
  ASSERT_EQ(Invoke({"compile", "fwd bf16 b=1 h=2 s=64 d=16"}).exit_code, kExitFine);
  const ScopedVariable nvrtc("TILEWRIGHT_NVRTC_PATH", "/nowhere/libnvrtc.so");
  const Outcome emitted = Invoke({"emit", "fwd bf16 b=1 h=2 s=64 d=8"});
  EXPECT_EQ(emitted.exit_code, kExitFine);
  const Outcome missing =
      Invoke({"run", "fwd bf16 b=1 h=2 s=64 d=8", "--device", "host", "--json"});
  EXPECT_EQ(missing.exit_code, kExitProblem);
  EXPECT_EQ(missing.json()["error"]["code"], "UNAVAILABLE");
  EXPECT_THAT(missing.json()["error"]["message"].get<std::string>(),
              HasSubstr("/nowhere/libnvrtc.so"));
}

TEST_F(ProgramTest, AFrozenProgramNamesTheSpecThatIsNotStored) {
  const ScopedVariable frozen("TILEWRIGHT_FROZEN", "1");
  const Outcome outcome =
      Invoke({"run", "fwd bf16 b=1 h=2 s=64 d=8", "--device", "host", "--json"});
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  EXPECT_EQ(outcome.json()["error"]["code"], "FAILED_PRECONDITION");
  EXPECT_THAT(outcome.json()["error"]["message"].get<std::string>(),
              HasSubstr("fwd bf16 b=1 h=2/2 s=64/64 d=8/8"));
}

TEST_F(ProgramTest, AVariableThatDoesNotParseIsNamed) {
  const ScopedVariable log("TILEWRIGHT_LOG", "loud");
  const Outcome outcome = Invoke({"explain", "fwd bf16 b=1 h=2 s=64 d=8"});
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("TILEWRIGHT_LOG"), HasSubstr("loud")));
}

TEST_F(ProgramTest, UsageErrorsExitWithTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"walk"},
      {"run"},
      {"run", "fwd bf16 b=2 h=8/3 s=9 d=64"},
      {"run", "fwd bf16 b=2 h=8 s=9 d=64 casual"},
      {"run", "fwd bf16 b=2 h=8 s=9 d=64", "--device", "moon"},
      {"run", "fwd bf16 b=2 h=8 s=9 d=64", "--seed", "many"},
      {"run", "--q", "q.npy"},
      {"run", "fwd bf16 b=2 h=8 s=9 d=64", "--expect", "o.npy"},
      {"run", "fwd bf16 b=2 h=8 s=9 d=64", "--o", "o.npy"},
      {"run", "fwd fp16 b=2 h=8 s=9 d=64", "--lse-out", "lse.npy"},
      {"emit"},
      {"emit", "nothing"},
      {"explain", "fwd bf17 b=1"},
      {"compile"},
      {"verify", "fwd bf16 b=2 h=8/3 s=9 d=64"},
      {"cache"},
      {"cache", "show"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    const Outcome text = Invoke(arguments);
    EXPECT_EQ(text.exit_code, kExitUsage) << ::testing::PrintToString(arguments) << text.out;
    EXPECT_FALSE(text.err.empty()) << ::testing::PrintToString(arguments);
    if (arguments.empty()) continue;
    std::vector<std::string> with_json = arguments;
    with_json.emplace_back("--json");
    const Outcome json = Invoke(with_json);
    EXPECT_EQ(json.exit_code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_EQ(json.json()["ok"], false);
    EXPECT_FALSE(json.json()["error"]["message"].get<std::string>().empty());
  }
}

TEST_F(ProgramTest, ProblemsExitWithOne) {
  const std::vector<std::vector<std::string>> failing = {
      {"run", "--q", "/nowhere/q.npy", "--k", "k.npy", "--v", "v.npy"},
      {"run", "--q", kMinilm + "q.npy", "--k", kMinilm + "mask.npy", "--v", kMinilm + "v.npy"},
      {"emit", "fwd bf16 b=1 h=2 s=64 d=8", "--arch", "sm_1"},
      {"explain", "fwd bf16 b=1 h=2 s=64 d=8", "--arch", "sm_1"},
      {"emit", "fwd bf16 b=1 h=2 s=64 d=8", "--out", "/proc/nowhere"},
      {"compile", "--matrix", "/nowhere/m.txt"},
  };
  for (const std::vector<std::string>& arguments : failing) {
    const Outcome outcome = Invoke(arguments);
    EXPECT_EQ(outcome.exit_code, kExitProblem)
        << ::testing::PrintToString(arguments) << outcome.err;
    EXPECT_FALSE(outcome.err.empty());
  }
}

TEST_F(ProgramTest, HelpAndVersionAreFine) {
  EXPECT_THAT(Invoke({"--version"}).out, HasSubstr("tilewright "));
  for (const char* command : {"run", "emit", "compile", "explain", "verify", "doctor", "cache"}) {
    const Outcome help = Invoke({command, "--help"});
    EXPECT_EQ(help.exit_code, kExitFine);
    EXPECT_THAT(help.out, HasSubstr("Usage"));
  }
}

TEST_F(ProgramTest, TheProgramReturnsTheseExitCodes) {
  const auto exit_code = [&](const std::string& arguments) {
    const int status = std::system(
        (std::string(TILEWRIGHT_PROGRAM) + " " + arguments + " > /dev/null 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(exit_code("explain fwd bf16 b=1 h=2 s=64 d=8"), kExitFine);
  EXPECT_EQ(exit_code("explain fwd bf16 b=1 h=2 s=64 d=8 --arch sm_1"), kExitProblem);
  EXPECT_EQ(exit_code("explain fwd bf16 casual"), kExitUsage);
}

}  // namespace
}  // namespace tilewright::cli

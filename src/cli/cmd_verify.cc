// tilewright verify: checks results against the fp64 reference, on this GPU or on the host path.
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/gradients.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

constexpr char kCommand[] = "verify";

// One spec for each part of the definition, small enough for a host.
constexpr const char* kBuiltIn[] = {
    "fwd fp32 b=2 h=3 s=65 d=40 lse",
    "fwd fp16 b=2 h=4/2 s=100/133 d=64 causal lse",
    "fwd bf16 b=1 h=8/1 s=77 d=128 causal=top_left",
    "fwd bf16 b=2 h=2 s=150 d=72 window=31,8 lse",
    "fwd fp16 b=2 h=2 s=64/96 d=64/32 softcap=20 scale=0.2",
    "fwd bf16 b=2 h=4 s=90 d=64 alibi lse",
    "fwd fp16 b=4 h=2 s=49 d=32 bias=fp16:1,2,49,49 bias=fp32:2,1,49,49:div",
    "fwd bf16 b=2 h=2 s=33/70 d=64 mask=bool:2,1,33,70 lse",
    "fwd bf16 b=2 h=4/2 s=64 d=64 sinks causal lse",
    "fwd fp16 b=2 h=2 s=64 d=64 dropout=0.1",
    "fwd bf16 b=3 h=4/2 s=60/90 d=64 layout=thd varlen causal lse",
    "fwd bf16 b=3 h=4/2 s=1/90 d=64 paged=16 varlen lse",
    "fwd fp16 b=2 h=2 s=128 d=64 block_mask=64,32 lse",
    "fwd bf16 b=1 h=2 s=40 d=192/128 layout=bhsd causal lse lse_base=2",
    "fwd bf16 b=1 h=1 s=5/7 d=1 lse",
    "bwd bf16 b=1 h=4/2 s=150/200 d=64 causal",
    "bwd fp16 b=2 h=2 s=130 d=128 deterministic",
    "bwd fp32 b=1 h=2 s=65/70 d=40 window=31,8",
    "bwd bf16 b=2 h=2 s=90 d=64 alibi alibi_grad bias=fp32:1,2,90,90:grad sinks sinks_grad",
    "bwd bf16 b=3 h=4/2 s=60/90 d=64 layout=thd varlen causal dropout=0.1",
};

struct VerifyOptions {
  std::vector<std::string> specs;
  std::string device = "auto";
  std::string target = kDefaultTarget;
  uint64_t seed = 1;
};

struct Verdict {
  std::string spec;
  std::string how;  // the plan
  absl::Status status;
  std::string finding;
  bool holds = false;
};

// The two references of a backward, as below those of a forward.
absl::Status CompareReferences(HostProblem& problem, Verdict& verdict) {
  TILEWRIGHT_RETURN_IF_ERROR(ComputeGradientsOnHost(problem));
  TILEWRIGHT_ASSIGN_OR_RETURN(const GradientAccuracy accuracy, CheckGradients(problem));
  verdict.holds = accuracy.holds();
  absl::StrAppend(&verdict.finding, accuracy.ToString());
  return absl::OkStatus();
}

// Without a GPU: the kernel must compile, and the fp64 reference and the straightforward
// computation in the spec's own types, two separate pieces of arithmetic, must agree to rounding.
absl::Status VerifyOnHost(Toolchain& tools, const AttentionSpec& spec, const std::string& target,
                          HostProblem& problem, uint64_t seed, Verdict& verdict) {
  StageClock clock;
  TILEWRIGHT_ASSIGN_OR_RETURN(const KernelReport kernel,
                              BuildForTarget(tools, spec, target, clock));
  verdict.how = kernel.decision.plan.ToString();
  if (spec.operation == Operation::kBackward) {
    verdict.finding = absl::StrFormat("%s compiled for %s; fp64, rounded once: ", kernel.entry_name,
                                      kernel.decision.plan.target);
    return CompareReferences(problem, verdict);
  }
  const std::vector<reference::Row> rows = RowsToCheck(problem, seed);
  TILEWRIGHT_ASSIGN_OR_RETURN(const reference::ForwardResult exact,
                              reference::Forward(spec, problem.args(), rows));
  TILEWRIGHT_ASSIGN_OR_RETURN(const reference::ForwardResult plain,
                              reference::StraightforwardForward(spec, problem.args(), rows));
  double squared = 0;
  double exact_squared = 0;
  bool finite = true;
  for (size_t n = 0; n < exact.o.size(); ++n) {
    squared += (exact.o[n] - plain.o[n]) * (exact.o[n] - plain.o[n]);
    exact_squared += exact.o[n] * exact.o[n];
    finite = finite && std::isfinite(exact.o[n]) && std::isfinite(plain.o[n]);
  }
  const double relative =
      exact_squared > 0 ? std::sqrt(squared / exact_squared) : std::sqrt(squared);
  // Two roundings (P and O) of the element type, or the growth of fp32 sums.
  double bar = 5e-6;
  if (spec::OutType(spec) == ElementType::kFp16) bar = 2e-3;
  if (spec::OutType(spec) == ElementType::kBf16) bar = 1.6e-2;
  const bool fp8 = spec::ElementBytes(spec.type) == 1;
  if (fp8) bar = 0.1;
  verdict.holds = finite && relative <= bar;
  verdict.finding =
      absl::StrFormat("%s compiled for %s; fp64 and %s differ by %.1e (bar %.1e), %d rows",
                      kernel.entry_name, kernel.decision.plan.target,
                      std::string(spec::ElementTypeName(spec.type)), relative, bar, rows.size());
  return absl::OkStatus();
}

absl::Status VerifyOnGpu(GpuSession& session, HostProblem& problem, uint64_t seed,
                         Verdict& verdict) {
  StageClock clock;
  TILEWRIGHT_ASSIGN_OR_RETURN(const GpuSession::Result result, session.Run(problem, clock));
  verdict.how = result.explain;
  if (problem.spec().operation == Operation::kBackward) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const GradientAccuracy gradients, CheckGradients(problem));
    verdict.holds = gradients.holds() && result.bitwise_equal;
    verdict.finding = gradients.ToString();
    if (!result.bitwise_equal) {
      absl::StrAppend(&verdict.finding, "; two launches gave different bytes");
    }
    return absl::OkStatus();
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const Accuracy accuracy,
                              CheckAccuracy(problem, RowsToCheck(problem, seed)));
  verdict.holds = accuracy.holds() && result.bitwise_equal;
  verdict.finding = accuracy.ToString();
  if (!result.bitwise_equal) {
    absl::StrAppend(&verdict.finding, "; two launches gave different bytes");
  }
  return absl::OkStatus();
}

absl::Status VerifyOne(GpuSession* session, Toolchain& tools, const std::string& text,
                       const VerifyOptions& options, Verdict& verdict) {
  verdict.spec = text;
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ReadSpec(text));
  verdict.spec = spec::ToText(spec);
  if (HasSnippet(spec)) {
    return absl::UnimplementedError(
        "a snippet is CUDA text, which the fp64 reference cannot run; tilewright run computes it");
  }
  RandomProblemOptions random;
  random.seed = options.seed;
  TILEWRIGHT_ASSIGN_OR_RETURN(HostProblem problem, MakeRandomProblem(spec, random));
  if (session != nullptr) return VerifyOnGpu(*session, problem, options.seed, verdict);
  return VerifyOnHost(tools, spec, options.target, problem, options.seed, verdict);
}

int Verify(const VerifyOptions& options, const Console& console) {
  absl::StatusOr<std::vector<std::string>> specs = SplitSpecs(options.specs);
  if (!specs.ok()) return console.Fail(kCommand, specs.status(), kExitUsage);
  if (specs->empty()) specs->assign(std::begin(kBuiltIn), std::end(kBuiltIn));
  for (const std::string& text : *specs) {
    const absl::StatusOr<AttentionSpec> spec = ReadSpec(text);
    if (!spec.ok()) return console.Fail(kCommand, spec.status(), kExitUsage);
  }
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  std::unique_ptr<GpuSession> session;
  std::string where = "the host path, as --device host asks";
  if (options.device != "host") {
    // To check what would run is no reason to measure it.
    RuntimeOptions chosen = (*tools)->options();
    if (chosen.tune_policy != TunePolicy::kFrozen) chosen.tune_policy = TunePolicy::kCachedOnly;
    absl::StatusOr<std::unique_ptr<GpuSession>> opened = GpuSession::Open(chosen);
    if (opened.ok()) {
      session = *std::move(opened);
      where = session->device().board.name;
    } else if (options.device == "gpu") {
      return console.Fail(kCommand, opened.status());
    } else {
      where = absl::StrCat("the host path: ", opened.status().message());
    }
  }
  if (!console.json) console.out << "verifying on " << where << "\n";

  Json results = Json::array();
  int failed = 0;
  Progress progress(console.err, console.progress_mode(), "verified", specs->size());
  for (const std::string& text : *specs) {
    Verdict verdict;
    verdict.status = VerifyOne(session.get(), **tools, text, options, verdict);
    progress.Clear();
    if (!verdict.status.ok()) verdict.finding = verdict.status.ToString();
    const bool holds = verdict.status.ok() && verdict.holds;
    failed += holds ? 0 : 1;
    results.push_back({{"spec", verdict.spec},
                       {"holds", holds},
                       {"plan", verdict.how},
                       {"finding", verdict.finding}});
    if (!console.json) {
      console.out << (holds ? "ok     " : "WRONG  ") << verdict.spec << "\n       "
                  << verdict.finding << "\n"
                  << std::flush;
    }
    progress.Advance(text);
  }
  progress.Clear();
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", failed == 0},
                   {"computed_on", session != nullptr ? "gpu" : "host"},
                   {"device", where},
                   {"specs", specs->size()},
                   {"failed", failed},
                   {"results", results}});
  } else {
    console.out << specs->size() << " specs, " << failed << " failed\n";
  }
  return failed == 0 ? kExitFine : kExitProblem;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Check results against fp64; a built-in list without specs");
  command->add_option("SPEC", options->specs, "Specs, each beginning with fwd or bwd");
  command->add_option("--device", options->device, "auto, gpu or host")
      ->check(CLI::IsMember({"auto", "gpu", "host"}))
      ->capture_default_str();
  command->add_option("--arch", options->target, "Target to compile for when there is no GPU")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the data")->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Verify(*options, console); };
  });
}

}  // namespace tilewright::cli

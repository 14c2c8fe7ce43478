// tilewright run: computes one problem on random or real data, checks it, and says where the time
// went.
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/gradients.h"
#include "cli/problem_files.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

constexpr char kCommand[] = "run";

struct RunOptions {
  std::vector<std::string> spec;
  ProblemFiles files;
  std::vector<std::string> arrays;
  std::vector<std::string> scalars;
  std::string o;
  std::string lse_out;
  std::string expect;
  std::optional<double> tolerance;
  std::string device = "auto";
  std::string target = kDefaultTarget;
  uint64_t seed = 1;
  bool odd_strides = false;
  bool no_check = false;
};

// How a result compares with an array that someone else computed.
struct Expectation {
  double relative = 0;
  double max_abs = 0;
  double tolerance = 0;
  bool holds() const { return relative <= tolerance; }
};

// Everything that a run found out.
struct RunReport {
  std::string spec;
  bool on_gpu = false;
  std::string device;  // name of the GPU, or "host"
  std::string note;    // one line on where it was computed, empty on a GPU
  std::optional<KernelReport> kernel;
  std::optional<GpuSession::Result> gpu;
  std::optional<plan::Decision> gpu_decision;
  RuntimeCounters counters;
  std::optional<int64_t> sampled_rows;  // the host computed only these
  std::optional<Accuracy> accuracy;
  std::optional<GradientAccuracy> gradients;
  std::optional<Expectation> against_simple;  // a snippet's result
  std::string check_note;
  std::optional<Expectation> expectation;
  bool ok = true;
};

absl::StatusOr<HostProblem> MakeProblem(const RunOptions& options, const SnippetInputs& inputs) {
  if (!options.files.q.empty()) {
    return ProblemFromFiles(options.files, absl::StrJoin(options.spec, " "), inputs);
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string text, JoinSpec(options.spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ReadSpec(text, inputs));
  RandomProblemOptions random;
  random.seed = options.seed;
  random.odd_strides = options.odd_strides;
  for (const auto& [name, array] : inputs.arrays) random.snippet_arrays[name] = array.bytes;
  for (const auto& [name, scalar] : inputs.scalars) random.snippet_scalars[name] = scalar.second;
  return MakeRandomProblem(spec, random);
}

// Complaints that are better made before any work.
absl::Status CheckOptions(const RunOptions& options) {
  const bool any = !options.files.q.empty() || !options.files.k.empty() || !options.files.v.empty();
  const bool all = !options.files.q.empty() && !options.files.k.empty() && !options.files.v.empty();
  if (any && !all) return absl::InvalidArgumentError("--q, --k and --v must be given together");
  if (!any && options.spec.empty()) {
    return absl::InvalidArgumentError(
        "give a spec, for example \"fwd bf16 b=2 h=8 s=512 d=64 causal\", or arrays with --q, --k "
        "and --v");
  }
  if (!any && !options.expect.empty()) {
    return absl::InvalidArgumentError("--expect compares the result of --q, --k and --v");
  }
  if (!any && (!options.o.empty() || !options.lse_out.empty()) && options.odd_strides) {
    return absl::InvalidArgumentError("--o and --lse-out need dense outputs, not --odd-strides");
  }
  return absl::OkStatus();
}

absl::Status CheckOutputs(const RunOptions& options, const AttentionSpec& spec) {
  if (spec.operation == Operation::kBackward &&
      (!options.o.empty() || !options.lse_out.empty() || !options.expect.empty() ||
       !options.files.q.empty())) {
    return absl::InvalidArgumentError(
        "--q, --k, --v, --o, --lse-out and --expect are of a forward; a bwd spec runs on random "
        "data");
  }
  if (absl::EndsWith(options.o, ".npy") && spec::OutType(spec) == ElementType::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("--o ", options.o, ": .npy has no dtype for bf16; write a .safetensors file"));
  }
  if (!options.lse_out.empty() && !spec.lse) {
    return absl::InvalidArgumentError("--lse-out needs the word lse in the spec");
  }
  return absl::OkStatus();
}

// Rows whose reference takes longer than this on a host are sampled unless all are asked for.
constexpr double kMostHostFlops = 2e10;

absl::Status RunOnHost(const RunOptions& options, HostProblem& problem, StageClock& clock,
                       RunReport& report) {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::unique_ptr<Toolchain> tools, Toolchain::Open());
  clock.Lap("open_store");
  TILEWRIGHT_ASSIGN_OR_RETURN(report.kernel,
                              BuildForTarget(*tools, problem.spec(), options.target, clock));
  if (!tools->builder().Flush(/*timeout_ms=*/10000)) {
    return absl::DeadlineExceededError("the store took more than 10 s to take the kernel");
  }
  clock.Lap("publish");
  if (HasSnippet(problem.spec())) {
    report.ok = false;
    report.check_note =
        "not computed: a snippet is CUDA text, which only a GPU can run; the kernel is compiled";
    return absl::OkStatus();
  }
  if (problem.spec().operation == Operation::kBackward &&
      ReferenceBackwardFlops(problem) > kMostHostFlops) {
    return absl::UnimplementedError(
        "the fp64 reference of all gradients would take minutes; give a smaller batch, fewer heads "
        "or shorter sequences");
  }
  std::vector<reference::Row> rows;
  const bool everything = !options.o.empty() || !options.lse_out.empty() || !options.expect.empty();
  const auto all_rows =
      static_cast<double>(problem.args().batch * problem.spec().heads_q * problem.args().seqlen_q);
  if (!everything && all_rows * ReferenceFlopsPerRow(problem.spec()) > kMostHostFlops) {
    rows = RowsToCheck(problem, options.seed);
    report.sampled_rows = static_cast<int64_t>(rows.size());
  }
  TILEWRIGHT_RETURN_IF_ERROR(ComputeOnHost(problem, rows));
  clock.Lap("compute");
  return absl::OkStatus();
}

// `computed` beside `expected`, which has the same shape. The tolerance is the caller's.
Expectation Difference(const Array& computed, ElementType computed_type, const Array& expected,
                       ElementType expected_type) {
  Expectation result;
  double squared = 0;
  double expected_squared = 0;
  for (int64_t n = 0; n < expected.elements(); ++n) {
    const double a = reference::ToDouble(computed_type,
                                         computed.bytes.data() + n * ArrayTypeBytes(computed.type));
    const double b = reference::ToDouble(expected_type,
                                         expected.bytes.data() + n * ArrayTypeBytes(expected.type));
    squared += (a - b) * (a - b);
    expected_squared += b * b;
    result.max_abs = std::max(result.max_abs, std::abs(a - b));
  }
  result.relative =
      expected_squared > 0 ? std::sqrt(squared / expected_squared) : std::sqrt(squared);
  // NaN would pass no comparison and fail none.
  if (std::isnan(result.relative)) result.relative = std::numeric_limits<double>::infinity();
  return result;
}

// Four rounding steps of the output type: each of two right answers is within two of the exact one.
double FamilyTolerance(ElementType type) {
  if (type == ElementType::kFp32) return 1e-5;
  return type == ElementType::kFp16 ? 4.0 / 2048 : 4.0 / 256;
}

// What the simple family, the definition of a snippet's meaning, makes of the problem.
absl::StatusOr<Array> RunSimpleFamily(const RuntimeOptions& options, HostProblem& problem) {
  RuntimeOptions simple = options;
  simple.family = std::string(plan::FamilyName(plan::Family::kFwdSimple));
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<GpuSession> session, GpuSession::Open(simple));
  StageClock clock;
  TILEWRIGHT_RETURN_IF_ERROR(session->Run(problem, clock).status());
  return OutputArray(problem);
}

absl::Status RunOnGpu(GpuSession& session, HostProblem& problem, const RunOptions& run_options,
                      const RuntimeOptions& options, StageClock& clock, RunReport& report) {
  report.on_gpu = true;
  report.device = session.device().board.name;
  TILEWRIGHT_ASSIGN_OR_RETURN(report.gpu_decision, PlanFor(problem.spec(), session.device().traits,
                                                           session.device().board, options));
  // Before the run itself, whose outputs are to stay.
  std::optional<Array> simple;
  if (HasSnippet(problem.spec()) && !run_options.no_check &&
      report.gpu_decision->plan.family != plan::Family::kFwdSimple) {
    TILEWRIGHT_ASSIGN_OR_RETURN(simple, RunSimpleFamily(options, problem));
    clock.Lap("simple_family");
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(report.gpu, session.Run(problem, clock));
  report.gpu_decision = report.gpu->decision;
  session.runtime().Flush();
  report.counters = session.runtime().counters();
  if (simple.has_value()) {
    const ElementType type = spec::OutType(problem.spec());
    report.against_simple = Difference(OutputArray(problem), type, *simple, type);
    report.against_simple->tolerance = FamilyTolerance(type);
  }
  if (!report.gpu->bitwise_equal) {
    report.ok = false;
    report.check_note = "two launches of the same kernel gave different bytes";
  }
  return absl::OkStatus();
}

absl::Status Check(const RunOptions& options, const HostProblem& problem, RunReport& report) {
  if (options.no_check) {
    report.check_note = "not checked (--no-check)";
    return absl::OkStatus();
  }
  if (HasSnippet(problem.spec())) {
    // The fp64 reference cannot run CUDA text; the simple family is the definition for snippets.
    if (report.against_simple.has_value() && report.check_note.empty()) {
      const Expectation& difference = *report.against_simple;
      report.ok = report.ok && difference.holds();
      report.check_note = absl::StrFormat(
          "%s: differs by %.1e from the simple family (tolerance %.1e), max abs %.1e; a snippet is "
          "CUDA text, which the fp64 reference cannot run",
          difference.holds() ? "ok" : "WRONG", difference.relative, difference.tolerance,
          difference.max_abs);
      return absl::OkStatus();
    }
    // The plan is of the simple family itself. What is left to check is that launches agree.
    if (report.check_note.empty()) {
      report.check_note =
          "a snippet is CUDA text, which the fp64 reference cannot run, and the plan is the simple "
          "family itself: checked only that launches repeat bit for bit";
    }
    return absl::OkStatus();
  }
  if (problem.spec().operation == Operation::kBackward) {
    if (ReferenceBackwardFlops(problem) > kMostHostFlops) {
      report.check_note =
          "not checked: the fp64 reference of all gradients would take minutes; a smaller batch, "
          "fewer heads or shorter sequences are checked";
      return absl::OkStatus();
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(report.gradients, CheckGradients(problem));
    report.ok = report.ok && report.gradients->holds();
    return absl::OkStatus();
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(report.accuracy,
                              CheckAccuracy(problem, RowsToCheck(problem, options.seed)));
  report.ok = report.ok && report.accuracy->holds();
  return absl::OkStatus();
}

// A bound for an answer that some other program computed in its own way.
double DefaultTolerance(ElementType type) {
  if (type == ElementType::kFp32) return 1e-5;
  return type == ElementType::kFp16 ? 3e-3 : 2e-2;
}

absl::StatusOr<Expectation> Compare(const RunOptions& options, const HostProblem& problem) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const Array expected, ReadArray(options.expect));
  const Array computed = OutputArray(problem);
  if (expected.shape != computed.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(expected.Describe(), "; the result is ", ShapeText(computed.shape)));
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const ElementType expected_type, ToElementType(expected.type));
  const ElementType type = spec::OutType(problem.spec());
  Expectation result = Difference(computed, type, expected, expected_type);
  result.tolerance = options.tolerance.value_or(DefaultTolerance(type));
  return result;
}

Json AccuracyJson(const Accuracy& accuracy) {
  Json object = {{"rows", accuracy.rows},
                 {"relative", accuracy.o_relative},
                 {"relative_bar", accuracy.o_relative_bar},
                 {"max_abs", accuracy.o_max_abs}};
  if (std::isfinite(accuracy.o_max_abs_bar)) object["max_abs_bar"] = accuracy.o_max_abs_bar;
  if (accuracy.has_lse) object["lse_share_of_bar"] = accuracy.lse_error;
  object["mismatches"] = accuracy.mismatches;
  if (accuracy.mismatches > 0) object["first_mismatch"] = accuracy.first_mismatch;
  object["holds"] = accuracy.holds();
  return object;
}

void PrintJson(const RunReport& report, const RunOptions& options, const StageClock& clock,
               const Console& console) {
  Json object = {{"command", kCommand},
                 {"ok", report.ok},
                 {"spec", report.spec},
                 {"computed_on", report.on_gpu ? "gpu" : "host"},
                 {"device", report.device}};
  if (!report.note.empty()) object["note"] = report.note;
  if (report.kernel.has_value()) {
    object["plan"] = DecisionJson(report.kernel->decision);
    object["kernel"] = report.kernel->ToJson();
  }
  if (report.gpu.has_value()) {
    object["plan"] = DecisionJson(*report.gpu_decision);
    object["kernel"] = {{"explain", report.gpu->explain},
                        {"compiles", report.counters.compiles},
                        {"store_hits", report.counters.store_hits},
                        {"compile_ms", report.counters.compile_ms},
                        {"kernel_ms", report.gpu->kernel_ms},
                        {"launches", report.gpu->launches},
                        {"host_us", report.gpu->host_us}};
  }
  if (report.sampled_rows.has_value()) object["sampled_rows"] = *report.sampled_rows;
  if (report.accuracy.has_value()) object["accuracy"] = AccuracyJson(*report.accuracy);
  if (report.gradients.has_value()) {
    for (const GradientError& error : report.gradients->gradients) {
      object["accuracy"][error.name] = {{"relative", error.relative},
                                        {"relative_bar", error.relative_bar},
                                        {"mismatches", error.mismatches},
                                        {"holds", error.holds()}};
    }
  }
  if (!report.check_note.empty()) object["check_note"] = report.check_note;
  if (report.expectation.has_value()) {
    object["expected"] = {{"file", options.expect},
                          {"relative", report.expectation->relative},
                          {"max_abs", report.expectation->max_abs},
                          {"tolerance", report.expectation->tolerance},
                          {"holds", report.expectation->holds()}};
  }
  object["times_ms"] = clock.ToJson();
  console.Print(object);
}

void PrintText(const RunReport& report, const RunOptions& options, const StageClock& clock,
               const Console& console) {
  const auto line = [&](absl::string_view name, absl::string_view text) {
    console.out << absl::StreamFormat("%-9s %s\n", name, text);
  };
  line("spec", report.spec);
  line("device", report.on_gpu ? report.device : report.note);
  if (report.kernel.has_value()) {
    const KernelReport& kernel = *report.kernel;
    line("plan", kernel.decision.plan.ToString());
    line("kernel", absl::StrFormat(
                       "%s %.16s..., %d registers, %d bytes spilled, compiled in %.0f ms",
                       kernel.origin == "store" ? "from the store" : "compiled", kernel.key,
                       kernel.usage.registers, kernel.usage.spill_store_bytes, kernel.compile_ms));
    if (!kernel.miss_reason.empty()) line("miss", kernel.miss_reason);
  }
  if (report.gpu.has_value()) {
    // The spec on a line of its own, then lines of this form: plan, why, kernel, ...
    absl::string_view explain = absl::StripAsciiWhitespace(report.gpu->explain);
    if (absl::ConsumePrefix(&explain, report.spec)) absl::ConsumePrefix(&explain, "\n");
    console.out << explain << "\n";
    line("time", absl::StrFormat("%.4f ms on the GPU (median of %d), %.1f us of host time a call",
                                 report.gpu->kernel_ms, report.gpu->launches, report.gpu->host_us));
  }
  if (report.sampled_rows.has_value()) {
    line("computed", absl::StrCat(*report.sampled_rows, " sampled rows; --o computes all"));
  }
  if (report.accuracy.has_value()) {
    line("fp64",
         absl::StrCat(report.accuracy->holds() ? "ok: " : "WRONG: ", report.accuracy->ToString()));
  }
  if (report.gradients.has_value()) {
    line("fp64", absl::StrCat(report.gradients->holds() ? "ok: " : "WRONG: ",
                              report.gradients->ToString()));
  }
  if (!report.check_note.empty()) line("check", report.check_note);
  if (report.expectation.has_value()) {
    line("expected", absl::StrFormat("%s: %s differs by %.1e (tolerance %.1e), max abs %.1e",
                                     report.expectation->holds() ? "ok" : "WRONG", options.expect,
                                     report.expectation->relative, report.expectation->tolerance,
                                     report.expectation->max_abs));
  }
  line("ms", clock.ToString());
}

absl::Status WriteOutputs(const RunOptions& options, const HostProblem& problem) {
  if (!options.o.empty()) {
    TILEWRIGHT_RETURN_IF_ERROR(WriteArray(options.o, OutputArray(problem)));
  }
  if (!options.lse_out.empty()) {
    TILEWRIGHT_RETURN_IF_ERROR(WriteArray(options.lse_out, LseArray(problem)));
  }
  return absl::OkStatus();
}

// Computes where the options say; "auto" falls back to the host with a note.
absl::Status Compute(const RunOptions& options, const RuntimeOptions& runtime_options,
                     HostProblem& problem, StageClock& clock, RunReport& report) {
  if (options.device != "host") {
    absl::StatusOr<std::unique_ptr<GpuSession>> session = GpuSession::Open(runtime_options);
    clock.Lap("driver");
    if (session.ok()) return RunOnGpu(**session, problem, options, runtime_options, clock, report);
    if (options.device == "gpu") return session.status();
    report.note = absl::StrCat("computed on the host reference (fp64, rounded once): ",
                               session.status().message());
  } else {
    report.note = "computed on the host reference (fp64, rounded once), as --device host asks";
  }
  report.device = "host";
  return RunOnHost(options, problem, clock, report);
}

int Run(const RunOptions& options, const Console& console) {
  if (const absl::Status status = CheckOptions(options); !status.ok()) {
    return console.Fail(kCommand, status, kExitUsage);
  }
  StageClock clock;
  const absl::StatusOr<RuntimeOptions> runtime_options = RuntimeOptions::FromEnvironment();
  if (!runtime_options.ok()) return console.Fail(kCommand, runtime_options.status());
  const absl::StatusOr<SnippetInputs> inputs = ReadSnippetInputs(options.arrays, options.scalars);
  if (!inputs.ok()) return console.Fail(kCommand, inputs.status());
  absl::StatusOr<HostProblem> problem = MakeProblem(options, *inputs);
  if (!problem.ok()) {
    // A spec that does not parse is a matter of usage; files that do not fit are a problem found.
    const bool usage = options.files.q.empty() && absl::IsInvalidArgument(problem.status());
    return console.Fail(kCommand, problem.status(), usage ? kExitUsage : kExitProblem);
  }
  if (const absl::Status status = CheckOutputs(options, problem->spec()); !status.ok()) {
    return console.Fail(kCommand, status, kExitUsage);
  }
  clock.Lap("input");

  RunReport report;
  report.spec = spec::ToText(problem->spec());
  absl::Status status = Compute(options, *runtime_options, *problem, clock, report);
  const bool computed = report.on_gpu || !HasSnippet(problem->spec());
  if (status.ok() && computed) {
    status = Check(options, *problem, report);
    clock.Lap("reference");
  }
  if (status.ok() && computed && !options.expect.empty()) {
    absl::StatusOr<Expectation> expectation = Compare(options, *problem);
    status = expectation.status();
    if (expectation.ok()) {
      report.expectation = *expectation;
      report.ok = report.ok && expectation->holds();
    }
  }
  if (status.ok() && computed) status = WriteOutputs(options, *problem);
  if (!status.ok()) return console.Fail(kCommand, status);
  if (console.json) {
    PrintJson(report, options, clock, console);
  } else {
    PrintText(report, options, clock, console);
  }
  return report.ok ? kExitFine : kExitProblem;
}

}  // namespace

void AddRunCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run", "Compute attention on random data, or on arrays from .npy and .safetensors files");
  command->add_option(
      "SPEC", options->spec,
      "The spec in words; with --q, --k, --v only those that the files do not tell");
  const auto file = [&](const char* name, std::string& path, const char* help) {
    command->add_option(name, path, help)->group("Arrays");
  };
  file("--q", options->files.q, "Q, as FILE.npy, FILE.safetensors or FILE.safetensors:NAME");
  file("--k", options->files.k, "K");
  file("--v", options->files.v, "V");
  command->add_option("--mask", options->files.masks, "Bool terms, true for pairs to keep")
      ->group("Arrays");
  command->add_option("--bias", options->files.biases, "Additive terms")->group("Arrays");
  file("--alibi", options->files.alibi, "ALiBi slopes");
  file("--sinks", options->files.sinks, "Sinks");
  file("--cu-seqlens-q", options->files.cu_seqlens_q, "Where packed query sequences begin");
  file("--cu-seqlens-kv", options->files.cu_seqlens_kv, "Where packed key sequences begin");
  file("--seqused-q", options->files.seqused_q, "Query rows in use of each sequence");
  file("--seqused-kv", options->files.seqused_kv, "Keys in use of each sequence");
  file("--left-padding", options->files.left_padding,
       "Keys before each sequence's first valid one");
  file("--cache-batch-idx", options->files.cache_batch_idx, "Slot of each sequence in K and V");
  file("--page-table", options->files.page_table, "Pages of each sequence");
  file("--q-scale", options->files.q_scale, "Scale of fp8 Q");
  file("--k-scale", options->files.k_scale, "Scale of fp8 or int8 K");
  file("--v-scale", options->files.v_scale, "Scale of fp8 or int8 V");
  command->add_option("--array", options->arrays, "A snippet's array, NAME=FILE")
      ->allow_extra_args(false)
      ->group("Arrays");
  command->add_option("--scalar", options->scalars, "A snippet's scalar, NAME=VALUE")
      ->allow_extra_args(false)
      ->group("Arrays");
  file("--o", options->o, "Write the output here");
  file("--lse-out", options->lse_out, "Write the LSE here");
  file("--expect", options->expect, "Compare the output with this array as well");
  command->add_option("--tolerance", options->tolerance,
                      "Largest relative difference from --expect (default by type)");
  command->add_option("--device", options->device, "auto, gpu or host")
      ->check(CLI::IsMember({"auto", "gpu", "host"}))
      ->capture_default_str();
  command->add_option("--arch", options->target, "Target to compile for when there is no GPU")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of random data")->capture_default_str();
  command->add_flag("--odd-strides", options->odd_strides, "Random data in padded, odd strides");
  command->add_flag("--no-check", options->no_check, "Do not compare with the fp64 reference");
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Run(*options, console); };
  });
}

}  // namespace tilewright::cli

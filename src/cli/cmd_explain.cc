// tilewright explain: what would run and why, without running it.
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "build/miss_explainer.h"
#include "cli/append_kernel.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/roofline.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

constexpr char kCommand[] = "explain";

struct ExplainOptions {
  std::vector<std::string> spec;
  std::string target = kDefaultTarget;
};

// What the store says about the kernel of a plan.
struct StoreState {
  std::string key;
  std::string state;  // "stored", or why it is not
  std::optional<artifact::KernelBinary> binary;
};

StoreState LookUp(Toolchain& tools, const absl::StatusOr<build::KernelRequest>& request) {
  StoreState state;
  const std::unique_ptr<build::KernelBuilder> lookup = tools.LookupBuilder();
  if (!request.ok()) {
    state.state = std::string(request.status().message());
    return state;
  }
  state.key = request->key.ToHex();
  absl::StatusOr<build::BuiltKernel> built = lookup->Build(*request);
  if (built.ok()) {
    state.state = "stored";
    state.binary = std::move(built->binary);
  } else if (absl::IsFailedPrecondition(built.status())) {
    const absl::StatusOr<compile::CompilerIdentity> compiler = tools.compiler().Identity();
    std::optional<std::string> variant;
    if (compiler.ok()) variant = compiler->id;
    const std::string& manifest = request->manifest.manifest();
    const absl::StatusOr<cache::EntryPtr> found =
        tools.store().Get({request->key, variant}, manifest);
    std::string reason = found.ok() ? "refused" : std::string(found.status().message());
    const std::string nearest =
        build::DescribeNearest(tools.store(), {manifest, variant, request->source.text});
    if (!nearest.empty()) absl::StrAppend(&reason, "; ", nearest);
    state.state = absl::StrCat("not stored (", reason, "); tilewright compile would");
  } else {
    state.state = std::string(built.status().message());
  }
  return state;
}

Json RooflineJson(const Roofline& roofline, const arch::BoardProfile& board) {
  Json object = {{"board", board.name},
                 {"flops", roofline.flops},
                 {"bytes", roofline.bytes},
                 {"memory_ms", roofline.memory_ms}};
  if (roofline.fp32_ms.has_value()) object["fp32_ms"] = *roofline.fp32_ms;
  if (roofline.matrix_ms.has_value()) object["matrix_ms"] = *roofline.matrix_ms;
  return object;
}

std::string RooflineText(const Roofline& roofline, const arch::BoardProfile& board) {
  std::string text =
      absl::StrFormat("%.3g FLOP, %.3g bytes; on %s at least %.3g ms for memory", roofline.flops,
                      roofline.bytes, board.name, roofline.memory_ms);
  if (roofline.matrix_ms.has_value()) {
    absl::StrAppendFormat(&text, ", %.3g ms for matrix units", *roofline.matrix_ms);
  }
  if (roofline.fp32_ms.has_value()) {
    absl::StrAppendFormat(&text, ", %.3g ms for FP32 lanes", *roofline.fp32_ms);
  }
  return text;
}

void PrintLine(const Console& console, absl::string_view name, absl::string_view text) {
  console.out << absl::StreamFormat("%-9s %s\n", name, text);
}

// What a block has, and what the store has of the plan's kernels.
void PrintKernels(const plan::KernelPlan& plan, const std::vector<StoreState>& states,
                  const Console& console) {
  PrintLine(console, "memory",
            absl::StrFormat("%d bytes of dynamic shared memory a block, %d threads",
                            plan.smem_bytes, plan.threads()));
  for (const StoreState& state : states) {
    if (state.binary.has_value()) {
      const artifact::ResourceUsage& usage = state.binary->usage;
      PrintLine(console, "kernel",
                absl::StrFormat(
                    "%s: %d registers, %d bytes spilled, %d bytes of static shared memory",
                    state.binary->entry_name, usage.registers,
                    usage.spill_store_bytes + usage.spill_load_bytes, usage.static_smem_bytes));
    }
    PrintLine(console, "store", state.state);
    if (!state.key.empty()) PrintLine(console, "key", state.key);
  }
}

void PrintText(const std::string& spec_text, const plan::Decision& decision,
               const tune::Match& match, const std::vector<StoreState>& states,
               const Roofline& roofline, const arch::BoardProfile& board, const Console& console) {
  PrintLine(console, "spec", spec_text);
  PrintLine(console, "plan", decision.plan.ToString());
  PrintLine(console, "why", absl::StrCat(decision.why, decision.fallback ? " (fallback)" : ""));
  PrintLine(console, "tuned", match.ToText());
  for (const plan::Refusal& refusal : decision.refusals) {
    PrintLine(console, "refused",
              absl::StrCat(AbslView(plan::FamilyName(refusal.family)), ": ", refusal.reason));
  }
  PrintLine(console, "padding",
            absl::StrFormat("%.1f %% of the pairs in the tiles are masked or padding",
                            100 * roofline.padding_waste));
  PrintLine(console, "roofline", RooflineText(roofline, board));
  PrintKernels(decision.plan, states, console);
}

Json StoreJson(const StoreState& state) {
  Json stored = {{"state", state.state}, {"key", state.key}};
  if (state.binary.has_value()) {
    const artifact::ResourceUsage& usage = state.binary->usage;
    stored["entry"] = state.binary->entry_name;
    stored["registers"] = usage.registers;
    stored["spill_bytes"] = usage.spill_store_bytes + usage.spill_load_bytes;
    stored["static_smem_bytes"] = usage.static_smem_bytes;
    stored["compiler"] = state.binary->compiler;
  }
  return stored;
}

int ExplainAppend(const ExplainOptions& options, const std::string& text, const Console& console) {
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  const absl::StatusOr<AppendKernel> kernel = MakeAppendKernel(**tools, text, options.target);
  if (!kernel.ok()) return console.Fail(kCommand, kernel.status(), kExitUsage);
  const StoreState state = LookUp(**tools, kernel->request);
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", true},
                   {"spec", kernel->request.spec_text},
                   {"plan", DecisionJson(kernel->decision)},
                   {"store", StoreJson(state)}});
    return kExitFine;
  }
  PrintLine(console, "spec", kernel->request.spec_text);
  PrintLine(console, "plan", kernel->decision.plan.ToString());
  PrintLine(console, "why", kernel->decision.why);
  PrintKernels(kernel->decision.plan, {state}, console);
  return kExitFine;
}

int Explain(const ExplainOptions& options, const Console& console) {
  absl::StatusOr<std::string> text = JoinSpec(options.spec);
  if (!text.ok()) return console.Fail(kCommand, text.status(), kExitUsage);
  if (spec::IsCacheAppendText(*text)) return ExplainAppend(options, *text, console);
  const absl::StatusOr<AttentionSpec> spec = ReadSpec(*text);
  if (!spec.ok()) return console.Fail(kCommand, spec.status(), kExitUsage);
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  tune::Match match;
  const absl::StatusOr<plan::Decision> decision = (*tools)->Plan(*spec, options.target, &match);
  if (!decision.ok()) return console.Fail(kCommand, decision.status());
  const absl::StatusOr<arch::ArchTraits> traits = arch::FindArchTraits(options.target);
  if (!traits.ok()) return console.Fail(kCommand, traits.status());
  const absl::StatusOr<arch::BoardProfile> board = arch::DefaultBoardProfile(traits->target);
  if (!board.ok()) return console.Fail(kCommand, board.status());

  std::vector<StoreState> states;  // of the plan's kernels, in order of launch
  for (const plan::KernelPlan& kernel : decision->plan.Kernels()) {
    states.push_back(LookUp(**tools, (*tools)->builder().MakeRequest(*spec, kernel)));
  }
  const Roofline roofline = EstimateRoofline(*spec, decision->plan, *traits, *board);
  if (!console.json) {
    PrintText(spec::ToText(*spec), *decision, match, states, roofline, *board, console);
    return kExitFine;
  }
  const size_t main = decision->plan.before.size();
  Json stored = StoreJson(states[main]);
  for (size_t n = 0; n < states.size(); ++n) {
    if (n != main) stored["companions"].push_back(StoreJson(states[n]));
  }
  console.Print({{"command", kCommand},
                 {"ok", true},
                 {"spec", spec::ToText(*spec)},
                 {"plan", DecisionJson(*decision)},
                 {"record",
                  {{"match", std::string(tune::MatchQualityName(match.quality))},
                   {"source", match.source},
                   {"stale", match.stale},
                   {"text", match.ToText()}}},
                 {"padding_waste", roofline.padding_waste},
                 {"roofline", RooflineJson(roofline, *board)},
                 {"store", stored}});
  return kExitFine;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command =
      app.add_subcommand("explain", "Say what would run for a spec, and why; needs no GPU");
  command->add_option("SPEC", options->spec, "The spec, in words")->required();
  command->add_option("--arch", options->target, "Target, such as sm_80")->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Explain(*options, console); };
  });
}

}  // namespace tilewright::cli

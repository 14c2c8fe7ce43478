// tilewright emit: the translation unit that would be compiled.
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/append_kernel.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "compile/nvrtc_compiler.h"
#include "emit/emit_kernel.h"
#include "emit/harness.h"
#include "plan/kernel_plan.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

struct EmitOptions {
  std::vector<std::string> spec;
  std::string target = kDefaultTarget;
  std::string plan;
  std::string out;
};

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (!error) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (file.flush()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot write"));
}

Json HeadersJson(const artifact::KernelSource& source) {
  Json headers = Json::object();
  for (const artifact::SourceFile& file : source.generated_headers) headers[file.name] = file.text;
  return headers;
}

constexpr char kCommand[] = "emit";

struct Emitted {
  std::string spec_text;
  plan::Decision decision;
  artifact::KernelSource source;                   // of the kernel that the plan is about
  std::vector<artifact::KernelSource> companions;  // in order of launch
  std::vector<std::string> options;                // of NVRTC
  std::optional<artifact::SourceFile> program;     // for --out: runs `source` alone
};

// All that nvcc needs with -I DIR, and the program, to --out; else prints the source.
int Show(const EmitOptions& options, const emit::TemplateBundle& bundle, const Emitted& emitted,
         const Console& console) {
  const artifact::KernelSource& source = emitted.source;
  std::string command;
  if (!options.out.empty()) {
    std::vector<artifact::SourceFile> files = emit::StandaloneFiles(source, bundle);
    if (emitted.program.has_value()) files.push_back(*emitted.program);
    for (const artifact::KernelSource& companion : emitted.companions) {
      const std::vector<artifact::SourceFile> more = emit::StandaloneFiles(companion, bundle);
      files.insert(files.end(), more.begin(), more.end());
    }
    for (const artifact::SourceFile& file : files) {
      const absl::Status written =
          WriteFile(std::filesystem::path(options.out) / file.name, file.text);
      if (!written.ok()) return console.Fail(kCommand, written);
    }
    command = absl::StrCat("nvcc -std=c++20 -arch=", emitted.decision.plan.target, " -cubin -I ",
                           options.out, " ", options.out, "/", source.unit_name);
  }
  if (console.json) {
    Json result = {{"command", kCommand},        {"ok", true},
                   {"spec", emitted.spec_text},  {"plan", DecisionJson(emitted.decision)},
                   {"entry", source.entry_name}, {"unit", source.unit_name},
                   {"source", source.text},      {"generated_headers", HeadersJson(source)},
                   {"options", emitted.options}};
    for (const artifact::KernelSource& companion : emitted.companions) {
      result["companions"].push_back({{"entry", companion.entry_name},
                                      {"unit", companion.unit_name},
                                      {"source", companion.text}});
    }
    if (!options.out.empty()) {
      result["directory"] = options.out;
      result["compile_with"] = command;
    }
    console.Print(result);
  } else if (options.out.empty()) {
    console.out << source.text;
    for (const artifact::KernelSource& companion : emitted.companions) {
      console.out << "\n// ==== " << companion.unit_name << "\n" << companion.text;
    }
  } else {
    console.out << options.out << ": " << source.unit_name
                << (emitted.program.has_value() ? ", what it includes, and main.cu, which runs it"
                                                : " and what it includes")
                << "\n"
                << command << "\n";
  }
  return kExitFine;
}

// The source of a spec of appending, without a program around it.
int EmitAppend(const EmitOptions& options, const std::string& text, const Console& console) {
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  if (!options.plan.empty()) {
    return console.Fail(
        kCommand, absl::InvalidArgumentError("--plan: a spec of append has one plan"), kExitUsage);
  }
  absl::StatusOr<AppendKernel> kernel = MakeAppendKernel(**tools, text, options.target);
  if (!kernel.ok()) return console.Fail(kCommand, kernel.status(), kExitUsage);
  Emitted emitted;
  emitted.spec_text = kernel->request.spec_text;
  emitted.decision = std::move(kernel->decision);
  emitted.source = std::move(kernel->request.source);
  emitted.options = std::move(kernel->request.options);
  return Show(options, (*tools)->bundle(), emitted, console);
}

// The plan for --arch, or the one that --plan gives.
absl::StatusOr<plan::Decision> Decide(const EmitOptions& options, const AttentionSpec& spec,
                                      const RuntimeOptions& runtime_options) {
  if (options.plan.empty()) return PlanForTarget(spec, options.target, runtime_options);
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::KernelPlan plan, plan::ParsePlan(options.plan));
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::Decision decision,
                              PlanForTarget(spec, plan.target, runtime_options));
  decision.plan = std::move(plan);
  decision.why = "the plan was given";
  return decision;
}

int Emit(const EmitOptions& options, const Console& console) {
  absl::StatusOr<std::string> text = JoinSpec(options.spec);
  if (!text.ok()) return console.Fail(kCommand, text.status(), kExitUsage);
  if (spec::IsCacheAppendText(*text)) return EmitAppend(options, *text, console);
  absl::StatusOr<AttentionSpec> spec = ReadSpec(*text);
  if (!spec.ok()) return console.Fail(kCommand, spec.status(), kExitUsage);
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  absl::StatusOr<plan::Decision> decision = Decide(options, *spec, (*tools)->options());
  if (!decision.ok()) return console.Fail(kCommand, decision.status());
  absl::StatusOr<artifact::KernelSource> source = emit::EmitKernel(*spec, decision->plan);
  if (!source.ok()) return console.Fail(kCommand, source.status());
  Emitted emitted;
  for (const std::vector<plan::KernelPlan>* plans :
       {&decision->plan.before, &decision->plan.after}) {
    for (const plan::KernelPlan& plan : *plans) {
      absl::StatusOr<artifact::KernelSource> companion = emit::EmitKernel(*spec, plan);
      if (!companion.ok()) return console.Fail(kCommand, companion.status());
      emitted.companions.push_back(*std::move(companion));
    }
  }
  emitted.spec_text = spec::ToText(*spec);
  emitted.options = compile::CompileOptions(decision->plan.target, (*tools)->options().lineinfo);
  if (!options.out.empty()) {
    emitted.program = emit::HarnessProgram(*spec, decision->plan, *source);
  }
  emitted.decision = *std::move(decision);
  emitted.source = *std::move(source);
  return Show(options, (*tools)->bundle(), emitted, console);
}

}  // namespace

void AddEmitCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<EmitOptions>();
  CLI::App* command = app.add_subcommand("emit", "Print the CUDA source for a spec");
  command->add_option("SPEC", options->spec, "The spec, in words")->required();
  command->add_option("--arch", options->target, "Target, such as sm_80")->capture_default_str();
  command->add_option("--plan", options->plan,
                      "The plan to emit instead of the best one, as explain prints it");
  command->add_option("--out", options->out,
                      "Write the source, all that it includes and a main.cu to this directory");
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Emit(*options, console); };
  });
}

}  // namespace tilewright::cli

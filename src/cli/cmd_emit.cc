// tilewright emit: the translation unit that would be compiled.
#include <filesystem>
#include <fstream>
#include <memory>
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

absl::Status WriteFiles(const std::filesystem::path& directory,
                        const std::vector<artifact::SourceFile>& files) {
  for (const artifact::SourceFile& file : files) {
    TILEWRIGHT_RETURN_IF_ERROR(WriteFile(directory / file.name, file.text));
  }
  return absl::OkStatus();
}

// All that nvcc needs for the kernels of the plan with -I DIR, and main.cu, which runs the one that
// the plan is about alone.
absl::Status WriteAll(const std::string& directory, const AttentionSpec& spec,
                      const plan::KernelPlan& plan, const artifact::KernelSource& source,
                      const std::vector<artifact::KernelSource>& companions,
                      const emit::TemplateBundle& bundle) {
  std::vector<artifact::SourceFile> files = emit::StandaloneFiles(source, bundle);
  files.push_back(emit::HarnessProgram(spec, plan, source));
  for (const artifact::KernelSource& companion : companions) {
    const std::vector<artifact::SourceFile> more = emit::StandaloneFiles(companion, bundle);
    files.insert(files.end(), more.begin(), more.end());
  }
  return WriteFiles(directory, files);
}

std::string CommandFor(const std::string& target, const std::string& directory,
                       const artifact::KernelSource& source) {
  return absl::StrCat("nvcc -std=c++20 -arch=", target, " -cubin -I ", directory, " ", directory,
                      "/", source.unit_name);
}

Json HeadersJson(const artifact::KernelSource& source) {
  Json headers = Json::object();
  for (const artifact::SourceFile& file : source.generated_headers) headers[file.name] = file.text;
  return headers;
}

constexpr char kCommand[] = "emit";

// The source of a spec of appending, without a program around it.
int EmitAppend(const EmitOptions& options, const std::string& text, const Console& console) {
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  if (!options.plan.empty()) {
    return console.Fail(
        kCommand, absl::InvalidArgumentError("--plan: a spec of append has one plan"), kExitUsage);
  }
  const absl::StatusOr<AppendKernel> kernel = MakeAppendKernel(**tools, text, options.target);
  if (!kernel.ok()) return console.Fail(kCommand, kernel.status(), kExitUsage);
  const artifact::KernelSource& source = kernel->request.source;
  const std::string& target = kernel->decision.plan.target;
  const std::string command = CommandFor(target, options.out, source);
  if (!options.out.empty()) {
    const absl::Status written =
        WriteFiles(options.out, emit::StandaloneFiles(source, (*tools)->bundle()));
    if (!written.ok()) return console.Fail(kCommand, written);
  }
  if (console.json) {
    Json result = {{"command", kCommand},
                   {"ok", true},
                   {"spec", kernel->request.spec_text},
                   {"plan", DecisionJson(kernel->decision)},
                   {"entry", source.entry_name},
                   {"unit", source.unit_name},
                   {"source", source.text},
                   {"generated_headers", HeadersJson(source)},
                   {"options", kernel->request.options}};
    if (!options.out.empty()) {
      result["directory"] = options.out;
      result["compile_with"] = command;
    }
    console.Print(result);
  } else if (options.out.empty()) {
    console.out << source.text;
  } else {
    console.out << options.out << ": " << source.unit_name << " and what it includes\n"
                << command << "\n";
  }
  return kExitFine;
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
  const absl::StatusOr<plan::Decision> decision = Decide(options, *spec, (*tools)->options());
  if (!decision.ok()) return console.Fail(kCommand, decision.status());
  const absl::StatusOr<artifact::KernelSource> source = emit::EmitKernel(*spec, decision->plan);
  if (!source.ok()) return console.Fail(kCommand, source.status());
  std::vector<artifact::KernelSource> companions;  // in order of launch
  for (const std::vector<plan::KernelPlan>* plans :
       {&decision->plan.before, &decision->plan.after}) {
    for (const plan::KernelPlan& plan : *plans) {
      absl::StatusOr<artifact::KernelSource> companion = emit::EmitKernel(*spec, plan);
      if (!companion.ok()) return console.Fail(kCommand, companion.status());
      companions.push_back(*std::move(companion));
    }
  }

  std::string command;
  if (!options.out.empty()) {
    const absl::Status written =
        WriteAll(options.out, *spec, decision->plan, *source, companions, (*tools)->bundle());
    if (!written.ok()) return console.Fail(kCommand, written);
    command = CommandFor(decision->plan.target, options.out, *source);
  }
  if (console.json) {
    Json result = {
        {"command", kCommand},
        {"ok", true},
        {"spec", spec::ToText(*spec)},
        {"plan", DecisionJson(*decision)},
        {"entry", source->entry_name},
        {"unit", source->unit_name},
        {"source", source->text},
        {"generated_headers", HeadersJson(*source)},
        {"options", compile::CompileOptions(decision->plan.target, (*tools)->options().lineinfo)}};
    for (const artifact::KernelSource& companion : companions) {
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
    console.out << source->text;
    for (const artifact::KernelSource& companion : companions) {
      console.out << "\n// ==== " << companion.unit_name << "\n" << companion.text;
    }
  } else {
    console.out << options.out << ": " << source->unit_name
                << ", what it includes, and main.cu, which runs it\n"
                << command << "\n";
  }
  return kExitFine;
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

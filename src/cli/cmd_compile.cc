// tilewright compile: fills the store ahead of time, without a GPU.
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/append_kernel.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/compile_plan.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "compile/compile_pool.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

constexpr char kCommand[] = "compile";

struct CompileOptions {
  std::vector<std::string> specs;
  std::vector<std::string> targets;
  std::string matrix;
  bool plan = false;
  std::optional<int> candidates;
  int64_t max_batch = 64;
  int64_t max_seqlen = 32768;
};

struct Job {
  std::string text;
  std::string target;
  std::optional<plan::Decision> decision;  // absent: what a runtime chooses
  absl::Status status;
  std::string spec;  // canonical
  KernelReport kernel;
};

void CompileAppend(Toolchain& tools, Job& job) {
  absl::StatusOr<AppendKernel> made = MakeAppendKernel(tools, job.text, job.target);
  job.status = made.status();
  if (!made.ok()) return;
  job.spec = made->request.spec_text;
  StageClock clock;
  absl::StatusOr<KernelReport> kernel =
      BuildRequests(tools, std::move(made->decision), {&made->request, 1}, clock);
  job.status = kernel.status();
  if (kernel.ok()) job.kernel = *std::move(kernel);
}

void Compile(Toolchain& tools, Job& job) {
  if (spec::IsCacheAppendText(job.text)) return CompileAppend(tools, job);
  const absl::StatusOr<AttentionSpec> spec = ReadSpec(job.text);
  if (!spec.ok()) {
    job.status = spec.status();
    return;
  }
  job.spec = spec::ToText(*spec);
  StageClock clock;
  absl::StatusOr<KernelReport> kernel = job.decision.has_value()
                                            ? BuildDecision(tools, *spec, *job.decision, clock)
                                            : BuildForTarget(tools, *spec, job.target, clock);
  job.status = kernel.status();
  if (kernel.ok()) job.kernel = *std::move(kernel);
}

// Compiles on the threads that the options allow: NVRTC works in parallel.
void CompileAll(Toolchain& tools, std::vector<Job>& jobs, Progress& progress) {
  const int threads = compile::CompileThreads(tools.options().compile_threads);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t n = next++; n < jobs.size(); n = next++) {
      Compile(tools, jobs[n]);
      progress.Advance(jobs[n].text);
    }
  };
  std::vector<std::thread> workers;
  for (int n = 1; n < std::min<int>(threads, static_cast<int>(jobs.size())); ++n) {
    workers.emplace_back(work);
  }
  work();
  for (std::thread& worker : workers) worker.join();
}

// One job for each spec and target, or for each of their candidates.
std::vector<Job> ListJobs(Toolchain& tools, const std::vector<std::string>& specs,
                          const CompileOptions& options) {
  std::vector<Job> jobs;
  for (const std::string& text : specs) {
    for (const std::string& target : options.targets) {
      Job job;
      job.text = text;
      job.target = target;
      jobs.push_back(job);
      // Compile says what is wrong with the spec.
      const absl::StatusOr<AttentionSpec> spec = ReadSpec(text);
      if (!options.candidates.has_value() || !spec.ok()) continue;
      auto decisions = tools.Candidates(*spec, target, *options.candidates);
      if (!decisions.ok()) continue;
      for (plan::Decision& decision : *decisions) {
        jobs.push_back(job);
        jobs.back().decision = std::move(decision);
      }
    }
  }
  return jobs;
}

int Report(const std::vector<Job>& jobs, size_t specs, const Toolchain& tools,
           const Console& console) {
  int64_t compiled = 0;
  int64_t hits = 0;
  int64_t failed = 0;
  double compile_ms = 0;
  Json kernels = Json::array();
  for (const Job& job : jobs) {
    Json kernel = {{"spec", job.spec.empty() ? job.text : job.spec}, {"target", job.target}};
    std::string line;
    if (!job.status.ok()) {
      ++failed;
      kernel["error"] = {{"code", absl::StatusCodeToString(job.status.code())},
                         {"message", std::string(job.status.message())}};
      line = absl::StrCat("failed    ", job.target, "  ", job.text, "\n          ",
                          job.status.ToString());
    } else {
      const bool is_hit = job.kernel.origin == "store";
      ++(is_hit ? hits : compiled);
      if (!is_hit) compile_ms += job.kernel.compile_ms;
      kernel.update(job.kernel.ToJson());
      line = absl::StrFormat(
          "%-9s %s  %s%s  (%d registers, %d bytes spilled, %.0f ms)", is_hit ? "hit" : "compiled",
          job.target, job.spec,
          job.decision.has_value() ? absl::StrCat(": ", job.decision->plan.ToString()) : "",
          job.kernel.usage.registers, job.kernel.usage.spill_store_bytes,
          is_hit ? 0.0 : job.kernel.compile_ms);
    }
    kernels.push_back(kernel);
    if (!console.json) console.out << line << "\n";
  }
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", failed == 0},
                   {"specs", specs},
                   {"compiled", compiled},
                   {"hits", hits},
                   {"failed", failed},
                   {"compile_ms", compile_ms},
                   {"store", tools.location().directory},
                   {"kernels", kernels}});
  } else {
    console.out << absl::StreamFormat(
        "%d specs: %d compiled in %.0f ms, %d hits, %d failed; store: %s\n", specs, compiled,
        compile_ms, hits, failed,
        tools.location().directory.empty() ? absl::StrCat("memory (", tools.location().why, ")")
                                           : tools.location().directory);
  }
  return failed == 0 ? kExitFine : kExitProblem;
}

int CompileCommand(const CompileOptions& options, const Console& console) {
  absl::StatusOr<std::vector<std::string>> specs = SplitSpecs(options.specs);
  if (!specs.ok()) return console.Fail(kCommand, specs.status(), kExitUsage);
  if (!options.matrix.empty()) {
    absl::StatusOr<std::vector<std::string>> more = ReadSpecFile(options.matrix);
    if (!more.ok()) return console.Fail(kCommand, more.status());
    specs->insert(specs->end(), more->begin(), more->end());
  }
  if (specs->empty()) {
    return console.Fail(kCommand,
                        absl::InvalidArgumentError("no spec is given, here or by --matrix FILE"),
                        kExitUsage);
  }
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (!tools.ok()) return console.Fail(kCommand, tools.status());
  if (options.plan) {
    return ListPlannedKernels(**tools, *specs, options.targets, options.max_batch,
                              options.max_seqlen, console);
  }
  std::vector<Job> jobs = ListJobs(**tools, *specs, options);
  {
    Progress progress(console.err, console.progress_mode(), "compiled", jobs.size());
    CompileAll(**tools, jobs, progress);
  }
  if (!(*tools)->builder().Flush(/*timeout_ms=*/60000)) {
    return console.Fail(kCommand, absl::DeadlineExceededError(
                                      "the store took more than a minute to take the kernels"));
  }
  return Report(jobs, specs->size(), **tools, console);
}

}  // namespace

void AddCompileCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<CompileOptions>();
  options->targets = {kDefaultTarget};
  CLI::App* command = app.add_subcommand("compile", "Compile specs into the store; needs no GPU");
  command->add_option("SPEC", options->specs, "Specs, each beginning with fwd, bwd or append");
  command->add_option("--arch", options->targets, "Targets, such as sm_80,sm_90a")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--matrix", options->matrix, "A file with one spec a line");
  command
      ->add_option("--candidates", options->candidates,
                   "Also what tuning would try, so that it only measures; 0: all of them")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--plan", options->plan,
                    "Compile nothing: list the kernels that other sizes of the specs can reach");
  command->add_option("--max-batch", options->max_batch, "Largest batch that --plan counts with")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-seqlen", options->max_seqlen, "Longest sequence, likewise")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return CompileCommand(*options, console); };
  });
}

}  // namespace tilewright::cli

#include "tests/gpu/scenarios.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/accuracy.h"
#include "cli/random_problem.h"
#include "plan/kernel_plan.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/more_driver.h"

namespace tilewright::gpu_tests {
namespace {

AttentionSpec Spec() {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 50;
  spec.dim_qk = spec.dim_v = 24;
  spec.causal = true;
  return spec;
}

// Prepares, runs and checks in the thread's current context.
absl::Status RunAndCheckHere(Runtime& runtime, const AttentionSpec& spec) {
  auto stream = device::OwnedStream::Create(GpuEnvironment::Get().api());
  if (!stream.ok()) return stream.status();
  auto problem = cli::MakeRandomProblem(spec);
  if (!problem.ok()) return problem.status();
  if (absl::Status run = RunOnDevice(runtime, *problem, stream->get()); !run.ok()) return run;
  const auto rows = reference::AllRows(problem->spec(), problem->args());
  const auto accuracy = cli::CheckAccuracy(*problem, rows);
  if (!accuracy.ok()) return accuracy.status();
  return accuracy->holds() ? absl::OkStatus() : absl::InternalError(accuracy->ToString());
}

// The same with the primary context made current.
absl::Status RunAndCheck(Runtime& runtime, const AttentionSpec& spec = Spec()) {
  GpuEnvironment& gpu = GpuEnvironment::Get();
  auto context = device::ScopedContext::Push(gpu.api(), gpu.context());
  if (!context.ok()) return context.status();
  return RunAndCheckHere(runtime, spec);
}

int Complain(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

std::unique_ptr<Runtime> NewRuntime(const std::string& cache_dir) {
  auto runtime = Runtime::Create(OptionsFor(cache_dir));
  if (!runtime.ok()) {
    Complain(runtime.status());
    std::exit(1);
  }
  return *std::move(runtime);
}

// Alive until the static destructors, in whatever order they come.
std::unique_ptr<Runtime>& StaticRuntime() {
  static std::unique_ptr<Runtime> runtime;
  return runtime;
}
PreparedAttention& StaticAttention() {
  static PreparedAttention attention;
  return attention;
}

int ReturnFromMain(const std::string& cache_dir) {
  const auto runtime = NewRuntime(cache_dir);
  return Complain(RunAndCheck(*runtime));
}

int ExitWithALivingRuntime(const std::string& cache_dir) {
  StaticRuntime() = NewRuntime(cache_dir);
  const int status = Complain(RunAndCheck(*StaticRuntime()));
  std::exit(status);
}

int ExitWithALivingAttention(const std::string& cache_dir) {
  StaticRuntime() = NewRuntime(cache_dir);
  auto attention = StaticRuntime()->Prepare(Spec());
  if (!attention.ok()) return Complain(attention.status());
  StaticAttention() = *attention;
  std::exit(0);
}

int ExitInAThread(const std::string& cache_dir) {
  StaticRuntime() = NewRuntime(cache_dir);
  std::thread([] { std::exit(Complain(RunAndCheck(*StaticRuntime()))); }).join();
  return 1;
}

int DestroyTheContextFirst(const std::string& cache_dir) {
  auto runtime = NewRuntime(cache_dir);
  if (const int status = Complain(RunAndCheck(*runtime)); status != 0) return status;
  if (MoreDriver::Get().reset_primary_context(0) != CUDA_SUCCESS) return 1;
  runtime.reset();
  return 0;
}

int AttentionOutlivesRuntime(const std::string& cache_dir) {
  auto runtime = NewRuntime(cache_dir);
  auto attention = runtime->Prepare(Spec());
  if (!attention.ok()) return Complain(attention.status());
  runtime.reset();
  const bool readable = !attention->Explain().empty();
  attention = PreparedAttention();
  return readable ? 0 : 1;
}

int TwoRuntimesInReverse(const std::string& cache_dir) {
  auto first = NewRuntime(cache_dir);
  auto second = NewRuntime(cache_dir);
  if (const int status = Complain(RunAndCheck(*first)); status != 0) return status;
  if (const int status = Complain(RunAndCheck(*second)); status != 0) return status;
  first.reset();
  return Complain(RunAndCheck(*second));
}

// The driver gives a new context the address of one that was destroyed; what was loaded into the
// old one must not be taken for loaded into the new.
int ContextsAtOneAddress(const std::string& cache_dir) {
  const auto runtime = NewRuntime(cache_dir);
  for (int n = 0; n < 5; ++n) {
    CUcontext context = nullptr;
    if (MoreDriver::Get().create_context(&context, 0, 0) != CUDA_SUCCESS) return 1;
    const int status = Complain(RunAndCheckHere(*runtime, Spec()));
    if (MoreDriver::Get().destroy_context(context) != CUDA_SUCCESS) return 1;
    if (status != 0) return status;
  }
  return 0;
}

// With a warm store nothing compiles, and the compiler is not even in the address space.
int WarmStart(const std::string& cache_dir) {
  const auto runtime = NewRuntime(cache_dir);
  if (const int status = Complain(RunAndCheck(*runtime)); status != 0) return status;
  const RuntimeCounters counters = runtime->counters();
  if (counters.store_hits != 1 || counters.compiles != 0) {
    std::fprintf(stderr, "store_hits=%ld compiles=%ld\n", static_cast<long>(counters.store_hits),
                 static_cast<long>(counters.compiles));
    return 1;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, "nvrtc")) continue;
    std::fprintf(stderr, "mapped: %s\n", line.c_str());
    return 1;
  }
  return 0;
}

// A kernel's fault is the end of CUDA in the whole process, and of this scenario.
int FaultWhileTuning(const std::string& cache_dir) {
  const GpuEnvironment& gpu = GpuEnvironment::Get();
  auto context = device::ScopedContext::Push(gpu.api(), gpu.context());
  if (!context.ok()) return Complain(context.status());
  auto runtime = Runtime::Create(FaultOptions(cache_dir));
  if (!runtime.ok()) return Complain(runtime.status());
  const auto result = (*runtime)->Tune(FaultSpec());
  std::printf("%s\n", result.status().ToString().c_str());
  std::fflush(stdout);
  // What destructors do with a context that is no more is for the driver to say.
  _exit(absl::IsAborted(result.status()) ? 0 : 1);
}

int TuneAfterAFault(const std::string& cache_dir) {
  RuntimeOptions options = FaultOptions(cache_dir);
  options.tune_policy = TunePolicy::kFirstRun;
  auto runtime = Runtime::Create(options);
  if (!runtime.ok()) return Complain(runtime.status());
  if (const int status = Complain(RunAndCheck(**runtime, FaultSpec())); status != 0) return status;
  if ((*runtime)->counters().tunes == 1) return 0;
  return Complain(absl::InternalError("it was not tuned"));
}

struct Scenario {
  const char* name;
  int (*run)(const std::string&);
};

constexpr Scenario kExits[] = {
    {"return_from_main", ReturnFromMain},
    {"exit_with_a_living_runtime", ExitWithALivingRuntime},
    {"exit_with_a_living_attention", ExitWithALivingAttention},
    {"exit_in_a_thread", ExitInAThread},
    {"destroy_the_context_first", DestroyTheContextFirst},
    {"attention_outlives_runtime", AttentionOutlivesRuntime},
    {"two_runtimes_in_reverse", TwoRuntimesInReverse},
    {"contexts_at_one_address", ContextsAtOneAddress},
};

}  // namespace

std::vector<std::string> ExitScenarios() {
  std::vector<std::string> names;
  for (const Scenario& scenario : kExits) names.push_back(scenario.name);
  return names;
}

AttentionSpec FaultSpec() {
  AttentionSpec spec = Spec();
  spec.dim_qk = spec.dim_v = 64;
  return spec;
}

std::string FaultStore(const std::string& cache_dir) { return cache_dir + "/store"; }
std::string FaultTemplates(const std::string& cache_dir) { return cache_dir + "/templates"; }

RuntimeOptions FaultOptions(const std::string& cache_dir) {
  RuntimeOptions options = OptionsFor(FaultStore(cache_dir));
  options.template_dir = FaultTemplates(cache_dir);
  options.family = std::string(plan::FamilyName(plan::Family::kFwdSm80));
  options.tune_candidates = 4;
  options.tune_budget_ms = 20'000;
  return options;
}

int RunScenario(const std::string& name, const std::string& cache_dir) {
  const GpuEnvironment& gpu = GpuEnvironment::Get();
  if (!gpu.missing().empty()) return Complain(absl::UnavailableError(gpu.missing()));
  if (name == "warm_start") return WarmStart(cache_dir);
  if (name == "fault_while_tuning") return FaultWhileTuning(cache_dir);
  if (name == "tune_after_a_fault") return TuneAfterAFault(cache_dir);
  for (const Scenario& scenario : kExits) {
    if (name == scenario.name) return scenario.run(cache_dir);
  }
  std::fprintf(stderr, "no scenario \"%s\"\n", name.c_str());
  return 2;
}

ChildResult RunChild(const std::string& scenario, const std::string& cache_dir) {
  ChildResult result;
  char program[4096] = "";
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return result;
  const std::string command = absl::StrCat("'", std::string(program, length), "' --scenario ",
                                           scenario, " --cache '", cache_dir, "' 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[1024];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    result.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

}  // namespace tilewright::gpu_tests

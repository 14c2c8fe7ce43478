// tilewright bench: times specs on this GPU, each as an application's Prepare would have it run.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/roofline.h"
#include "cli/spec_arguments.h"
#include "runtime/runtime_impl.h"
#include "spec/canonical.h"
#include "tune/device_bench.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kCommand[] = "bench";

// A power-limited chip gives 5 to 18 % for free to what runs first after an idle moment.
constexpr std::chrono::milliseconds kHeat{600};

struct BenchCommandOptions {
  std::vector<std::string> specs;
  std::string shapes;
  int milliseconds = 300;
  bool hot = false;
};

struct Timing {
  std::string plan;
  std::string kernel;      // what Explain says
  std::string checked;     // family that the answer was compared with; empty: none
  std::string timed_spec;  // a smaller batch where the memory did not suffice
  double prepare_ms = 0;
  double ms = 0;                   // median
  double low_ms = 0, high_ms = 0;  // quartiles
  int launches = 0;
  double flops = 0;
  double bytes = 0;
  double limit_ms = 0;  // of the board, by counting; 0: unknown
};

// A prepared operation as the test bench wants it.
class PreparedTrial : public tune::Trial {
 public:
  PreparedTrial(Runtime& runtime, PreparedAttention attention)
      : runtime_(runtime), attention_(std::move(attention)) {}
  absl::StatusOr<size_t> WorkspaceBytes(const AttentionArgs& args) const override {
    return attention_.workspace_bytes(args);
  }
  absl::Status Launch(const AttentionArgs& args, device::StreamHandle stream) const override {
    return runtime_.Run(attention_, args, stream);
  }

 private:
  Runtime& runtime_;
  const PreparedAttention attention_;
};

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

absl::StatusOr<std::vector<double>> Measure(tune::DeviceBench& bench, const tune::Trial& trial,
                                            int milliseconds) {
  constexpr size_t kLeast = 10;
  const tune::Trial* const trials[] = {&trial};
  const Clock::time_point heated = Clock::now() + kHeat;
  while (Clock::now() < heated) TILEWRIGHT_RETURN_IF_ERROR(bench.Round(trials).status());
  std::vector<double> times;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (times.size() < kLeast || Clock::now() < end) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<double> round, bench.Round(trials));
    times.push_back(round.front());
  }
  std::sort(times.begin(), times.end());
  return times;
}

// `simple` prepares the definition in code, which answers are compared with.
absl::StatusOr<Timing> Time(GpuSession& session, Runtime& simple, const AttentionSpec& spec,
                            const BenchCommandOptions& options) {
  Timing timing;
  const Clock::time_point start = Clock::now();
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention attention, session.runtime().Prepare(spec));
  timing.prepare_ms = MsSince(start);
  timing.kernel = attention.Explain();
  const plan::Decision decision = attention.state()->Newest().decision;
  timing.plan = decision.plan.ToString();
  const PreparedTrial trial(session.runtime(), attention);
  std::unique_ptr<PreparedTrial> reference;
  if (decision.plan.family != plan::Family::kFwdSimple) {
    absl::StatusOr<PreparedAttention> definition = simple.Prepare(spec);
    if (definition.ok()) {
      reference = std::make_unique<PreparedTrial>(simple, *std::move(definition));
      timing.checked = plan::FamilyName(plan::Family::kFwdSimple);
    }
  }

  tune::BenchOptions how;
  how.cold = !options.hot;
  how.memory_share = 0.8;
  how.max_bytes = std::numeric_limits<int64_t>::max();
  how.max_flops = std::numeric_limits<double>::infinity();
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const std::unique_ptr<tune::DeviceBench> bench,
      tune::DeviceBench::Create(session.api(), session.current(), spec, trial, reference.get(),
                                timing.checked, how));
  TILEWRIGHT_RETURN_IF_ERROR(bench->Check(trial));
  timing.timed_spec = bench->timed_spec();
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<double> times,
                              Measure(*bench, trial, options.milliseconds));
  timing.launches = static_cast<int>(times.size());
  timing.ms = times[times.size() / 2];
  timing.low_ms = times[times.size() / 4];
  timing.high_ms = times[times.size() * 3 / 4];

  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec timed, ReadSpec(timing.timed_spec));
  const device::DeviceInfo& device = session.device();
  const Roofline roofline = EstimateRoofline(timed, decision.plan, device.traits, device.board);
  timing.flops = roofline.flops;
  timing.bytes = roofline.bytes;
  const std::optional<double>& arithmetic =
      roofline.matrix_ms.has_value() ? roofline.matrix_ms : roofline.fp32_ms;
  timing.limit_ms = std::max(roofline.memory_ms, arithmetic.value_or(0));
  return timing;
}

std::string ToText(const std::string& spec, const Timing& timing) {
  std::string text = absl::StrFormat(
      "%s\n  %s\n  %.4g ms (half of %d launches: %.4g to %.4g)  %.4g TFLOP/s", spec, timing.plan,
      timing.ms, timing.launches, timing.low_ms, timing.high_ms, timing.flops / timing.ms * 1e-9);
  absl::StrAppendFormat(&text, "  %.3g TB/s", timing.bytes / timing.ms * 1e-9);
  if (timing.limit_ms > 0) {
    absl::StrAppendFormat(&text, "  %.0f %% of the board's limit",
                          100 * timing.limit_ms / timing.ms);
  }
  absl::StrAppendFormat(&text, "\n  ready after %.1f ms; %s\n", timing.prepare_ms,
                        timing.checked.empty()
                            ? "there is no other family to compare the answer with"
                            : absl::StrCat("the answer agrees with ", timing.checked));
  if (timing.timed_spec != spec) {
    absl::StrAppend(&text, "  timed as ", timing.timed_spec, ", for want of memory\n");
  }
  return text;
}

Json ToJson(const Timing& timing) {
  return {{"plan", timing.plan},
          {"kernel", timing.kernel},
          {"timed_spec", timing.timed_spec},
          {"checked_against", timing.checked},
          {"prepare_ms", timing.prepare_ms},
          {"ms", timing.ms},
          {"quartiles_ms", {timing.low_ms, timing.high_ms}},
          {"launches", timing.launches},
          {"tflops", timing.flops / timing.ms * 1e-9},
          {"tb_per_s", timing.bytes / timing.ms * 1e-9},
          {"limit_ms", timing.limit_ms}};
}

int Bench(const BenchCommandOptions& options, const Console& console) {
  const absl::StatusOr<std::vector<AttentionSpec>> specs = ReadSpecs(options.specs, options.shapes);
  if (!specs.ok()) return console.Fail(kCommand, specs.status(), kExitUsage);
  absl::StatusOr<RuntimeOptions> runtime_options = RuntimeOptions::FromEnvironment();
  if (!runtime_options.ok()) return console.Fail(kCommand, runtime_options.status());
  const absl::StatusOr<std::unique_ptr<GpuSession>> session = GpuSession::Open(*runtime_options);
  if (!session.ok()) return console.Fail(kCommand, session.status());
  runtime_options->family = plan::FamilyName(plan::Family::kFwdSimple);
  if (runtime_options->tune_policy != TunePolicy::kFrozen) {
    runtime_options->tune_policy = TunePolicy::kOff;
  }
  const absl::StatusOr<std::unique_ptr<Runtime>> simple = Runtime::Create(*runtime_options);
  if (!simple.ok()) return console.Fail(kCommand, simple.status());
  const std::string& board = (*session)->device().board.name;
  if (!console.json) {
    console.out << board << ", " << (options.hot ? "warm" : "cold") << " L2 cache\n";
  }

  Json results = Json::array();
  int failed = 0;
  Progress progress(console.err, console.progress_mode(), "timed", specs->size());
  for (const AttentionSpec& spec : *specs) {
    const std::string text = spec::ToText(spec);
    const absl::StatusOr<Timing> timing = Time(**session, **simple, spec, options);
    progress.Clear();
    Json result = {{"spec", text}};
    if (timing.ok()) {
      result.update(ToJson(*timing));
      if (!console.json) console.out << ToText(text, *timing) << std::flush;
    } else {
      ++failed;
      result["error"] = {{"code", absl::StatusCodeToString(timing.status().code())},
                         {"message", std::string(timing.status().message())}};
      if (!console.json) {
        console.err << "tilewright bench: " << text << ": " << timing.status().message() << "\n";
      }
    }
    results.push_back(std::move(result));
    progress.Advance(text);
  }
  progress.Clear();
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", failed == 0},
                   {"device", board},
                   {"l2", options.hot ? "warm" : "cold"},
                   {"specs", results}});
  }
  return failed == 0 ? kExitFine : kExitProblem;
}

}  // namespace

void AddBenchCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<BenchCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Time specs on this GPU, on random data, after a check of the answers");
  command->add_option("SPEC", options->specs, "Specs, in words");
  command->add_option("--shapes", options->shapes, "A file with one spec a line");
  command->add_option("--ms", options->milliseconds, "Milliseconds to measure each for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--hot", options->hot, "Measure with the inputs in the L2 cache");
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Bench(*options, console); };
  });
}

}  // namespace tilewright::cli

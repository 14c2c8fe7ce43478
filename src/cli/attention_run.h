// Computes one problem, on the GPU through a Runtime or on the host by the reference, and keeps
// account of where the time went. Shared by `run`, `verify`, `tune` and `bench`.
#ifndef TILEWRIGHT_CLI_ATTENTION_RUN_H_
#define TILEWRIGHT_CLI_ATTENTION_RUN_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/accuracy.h"
#include "cli/command.h"
#include "cli/random_problem.h"
#include "cli/toolchain.h"
#include "device/device.h"
#include "device/memory.h"
#include "plan/planner.h"
#include "reference/reference.h"
#include "tilewright/runtime.h"

namespace tilewright::cli {

// Milliseconds of consecutive stages, in order.
class StageClock {
 public:
  StageClock() : last_(std::chrono::steady_clock::now()) {}
  // Ends the stage that began with the previous call.
  void Lap(std::string stage);
  void Add(std::string stage, double ms) { stages_.emplace_back(std::move(stage), ms); }
  const std::vector<std::pair<std::string, double>>& stages() const { return stages_; }
  Json ToJson() const;
  std::string ToString() const;  // "plan 0.1, emit 0.3, compile 213.0"

 private:
  std::chrono::steady_clock::time_point last_;
  std::vector<std::pair<std::string, double>> stages_;
};

// A kernel that was planned and taken from the store or compiled.
struct KernelReport {
  plan::Decision decision;
  std::string origin;  // "compiled" or "store"
  std::string key;     // 64 hex digits
  std::string entry_name;
  std::string miss_reason;
  artifact::ResourceUsage usage;
  double compile_ms = 0;  // of the compile that made it
  std::string compiler;
  int64_t cubin_bytes = 0;
  // The plan's other kernels, in order of launch; their decision is their plan alone. What this
  // report says of its origin and compile is true of all: compiled when any was, the times added.
  std::vector<KernelReport> companions;

  Json ToJson() const;
};

Json DecisionJson(const plan::Decision& decision);

// Plans, emits, and takes the kernel from the store or compiles it; laps "plan", "emit", "compile"
// or "store". No GPU needed.
absl::StatusOr<KernelReport> BuildForTarget(Toolchain& tools, const AttentionSpec& spec,
                                            const std::string& target, StageClock& clock);
// The same for a plan that is chosen; no lap "plan".
absl::StatusOr<KernelReport> BuildDecision(Toolchain& tools, const AttentionSpec& spec,
                                           plan::Decision decision, StageClock& clock);
// And for its kernels as they were emitted, in the order in which they run; no lap "emit".
absl::StatusOr<KernelReport> BuildRequests(Toolchain& tools, plan::Decision decision,
                                           absl::Span<const build::KernelRequest> requests,
                                           StageClock& clock);

// Multiplications and additions of the reference for one row, to keep checks short.
double ReferenceFlopsPerRow(const AttentionSpec& spec);
// Rows to compare: all, or a sample when the problem is large.
std::vector<reference::Row> RowsToCheck(const HostProblem& problem, uint64_t seed);

// Writes the result of the fp64 reference, rounded once, into o and lse of `problem`, at `rows`
// only or everywhere when `rows` is empty; of a backward into all gradients.
absl::Status ComputeOnHost(HostProblem& problem, absl::Span<const reference::Row> rows);

// Whether part of the rule is CUDA text, which no host can compute.
inline bool HasSnippet(const AttentionSpec& spec) {
  return !spec.score_snippet.empty() || !spec.mask_snippet.empty();
}

// The forward whose O and LSE a backward of `spec` reads.
AttentionSpec ForwardOf(const AttentionSpec& spec);

// One GPU, its context made current for the life of the object, and a Runtime.
class GpuSession {
 public:
  // Unavailable or FailedPrecondition where there is no driver or no device.
  static absl::StatusOr<std::unique_ptr<GpuSession>> Open(const RuntimeOptions& options);

  const device::DeviceInfo& device() const { return *current_.device; }
  const device::DeviceManager::Current& current() const { return current_; }
  const device::DriverApi& api() const { return manager_->api(); }
  Runtime& runtime() { return *runtime_; }

  struct Result {
    std::string explain;        // of the prepared kernel
    plan::Decision decision;    // that it comes from
    double kernel_ms = 0;       // median of the timed launches
    int launches = 0;           // timed
    double host_us = 0;         // host time of one Run, median
    bool bitwise_equal = true;  // first and last launch wrote the same bytes, where they must
  };
  // Prepares, uploads, launches once, times further launches, and downloads o and lse into
  // `problem`. Laps "prepare", "upload", "first_launch", "timing", "download". A backward is
  // preceded by a forward, which makes its O and LSE ("forward").
  absl::StatusOr<Result> Run(HostProblem& problem, StageClock& clock);

 private:
  GpuSession() = default;
  // The forward of a backward's spec, on the same arrays.
  absl::Status RunForwardOf(const AttentionSpec& spec, AttentionArgs args);
  std::shared_ptr<device::DeviceManager> manager_;
  device::DeviceManager::Current current_;
  std::optional<device::ScopedContext> scope_;
  device::OwnedStream stream_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_ATTENTION_RUN_H_

#include "cli/attention_run.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/elapsed.h"
#include "base/status_macros.h"
#include "cli/device_problem.h"
#include "cli/gradients.h"
#include "runtime/runtime_impl.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void FillReport(const build::BuiltKernel& built, KernelReport& report) {
  report.origin = built.origin == build::BinaryOrigin::kCompiled ? "compiled" : "store";
  report.key = built.key.ToHex();
  report.entry_name = built.binary.entry_name;
  report.miss_reason = built.miss_reason;
  report.usage = built.binary.usage;
  report.compile_ms = built.binary.compile_ms;
  report.compiler = built.binary.compiler;
  report.cubin_bytes = static_cast<int64_t>(built.binary.cubin.size());
}

// The bytes of all outputs, one after the other.
std::vector<std::byte> OutputBytes(const HostProblem& problem) {
  std::vector<std::byte> bytes;
  for (const HostBuffer& buffer : problem.buffers()) {
    if (buffer.output) bytes.insert(bytes.end(), buffer.base(), buffer.base() + buffer.size);
  }
  return bytes;
}

}  // namespace

void StageClock::Lap(std::string stage) {
  const Clock::time_point now = Clock::now();
  Add(std::move(stage), std::chrono::duration<double, std::milli>(now - last_).count());
  last_ = now;
}

Json StageClock::ToJson() const {
  Json object = Json::object();
  for (const auto& [stage, ms] : stages_) object[stage] = ms;
  return object;
}

std::string StageClock::ToString() const {
  std::string text;
  for (const auto& [stage, ms] : stages_) {
    absl::StrAppendFormat(&text, "%s%s %.1f", text.empty() ? "" : ", ", stage, ms);
  }
  return text;
}

Json DecisionJson(const plan::Decision& decision) {
  Json refusals = Json::array();
  for (const plan::Refusal& refusal : decision.refusals) {
    refusals.push_back(
        {{"family", std::string(plan::FamilyName(refusal.family))}, {"reason", refusal.reason}});
  }
  return {{"text", decision.plan.ToString()},
          {"family", std::string(plan::FamilyName(decision.plan.family))},
          {"target", decision.plan.target},
          {"block_m", decision.plan.block_m},
          {"block_n", decision.plan.block_n},
          {"threads", decision.plan.threads()},
          {"smem_bytes", decision.plan.smem_bytes},
          {"why", decision.why},
          {"fallback", decision.fallback},
          {"candidates", decision.candidates.size()},
          {"tuned", decision.tuned},
          {"refusals", refusals}};
}

Json KernelReport::ToJson() const {
  Json object = {{"origin", origin},
                 {"key", key},
                 {"entry", entry_name},
                 {"registers", usage.registers},
                 {"static_smem_bytes", usage.static_smem_bytes},
                 {"dynamic_smem_bytes", decision.plan.smem_bytes},
                 {"spill_bytes", usage.spill_store_bytes + usage.spill_load_bytes},
                 {"cubin_bytes", cubin_bytes},
                 {"compile_ms", compile_ms},
                 {"compiler", compiler}};
  if (!miss_reason.empty()) object["miss_reason"] = miss_reason;
  for (const KernelReport& companion : companions) {
    object["companions"].push_back(companion.ToJson());
  }
  return object;
}

absl::StatusOr<KernelReport> BuildForTarget(Toolchain& tools, const AttentionSpec& spec,
                                            const std::string& target, StageClock& clock) {
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::Decision decision, tools.Plan(spec, target));
  clock.Lap("plan");
  return BuildDecision(tools, spec, std::move(decision), clock);
}

absl::StatusOr<KernelReport> BuildDecision(Toolchain& tools, const AttentionSpec& spec,
                                           plan::Decision decision, StageClock& clock) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<build::KernelRequest> requests,
                              tools.builder().MakeRequests(spec, decision.plan));
  clock.Lap("emit");
  return BuildRequests(tools, std::move(decision), requests, clock);
}

absl::StatusOr<KernelReport> BuildRequests(Toolchain& tools, plan::Decision decision,
                                           absl::Span<const build::KernelRequest> requests,
                                           StageClock& clock) {
  KernelReport report;
  report.decision = std::move(decision);
  const size_t main = report.decision.plan.before.size();
  // The kernels of one plan compile side by side.
  std::vector<absl::StatusOr<build::BuiltKernel>> built(requests.size(), absl::UnknownError(""));
  std::vector<std::thread> threads;
  for (size_t n = 1; n < requests.size(); ++n) {
    threads.emplace_back([&, n] { built[n] = tools.builder().Build(requests[n]); });
  }
  built[0] = tools.builder().Build(requests[0]);
  for (std::thread& thread : threads) thread.join();
  for (size_t n = 0; n < requests.size(); ++n) {
    TILEWRIGHT_RETURN_IF_ERROR(built[n].status());
    if (n == main) {
      FillReport(*built[n], report);
    } else {
      KernelReport& companion = report.companions.emplace_back();
      companion.decision.plan = requests[n].plan;
      FillReport(*built[n], companion);
    }
  }
  for (const KernelReport& companion : report.companions) {
    if (companion.origin != "compiled") continue;
    report.compile_ms =
        (report.origin == "compiled" ? report.compile_ms : 0) + companion.compile_ms;
    report.origin = "compiled";
  }
  clock.Lap(report.origin == "compiled" ? "compile" : "store");
  return report;
}

double ReferenceFlopsPerRow(const AttentionSpec& spec) {
  return 2.0 * static_cast<double>(std::max<int64_t>(spec.seqlen_kv, 1)) *
         static_cast<double>(spec.dim_qk + spec.dim_v);
}

std::vector<reference::Row> RowsToCheck(const HostProblem& problem, uint64_t seed) {
  // A few seconds on two cores, and never more rows than tell something further.
  constexpr double kFlops = 4e9;
  constexpr double kMostRows = 4096;
  const double rows = std::min(kMostRows, kFlops / ReferenceFlopsPerRow(problem.spec()));
  return reference::SampleRows(problem.spec(), problem.args(),
                               std::max<int64_t>(64, static_cast<int64_t>(rows)), seed);
}

absl::Status ComputeOnHost(HostProblem& problem, absl::Span<const reference::Row> rows) {
  if (problem.spec().operation == Operation::kBackward) return ComputeGradientsOnHost(problem);
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  std::vector<reference::Row> all;
  if (rows.empty()) {
    all = reference::AllRows(spec, args);
    rows = all;
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const reference::ForwardResult result,
                              reference::Forward(spec, args, rows));
  const ElementType type = spec::OutType(spec);
  const int bytes = spec::ElementBytes(type);
  const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
  auto* o = static_cast<std::byte*>(args.o.data);
  for (size_t r = 0; r < rows.size(); ++r) {
    const reference::Row& row = rows[r];
    const int64_t sequence = packed ? args.cu_seqlens_q[row.b] : 0;
    const int64_t base = packed ? sequence * args.o.strides.seq : row.b * args.o.strides.batch;
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      const int64_t offset =
          base + row.i * args.o.strides.seq + row.h * args.o.strides.head + d * args.o.strides.dim;
      reference::FromDouble(type, result.o[r * spec.dim_v + d], o + offset * bytes);
    }
    if (spec.lse) {
      const int64_t at = packed ? sequence : row.b * args.lse_stride_batch;
      args.lse[at + row.h * args.lse_stride_head + row.i] = static_cast<float>(result.lse[r]);
    }
  }
  return absl::OkStatus();
}

AttentionSpec ForwardOf(const AttentionSpec& spec) {
  AttentionSpec forward = spec;
  forward.operation = Operation::kForward;
  forward.lse = true;
  forward.deterministic = false;
  forward.alibi_gradient = forward.sinks_gradient = false;
  forward.score_gradient_snippet = {};
  for (BiasTerm& term : forward.bias) term.gradient = false;
  for (SnippetArray& array : forward.snippet_arrays) array.gradient = false;
  return spec::Canonicalise(forward);
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuSession::Open(const RuntimeOptions& options) {
  std::unique_ptr<GpuSession> session(new GpuSession);
  TILEWRIGHT_ASSIGN_OR_RETURN(session->manager_, device::DeviceManager::Create());
  TILEWRIGHT_ASSIGN_OR_RETURN(session->current_,
                              session->manager_->CurrentOrPrimary(options.device_ordinal));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      device::ScopedContext scope,
      device::ScopedContext::Push(session->manager_->api(), session->current_.context));
  session->scope_.emplace(std::move(scope));
  TILEWRIGHT_ASSIGN_OR_RETURN(session->stream_,
                              device::OwnedStream::Create(session->manager_->api()));
  TILEWRIGHT_ASSIGN_OR_RETURN(session->runtime_, Runtime::Create(options));
  return session;
}

absl::Status GpuSession::RunForwardOf(const AttentionSpec& spec, AttentionArgs args) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention attention,
                              runtime_->Prepare(ForwardOf(spec)));
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t workspace_bytes, attention.workspace_bytes(args));
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer workspace,
                              device::DeviceBuffer::Allocate(manager_->api(), workspace_bytes));
  args.workspace = workspace.data();
  TILEWRIGHT_RETURN_IF_ERROR(runtime_->Run(attention, args, stream_.get()));
  return stream_.Synchronize();
}

absl::StatusOr<GpuSession::Result> GpuSession::Run(HostProblem& problem, StageClock& clock) {
  const device::DriverApi& api = manager_->api();
  Result result;
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention attention, runtime_->Prepare(problem.spec()));
  result.explain = attention.Explain();
  result.decision = attention.state()->Newest().decision;
  clock.Lap("prepare");

  TILEWRIGHT_ASSIGN_OR_RETURN(DeviceProblem uploaded,
                              DeviceProblem::Upload(api, problem, stream_.get()));
  AttentionArgs args = uploaded.args();
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t workspace_bytes, attention.workspace_bytes(args));
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer workspace,
                              device::DeviceBuffer::Allocate(api, workspace_bytes));
  args.workspace = workspace.data();
  TILEWRIGHT_RETURN_IF_ERROR(stream_.Synchronize());
  clock.Lap("upload");
  if (problem.spec().operation == Operation::kBackward) {
    TILEWRIGHT_RETURN_IF_ERROR(RunForwardOf(problem.spec(), args));
    clock.Lap("forward");
  }

  const Clock::time_point first = Clock::now();
  TILEWRIGHT_RETURN_IF_ERROR(runtime_->Run(attention, args, stream_.get()));
  TILEWRIGHT_RETURN_IF_ERROR(stream_.Synchronize());
  const double first_ms = MillisecondsSince(first);
  clock.Lap("first_launch");
  TILEWRIGHT_RETURN_IF_ERROR(uploaded.Download(problem, stream_.get()));
  clock.Lap("download");
  const std::vector<std::byte> first_outputs = OutputBytes(problem);

  // About 200 ms of launches.
  result.launches = std::clamp(static_cast<int>(200 / std::max(first_ms, 1e-3)), 3, 50);
  TILEWRIGHT_ASSIGN_OR_RETURN(device::OwnedEvent begin, device::OwnedEvent::Create(api));
  TILEWRIGHT_ASSIGN_OR_RETURN(device::OwnedEvent end, device::OwnedEvent::Create(api));
  std::vector<double> kernel_ms;
  std::vector<double> host_us;
  for (int n = 0; n < result.launches; ++n) {
    TILEWRIGHT_RETURN_IF_ERROR(begin.Record(stream_.get()));
    const Clock::time_point call = Clock::now();
    TILEWRIGHT_RETURN_IF_ERROR(runtime_->Run(attention, args, stream_.get()));
    host_us.push_back(MillisecondsSince(call) * 1000);
    TILEWRIGHT_RETURN_IF_ERROR(end.Record(stream_.get()));
    TILEWRIGHT_RETURN_IF_ERROR(end.Synchronize());
    TILEWRIGHT_ASSIGN_OR_RETURN(const float ms, end.ElapsedMsSince(begin));
    kernel_ms.push_back(ms);
  }
  result.kernel_ms = Median(kernel_ms);
  result.host_us = Median(host_us);
  TILEWRIGHT_RETURN_IF_ERROR(uploaded.Download(problem, stream_.get()));
  // Additions to dQ have an order only where the spec asks for one.
  const bool repeats =
      problem.spec().operation == Operation::kForward || problem.spec().deterministic;
  result.bitwise_equal = !repeats || OutputBytes(problem) == first_outputs;
  clock.Lap("timing");
  return result;
}

}  // namespace tilewright::cli

#include "tune/device_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tune/bucket.h"

namespace tilewright::tune {
namespace {

const device::DeviceAllocator kDriverAllocator;

// Blocks that keep a large device busy for several waves, whatever the plan's tiles.
constexpr int64_t kBusyBlocks = 2048;
constexpr int64_t kRowsOfABlock = 128;

// Multiplications and additions, counting what causal and window masks leave.
double Flops(const AttentionSpec& spec) {
  const auto keys = static_cast<double>(spec.seqlen_kv);
  double visible = keys;
  const bool causal = spec.causal || spec.window_right >= 0;
  if (causal && spec.seqlen_q == spec.seqlen_kv) visible = keys / 2;
  if (spec.window_left >= 0) {
    visible = std::min(visible, static_cast<double>(spec.window_left + 1));
  }
  return 2.0 * static_cast<double>(spec.dim_qk + spec.dim_v) * static_cast<double>(spec.batch) *
         static_cast<double>(spec.heads_q) * static_cast<double>(spec.seqlen_q) * visible;
}

// The largest batch of at most `batch` that the spec's bias tables of fewer batches divide; 0 when
// there is none.
int64_t FittingBatch(const AttentionSpec& spec, int64_t batch) {
  for (; batch > 0; --batch) {
    const bool fits = std::all_of(spec.bias.begin(), spec.bias.end(), [&](const BiasTerm& term) {
      return term.batch == 1 || term.batch == spec.batch || batch % term.batch == 0;
    });
    if (fits) return batch;
  }
  return 0;
}

bool Fits(const AttentionSpec& spec, int64_t max_bytes, const ScratchOptions& scratch) {
  const absl::StatusOr<size_t> bytes = ScratchBytes(spec, scratch);
  // What cannot be made up is for ScratchProblem to say.
  return !bytes.ok() || static_cast<int64_t>(*bytes) <= max_bytes;
}

// About half of a length, with the same rest in the last tile.
int64_t Shorter(int64_t length) {
  constexpr int64_t kTile = 128;
  return length / 2 / kTile * kTile + length % kTile;
}

// How far results of one spec may lie apart: relative to the root of the mean square.
double Tolerance(const AttentionSpec& spec) {
  const ElementType kv = spec::KvType(spec);
  const bool eight_bits = spec::ElementBytes(spec.type) == 1 || spec::ElementBytes(kv) == 1;
  if (eight_bits) return 6e-2;
  if (spec.type == ElementType::kBf16) return 1.2e-2;
  if (spec.type == ElementType::kFp16) return 3e-3;
  return spec.allow_tf32 ? 4e-3 : 2e-5;
}

// Single elements may be off by this many times the tolerance.
constexpr double kWorstElement = 20;

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t significand = bits & 0x3ff;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(significand), -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide =
      sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (significand << 13);
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

float ElementAt(ElementType type, const char* at) {
  uint32_t bits = 0;
  if (type == ElementType::kFp32) {
    std::memcpy(&bits, at, 4);
  } else {
    uint16_t narrow = 0;
    std::memcpy(&narrow, at, 2);
    if (type == ElementType::kFp16) return HalfToFloat(narrow);
    bits = uint32_t{narrow} << 16;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

absl::Status Off(const char* what, size_t index, double value, double reference) {
  return absl::FailedPreconditionError(
      absl::StrFormat("%s[%d] is %.6g, the reference has %.6g", what, index, value, reference));
}

}  // namespace

AttentionSpec TimedSpec(const AttentionSpec& spec, int64_t max_bytes, double max_flops,
                        const ScratchOptions& scratch) {
  AttentionSpec timed = spec;
  while (!spec.exact && timed.batch > 1) {
    const int64_t blocks = timed.batch * timed.heads_q * (timed.seqlen_q / kRowsOfABlock + 1);
    const bool too_long = Flops(timed) > max_flops && blocks >= 2 * kBusyBlocks;
    if (Fits(timed, max_bytes, scratch) && !too_long) break;
    const int64_t batch = FittingBatch(spec, timed.batch / 2);
    if (batch == 0) break;
    timed = WithSizes(spec, batch, spec.seqlen_q, spec.seqlen_kv);
  }
  return timed;
}

AttentionSpec CheckSpec(const AttentionSpec& spec, int64_t max_bytes, double max_flops,
                        const ScratchOptions& scratch) {
  constexpr int64_t kShortest = 256;
  AttentionSpec check = spec;
  if (spec.exact) return check;
  if (const int64_t batch = FittingBatch(spec, std::min<int64_t>(spec.batch, 3)); batch > 0) {
    check = WithSizes(spec, batch, spec.seqlen_q, spec.seqlen_kv);
  }
  while (Flops(check) > max_flops || !Fits(check, max_bytes, scratch)) {
    int64_t q = check.seqlen_q;
    int64_t kv = check.seqlen_kv;
    if (std::max(q, kv) < 2 * kShortest) break;
    const bool shorten_q = q >= kv;
    const bool shorten_kv = kv >= q;
    if (shorten_q) q = Shorter(q);
    if (shorten_kv) kv = Shorter(kv);
    check = WithSizes(check, check.batch, q, kv);
  }
  return check;
}

absl::Status CompareOutputs(const AttentionSpec& spec, const std::string& output,
                            const std::string& reference) {
  const ElementType type = spec::OutType(spec);
  const auto bytes = static_cast<size_t>(spec::ElementBytes(type));
  if (output.size() != reference.size()) return absl::InternalError("outputs differ in size");
  double sum_of_squares = 0;
  double error = 0;
  size_t elements = 0;
  double worst = 0;
  size_t worst_at = 0;
  for (size_t at = 0; at + bytes <= output.size(); at += bytes) {
    const double expected = ElementAt(type, &reference[at]);
    const double got = ElementAt(type, &output[at]);
    const bool same = std::memcmp(&output[at], &reference[at], bytes) == 0;
    if (!std::isfinite(expected) || !std::isfinite(got)) {
      if (!same) return Off("o", at / bytes, got, expected);
      continue;
    }
    ++elements;
    sum_of_squares += expected * expected;
    const double off = std::abs(got - expected);
    error += off * off;
    if (off > worst) {
      worst = off;
      worst_at = at;
    }
  }
  if (elements == 0) return absl::OkStatus();
  const double tolerance = Tolerance(spec);
  const double rms = std::sqrt(sum_of_squares / static_cast<double>(elements));
  const double relative = std::sqrt(error / std::max(sum_of_squares, 1e-30));
  if (error > 0 && (relative > tolerance || worst > kWorstElement * tolerance * rms)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s; the relative error is %.3g, at most %.3g is allowed",
                        Off("o", worst_at / bytes, ElementAt(type, &output[worst_at]),
                            ElementAt(type, &reference[worst_at]))
                            .message(),
                        relative, tolerance));
  }
  return absl::OkStatus();
}

absl::Status CompareLse(const AttentionSpec& spec, const std::vector<float>& lse,
                        const std::vector<float>& reference) {
  const double tolerance = Tolerance(spec) > 3e-2 ? 3e-2 : 2e-3;
  for (size_t n = 0; n < std::min(lse.size(), reference.size()); ++n) {
    const double got = lse[n];
    const double expected = reference[n];
    if (std::memcmp(&lse[n], &reference[n], sizeof(float)) == 0) continue;
    if (!(std::abs(got - expected) <= tolerance * (1 + std::abs(expected)))) {
      return Off("lse", n, got, expected);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceBench>> DeviceBench::Create(
    const device::DriverApi& api, const device::DeviceManager::Current& where,
    const AttentionSpec& spec, const Trial& first, const Trial* reference,
    std::string reference_name, BenchOptions options) {
  std::unique_ptr<DeviceBench> bench(new DeviceBench(api, where, spec, std::move(options)));
  bench->reference_name_ = std::move(reference_name);
  const device::RelaxedCaptureMode relaxed(api);
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::ScopedContext scope,
                              device::ScopedContext::Push(api, where.context));
  bench->held_ = std::make_unique<Holdings>();
  TILEWRIGHT_RETURN_IF_ERROR(bench->Open(first, reference));
  return bench;
}

DeviceBench::~DeviceBench() {
  const device::RelaxedCaptureMode relaxed(api_);
  const absl::StatusOr<device::ScopedContext> scope =
      device::ScopedContext::Push(api_, where_.context);
  held_.reset();
}

absl::Status DeviceBench::Open(const Trial& first, const Trial* reference) {
  TILEWRIGHT_ASSIGN_OR_RETURN(held_->stream, device::OwnedStream::Create(api_));
  const device::DeviceAllocator& allocator =
      options_.scratch.allocator != nullptr ? *options_.scratch.allocator : kDriverAllocator;
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t free, device::FreeDeviceMemory(api_));
  int64_t bytes = std::min(options_.max_bytes,
                           static_cast<int64_t>(options_.memory_share * static_cast<double>(free)));
  const int64_t flush_bytes =
      std::min(bytes / 4, std::max(options_.min_flush_bytes, 2 * where_.device->board.l2_bytes));
  TILEWRIGHT_ASSIGN_OR_RETURN(held_->flush, device::DeviceBuffer::Allocate(
                                                api_, static_cast<size_t>(flush_bytes), allocator));
  bytes -= flush_bytes;

  const auto make = [&](AttentionSpec smaller) -> absl::StatusOr<ScratchProblem> {
    ScratchOptions scratch = options_.scratch;
    if (smaller.seqlen_q != spec_.seqlen_q || smaller.seqlen_kv != spec_.seqlen_kv) {
      scratch.lengths_q.clear();
      scratch.lengths_kv.clear();
    }
    const auto batch = static_cast<size_t>(smaller.batch);
    if (scratch.lengths_q.size() > batch) scratch.lengths_q.resize(batch);
    if (scratch.lengths_kv.size() > batch) scratch.lengths_kv.resize(batch);
    TILEWRIGHT_ASSIGN_OR_RETURN(const size_t needed, ScratchBytes(smaller, scratch));
    if (static_cast<int64_t>(needed) > bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the problem takes ", needed,
                                                       " bytes with a batch of ", smaller.batch,
                                                       "; tuning may take ", bytes));
    }
    bytes -= static_cast<int64_t>(needed);
    return ScratchProblem::Create(api_, smaller, scratch, held_->stream.get());
  };
  ScratchOptions lengths_unknown = options_.scratch;
  lengths_unknown.lengths_q.clear();
  lengths_unknown.lengths_kv.clear();
  const AttentionSpec check =
      CheckSpec(spec_, bytes / 4, options_.max_check_flops, lengths_unknown);
  TILEWRIGHT_ASSIGN_OR_RETURN(held_->check, make(check));
  const AttentionSpec timed = TimedSpec(spec_, bytes, options_.max_flops, lengths_unknown);
  TILEWRIGHT_ASSIGN_OR_RETURN(held_->timed, make(timed));
  timed_spec_ = spec::ToText(timed);
  return RunCheck(reference != nullptr ? *reference : first, &reference_output_, &reference_lse_);
}

absl::StatusOr<AttentionArgs> DeviceBench::ArgsFor(const Trial& trial,
                                                   const ScratchProblem& problem) {
  AttentionArgs args = problem.args();
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t bytes, trial.WorkspaceBytes(args));
  if (bytes > held_->workspace.size()) {
    // What runs may still use the one it replaces.
    TILEWRIGHT_RETURN_IF_ERROR(held_->stream.Synchronize());
    held_->workspace = device::DeviceBuffer();
    TILEWRIGHT_ASSIGN_OR_RETURN(held_->workspace,
                                device::DeviceBuffer::Allocate(api_, bytes,
                                                               options_.scratch.allocator != nullptr
                                                                   ? *options_.scratch.allocator
                                                                   : kDriverAllocator));
  }
  if (bytes > 0) args.workspace = held_->workspace.data();
  return args;
}

absl::Status DeviceBench::RunCheck(const Trial& trial, std::string* output,
                                   std::vector<float>* lse) {
  constexpr uint8_t kPoison = 0xff;
  ScratchProblem& problem = held_->check;
  const device::StreamHandle stream = held_->stream.get();
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionArgs args, ArgsFor(trial, problem));
  TILEWRIGHT_RETURN_IF_ERROR(problem.PoisonOutputs(stream));
  TILEWRIGHT_RETURN_IF_ERROR(held_->workspace.Fill(kPoison, stream));
  TILEWRIGHT_RETURN_IF_ERROR(trial.Launch(args, stream));
  TILEWRIGHT_ASSIGN_OR_RETURN(*output, problem.ReadOutput(stream));
  TILEWRIGHT_ASSIGN_OR_RETURN(*lse, problem.ReadLse(stream));
  return problem.CheckGuards(stream);
}

absl::Status DeviceBench::Check(const Trial& trial) {
  const device::RelaxedCaptureMode relaxed(api_);
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::ScopedContext scope,
                              device::ScopedContext::Push(api_, where_.context));
  std::string output;
  std::vector<float> lse;
  TILEWRIGHT_RETURN_IF_ERROR(RunCheck(trial, &output, &lse));
  TILEWRIGHT_RETURN_IF_ERROR(CompareOutputs(spec_, output, reference_output_));
  return CompareLse(spec_, lse, reference_lse_);
}

absl::StatusOr<std::vector<double>> DeviceBench::Round(absl::Span<const Trial* const> trials) {
  const device::RelaxedCaptureMode relaxed(api_);
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::ScopedContext scope,
                              device::ScopedContext::Push(api_, where_.context));
  const device::StreamHandle stream = held_->stream.get();
  std::vector<device::OwnedEvent>& events = held_->events;
  while (events.size() < 2 * trials.size()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(device::OwnedEvent event, device::OwnedEvent::Create(api_));
    events.push_back(std::move(event));
  }
  std::vector<AttentionArgs> args;
  for (const Trial* trial : trials) {
    TILEWRIGHT_ASSIGN_OR_RETURN(AttentionArgs one, ArgsFor(*trial, held_->timed));
    args.push_back(one);
  }
  // A later trial may have had the workspace replaced.
  for (AttentionArgs& one : args) {
    if (one.workspace != nullptr) one.workspace = held_->workspace.data();
  }
  // The fills take the device longer than the launches take the host, so that the queue never runs
  // empty and no gap between launches is timed: a delay that needs no kernel which spins. The first
  // one is the head start.
  TILEWRIGHT_RETURN_IF_ERROR(held_->flush.Fill(++flush_byte_, stream));
  for (size_t n = 0; n < trials.size(); ++n) {
    if (options_.cold || n == 0) {
      TILEWRIGHT_RETURN_IF_ERROR(held_->flush.Fill(++flush_byte_, stream));
    }
    if (!options_.cold) TILEWRIGHT_RETURN_IF_ERROR(trials[n]->Launch(args[n], stream));
    TILEWRIGHT_RETURN_IF_ERROR(events[2 * n].Record(stream));
    TILEWRIGHT_RETURN_IF_ERROR(trials[n]->Launch(args[n], stream));
    TILEWRIGHT_RETURN_IF_ERROR(events[2 * n + 1].Record(stream));
  }
  TILEWRIGHT_RETURN_IF_ERROR(held_->stream.Synchronize());
  std::vector<double> times;
  for (size_t n = 0; n < trials.size(); ++n) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const float ms, events[2 * n + 1].ElapsedMsSince(events[2 * n]));
    times.push_back(ms);
  }
  return times;
}

void DeviceBench::Pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
}

}  // namespace tilewright::tune

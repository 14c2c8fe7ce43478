#include "tune/device_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
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

// Multiplications and additions, counting what causal and window masks leave. A backward has five
// products where a forward has two.
double Flops(const AttentionSpec& spec) {
  const auto keys = static_cast<double>(spec.seqlen_kv);
  double visible = keys;
  const bool causal = spec.causal || spec.window_right >= 0;
  if (causal && spec.seqlen_q == spec.seqlen_kv) visible = keys / 2;
  if (spec.window_left >= 0) {
    visible = std::min(visible, static_cast<double>(spec.window_left + 1));
  }
  const double passes = spec.operation == Operation::kBackward ? 2.5 : 1;
  return passes * 2.0 * static_cast<double>(spec.dim_qk + spec.dim_v) *
         static_cast<double>(spec.batch) * static_cast<double>(spec.heads_q) *
         static_cast<double>(spec.seqlen_q) * visible;
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

// How far results of one spec may lie apart: relative to the root of the mean square. Gradients
// pass through one more rounding of the weights.
double Tolerance(const AttentionSpec& spec) {
  const double passes = spec.operation == Operation::kBackward ? 2 : 1;
  const ElementType kv = spec::KvType(spec);
  const bool eight_bits = spec::ElementBytes(spec.type) == 1 || spec::ElementBytes(kv) == 1;
  if (eight_bits) return 6e-2;
  if (spec.type == ElementType::kBf16) return passes * 1.2e-2;
  if (spec.type == ElementType::kFp16) return passes * 3e-3;
  return passes * (spec.allow_tf32 ? 4e-3 : 2e-5);
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

// All of them: outputs have millions of elements.
const std::vector<float>& Halves() {
  static const auto* const table = [] {
    auto* all = new std::vector<float>(size_t{1} << 16);
    for (size_t bits = 0; bits < all->size(); ++bits) {
      (*all)[bits] = HalfToFloat(static_cast<uint16_t>(bits));
    }
    return all;
  }();
  return *table;
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

constexpr size_t kBlock = 4096;
constexpr size_t kLanes = 8;  // of sums side by side, which compilers make vectors of

// `count` elements, at most kBlock, as floats.
void ToFloats(ElementType type, const char* from, size_t count, float* to) {
  if (type == ElementType::kFp32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  uint16_t narrow[kBlock];
  std::memcpy(narrow, from, count * sizeof(uint16_t));
  if (type == ElementType::kFp16) {
    const std::vector<float>& halves = Halves();
    for (size_t n = 0; n < count; ++n) to[n] = halves[narrow[n]];
    return;
  }
  for (size_t n = 0; n < count; ++n) {
    const uint32_t bits = uint32_t{narrow[n]} << 16;
    std::memcpy(&to[n], &bits, sizeof(float));
  }
}

// Differences of elements that are finite on both sides.
struct Differences {
  double squares = 0;  // of the reference
  double error = 0;    // squares of the differences
  double worst = 0;
  size_t worst_at = 0;
  size_t elements = 0;
  // The first that is not finite on one of the sides and not the same bits on both.
  std::optional<size_t> odd_at;
};

bool AllFinite(const float* values, size_t count) {
  uint32_t largest = 0;  // as an integer, with its sign taken off
  for (size_t n = 0; n < count; ++n) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[n], sizeof(bits));
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  return largest < 0x7f800000u;
}

Differences Compare(const ScratchOutput& output, const ScratchOutput& reference) {
  Differences sum;
  const auto bytes = static_cast<size_t>(spec::ElementBytes(output.type));
  const size_t total = output.bytes.size() / bytes;
  std::vector<float> got(kBlock);
  std::vector<float> expected(kBlock);
  for (size_t begin = 0; begin < total; begin += kBlock) {
    const size_t count = std::min(kBlock, total - begin);
    ToFloats(output.type, &output.bytes[begin * bytes], count, got.data());
    ToFloats(output.type, &reference.bytes[begin * bytes], count, expected.data());
    if (!AllFinite(got.data(), count) || !AllFinite(expected.data(), count)) {
      for (size_t n = 0; n < count; ++n) {
        if (std::isfinite(got[n]) && std::isfinite(expected[n])) continue;
        const size_t at = (begin + n) * bytes;
        if (std::memcmp(&output.bytes[at], &reference.bytes[at], bytes) != 0) {
          sum.odd_at = begin + n;
          return sum;
        }
        got[n] = expected[n] = 0;
        --sum.elements;
      }
    }
    sum.elements += count;
    std::fill(got.begin() + static_cast<std::ptrdiff_t>(count), got.end(), 0.0f);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(count), expected.end(), 0.0f);
    float squares[kLanes] = {};
    float error[kLanes] = {};
    float worst[kLanes] = {};
    for (size_t n = 0; n < kBlock; n += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float off = got[n + lane] - expected[n + lane];
        squares[lane] += expected[n + lane] * expected[n + lane];
        error[lane] += off * off;
        worst[lane] = std::max(worst[lane], std::abs(off));
      }
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sum.squares += squares[lane];
      sum.error += error[lane];
    }
    if (const float most = *std::max_element(worst, worst + kLanes); most > sum.worst) {
      sum.worst = most;
      for (size_t n = 0; n < count; ++n) {
        if (std::abs(got[n] - expected[n]) == most) sum.worst_at = begin + n;
      }
    }
  }
  return sum;
}

absl::Status Off(const std::string& what, size_t index, double value, double reference) {
  return absl::FailedPreconditionError(
      absl::StrFormat("%s[%d] is %.6g, the reference has %.6g", what, index, value, reference));
}

absl::Status CompareLse(const AttentionSpec& spec, const ScratchOutput& lse,
                        const ScratchOutput& reference) {
  const double tolerance = Tolerance(spec) > 3e-2 ? 3e-2 : 2e-3;
  for (size_t at = 0; at + sizeof(float) <= lse.bytes.size(); at += sizeof(float)) {
    const double got = ElementAt(ElementType::kFp32, &lse.bytes[at]);
    const double expected = ElementAt(ElementType::kFp32, &reference.bytes[at]);
    if (std::memcmp(&lse.bytes[at], &reference.bytes[at], sizeof(float)) == 0) continue;
    if (!(std::abs(got - expected) <= tolerance * (1 + std::abs(expected)))) {
      return Off("lse", at / sizeof(float), got, expected);
    }
  }
  return absl::OkStatus();
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
  int64_t batch = FittingBatch(spec, std::min<int64_t>(spec.batch, 3));
  // Tables of several batches ask for as many.
  for (const BiasTerm& term : spec.bias) {
    if (batch == 0) batch = FittingBatch(spec, term.batch);
  }
  if (batch > 0) check = WithSizes(spec, batch, spec.seqlen_q, spec.seqlen_kv);
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

absl::Status CompareOutput(const AttentionSpec& spec, const ScratchOutput& output,
                           const ScratchOutput& reference) {
  if (output.bytes.size() != reference.bytes.size() || output.name != reference.name) {
    return absl::InternalError("outputs differ in size");
  }
  if (output.name == "lse") return CompareLse(spec, output, reference);
  const auto bytes = static_cast<size_t>(spec::ElementBytes(output.type));
  const auto off = [&](size_t index) {
    return Off(output.name, index, ElementAt(output.type, &output.bytes[index * bytes]),
               ElementAt(output.type, &reference.bytes[index * bytes]));
  };
  const Differences sum = Compare(output, reference);
  if (sum.odd_at.has_value()) return off(*sum.odd_at);
  if (sum.elements == 0) return absl::OkStatus();
  const double tolerance = Tolerance(spec);
  const double rms = std::sqrt(sum.squares / static_cast<double>(sum.elements));
  const double relative = std::sqrt(sum.error / std::max(sum.squares, 1e-30));
  // Not `>`: what overflowed to NaN is off.
  if (sum.error > 0 && !(relative <= tolerance && sum.worst <= kWorstElement * tolerance * rms)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s; the relative error is %.3g, at most %.3g is allowed",
                        off(sum.worst_at).message(), relative, tolerance));
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
  auto monitor = device::DeviceMonitor::Open(where.device->uuid);
  if (monitor.ok()) {
    bench->monitor_ = *std::move(monitor);
  } else {
    bench->why_no_monitor_ = std::string(monitor.status().message());
  }
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

  const auto make = [&](const AttentionSpec& smaller) -> absl::StatusOr<ScratchProblem> {
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
  TILEWRIGHT_ASSIGN_OR_RETURN(reference_outputs_,
                              RunCheck(reference != nullptr ? *reference : first));
  return absl::OkStatus();
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

absl::StatusOr<std::vector<ScratchOutput>> DeviceBench::RunCheck(const Trial& trial) {
  constexpr uint8_t kPoison = 0xff;
  ScratchProblem& problem = held_->check;
  const device::StreamHandle stream = held_->stream.get();
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionArgs args, ArgsFor(trial, problem));
  TILEWRIGHT_RETURN_IF_ERROR(problem.PoisonOutputs(stream));
  TILEWRIGHT_RETURN_IF_ERROR(held_->workspace.Fill(kPoison, stream));
  TILEWRIGHT_RETURN_IF_ERROR(trial.Launch(args, stream));
  TILEWRIGHT_ASSIGN_OR_RETURN(std::vector<ScratchOutput> outputs, problem.ReadOutputs(stream));
  TILEWRIGHT_RETURN_IF_ERROR(problem.CheckGuards(stream));
  return outputs;
}

absl::Status DeviceBench::CheckOnce(const Trial& trial) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<ScratchOutput> outputs, RunCheck(trial));
  for (size_t n = 0; n < outputs.size(); ++n) {
    TILEWRIGHT_RETURN_IF_ERROR(CompareOutput(spec_, outputs[n], reference_outputs_[n]));
  }
  // At the size to be timed it may reach where it did not at the small one.
  const device::StreamHandle stream = held_->stream.get();
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionArgs args, ArgsFor(trial, held_->timed));
  TILEWRIGHT_RETURN_IF_ERROR(trial.Launch(args, stream));
  return held_->timed.CheckGuards(stream);
}

absl::Status DeviceBench::Check(const Trial& trial) {
  const device::RelaxedCaptureMode relaxed(api_);
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::ScopedContext scope,
                              device::ScopedContext::Push(api_, where_.context));
  const absl::Status checked = CheckOnce(trial);
  if (absl::IsFailedPrecondition(checked)) {
    // The next one must not be blamed for what this one did to the arrays and their guards.
    TILEWRIGHT_RETURN_IF_ERROR(held_->check.Restore(held_->stream.get()));
    TILEWRIGHT_RETURN_IF_ERROR(held_->timed.Restore(held_->stream.get()));
  }
  return checked;
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
  // one is the head start, and the last kernel runs behind it once untimed: a kernel of some 20 us
  // takes 4 % less where nothing but fills ran since the device was idle, and of two that take
  // turns one would have that in every other round.
  TILEWRIGHT_RETURN_IF_ERROR(held_->flush.Fill(++flush_byte_, stream));
  if (options_.cold) TILEWRIGHT_RETURN_IF_ERROR(trials.back()->Launch(args.back(), stream));
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

Conditions DeviceBench::Observe() {
  Conditions conditions;
  if (monitor_ == nullptr) {
    conditions.why_unknown = why_no_monitor_;
    return conditions;
  }
  const absl::StatusOr<device::DeviceConditions> now = monitor_->Read();
  if (!now.ok()) {
    conditions.why_unknown = std::string(now.status().message());
    return conditions;
  }
  return {.known = true,
          .why_unknown = {},
          .sm_clock_mhz = now->sm_clock_mhz,
          .temperature_c = now->temperature_c,
          .throttled = now->throttled,
          .limits = now->limits};
}

void DeviceBench::Pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
}

}  // namespace tilewright::tune

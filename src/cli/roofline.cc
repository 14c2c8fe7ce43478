#include "cli/roofline.h"

#include <algorithm>
#include <limits>

#include "spec/validate.h"

namespace tilewright::cli {
namespace {

// Results per clock of one SM. FP32: table "Throughput of Native Arithmetic Instructions" of the
// CUDA C++ Programming Guide. Matrix units: multiply-adds of 16-bit factors into FP32, dense, from
// NVIDIA's architecture white papers.
struct Throughput {
  int sm;
  int fp32_fma;
  int matrix_fma;
};
constexpr Throughput kThroughput[] = {
    {75, 64, 512},  {80, 64, 1024},  {86, 128, 256},   {87, 128, 512},
    {89, 128, 512}, {90, 128, 2048}, {100, 128, 4096}, {120, 128, 512},
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;  // keys begin .. end - 1; empty when end <= begin
};

// Keys that query row i may see under the causal and window masks.
Range VisibleKeys(const AttentionSpec& spec, int64_t i) {
  const int64_t diagonal =
      spec.align == MaskAlign::kTopLeft ? i : i + spec.seqlen_kv - spec.seqlen_q;
  const int64_t right = spec::EffectiveWindowRight(spec);
  Range range{0, spec.seqlen_kv};
  if (spec.window_left >= 0) range.begin = std::max<int64_t>(0, diagonal - spec.window_left);
  if (right >= 0) range.end = std::min(spec.seqlen_kv, diagonal + right + 1);
  range.end = std::max(range.end, range.begin);
  return range;
}

double TensorBytes(ElementType type, int64_t a, int64_t b, int64_t c, int64_t d) {
  return static_cast<double>(spec::ElementBytes(type)) * static_cast<double>(a) *
         static_cast<double>(b) * static_cast<double>(c) * static_cast<double>(d);
}

}  // namespace

int64_t VisiblePairs(const AttentionSpec& spec) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < spec.seqlen_q; ++i) {
    const Range keys = VisibleKeys(spec, i);
    pairs += keys.end - keys.begin;
  }
  return pairs;
}

int64_t TiledPairs(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  int64_t pairs = 0;
  for (int64_t first = 0; first < spec.seqlen_q; first += plan.block_m) {
    const int64_t last = std::min(spec.seqlen_q, first + plan.block_m) - 1;
    int64_t begin = std::numeric_limits<int64_t>::max();
    int64_t end = 0;
    // The ranges move monotonically with the row, but the first and the last may be empty.
    for (int64_t i = first; i <= last; ++i) {
      const Range keys = VisibleKeys(spec, i);
      if (keys.end == keys.begin) continue;
      begin = std::min(begin, keys.begin);
      end = std::max(end, keys.end);
    }
    if (end == 0) continue;
    const int64_t tiles = (end - 1) / plan.block_n - begin / plan.block_n + 1;
    pairs += tiles * plan.block_n * plan.block_m;
  }
  return pairs;
}

Roofline EstimateRoofline(const AttentionSpec& spec, const plan::KernelPlan& plan,
                          const arch::ArchTraits& traits, const arch::BoardProfile& board) {
  Roofline roofline;
  const double heads = static_cast<double>(spec.batch) * static_cast<double>(spec.heads_q);
  const auto visible = static_cast<double>(VisiblePairs(spec));
  roofline.flops = 2 * heads * visible * static_cast<double>(spec.dim_qk + spec.dim_v);
  roofline.bytes =
      TensorBytes(spec.type, spec.batch, spec.heads_q, spec.seqlen_q, spec.dim_qk) +
      TensorBytes(spec::KvType(spec), spec.batch, spec.heads_kv, spec.seqlen_kv,
                  spec.dim_qk + spec.dim_v) +
      TensorBytes(spec::OutType(spec), spec.batch, spec.heads_q, spec.seqlen_q, spec.dim_v);
  const bool backward = spec.operation == Operation::kBackward;
  if (backward) {
    // Five products where a forward has two. dO as O; a gradient for each of Q, K and V.
    constexpr double kBackwardFlops = 2.5;
    roofline.flops *= kBackwardFlops;
    roofline.bytes *= 2;
  }
  if (spec.lse || backward) {
    roofline.bytes += TensorBytes(ElementType::kFp32, spec.batch, spec.heads_q, spec.seqlen_q, 1);
  }
  for (const BiasTerm& term : spec.bias) {
    roofline.bytes += TensorBytes(term.type, term.batch, term.heads, term.seqlen_q, term.seqlen_kv);
  }
  const auto tiled = static_cast<double>(TiledPairs(spec, plan));
  if (tiled > 0) roofline.padding_waste = 1 - visible / tiled;
  // Two transfers a clock: the memories of all boards here are double data rate.
  const double bytes_per_ms =
      2.0 * static_cast<double>(board.memory_clock_khz) * board.memory_bus_bits / 8;
  if (bytes_per_ms > 0) roofline.memory_ms = roofline.bytes / bytes_per_ms;
  for (const Throughput& row : kThroughput) {
    if (row.sm != traits.sm || board.sm_clock_khz == 0) continue;
    const double clocks_per_ms =
        static_cast<double>(board.sm_clock_khz) * static_cast<double>(board.num_sms);
    roofline.fp32_ms = roofline.flops / (2.0 * row.fp32_fma * clocks_per_ms);
    if (spec.type != ElementType::kFp32) {
      roofline.matrix_ms = roofline.flops / (2.0 * row.matrix_fma * clocks_per_ms);
    }
  }
  return roofline;
}

}  // namespace tilewright::cli

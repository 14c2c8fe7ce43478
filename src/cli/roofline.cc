#include "cli/roofline.h"

#include <algorithm>

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

// Of row i the keys begin .. end - 1 are visible under the causal and window masks. Both move with
// the row, before they are held to the keys that exist.
struct Diagonals {
  int64_t begin = 0;  // of row 0
  int64_t end = 0;
  bool begin_moves = false;
  bool end_moves = false;
};

Diagonals DiagonalsOf(const AttentionSpec& spec) {
  const int64_t first = spec.align == MaskAlign::kTopLeft ? 0 : spec.seqlen_kv - spec.seqlen_q;
  const int64_t right = spec::EffectiveWindowRight(spec);
  Diagonals diagonals = {.end = spec.seqlen_kv};
  if (spec.window_left >= 0) {
    diagonals.begin = first - spec.window_left;
    diagonals.begin_moves = true;
  }
  if (right >= 0) {
    diagonals.end = first + right + 1;
    diagonals.end_moves = true;
  }
  return diagonals;
}

// The sum over rows 0 .. rows - 1 of a bound that is `first` in row 0 and moves with the row, or
// does not, held to 0 .. keys.
double SumOfBounds(int64_t first, bool moves, int64_t rows, int64_t keys) {
  const auto held = [keys](int64_t bound) { return std::clamp<int64_t>(bound, 0, keys); };
  if (!moves) return static_cast<double>(held(first)) * static_cast<double>(rows);
  const int64_t below = std::clamp<int64_t>(-first, 0, rows);  // rows whose bound is held to 0
  const int64_t above = std::clamp<int64_t>(first + rows - keys, 0, rows - below);
  const int64_t between = rows - below - above;
  return static_cast<double>(above) * static_cast<double>(keys) +
         static_cast<double>(between) *
             (static_cast<double>(first + below) + static_cast<double>(between - 1) / 2);
}

double TensorBytes(ElementType type, int64_t a, int64_t b, int64_t c, int64_t d) {
  return static_cast<double>(spec::ElementBytes(type)) * static_cast<double>(a) *
         static_cast<double>(b) * static_cast<double>(c) * static_cast<double>(d);
}

}  // namespace

double VisiblePairs(const AttentionSpec& spec) {
  const Diagonals d = DiagonalsOf(spec);
  return SumOfBounds(d.end, d.end_moves, spec.seqlen_q, spec.seqlen_kv) -
         SumOfBounds(d.begin, d.begin_moves, spec.seqlen_q, spec.seqlen_kv);
}

double TiledPairs(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const Diagonals d = DiagonalsOf(spec);
  // Of very long sequences some of the tiles stand for all.
  constexpr int64_t kMostTiles = 1 << 20;
  const int64_t row_tiles = (spec.seqlen_q + plan.block_m - 1) / plan.block_m;
  const int64_t step = row_tiles / kMostTiles + 1;
  double tiles = 0;
  for (int64_t tile = 0; tile < row_tiles; tile += step) {
    const int64_t first = tile * plan.block_m;
    const int64_t last = std::min(spec.seqlen_q, first + plan.block_m) - 1;
    // Only rows that see something count: from the first whose end is above 0 to the last whose
    // begin is below all keys.
    const int64_t seeing_first = d.end_moves ? std::max(first, 1 - d.end) : first;
    const int64_t seeing_last = d.begin_moves ? std::min(last, spec.seqlen_kv - 1 - d.begin) : last;
    if (seeing_first > seeing_last) continue;
    const int64_t begin = std::max<int64_t>(0, d.begin + (d.begin_moves ? seeing_first : 0));
    const int64_t end = std::min(spec.seqlen_kv, d.end + (d.end_moves ? seeing_last : 0));
    if (end > begin) {
      tiles += static_cast<double>((end - 1) / plan.block_n - begin / plan.block_n + 1);
    }
  }
  return tiles * static_cast<double>(step) * plan.block_n * plan.block_m;
}

Roofline EstimateRoofline(const AttentionSpec& spec, const plan::KernelPlan& plan,
                          const arch::ArchTraits& traits, const arch::BoardProfile& board) {
  Roofline roofline;
  const double heads = static_cast<double>(spec.batch) * static_cast<double>(spec.heads_q);
  const double visible = VisiblePairs(spec);
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
  const double tiled = TiledPairs(spec, plan);
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

// The products of attention on fp32 operands, on tensor cores that multiply TF32 (10 bits of
// mantissa). With kTf32Terms = 3 an operand is taken as the sum of two such numbers, which hold 21
// of its 24 bits, and a product as three: high * high, high * low, low * high (Ootomo, Yokota,
// arXiv 2203.03341); that is as accurate as a product in fp32. With 1 it is TF32. Members as in
// half_core.cuh.
//
// Fragments come from shared memory 16 bytes at a time. Which column of a tile is which k of an
// operand is free, as long as both operands agree:
//   Q, K   lane q (of 4) reads columns 4 q .. 4 q + 3 of 16: the first two are k = q and q + 4 of
//   one
//          product, the others of the next.
//   P, V   k = q and q + 4 are keys 2 q and 2 q + 1 of 8: those that a lane has the weights of.
//   V, O   of 32 columns, column 4 r + t is column r of n8 tile t; a lane then owns 4 adjacent
//          columns of O at a time.
#ifndef TILEWRIGHT_MMA_TF32_CORE_CUH_
#define TILEWRIGHT_MMA_TF32_CORE_CUH_

#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/half_products.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/lse.cuh"
#include "ptx/mma_sync.cuh"

namespace tilewright {

struct alignas(16) Float4 {
  float at[4];
};

// kCount numbers as operands.
template <int kTerms, int kCount>
struct Tf32 {
  u32 high[kCount];
  u32 low[kCount];

  // kRounds: the low half to nearest, as it is cut off likewise.
  template <bool kRounds = false>
  __device__ __forceinline__ void Set(int n, float value) {
    if constexpr (kTerms == 1) {
      // To nearest: the tensor core cuts the low bits off.
      high[n] = BitsOfFloat(value) + 0x1000u;
    } else {
      high[n] = BitsOfFloat(value) & 0xffffe000u;
      low[n] = BitsOfFloat(value - FloatOfBits(high[n])) + (kRounds ? 0x1000u : 0);
    }
  }
};

// d[m][n] += a[m] * b[n], but for one of the terms.
template <int kTerms, int kMTiles, int kCount, int kNTiles>
__device__ __forceinline__ void MultiplyTerm(float (&d)[kMTiles][kNTiles][4], int first,
                                             const Tf32<kTerms, 4> (&a)[kMTiles],
                                             const Tf32<kTerms, 2> (&b)[kCount], int term) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const u32(&left)[4] = term == 0 ? a[m].low : a[m].high;
      const u32(&right)[2] = term == 1 ? b[n].low : b[n].high;
      ptx::mma_m16n8k8_tf32(d[m][first + n], left, right[0], right[1]);
    }
  }
}
// The small terms first, each for all accumulators before the next one.
template <int kTerms, int kMTiles, int kCount, int kNTiles>
__device__ __forceinline__ void MultiplyTf32(float (&d)[kMTiles][kNTiles][4], int first,
                                             const Tf32<kTerms, 4> (&a)[kMTiles],
                                             const Tf32<kTerms, 2> (&b)[kCount]) {
#pragma unroll
  for (int term = 3 - kTerms; term < 3; ++term) MultiplyTerm(d, first, a, b, term);
}

template <class Config>
struct Tf32Core {
  using Element = float;
  static constexpr int kTerms = Config::kTf32Terms;
  static constexpr int kQStep = 16;
  static constexpr int kQkShift = 0, kVShift = 0;
  static constexpr int kVStep = 8;
  static constexpr int kMTiles = Config::kRowsPerWarp / 16;
  static constexpr int kQkSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;
  static constexpr int kWideTiles = kVTiles / 4 * 4;  // those that are read 32 columns at a time
  static constexpr int kScoreKeys = Config::kBlockN;
  static constexpr bool kWatchAlways = false;
  // A score loses last places to every product (mma/cut_off.cuh), and one of its operands' 24 bits
  // to what is cut off them: for an LSE the sums of 16 columns are apart, and operands rounded.
  static constexpr bool kExact = kTerms == 3 && !kIsSame<typename Config::Lse, LseNone>;
  static_assert(Config::kColumnWarps == 1);

  //   qo [kBlockM][pitch]           Q
  //   k  [kStages][kBlockN][pitch]
  //   v  [kStages][kBlockN][pitch]
  // Words between rows of Q and K are 16 more than a multiple of 32, and of V 4 more than one of
  // 16: eight lanes that are served together then meet eight groups of four banks.
  struct Shared {
    static constexpr int kPitchQk = (RoundUp(Config::kHeadDimQk, 16) / 16 | 1) * 16;
    static constexpr int kPitchV = RoundUp(RoundUp(Config::kHeadDimV, 8) - 4, 16) + 4;

    alignas(16) RowTile tile;
    alignas(16) float qo[Config::kBlockM][kPitchQk];
    alignas(16) float k[Config::kStages][Config::kBlockN][kPitchQk];
    alignas(16) float v[Config::kStages][Config::kBlockN][kPitchV];
  };
  using ScoreTile = float[kMTiles][kScoreKeys / 8][4];

  Shared& shared;
  float o[kMTiles][kVTiles][4];
  SoftmaxState<kMTiles> softmax;

  __device__ __forceinline__ explicit Tf32Core(Shared& shared) : shared(shared) {}

  static __device__ __forceinline__ int FirstRow() {
    return static_cast<int>(threadIdx.x / 32 * Config::kRowsPerWarp);
  }
  static __device__ __forceinline__ int FirstKey() { return 0; }

  __device__ __forceinline__ void Start() { StartSoftmax(softmax, o); }

  __device__ __forceinline__ void Scores(ScoreTile& scores, int stage) const {
    ClearTile(scores);
    const float* q = &shared.qo[FirstRow() + LaneRow()][LaneColumn() * 4];
    const float* k = &shared.k[stage][LaneRow()][LaneColumn() * 4];
#pragma unroll 1
    for (int step = 0; step < kQkSteps; ++step) {
      Tf32<kTerms, 4> a[2][kMTiles];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Float4 row =
              *reinterpret_cast<const Float4*>(q + (m * 16 + half * 8) * Shared::kPitchQk);
#pragma unroll
          for (int c = 0; c < 4; ++c) a[c / 2][m].template Set<kExact>(c % 2 * 2 + half, row.at[c]);
        }
      }
#pragma unroll
      for (int n = 0; n < kScoreKeys / 8; n += 2) {
        Tf32<kTerms, 2> b[2][2];
#pragma unroll
        for (int key = 0; key < 2; ++key) {
          const Float4 row = *reinterpret_cast<const Float4*>(k + (n + key) * 8 * Shared::kPitchQk);
#pragma unroll
          for (int c = 0; c < 4; ++c) b[c / 2][key].template Set<kExact>(c % 2, row.at[c]);
        }
        if constexpr (kExact) {
          float sums[kMTiles][2][4];
          ClearTile(sums);
#pragma unroll
          for (int term = 0; term < 3; ++term) {
            MultiplyTerm(sums, 0, a[0], b[0], term);
            MultiplyTerm(sums, 0, a[1], b[1], term);
          }
          AddTo(scores, n, sums);
        } else {
          MultiplyTf32<kTerms>(scores, n, a[0], b[0]);
          MultiplyTf32<kTerms>(scores, n, a[1], b[1]);
        }
      }
      q += 16;
      k += 16;
    }
  }

  __device__ __forceinline__ void WatchScores(const ScoreTile& scores, float to_log2, bool always) {
    WatchMaxima(scores, o, softmax, to_log2, always, kLazyLog2);
  }

  // The tensor core cuts off what an accumulator has no bits for, so that thousands of keys would
  // pull a sum towards zero: the sums of a tile are added to O by an instruction that rounds.
  __device__ __forceinline__ void AddValues(ScoreTile& scores, int stage, float to_log2) {
    if constexpr (Config::Dropout::kIdentity) {
      Weights<kScoreKeys / 8>(scores, softmax, to_log2, 0);
    }
    const float* v = &shared.v[stage][2 * LaneColumn()][0];
#pragma unroll
    for (int n = 0; n < kWideTiles; n += 4) {
      float sums[kMTiles][4][4];
      ClearTile(sums);
#pragma unroll
      for (int step = 0; step < kScoreKeys / 8; ++step) {
        Tf32<kTerms, 2> b[4];
#pragma unroll
        for (int key = 0; key < 2; ++key) {
          const Float4 row = *reinterpret_cast<const Float4*>(
              v + (step * 8 + key) * Shared::kPitchV + n * 8 + 4 * LaneRow());
#pragma unroll
          for (int c = 0; c < 4; ++c) b[c].Set(key, row.at[c]);
        }
        MultiplyWeights(sums, scores, step, b);
      }
      AddTo(o, n, sums);
    }
#pragma unroll
    for (int n = kWideTiles; n < kVTiles; ++n) {
      float sums[kMTiles][1][4];
      ClearTile(sums);
#pragma unroll
      for (int step = 0; step < kScoreKeys / 8; ++step) {
        Tf32<kTerms, 2> b[1];
#pragma unroll
        for (int key = 0; key < 2; ++key) {
          b[0].Set(key, v[(step * 8 + key) * Shared::kPitchV + n * 8 + LaneRow()]);
        }
        MultiplyWeights(sums, scores, step, b);
      }
      AddTo(o, n, sums);
    }
  }

  __device__ __forceinline__ void Raise() { RaiseReferences(softmax.sum, softmax, o); }
  __device__ __forceinline__ bool NonFinite() const { return HasNonFinite(o, softmax); }

  // From registers: the four lanes of a row write 128 adjacent bytes.
  template <class Params>
  __device__ __forceinline__ void Store(const Problem& problem, i64 q_begin, const Params& params) {
    const float sink = Config::Sink::Logit(problem, params);
    const abi::TensorStrides& strides = params.core.o_strides;
    float* o_head = static_cast<float*>(params.core.o) + problem.q_batch * strides.batch +
                    problem.h * strides.head;
    const bool wide = Config::kHeadDimV % 4 == 0 && Aligned16<float>(params.core.o, strides);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 i = q_begin + FirstRow() + RowOf(m, 2 * r);
        const SoftmaxEnd end = FinishRow(softmax.reference[m][r], QuadSum(softmax.sum[m][r]), sink);
        if (i >= problem.seqlen_q) continue;
        // What products cut off (mma/cut_off.cuh) is not given back: rows with few large products
        // lose less than the mean, which an LSE of fp32 scores would show.
        if (LaneColumn() == 0) Config::Lse::Store(end.lse, problem, i, params);
        float* row = o_head + (problem.q_row + i) * strides.seq;
        const float scale = end.empty ? 0.f : end.o_scale * Config::Dropout::Scale(params);
#pragma unroll
        for (int n = 0; n < kVTiles; n += n < kWideTiles ? 4 : 1) {
          const int count = n < kWideTiles ? 4 : 1;
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            // The tiles' column 2 q + c.
            const int column = n * 8 + (2 * LaneColumn() + c) * count;
            Float4 values;
#pragma unroll
            for (int t = 0; t < count; ++t) {
              values.at[t] = end.empty ? 0.f : o[m][n + t][2 * r + c] * scale;
            }
            if (count == 4 && wide) {
              if (column < Config::kHeadDimV) *reinterpret_cast<Float4*>(row + column) = values;
            } else {
#pragma unroll
              for (int t = 0; t < count; ++t) {
                if (column + t < Config::kHeadDimV) row[column + t] = values.at[t];
              }
            }
          }
        }
      }
    }
  }

 private:
  // sums += the weights of 8 keys * b.
  template <int kCount>
  static __device__ __forceinline__ void MultiplyWeights(float (&sums)[kMTiles][kCount][4],
                                                         const ScoreTile& weights, int step,
                                                         const Tf32<kTerms, 2> (&b)[kCount]) {
    Tf32<kTerms, 4> p[kMTiles];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float weight = weights[m][step][c];  // of a dropped one the sign is turned
        p[m].Set(c % 2 * 2 + c / 2, Config::Dropout::kIdentity ? weight : fmaxf(weight, 0.f));
      }
    }
    MultiplyTf32<kTerms>(sums, 0, p, b);
  }

  template <int kCount, int kAllTiles>
  static __device__ __forceinline__ void AddTo(float (&d)[kMTiles][kAllTiles][4], int first,
                                               const float (&sums)[kMTiles][kCount][4]) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) d[m][first + n][c] += sums[m][n][c];
      }
    }
  }

  static __device__ __forceinline__ int LaneRow() { return static_cast<int>(threadIdx.x % 32 / 4); }
  static __device__ __forceinline__ int LaneColumn() { return static_cast<int>(threadIdx.x % 4); }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_TF32_CORE_CUH_

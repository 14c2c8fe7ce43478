// The products of attention on 16-bit operands, for warps that each have rows of their own: Q K^T,
// and P V with P in registers. A core is what attn_fwd_sm80.cuh keeps of a tile of rows; the others
// (split_core.cuh, tf32_core.cuh) have the same members.
//
//   Shared          tiles in shared memory; kQStep, kVStep: what the columns of Q and K, and of V,
//                   are padded to, with zeros
//   ScoreTile       the scores that a warp computes of a tile: kScoreKeys keys
//   FirstRow()      of this warp, within the tile of rows
//   FirstKey()      of this warp, within the tile of keys
#ifndef TILEWRIGHT_MMA_HALF_CORE_CUH_
#define TILEWRIGHT_MMA_HALF_CORE_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/half_products.cuh"
#include "mma/part_rows.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/lse.cuh"

namespace tilewright {

template <class Config>
struct HalfCore {
  using Element = typename Config::Element;
  using Ops = HalfOps<Element, Config::kTuring>;
  static constexpr int kQStep = 16;
  static constexpr int kVStep = 8;
  static constexpr int kMTiles = Config::kRowsPerWarp / 16;
  static constexpr int kQkSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;
  static constexpr int kScoreKeys = Config::kBlockN;
  // Steps of Q K^T that are one piece of code: the loads of one run behind the products of another.
  // Measured on one H200 (2026-11-29): 4 or 6 instead of 2 are worth 3 to 7 % at d64 and d96 and
  // nothing with 16 rows a warp. A rest would be code of its own.
  static constexpr int kUnroll = kMTiles == 1        ? 2
                                 : kQkSteps % 4 == 0 ? 4
                                 : kQkSteps <= 6     ? kQkSteps
                                                     : 2;
  // fp16 weights end at 65504 and lose bits below 2^-14: their reference must stay near the
  // maximum.
  static constexpr bool kWatchAlways = kIsSame<Element, Fp16>;
  static constexpr bool kStoresLse = !kIsSame<typename Config::Lse, LseNone>;
  // What divides O: the row sums of the multiplied weights, in a tile of O; with dropout, which
  // changes weights but not their sum, those of the weights.
  static constexpr bool kHasRowSums = Config::Dropout::kIdentity;
  static constexpr int kAllTiles = kVTiles + kHasRowSums;
  static constexpr bool kHasSums = !kHasRowSums || Config::kSplit || kStoresLse;

  //   qo [kBlockM][pitch]           Q, at the end O
  //   k  [kStages][kBlockN][pitch]
  //   v  [kStages][kBlockN][pitch]
  struct Shared {
    static constexpr int kPitchQk = Pitch(RoundUp(Config::kHeadDimQk, kQStep));
    static constexpr int kPitchV = Pitch(Config::kHeadDimV);
    static constexpr int kPitchQo = kPitchQk > kPitchV ? kPitchQk : kPitchV;

    alignas(16) RowTile tile;
    alignas(16) Element qo[Config::kBlockM][kPitchQo];
    alignas(16) Element k[Config::kStages][Config::kBlockN][kPitchQk];
    alignas(16) Element v[Config::kStages][Config::kBlockN][kPitchV];
  };
  using ScoreTile = float[kMTiles][kScoreKeys / 8][4];

  Shared& shared;
  float o[kMTiles][kAllTiles][4];
  SoftmaxState<kMTiles, kHasSums> softmax;

  __device__ __forceinline__ explicit HalfCore(Shared& shared) : shared(shared) {}

  static __device__ __forceinline__ int FirstRow() {
    return static_cast<int>(threadIdx.x / 32 * Config::kRowsPerWarp);
  }
  static __device__ __forceinline__ int FirstKey() { return 0; }

  __device__ __forceinline__ void Start() { StartSoftmax(softmax, o); }

  // scores = Q K^T for this warp's rows.
  __device__ __forceinline__ void Scores(ScoreTile& scores, int stage) const {
    ClearTile(scores);
    ScoreSteps<Ops, kQkSteps, kUnroll, Shared::kPitchQo, Shared::kPitchQk>(
        scores, AddressOfRows(&shared.qo[FirstRow()][0], Shared::kPitchQo),
        AddressOfColumns(&shared.k[stage][0][0], Shared::kPitchQk));
  }

  __device__ __forceinline__ void WatchScores(const ScoreTile& scores, float to_log2, bool always) {
    WatchMaxima(scores, o, softmax, to_log2, always, kLazyLog2);
  }

  // o += P V, where P is the 16-bit form of the weights. Takes scores (with dropout: weights), 16
  // keys at a time, so that the products of 16 keys hide the exponentials of the next.
  __device__ __forceinline__ void AddValues(ScoreTile& scores, int stage, float to_log2) {
    const unsigned v_address = AddressOfRows(&shared.v[stage][0][0], Shared::kPitchV);
#pragma unroll
    for (int step = 0; step < kScoreKeys / 16; ++step) {
      if constexpr (Config::Dropout::kIdentity) Weights<2>(scores, softmax, to_log2, 2 * step);
      u32 p[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) PackWeights<Ops>(p[m], scores[m], step);
      MultiplyByRows<Ops, kVTiles>(o, p, v_address + step * 16 * Shared::kPitchV * sizeof(Element));
      if constexpr (kHasRowSums) AddRowSums<Ops>(o, p);
    }
  }

  __device__ __forceinline__ void Raise() {
    if constexpr (!kWatchAlways) {
      float sums[kMTiles][2];
      GetLaneSums(sums);
      RaiseReferences(sums, softmax, o);
    }
  }

  __device__ __forceinline__ bool NonFinite() const { return HasNonFinite(o, softmax); }

  // Normalises, and writes O through the warp's own rows of shared.qo so that the stores are wide
  // and dense.
  template <class Params>
  __device__ __forceinline__ void Store(const Problem& problem, i64 q_begin, const Params& params) {
    const float sink = Config::Sink::Logit(problem, params);
    const int first_row = FirstRow();
    float sums[kMTiles][2];
    GetSums(sums);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first_row + RowOf(m, 2 * r);
        const float reference = softmax.reference[m][r];
        const SoftmaxEnd end = FinishRow(reference, sums[m][r], sink);
        if constexpr (kStoresLse) {
          const float lse = FinishRow(reference, QuadSum(softmax.sum[m][r]), sink).lse;
          if (threadIdx.x % 4 == 0 && q_begin + row < problem.seqlen_q)
            Config::Lse::Store(lse, problem, q_begin + row, params);
        }
        StoreFragments<Ops, kVTiles>(&shared.qo[row][0], o[m], r, end);
      }
    }
    __syncwarp();
    StoreTileOfRows<Config>(&shared.qo[first_row][0], Shared::kPitchQo, q_begin + first_row,
                            Config::kRowsPerWarp, problem, params);
  }

  // The same for a part of the keys, for attn_combine to merge.
  template <class Params>
  __device__ __forceinline__ void StorePart(const Problem& problem, i64 q_begin, i64 part,
                                            const Params& params) {
    float sums[kMTiles][2];
    GetSums(sums);
    StorePartRows<Config::kHeadDimV, kVTiles>(o, sums, softmax, problem, q_begin + FirstRow(), part,
                                              params.parts);
  }

 private:
  // What divides O.
  __device__ __forceinline__ void GetSums(float (&sums)[kMTiles][2]) const {
    GetLaneSums(sums);
    if constexpr (!kHasRowSums) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[m][r] = QuadSum(sums[m][r]);
      }
    }
  }
  // That, or without kHasRowSums what this lane knows of it.
  __device__ __forceinline__ void GetLaneSums(float (&sums)[kMTiles][2]) const {
    if constexpr (kHasRowSums) {
      GetRowSums(sums, o);
    } else {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[m][r] = softmax.sum[m][r];
      }
    }
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_HALF_CORE_CUH_

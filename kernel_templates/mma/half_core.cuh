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
#include "mma/exact_lse.cuh"
#include "mma/half_products.cuh"
#include "mma/part_rows.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/lse.cuh"
#include "policy/sink.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// Whether the keys of a tile of rows may be cut into parts; only some families do that.
template <class Config>
concept IsForParts = requires {
  requires Config::kSplit;
};

// What a warp keeps of its rows, and does with tiles of kKeys keys wherever they lie in shared
// memory. `q`, `k`, `v` and `qo` are the first elements of the tiles (of Q and O: of the warp's
// rows). kShifts: rows may lie shifted there (mma/tile_copy.cuh).
template <class Config, int kKeys, bool kShifts = false>
struct HalfRows {
  using Element = typename Config::Element;
  using Ops = HalfOps<Element, IsForTuring<Config>>;
  static constexpr int kQStep = 16;
  static constexpr int kVStep = 8;
  static constexpr int kQkShift = kShifts ? MostShift(Config::kHeadDimQk) : 0;
  static constexpr int kVShift = kShifts ? MostShift(Config::kHeadDimV) : 0;
  static constexpr int kPaddedQk = RoundUp(Config::kHeadDimQk + kQkShift, kQStep);
  static constexpr int kPitchQk = Pitch(kPaddedQk);
  static constexpr int kPitchV = Pitch(Config::kHeadDimV + kVShift);
  static constexpr int kPitchQo = kPitchQk > kPitchV ? kPitchQk : kPitchV;
  static constexpr int kMTiles = Config::kRowsPerWarp / 16;
  static constexpr int kQkSteps = kPaddedQk / 16;
  static constexpr int kCuts = IsForTuring<Config> ? 2 * kQkSteps : kQkSteps;  // of a score
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV + kVShift, 8) / 8;
  static constexpr int kScoreKeys = kKeys;
  // fp16 weights end at 65504 and lose bits below 2^-14: their reference must stay near the
  // maximum.
  static constexpr bool kWatchAlways = kIsSame<Element, Fp16>;
  static constexpr bool kStoresLse = !kIsSame<typename Config::Lse, LseNone>;
  static constexpr bool kDrops = !Config::Dropout::kIdentity;
  static constexpr int kAllTiles = kVTiles + 1;  // with the row sums of the weights as multiplied
  static constexpr bool kHasSink = !kIsSame<typename Config::Sink, SinkNone>;
  static constexpr bool kMaySplit = IsForParts<Config>;
  static constexpr bool kHasSums = kMaySplit || kStoresLse;

  using ScoreTile = float[kMTiles][kScoreKeys / 8][4];

  float o[kMTiles][kAllTiles][4];
  SoftmaxState<kMTiles, kHasSums> softmax;

  static __device__ __forceinline__ int FirstRow() {
    return ThreadOfTeam<Config>() / 32 * Config::kRowsPerWarp;
  }

  __device__ __forceinline__ void Start() { StartSoftmax(softmax, o); }

  // scores = Q K^T for this warp's rows.
  __device__ __forceinline__ void Scores(ScoreTile& scores, const Element* q,
                                         const Element* k) const {
    ClearTile(scores);
    ScoreSteps<Ops, kQkSteps, kPitchQo, kPitchQk>(scores, AddressOfRows(q, kPitchQo),
                                                  AddressOfColumns(k, kPitchQk));
  }

  __device__ __forceinline__ void WatchScores(const ScoreTile& scores, float to_log2, bool always) {
    WatchMaxima(scores, o, softmax, to_log2, always, kLazyLog2);
  }

  // For the first keys of rows that have seen none: the references, without a sum to scale.
  __device__ __forceinline__ void StartReferences(const ScoreTile& scores, float to_log2,
                                                  bool always) {
    bool missing = false;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float highest = HighestScore(scores, m, r) * to_log2;
        softmax.reference[m][r] = fmaxf(highest, kNoReference);
        missing |= highest <= kNoReference;
      }
    }
    softmax.watch = always || __any_sync(kAllLanes, missing);
  }

  // The same by the score of the first key, without looking for the highest: weights that overflow
  // show in the sums.
  __device__ __forceinline__ void StartWithFirstKey(const ScoreTile& scores, float to_log2) {
    const int first_lane = static_cast<int>(threadIdx.x % 32 / 4 * 4);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        softmax.reference[m][r] = __shfl_sync(kAllLanes, scores[m][0][2 * r], first_lane) * to_log2;
      }
    }
    softmax.watch = false;
  }

  // o += P V, where P is the 16-bit form of the weights. Takes scores (with dropout: weights, those
  // that it drops with their sign turned), 16 keys at a time, so that the products of 16 keys hide
  // the exponentials of the next.
  __device__ __forceinline__ void AddValues(ScoreTile& scores, const Element* v, float to_log2) {
    const unsigned v_address = AddressOfRows(v, kPitchV);
#pragma unroll
    for (int step = 0; step < kScoreKeys / 16; ++step) {
      if constexpr (!kDrops) Weights<2>(scores, softmax, to_log2, 2 * step);
      u32 p[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) PackWeights<Ops>(p[m], scores[m], step);
      if constexpr (kDrops) {
        u32 all[kMTiles][4];
        DropWeights(p, all);
        AddRowSums<Ops>(o, all);
      }
      MultiplyByRows<Ops, kVTiles>(o, p, v_address + step * 16 * kPitchV * sizeof(Element));
      if constexpr (!kDrops) AddRowSums<Ops>(o, p);
    }
  }

  __device__ __forceinline__ void Raise() {
    if constexpr (!kWatchAlways) {
      float sums[kMTiles][2];
      GetRowSums(sums, o);
      RaiseReferences(sums, softmax, o);
    }
  }

  __device__ __forceinline__ bool NonFinite() const { return HasNonFinite(o, softmax); }
  __device__ __forceinline__ bool HasNonFiniteSums() const {
    float sums[kMTiles][2], probe = 0;
    GetRowSums(sums, o);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) probe = fmaf(sums[m][0], 0.f, fmaf(sums[m][1], 0.f, probe));
    return probe != 0 || probe != probe;
  }

  // Moves the warp's rows of Q from `from` columns off to `to`, between zeros.
  __device__ __forceinline__ void ShiftRows(Element* q, int from, int to) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 4
    for (int row = 0; row < Config::kRowsPerWarp; ++row) {
      Element* const elements = q + row * kPitchQo;
      Element moved[(kPaddedQk + 31) / 32];
#pragma unroll
      for (int n = 0; n < (kPaddedQk + 31) / 32; ++n) {
        const int column = n * 32 + lane - to;
        const bool exists = column >= 0 && column < Config::kHeadDimQk;
        moved[n] = exists ? elements[column + from] : Element{0};
      }
      __syncwarp();
#pragma unroll
      for (int n = 0; n < (kPaddedQk + 31) / 32; ++n) {
        if (n * 32 + lane < kPaddedQk) elements[n * 32 + lane] = moved[n];
      }
    }
    __syncwarp();
  }

  // Normalises O into the warp's rows `qo` of shared memory, and writes the LSE. O's columns are
  // those of V and lie `shift` further on. kAllAlike: all rows see the same keys, so that O of rows
  // that see none is 0.
  template <bool kAllAlike = false, class Params>
  __device__ __forceinline__ void Finish(Element* qo, const Problem& problem, i64 q_begin,
                                         const Params& params, int shift = 0) {
    const float sink = Config::Sink::Logit(problem, params);
    if constexpr (kStoresLse) {
      const i64 row_begin = q_begin + FirstRow();
      float lse[kMTiles][2];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          lse[m][r] = FinishRow(softmax.reference[m][r], QuadSum(softmax.sum[m][r]), sink).lse;
        }
      }
      StoreLse<Config, Ops, kCuts>(lse, problem, row_begin, sink, params);
    }
    float sums[kMTiles][2];
    GetRowSums(sums, o);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        SoftmaxEnd end;
        if constexpr (kHasSink) {
          end = FinishRow(softmax.reference[m][r], sums[m][r], sink);
        } else {
          // The approximation is off by the last bit of fp32, and O is rounded to 16.
          const bool empty = sums[m][r] == 0;
          const float scale = ptx::rcp_approx_ftz(sums[m][r]);
          end = {empty && !kAllAlike, kAllAlike && empty ? 0.f : scale, 0};
        }
        end.o_scale *= Config::Dropout::Scale(params);
        Element* const row = qo + RowOf(m, 2 * r) * kPitchQo;
        if constexpr (kVShift > 0) {
          StoreShiftedFragments<Ops, Config::kHeadDimV, kVTiles>(row, o[m], r, end, shift);
        } else {
          StoreFragments<Ops, kVTiles>(row, o[m], r, end);
        }
      }
    }
    __syncwarp();
  }

  // That, and writes O from there, so that the stores are wide and dense.
  template <class Params>
  __device__ __forceinline__ void Store(Element* qo, const Problem& problem, i64 q_begin,
                                        const Params& params, int shift = 0) {
    Finish(qo, problem, q_begin, params, shift);
    StoreTileOfRows<Config>(qo, kPitchQo, q_begin + FirstRow(), Config::kRowsPerWarp, problem,
                            params);
  }

  // The same for a part of the keys, for attn_combine to merge.
  template <class Params>
  __device__ __forceinline__ void StorePart(const Problem& problem, i64 q_begin, i64 part,
                                            const KeyInterval& keys, const Params& params,
                                            int shift = 0) {
    float sums[kMTiles][2];
    GetRowSums(sums, o);
    StorePartRows<Config, Ops, kVTiles, kCuts>(o, sums, softmax, problem, q_begin + FirstRow(),
                                               part, keys, params, shift);
  }
};

template <class Config>
struct HalfCore : HalfRows<Config, Config::kBlockN, IsForNarrowRows<Config>> {
  using Rows = HalfRows<Config, Config::kBlockN, IsForNarrowRows<Config>>;
  using typename Rows::Element;
  using typename Rows::ScoreTile;

  //   qo [kBlockM][pitch]           Q, at the end O
  //   k  [kStages][kBlockN][pitch]
  //   v  [kStages][kBlockN][pitch]
  struct Shared {
    alignas(16) RowTile tile;
    alignas(16) Element qo[Config::kBlockM][Rows::kPitchQo];
    alignas(16) Element k[Config::kStages][Config::kBlockN][Rows::kPitchQk];
    alignas(16) Element v[Config::kStages][Config::kBlockN][Rows::kPitchV];
  };

  Shared& shared;

  __device__ __forceinline__ explicit HalfCore(Shared& shared) : shared(shared) {}

  static __device__ __forceinline__ int FirstKey() { return 0; }
  __device__ __forceinline__ Element* RowsOfQ() const { return &shared.qo[Rows::FirstRow()][0]; }

  __device__ __forceinline__ void Scores(ScoreTile& scores, int stage) const {
    Rows::Scores(scores, RowsOfQ(), &shared.k[stage][0][0]);
  }
  __device__ __forceinline__ void AddValues(ScoreTile& scores, int stage, float to_log2) {
    Rows::AddValues(scores, &shared.v[stage][0][0], to_log2);
  }
  template <class Params>
  __device__ __forceinline__ void Store(const Problem& problem, i64 q_begin, const Params& params) {
    Rows::Store(RowsOfQ(), problem, q_begin, params, ShiftOfV());
  }
  template <class Params>
  __device__ __forceinline__ void StorePart(const Problem& problem, i64 q_begin, i64 part,
                                            const KeyInterval& keys, const Params& params) {
    Rows::StorePart(problem, q_begin, part, keys, params, ShiftOfV());
  }

  // Puts Q, which has been copied with `shift`, where K lies.
  __device__ __forceinline__ void ShiftQ(int shift) const {
    const int from = shift == kNotShifted ? 0 : shift;
    const int to = shared.tile.k_shift == kNotShifted ? 0 : shared.tile.k_shift;
    if (from != 0 || to != 0) Rows::ShiftRows(RowsOfQ(), from, to);
  }

 private:
  __device__ __forceinline__ int ShiftOfV() const {
    return Rows::kVShift == 0 || shared.tile.v_shift == kNotShifted ? 0 : shared.tile.v_shift;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_HALF_CORE_CUH_

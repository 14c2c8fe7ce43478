// The products of attention on 16-bit operands where the output of a row is too wide for one warp:
// kColumnWarps warps share kRowsPerWarp rows. Each computes the scores of its part of a tile's keys
// and, from the weights of all of them, which they exchange through shared memory, its part of the
// output's columns. Members as in half_core.cuh.
//
// Barriers, one for the warps of each group of rows: before the weights are read; and where maxima
// of all keys are wanted, which is seldom (mma/score_tile.cuh), or at the end their sums.
#ifndef TILEWRIGHT_MMA_SPLIT_CORE_CUH_
#define TILEWRIGHT_MMA_SPLIT_CORE_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/half_products.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/lse.cuh"
#include "ptx/named_barrier.cuh"

namespace tilewright {

template <class Config>
struct SplitCore {
  using Element = typename Config::Element;
  using Ops = HalfOps<Element, Config::kTuring>;
  static constexpr int kParts = Config::kColumnWarps;
  static constexpr int kGroups = Config::kWarps / kParts;
  static constexpr int kQStep = 16;
  static constexpr int kQkShift = 0, kVShift = 0;
  static constexpr int kVStep = 8 * kParts;
  static constexpr int kMTiles = Config::kRowsPerWarp / 16;
  static constexpr int kQkSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, kVStep) / kVStep;
  static constexpr int kScoreKeys = Config::kBlockN / kParts;
  // Sums of dropped weights are no measure of a row's size.
  static constexpr bool kWatchAlways = kIsSame<Element, Fp16> || !Config::Dropout::kIdentity;
  static constexpr bool kStoresLse = !kIsSame<typename Config::Lse, LseNone>;
  static constexpr bool kHasRowSums = Config::Dropout::kIdentity;
  static constexpr int kAllTiles = kVTiles + kHasRowSums;
  static constexpr bool kHasSums = !kHasRowSums || kStoresLse;
  static_assert(kGroups * kParts == Config::kWarps && kGroups < 16);
  static_assert(kScoreKeys % 8 == 0 && Config::kBlockN % 16 == 0);

  //   qo     [kBlockM][pitch]           Q, at the end O
  //   k      [kStages][kBlockN][pitch]
  //   v      [kStages][kBlockN][pitch]
  //   p      [kBlockM][pitch]           weights of a tile
  //   of_row [kParts][kBlockM]          maxima or sums of the rows over the parts' keys
  struct Shared {
    static constexpr int kPitchQk = Pitch(RoundUp(Config::kHeadDimQk, kQStep));
    static constexpr int kPitchV = Pitch(kVTiles * kVStep);
    static constexpr int kPitchQo = kPitchQk > kPitchV ? kPitchQk : kPitchV;
    static constexpr int kPitchP = Pitch(Config::kBlockN);

    alignas(16) RowTile tile;
    alignas(16) Element qo[Config::kBlockM][kPitchQo];
    alignas(16) Element k[Config::kStages][Config::kBlockN][kPitchQk];
    alignas(16) Element v[Config::kStages][Config::kBlockN][kPitchV];
    alignas(16) Element p[Config::kBlockM][kPitchP];
    alignas(16) float of_row[kParts][Config::kBlockM];
  };
  using ScoreTile = float[kMTiles][kScoreKeys / 8][4];

  Shared& shared;
  float o[kMTiles][kAllTiles][4];
  SoftmaxState<kMTiles, kHasSums> softmax;

  __device__ __forceinline__ explicit SplitCore(Shared& shared) : shared(shared) {}

  static __device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }
  static __device__ __forceinline__ int Group() { return Warp() / kParts; }
  static __device__ __forceinline__ int Part() { return Warp() % kParts; }
  static __device__ __forceinline__ int FirstRow() { return Group() * Config::kRowsPerWarp; }
  static __device__ __forceinline__ int FirstKey() { return Part() * kScoreKeys; }
  static __device__ __forceinline__ void SyncGroup() { ptx::bar_sync(1 + Group(), kParts * 32); }

  __device__ __forceinline__ void Start() { StartSoftmax(softmax, o); }

  __device__ __forceinline__ void Scores(ScoreTile& scores, int stage) const {
    ClearTile(scores);
    ScoreSteps<Ops, kQkSteps, 2, Shared::kPitchQo, Shared::kPitchQk>(
        scores, AddressOfRows(&shared.qo[FirstRow()][0], Shared::kPitchQo),
        AddressOfColumns(&shared.k[stage][FirstKey()][0], Shared::kPitchQk));
  }

  // All warps of a group come here together: they have the same references.
  __device__ __forceinline__ void WatchScores(const ScoreTile& scores, float to_log2, bool always) {
    float highest[kMTiles][2];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) highest[m][r] = HighestScore(scores, m, r) * to_log2;
    }
    ExchangeRows(highest);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        highest[m][r] = -Infinity();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          highest[m][r] = fmaxf(highest[m][r], shared.of_row[part][FirstRow() + RowOf(m, 2 * r)]);
        }
      }
    }
    MoveReferences(highest, o, softmax, always, kLazyLog2);
  }

  __device__ __forceinline__ void AddValues(ScoreTile& scores, int stage, float to_log2) {
    if constexpr (Config::Dropout::kIdentity) {
      Weights<kScoreKeys / 8>(scores, softmax, to_log2, 0);
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Element* row = &shared.p[FirstRow() + RowOf(m, 2 * r)][FirstKey()];
#pragma unroll
        for (int n = 0; n < kScoreKeys / 8; ++n) {
          *reinterpret_cast<u32*>(row + ColumnOf(n, 0)) =
              Ops::Pack(scores[m][n][2 * r + 1], scores[m][n][2 * r]);
        }
      }
    }
    SyncGroup();
    const unsigned p_address = AddressOfRows(&shared.p[FirstRow()][0], Shared::kPitchP);
    const unsigned v_address =
        AddressOfRows(&shared.v[stage][0][Part() * kVTiles * 8], Shared::kPitchV);
#pragma unroll 2
    for (int step = 0; step < Config::kBlockN / 16; ++step) {
      u32 p[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        ptx::ldmatrix_x4(p[m], p_address + m * 16 * Shared::kPitchP * sizeof(Element) + step * 32);
      }
      MultiplyByRows<Ops, kVTiles>(o, p, v_address + step * 16 * Shared::kPitchV * sizeof(Element));
      if constexpr (kHasRowSums) AddRowSums<Ops>(o, p);
    }
  }

  // From numbers that all warps of a group have alike.
  __device__ __forceinline__ void Raise() {
    if constexpr (!kWatchAlways) {
      float sums[kMTiles][2];
      GetRowSums(sums, o);
      RaiseReferences(sums, softmax, o);
    }
  }

  __device__ __forceinline__ bool NonFinite() const { return HasNonFinite(o, softmax); }

  template <class Params>
  __device__ __forceinline__ void Store(const Problem& problem, i64 q_begin, const Params& params) {
    const float sink = Config::Sink::Logit(problem, params);
    float sums[kMTiles][2];  // of the weights
    if constexpr (kHasSums) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[m][r] = QuadSum(softmax.sum[m][r]);
      }
      ExchangeRows(sums);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sums[m][r] = 0;
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            sums[m][r] += shared.of_row[part][FirstRow() + RowOf(m, 2 * r)];
          }
        }
      }
    }
    float divisors[kMTiles][2];
    if constexpr (kHasRowSums) GetRowSums(divisors, o);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = FirstRow() + RowOf(m, 2 * r);
        const float reference = softmax.reference[m][r];
        if constexpr (kStoresLse) {
          const float lse = FinishRow(reference, sums[m][r], sink).lse;
          if (Part() == 0 && threadIdx.x % 4 == 0 && q_begin + row < problem.seqlen_q)
            Config::Lse::Store(lse, problem, q_begin + row, params);
        }
        const SoftmaxEnd end =
            FinishRow(reference, kHasRowSums ? divisors[m][r] : sums[m][r], sink);
        StoreFragments<Ops, kVTiles>(&shared.qo[row][Part() * kVTiles * 8], o[m], r, end);
      }
    }
    SyncGroup();
    constexpr int kRows = Config::kRowsPerWarp / kParts;
    const int first_row = FirstRow() + Part() * kRows;
    StoreTileOfRows<Config>(&shared.qo[first_row][0], Shared::kPitchQo, q_begin + first_row, kRows,
                            problem, params);
  }

 private:
  // shared.of_row = a number for each row from this part, the same in the lanes that share a row.
  // The barrier of a tile of keys, or the one before its weights are read, lies between two
  // exchanges.
  __device__ __forceinline__ void ExchangeRows(const float (&values)[kMTiles][2]) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (threadIdx.x % 4 == 0) {
          shared.of_row[Part()][FirstRow() + RowOf(m, 2 * r)] = values[m][r];
        }
      }
    }
    SyncGroup();
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_SPLIT_CORE_CUH_

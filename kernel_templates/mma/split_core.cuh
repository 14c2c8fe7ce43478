// The products of attention on 16-bit operands where the output of a row is too wide for one warp:
// kColumnWarps warps share kRowsPerWarp rows. Each computes the scores of its part of a tile's keys
// and, from the weights of all of them, which they exchange through shared memory, its part of the
// output's columns. Members as in half_core.cuh.
//
// Barriers, one for the warps of each group of rows: before the others' weights are read, behind
// the products of a warp's own; and where maxima of all keys are wanted, which is seldom
// (mma/score_tile.cuh), or at the end their sums.
#ifndef TILEWRIGHT_MMA_SPLIT_CORE_CUH_
#define TILEWRIGHT_MMA_SPLIT_CORE_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/copy_barriers.cuh"
#include "mma/exact_lse.cuh"
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
  static constexpr bool kStoresLse = !kIsSame<typename Config::Lse, LseNone>;
  static constexpr int kCuts = Config::kTuring ? 2 * kQkSteps : kQkSteps;  // of a score
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, kVStep) / kVStep;
  static constexpr int kScoreKeys = Config::kBlockN / kParts;
  // Steps of 16 keys whose weights a warp has in registers.
  static constexpr int kOwnSteps = kScoreKeys % 16 == 0 ? kScoreKeys / 16 : 0;
  static constexpr bool kWatchAlways = kIsSame<Element, Fp16>;
  static constexpr bool kDrops = !Config::Dropout::kIdentity;
  static constexpr int kAllTiles = kVTiles + 1;  // with the row sums of the weights as multiplied
  static constexpr bool kHasSums = kStoresLse;
  static_assert(kGroups * kParts == Config::kWarps && kGroups < 16);
  static_assert(kScoreKeys % 8 == 0 && Config::kBlockN % 16 == 0);

  //   the barriers of copies
  //   qo     [kBlockM][pitch]           Q, at the end O
  //   k      [kStages][kBlockN][pitch]
  //   v      [kStages][kBlockN][pitch]
  //   p      [kBlockM][pitch]           weights of a tile
  //   of_row [kParts][kBlockM]          maxima or sums of the rows over the parts' keys
  struct Shared : CopyBarriers<kHasCopyBarriers<Config>> {
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
  bool high;  // a row's sum, in one of the parts

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
    ScoreSteps<Ops, kQkSteps, Shared::kPitchQo, Shared::kPitchQk>(
        scores, AddressOfRows(&shared.qo[FirstRow()][0], Shared::kPitchQo),
        AddressOfColumns<(kScoreKeys > 8 ? 16 : 8)>(&shared.k[stage][FirstKey()][0],
                                                    Shared::kPitchQk));
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

  // o += P V. A warp's own weights are operands as they are, in registers; those of the others,
  // which it reads from shared memory, come last, so that nobody waits for them.
  __device__ __forceinline__ void AddValues(ScoreTile& scores, int stage, float to_log2) {
    constexpr int kSteps = Config::kBlockN / 16, kPairs = (kVTiles + 1) / 2, kAhead = 2;
    high = false;
    if constexpr (!kWatchAlways) {
      float sums[kMTiles][2];
      GetRowSums(sums, o);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) high |= fmaxf(sums[m][0], sums[m][1]) > kHighSum;
    }
    if constexpr (kOwnSteps == 0) {
      if constexpr (!kDrops) Weights<kScoreKeys / 8>(scores, softmax, to_log2, 0);
      StoreWeights<kScoreKeys / 8>(scores, 0);
      high = SyncGroupOr(high);
    }
    const unsigned p_address = AddressOfRows(&shared.p[FirstRow()][0], Shared::kPitchP);
    const unsigned v_address =
        AddressOfRows(&shared.v[stage][0][Part() * kVTiles * 8], Shared::kPitchV);
    u32 b[kAhead + 1][4];
    const auto load = [&](int at) {
      LoadPairByRows<kVTiles>(b[at % (kAhead + 1)],
                              v_address + StepOf(at / kPairs) * 16 * Shared::kPitchV *
                                              static_cast<int>(sizeof(Element)),
                              at % kPairs * 2);
    };
#pragma unroll
    for (int at = 0; at < kAhead; ++at) load(at);
    u32 p[kMTiles][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < kOwnSteps) {
        if constexpr (!kDrops) Weights<2>(scores, softmax, to_log2, 2 * step);
        StoreWeights<2>(scores, 2 * step);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) PackWeights<Ops>(p[m], scores[m], step);
      } else {
        if (kOwnSteps > 0 && step == kOwnSteps) high = SyncGroupOr(high);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          ptx::ldmatrix_x4(
              p[m], p_address + m * 16 * Shared::kPitchP * sizeof(Element) + StepOf(step) * 32);
        }
      }
      const bool sums_up = kOwnSteps > 0 ? step < kOwnSteps : step % kParts == Part();
      if constexpr (kDrops) {
        u32 all[kMTiles][4];
        DropWeights(p, all);
        if (sums_up) AddRowSums<Ops>(o, all);
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int at = step * kPairs + pair;
        if (at + kAhead < kSteps * kPairs) load(at + kAhead);
        const u32(&now)[4] = b[at % (kAhead + 1)];
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          Ops::Multiply(o[m][2 * pair], p[m], now[0], now[1]);
          if (2 * pair + 1 < kVTiles) Ops::Multiply(o[m][2 * pair + 1], p[m], now[2], now[3]);
        }
      }
      if constexpr (!kDrops) {
        if (sums_up) AddRowSums<Ops>(o, p);
      }
    }
  }

  // From numbers that all warps of a group have alike.
  __device__ __forceinline__ void Raise() {
    if constexpr (!kWatchAlways) {
      if (!high) return;
      float sums[kMTiles][2];
      GetRowSums(sums, o);
      AddOverParts(sums);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) RaiseRow(softmax, o, m, r, sums[m][r]);
      }
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
      AddOverParts(sums);
    }
    float divisors[kMTiles][2];
    if constexpr (kHasSums) SyncGroup();
    GetRowSums(divisors, o);
    AddOverParts(divisors);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = FirstRow() + RowOf(m, 2 * r);
        const float reference = softmax.reference[m][r];
        SoftmaxEnd end = FinishRow(reference, divisors[m][r], sink);
        end.o_scale *= Config::Dropout::Scale(params);
        StoreFragments<Ops, kVTiles>(&shared.qo[row][Part() * kVTiles * 8], o[m], r, end);
      }
    }
    SyncGroup();
    constexpr int kRows = Config::kRowsPerWarp / kParts;
    const int first_row = FirstRow() + Part() * kRows;
    StoreTileOfRows<Config>(&shared.qo[first_row][0], Shared::kPitchQo, q_begin + first_row, kRows,
                            problem, params);
    if constexpr (kStoresLse) {
      if (Part() == 0) {
        float lse[kMTiles][2];
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            lse[m][r] = FinishRow(softmax.reference[m][r], sums[m][r], sink).lse;
          }
        }
        StoreLse<Config, Ops, kCuts>(lse, problem, q_begin + FirstRow(), sink, params);
      }
    }
  }

 private:
  // The step of 16 keys that is number `step` of a warp's: its own come first, then those of the
  // parts behind it.
  static __device__ __forceinline__ int StepOf(int step) {
    if constexpr (kOwnSteps == 0) {
      return step;
    } else {
      return (Part() + step / kOwnSteps) % kParts * kOwnSteps + step % kOwnSteps;
    }
  }
  static __device__ __forceinline__ bool SyncGroupOr(bool value) {
    return ptx::bar_red_or(1 + Group(), kParts * 32, value);
  }

  // The weights of tiles [first, first + kCount) to shared memory.
  template <int kCount>
  __device__ __forceinline__ void StoreWeights(const ScoreTile& scores, int first) const {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Element* row = &shared.p[FirstRow() + RowOf(m, 2 * r)][FirstKey()];
#pragma unroll
        for (int n = first; n < first + kCount; ++n) {
          *reinterpret_cast<u32*>(row + ColumnOf(n, 0)) =
              Ops::Pack(scores[m][n][2 * r + 1], scores[m][n][2 * r]);
        }
      }
    }
  }

  // Adds up what the parts have of a number for each row, in the same order in all of them.
  __device__ __forceinline__ void AddOverParts(float (&values)[kMTiles][2]) {
    ExchangeRows(values);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        values[m][r] = 0;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          values[m][r] += shared.of_row[part][FirstRow() + RowOf(m, 2 * r)];
        }
      }
    }
  }

  // shared.of_row = a number for each row from this part, the same in the lanes that share a row.
  // Between two exchanges every warp of the group has come to a barrier of the group or the block,
  // or to asking for the values of the next tile, which a warp waits for ahead of its maxima.
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

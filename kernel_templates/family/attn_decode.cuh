// Exact attention of few query rows over many keys, at the speed of memory: 16-bit queries, keys
// and values of 16 or 8 bits, mma.sync, sm_80 and later.
//
// Algorithm The query heads that share a key/value head are packed into the rows of one tile
//           (row = i * group + head within the group), so that K and V are read once for all of
//           them. Blocks get equal shares of the keys of all sequences (policy/decode_work.cuh).
//           What several blocks have of one tile is merged by attn_combine.
// Warps     kMWarps 1: every warp has all 16 rows and keys of its own: steps of kStepKeys keys,
//           dealt to the kTeams warps in turn. Each has its own ring of copies and its own softmax,
//           and meets the others only at the end of a piece.
//           kMWarps > 1 (kTeams 1): every warp has 16 of the rows, and all of them share the keys.
// Copies    cp.async into a ring of kStages steps, kStages - 1 ahead of the products.
// Barriers  kMWarps 1: a warp's own, one a step. Otherwise the block's, one a step. Three of the
//           block at the end of a piece, around the merge of its warps.
// NaN, Inf  Rows of K and V that no row of the tile may see are not copied but zeroed, so that
//           nothing of them reaches P * V.
// 8 bits    Stored values become fp16 in registers, exactly. K: the order of the columns within a
//           step of the product is permuted, in Q likewise. V: the columns of two n8 tiles are
//           interleaved, which OutputColumn undoes. bf16 queries are scaled by a power of two per
//           row to fit fp16. Scales of V per token join the exponent of the weights, whose
//           reference is then another one for O than for the sum.
// Shared    ring of a team [kStages]: k [kStepKeys][kPitchK] bytes, v [kStepKeys][kPitchV];
//           at the end of a piece there: o [16][kPitchO] fp32 of every warp
//           pages [kTeams][kStages + 1][kStepKeys], where a step may cross pages: they are written
//           before the barrier that ends the step before the last, hence one more
//           scale, reference, sum [kWarps][16], of a warp's o
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_CUH_

#include "abi/attn_fwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "core/widen_pair.cuh"
#include "mma/packed_rows.cuh"
#include "mma/score_tile.cuh"
#include "mma/step_copy.cuh"
#include "policy/decode_work.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/special.cuh"

namespace tilewright {
namespace decode {

template <bool kBytes, class Element>
struct OperandOf {
  using Type = Element;
};
template <class Element>
struct OperandOf<true, Element> {
  using Type = Fp16;
};

template <class Config>
struct Shape {
  using Element = typename Config::Element;
  using KvElement = typename Config::KvElement;
  static constexpr bool kBytes = sizeof(KvElement) == 1;
  using Operand = typename OperandOf<kBytes, Element>::Type;
  // bf16 queries do not fit fp16 as they are.
  static constexpr bool kScalesRows = kBytes && kIsSame<Element, Bf16>;

  static constexpr int kWarps = Config::kTeams * Config::kMWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTeamThreads = Config::kMWarps * 32;
  static constexpr int kStep = Config::kStepKeys;
  // Columns of K, padded to whole 16-byte ldmatrix rows of both halves of a read.
  static constexpr int kDimK = RoundUp(Config::kHeadDimQk, kBytes ? 32 : 16);
  static constexpr int kQSteps = kDimK / 16;
  static constexpr int kDimV = RoundUp(Config::kHeadDimV, kBytes ? 16 : 8);
  static constexpr int kVTiles = kDimV / 8;
  static constexpr int kNTiles = kStep / 8;
  // Bytes between rows: an odd number of 16-byte chunks.
  static constexpr int kPitchK = 16 * (kDimK * static_cast<int>(sizeof(KvElement)) / 16 | 1);
  static constexpr int kPitchV =
      16 * (RoundUp(kDimV * static_cast<int>(sizeof(KvElement)), 16) / 16 | 1);
  static constexpr int kPitchO = RoundUp(Config::kHeadDimV, 4) + 4;
  static constexpr bool kOnePage = tilewright::kOnePage<Config, kStep>;
};

template <class Config>
struct Stage {
  alignas(16) u8 k[Shape<Config>::kStep][Shape<Config>::kPitchK];
  alignas(16) u8 v[Shape<Config>::kStep][Shape<Config>::kPitchV];
  // Of K and of V, by key, where each key has its own.
  alignas(16) float scales[2][Config::kScalePerToken ? Shape<Config>::kStep : 2];
};

template <class Config>
struct SharedStorage {
  using S = Shape<Config>;
  union {
    Stage<Config> ring[Config::kTeams][Config::kStages];
    alignas(16) float o[S::kWarps][16][S::kPitchO];
  };
  i32 pages[S::kOnePage ? 1 : Config::kTeams][S::kOnePage ? 1 : Config::kStages + 1]
           [S::kOnePage ? 1 : S::kStep];
  float scale[S::kWarps][16];
  float reference[S::kWarps][16];
  float sum[S::kWarps][16];
};

// A warp's part of a piece.
template <class Config, class Params>
struct Warp {
  using S = Shape<Config>;
  using Element = typename S::Element;
  using KvElement = typename S::KvElement;
  using Operand = typename S::Operand;

  SharedStorage<Config>& shared;
  const Params& params;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int team = Config::kMWarps == 1 ? static_cast<int>(threadIdx.x / 32) : 0;
  const int m_warp = Config::kMWarps == 1 ? 0 : static_cast<int>(threadIdx.x / 32);
  const Piece piece;
  const KeyBounds bounds;
  StepCopy<Config, Params, S::kStep, S::kTeamThreads> copy;
  u32 missing = 0;  // bit n % 32: the page of step n is missing
  u32 q[S::kQSteps][4];
  float row_factor[2];
  float o[1][S::kVTiles][4];
  SoftmaxState<1> softmax;
  SoftmaxState<1> value_softmax;  // kScalePerToken: of O

  __device__ __forceinline__ Warp(SharedStorage<Config>& shared, const Piece& piece,
                                  const Params& params)
      : shared(shared),
        params(params),
        piece(piece),
        bounds(BoundsOf<Config>(piece, params)),
        copy(params, piece.problem, bounds,
             Config::kMWarps == 1 ? lane : static_cast<int>(threadIdx.x)) {}

  __device__ __forceinline__ int Steps() const {
    return (piece.kv_end - piece.kv_begin + S::kStep - 1) / S::kStep;
  }
  // The first key of this team's step n.
  __device__ __forceinline__ int KeyOf(int n) const {
    return piece.kv_begin + (n * Config::kTeams + team) * S::kStep;
  }
  __device__ __forceinline__ int TeamSteps() const {
    return (Steps() - team + Config::kTeams - 1) / Config::kTeams;
  }
  __device__ __forceinline__ void Sync() const {
    if constexpr (Config::kMWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // Starts the copies of step n, if there is one, and looks up the page of the next.
  __device__ __forceinline__ void StartStep(int n) {
    if (n < TeamSteps()) {
      const abi::AttnFwdParams& core = params.core;
      const int key = KeyOf(n);
      const u32 bit = 1u << (n & 31);
      missing = copy.Missing() ? missing | bit : missing & ~bit;
      Stage<Config>& stage = shared.ring[team][n % Config::kStages];
      const i32* pages = PagesOf(n);
      copy.template Start<Config::kHeadDimQk, S::kDimK>(stage.k, core.k, core.k_strides,
                                                        copy.wide_k, key, pages);
      copy.template Start<Config::kHeadDimV, S::kDimV>(stage.v, core.v, core.v_strides, copy.wide_v,
                                                       key, pages);
      if constexpr (Config::kScalePerToken) {
        copy.StartScales(stage.scales[0], params.k_scale, key, pages);
        copy.StartScales(stage.scales[1], params.v_scale, key, pages);
      }
      copy.LookUp(KeyOf(n + 1));
    }
    ptx::cp_async_commit_group();
  }
  // Where the pages of step n's keys are, when there are several.
  __device__ __forceinline__ i32* PagesOf(int n) const {
    return S::kOnePage ? nullptr : &shared.pages[team][n % (Config::kStages + 1)][0];
  }

  // ---- queries
  // ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void LoadQueries() {
    // Fragments hold columns 2 q, 2 q + 1 and 8 more; of stored bytes four in a row.
    LoadPackedQueries<Config, S::kBytes>(q, piece, m_warp * 16, params);
    if constexpr (S::kScalesRows) {
      FitRow(0);
      FitRow(1);
    }
  }

  // bf16 to fp16: a power of two brings the largest element of the row to [2^14, 2^15). What then
  // underflows is below 2^-38 of it.
  __device__ __forceinline__ void FitRow(int r) {
    float highest = 0;
#pragma unroll
    for (int step = 0; step < S::kQSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 pair = q[step][r + 2 * half];
        highest = fmaxf(highest, FloatOfBits(pair << 16 & 0x7fffffffu));
        highest = fmaxf(highest, FloatOfBits(pair & 0x7fff0000u));
      }
    }
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
    const int exponent = static_cast<int>(Max(BitsOfFloat(highest) >> 23, 41)) - 127 - 14;
    row_factor[r] = FloatOfBits(static_cast<u32>(127 + exponent) << 23);
    const float inverse = FloatOfBits(static_cast<u32>(127 - exponent) << 23);
#pragma unroll
    for (int step = 0; step < S::kQSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32& pair = q[step][r + 2 * half];
        pair = ptx::cvt_rn_x2_f32(FloatOfBits(pair & 0xffff0000u) * inverse,
                                  FloatOfBits(pair << 16) * inverse, Fp16{});
      }
    }
  }

  // ---- products
  // --------------------------------------------------------------------------------------

  // s = Q K^T of a step.
  __device__ __forceinline__ void Scores(float (&s)[1][S::kNTiles][4],
                                         const Stage<Config>& stage) const {
#pragma unroll
    for (int n = 0; n < S::kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) s[0][n][c] = 0;
    }
    const unsigned k_address =
        ptx::SharedAddress(&stage.k[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int step = 0; step < S::kQSteps; step += S::kBytes ? 2 : 1) {
#pragma unroll
      for (int n = 0; n < S::kNTiles; n += 2) {
        u32 b[4];
        ptx::ldmatrix_x4(b, k_address + n * 8 * S::kPitchK + step * (S::kBytes ? 16 : 32));
        if constexpr (S::kBytes) {
          constexpr KvElement kStored{};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const u32 stored = b[2 * half + k];
              ptx::mma_m16n8k16(s[0][n + half], q[step + k], WidenPair(stored, kStored),
                                WidenPair(stored >> 16, kStored), Operand{});
            }
          }
        } else {
          ptx::mma_m16n8k16(s[0][n], q[step], b[0], b[1], Operand{});
          ptx::mma_m16n8k16(s[0][n + 1], q[step], b[2], b[3], Operand{});
        }
      }
    }
  }

  // Two keys' elements of one column, of four bytes: columns 2 c and 2 c + 1 of one key, then of
  // the next.
  __device__ __forceinline__ static u32 KeyPair(u32 stored, int odd) {
    const u32 shifted = odd != 0 ? stored >> 8 : stored;
    return WidenPair((shifted & 0xff) | (shifted >> 8 & 0xff00), KvElement{});
  }

  // o += P V of a step, where P is the 16-bit form of `weights`.
  __device__ __forceinline__ void WeightedSum(const float (&weights)[1][S::kNTiles][4],
                                              const Stage<Config>& stage) {
    const unsigned v_address = ptx::SharedAddress(&stage.v[lane % 16][lane / 16 * 16]);
#pragma unroll
    for (int step = 0; step < S::kStep / 16; ++step) {
      u32 p[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&w)[4] = weights[0][2 * step + half];
        p[2 * half] = ptx::cvt_rn_x2_f32(w[1], w[0], Operand{});
        p[2 * half + 1] = ptx::cvt_rn_x2_f32(w[3], w[2], Operand{});
      }
      const unsigned address = v_address + step * 16 * S::kPitchV;
      // A read has the columns of two n8 tiles of 16-bit elements, or of four of 8-bit ones.
      constexpr int kTilesOfHalf = S::kBytes ? 2 : 1;
#pragma unroll
      for (int n = 0; n + 2 * kTilesOfHalf <= S::kVTiles; n += 2 * kTilesOfHalf) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, address + n * 16 / kTilesOfHalf);
        AddTiles(n, p, b[0], b[1]);
        AddTiles(n + kTilesOfHalf, p, b[2], b[3]);
      }
      if constexpr (S::kVTiles / kTilesOfHalf % 2 == 1) {
        u32 b[2];
        constexpr int kLast = S::kVTiles - kTilesOfHalf;
        ptx::ldmatrix_x2_trans(b, address + kLast * 16 / kTilesOfHalf);
        AddTiles(kLast, p, b[0], b[1]);
      }
    }
  }
  __device__ __forceinline__ void AddTiles(int n, const u32 (&p)[4], u32 b0, u32 b1) {
    if constexpr (S::kBytes) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        ptx::mma_m16n8k16(o[0][n + odd], p, KeyPair(b0, odd), KeyPair(b1, odd), Operand{});
      }
    } else {
      ptx::mma_m16n8k16(o[0][n], p, b0, b1, Operand{});
    }
  }
  // The column of V behind element c of tile n.
  __device__ __forceinline__ static int OutputColumn(int n, int c) {
    if constexpr (S::kBytes) return n / 2 * 16 + 2 * ColumnOf(0, c) + n % 2;
    return ColumnOf(n, c);
  }

  // ---- scores
  // ----------------------------------------------------------------------------------------

  // Zeroes the rows of V that a rule per element hides from all rows, for NaN * 0 is NaN.
  __device__ __forceinline__ void ZeroUnseenValues(const float (&s)[1][S::kNTiles][4],
                                                   Stage<Config>& stage) {
    u32 unseen = 0;  // bit 2 * tile + c: of this lane's columns
#pragma unroll
    for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool hidden = s[0][tile][c] == -Infinity() && s[0][tile][2 + c] == -Infinity();
        unseen |= hidden ? 1u << (2 * tile + c) : 0u;
      }
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      unseen &= __shfl_xor_sync(kAllLanes, unseen, distance);
    }
    if (!__any_sync(kAllLanes, unseen != 0)) return;
#pragma unroll
    for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if ((unseen >> (2 * tile + c) & 1) == 0) continue;
        KvElement* row = reinterpret_cast<KvElement*>(stage.v[ColumnOf(tile, c)]);
        for (int d = lane / 4; d < Config::kHeadDimV; d += 8) row[d] = KvElement{0};
      }
    }
    __syncwarp();
  }

  // Step n, whose copies have arrived.
  __device__ __forceinline__ void Step(int n, float scale, float to_log2) {
    Stage<Config>& stage = shared.ring[team][n % Config::kStages];
    float s[1][S::kNTiles][4];
    Scores(s, stage);
    if constexpr (S::kScalesRows) {
#pragma unroll
      for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[0][tile][c] *= row_factor[c / 2];
      }
    }
    if constexpr (Config::kScalePerToken) {
#pragma unroll
      for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float of_key = stage.scales[0][ColumnOf(tile, c)];
          s[0][tile][c] *= of_key;
          s[0][tile][2 + c] *= of_key;
        }
      }
    }
    const int key = KeyOf(n);
    const bool full = key >= bounds.full_begin && key + S::kStep <= bounds.full_end;
    ApplyPackedPolicies<Config, S::kOnePage>(s[0], piece, m_warp * 16, key, full, scale, PagesOf(n),
                                             params);
    if constexpr (!Config::Mask::kIsInterval) ZeroUnseenValues(s, stage);
    if constexpr (Config::kScalePerToken) {
      // Weights of O: 2^(s + log2 |scale|) with the scale's sign, relative to a reference of
      // theirs.
      float weights[1][S::kNTiles][4];
      u32 negative = 0;
#pragma unroll
      for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float of_value = stage.scales[1][ColumnOf(tile, c)];
          negative |= of_value < 0 ? 1u << (2 * tile + c) : 0u;
          const float exponent = ptx::lg2_approx_ftz(of_value < 0 ? -of_value : of_value);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float score = s[0][tile][2 * r + c];
            weights[0][tile][2 * r + c] =
                score == -Infinity() ? score : fmaf(score, to_log2, exponent);
          }
        }
      }
      float none[1][1][4] = {};
      WatchMaxima(s, none, softmax, to_log2, true, 0);
      Weights<S::kNTiles>(s, softmax, to_log2, 0);
      WatchMaxima(weights, o, value_softmax, 1.f, true, 0);
      Weights<S::kNTiles>(weights, value_softmax, 1.f, 0);
#pragma unroll
      for (int tile = 0; tile < S::kNTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (negative >> (2 * tile + c % 2) & 1) weights[0][tile][c] = -weights[0][tile][c];
        }
      }
      WeightedSum(weights, stage);
    } else {
      WatchMaxima(s, o, softmax, to_log2, true, 0);
      Weights<S::kNTiles>(s, softmax, to_log2, 0);
      WeightedSum(s, stage);
    }
  }

  // ---- a piece
  // ---------------------------------------------------------------------------------------

  // Leaves O, and the softmax's state, of this warp's keys in registers.
  __device__ __forceinline__ void Attend() {
    const abi::AttnFwdParams& core = params.core;
    copy.LookUp(KeyOf(0));
#pragma unroll
    for (int n = 0; n < Config::kStages - 1; ++n) {
      if constexpr (!S::kOnePage) {
        copy.Publish(PagesOf(n));
        Sync();
      }
      StartStep(n);
    }
    LoadQueries();
    StartSoftmax(softmax, o);
    if constexpr (Config::kScalePerToken) StartSoftmax(value_softmax, o);
    float scale = core.scale;
    if constexpr (!Config::kScalePerToken) {
      scale *= Config::ScaleOfKv::OfKey(piece.problem, KvRow{0, 0}, params);
    }
    const float to_log2 = Config::Score::kIdentity ? scale * kLog2OfE : kLog2OfE;
    const int steps = TeamSteps();
#pragma unroll 1
    for (int n = 0; n < steps; ++n) {
      ptx::cp_async_wait_group<Config::kStages - 2>();
      copy.Publish(PagesOf(n + Config::kStages - 1));
      Sync();
      StartStep(n + Config::kStages - 1);
      if constexpr (S::kOnePage && !Config::KvRows::kIsDense) {
        if (missing >> (n & 31) & 1) continue;
      }
      Step(n, scale, to_log2);
    }
    ptx::cp_async_wait_group<0>();
  }

  // Puts O and the softmax's state where StoreResult finds them.
  __device__ __forceinline__ void Deposit(int warp) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(softmax.sum[0][r]);
      const int row = RowOf(0, 2 * r);
      if (lane % 4 == 0) {
        shared.reference[warp][row] = softmax.reference[0][r];
        shared.sum[warp][row] = sum;
        shared.scale[warp][row] =
            Config::kScalePerToken ? value_softmax.reference[0][r] : softmax.reference[0][r];
      }
#pragma unroll
      for (int n = 0; n < S::kVTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = OutputColumn(n, c);
          if (column < Config::kHeadDimV) shared.o[warp][row][column] = o[0][n][2 * r + c];
        }
      }
    }
  }
};

// Merges the warps' results and writes them, to O and LSE or to the piece's slot.
template <class Config, class Params>
__device__ __forceinline__ void StoreResult(SharedStorage<Config>& shared, const Piece& piece,
                                            const Params& params) {
  using S = Shape<Config>;
  using OutElement = typename Config::OutElement;
  const abi::AttnFwdParams& core = params.core;
  const int thread = static_cast<int>(threadIdx.x);
  float* const part_o =
      static_cast<float*>(params.parts.o) + i64{piece.slot} * Config::kBlockM * Config::kHeadDimV;
  float* const part_lse = params.parts.lse + i64{piece.slot} * Config::kBlockM;
  const bool complete = piece.slot < 0;
  // Row r of the tile is row r % 16 of every team, or of warp r / 16.
  const auto first_warp = [](int row) { return Config::kMWarps == 1 ? 0 : row / 16; };
  for (int row = thread; row < Config::kBlockM; row += S::kThreads) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
    Problem problem = piece.problem;
    problem.h = at.h;
    const int warp = first_warp(row), r = row % 16;
    float reference = kNoReference, sum = 0;
    for (int t = 0; t < Config::kTeams; ++t) {
      reference = fmaxf(reference, shared.reference[warp + t][r]);
    }
    for (int t = 0; t < Config::kTeams; ++t) {
      sum +=
          shared.sum[warp + t][r] * ptx::ex2_approx_ftz(shared.reference[warp + t][r] - reference);
    }
    float sink = -Infinity();
    if (complete && at.inside) sink = Config::Sink::Logit(problem, params);
    const SoftmaxEnd end = FinishRow(reference, sum, sink);
    float o_scale = end.o_scale;
    if constexpr (!Config::kScalePerToken) {
      o_scale *= Config::ScaleOfKv::OfValue(problem, KvRow{0, 0}, params);
    }
    for (int t = 0; t < Config::kTeams; ++t) {
      float& scale = shared.scale[warp + t][r];
      // 0: not to be looked at.
      scale = end.empty || scale == kNoReference ? 0.f
                                                 : ptx::ex2_approx_ftz(scale - reference) * o_scale;
    }
    if (!at.inside) continue;
    if (complete) {
      Config::Lse::Store(end.lse, problem, at.i, params);
    } else {
      part_lse[row] = end.lse;
    }
  }
  __syncthreads();
  const i64 rows = Min(Config::kBlockM, piece.problem.seqlen_q * Config::kGroup - piece.first_row);
  for (int index = thread; index < rows * Config::kHeadDimV; index += S::kThreads) {
    const int row = index / Config::kHeadDimV, column = index % Config::kHeadDimV;
    const int warp = first_warp(row), r = row % 16;
    float value = 0;
#pragma unroll
    for (int t = 0; t < Config::kTeams; ++t) {
      const float scale = shared.scale[warp + t][r];
      if (scale != 0) value = fmaf(shared.o[warp + t][r][column], scale, value);
    }
    if (complete) {
      const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
      OutElement* o = static_cast<OutElement*>(core.o) +
                      piece.problem.q_batch * core.o_strides.batch + at.h * core.o_strides.head +
                      (piece.problem.q_row + at.i) * core.o_strides.seq;
      FromFloat(value, &o[column]);
    } else {
      part_o[row * Config::kHeadDimV + column] = value;
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void AttendPiece(SharedStorage<Config>& shared, const Piece& piece,
                                            const Params& params) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  {
    Warp<Config, Params> work(shared, piece, params);
    work.Attend();
    __syncthreads();  // the rings become O
    work.Deposit(warp);
  }
  __syncthreads();
  StoreResult<Config>(shared, piece, params);
  __syncthreads();  // O becomes the rings again
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::Dropout::kIdentity);
  static_assert(Config::kTeams == 1 || Config::kMWarps == 1);
  static_assert(Config::kBlockM == 16 * Config::kMWarps);
  static_assert(Config::kBlockN == Config::kTeams * Config::kStepKeys);
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStages >= 2);
  static_assert(Config::Mask::kIsInterval || Config::kMWarps == 1);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  // attn_combine may take its place behind this kernel; it waits for the end of it.
  ptx::griddepcontrol_launch_dependents();
  PieceWalk<Config, Params> walk(params);
  for (Piece piece; walk.Next(&piece);) AttendPiece<Config>(shared, piece, params);
}

}  // namespace decode
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_CUH_

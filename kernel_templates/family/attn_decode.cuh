// Exact attention of few query rows over many keys, at the speed of memory: 16-bit queries, keys
// and values of 16 or 8 bits, mma.sync, sm_80 and later.
//
// Algorithm The query heads that share a key/value head are packed into the rows of one tile
//           (row = i * group + head within the group), so that K and V are read once for all of
//           them. Blocks get equal shares of the keys of all sequences (policy/decode_work.cuh).
//           What several blocks have of one tile is merged by the last of them to end
//           (policy/part_merge.cuh).
//           Products are transposed: S^T = K Q^T and O^T = V^T P^T. Keys, and columns of V, are the
//           16 rows of a fragment, and packed rows its 8 columns, of which few are left unused.
// Warps     kTeams of kRowWarps warps. A team has keys of its own, steps of kStepKeys dealt to the
//           teams in turn, with its own ring of copies and its own softmax; teams meet only at the
//           end of a piece. The warps of a team have 8 * kRowTiles of the rows each.
// Clusters  Where there are few keys and few items, kCluster blocks share a piece: a block alone
//           would wait longest for the 64 bytes a clock that a multiprocessor gets. Each stores
//           what it has to the shared memory of the first, which merges it.
// Copies    cp.async into a ring of kStages steps, kStages - 1 ahead of the products. The ring does
//           not run empty between pieces: copies of the next piece start while this one is still
//           computed, and are on their way while it is merged and stored.
// Barriers  A team's own, one a step. Two of the block at the end of a piece, around the merge of
// the
//           teams, and one more where other blocks have parts of the item.
// NaN, Inf  Rows of K and V that no row of the tile may see are not copied but zeroed, so that
//           nothing of them reaches P * V.
// 8 bits    Stored values become fp16 in registers, exactly. K: the order of the columns within a
//           step of the product is permuted, in Q likewise. V: even columns are the upper 8 rows of
//           a fragment and odd ones the lower, which OutputColumn undoes. bf16 queries are scaled
//           by a power of two per row to fit fp16. Scales of K per token multiply scores, those of
//           V weights, which then have a reference of their own for O.
// Shared    ring of a team [kStages]: k [kStepKeys][kPitchK] bytes, v [kStepKeys][kPitchV], their
//           chunks as mma/chunked_rows.cuh says;
//           at the end of a piece, in the stage that was used last: o [kTeamRows][kPitchO] fp32
//           pages [kTeams][kStages + 1][kStepKeys], where a step may cross pages
//           pieces [kWarps], see mma/step_queue.cuh
//           scale, reference, sum [kTeams][kBlockM], of a team's o, and its stage
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
#include "mma/chunked_rows.cuh"
#include "mma/cut_off.cuh"
#include "mma/packed_columns.cuh"
#include "mma/step_queue.cuh"
#include "policy/decode_work.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/part_merge.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_store.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/prefetch.cuh"
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

  static constexpr int kTeamThreads = Config::kRowWarps * 32;
  static constexpr int kWarps = Config::kTeams * Config::kRowWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStep = Config::kStepKeys;
  static constexpr int kKeyTiles = kStep / 16;
  static constexpr int kRowTiles = Config::kRowTiles;
  // Columns, padded to whole ldmatrix reads.
  static constexpr int kDimK = RoundUp(Config::kHeadDimQk, kBytes ? 32 : 16);
  static constexpr int kQSteps = kDimK / 16;
  // Sums that a score is made of, where one would be a chain of waits.
  static constexpr int kChains = kKeyTiles * kRowTiles == 1 && kQSteps > 1 ? 2 : 1;
  static constexpr int kDimV = RoundUp(Config::kHeadDimV, 16);
  static constexpr int kVTiles = kDimV / 16;
  // Blocks and teams that share a piece.
  static constexpr int kCluster = BlocksOfShare<Config>();
  static constexpr int kTeamsOfPiece = kCluster * Config::kTeams;
  // Bytes between rows.
  static constexpr int kPitchK = ChunkedPitch(kDimK * static_cast<int>(sizeof(KvElement)));
  static constexpr int kPitchV = ChunkedPitch(kDimV * static_cast<int>(sizeof(KvElement)));
  static constexpr int kPitchO = RoundUp(Config::kHeadDimV, 4) + 4;
  static constexpr bool kOnePage = tilewright::kOnePage<Config, kStep>;
};

template <class Config>
struct Stage {
  using S = Shape<Config>;
  union {
    struct {
      alignas(128) u8 k[S::kStep][S::kPitchK];
      alignas(128) u8 v[S::kStep][S::kPitchV];
      // Of K and of V, by key, where each key has its own.
      alignas(16) float scales[2][Config::kScalePerToken ? S::kStep : 2];
    };
    alignas(16) float o[Config::kBlockM][S::kPitchO];
  };
};

// In the first block of a cluster: the results of all of its blocks.
template <class Config, bool kHasCluster>
struct Gathered {
  using S = Shape<Config>;
  alignas(128) float gathered_o[S::kCluster][Config::kBlockM][S::kPitchO];
  float gathered_lse[S::kCluster][Config::kBlockM];
};
template <class Config>
struct Gathered<Config, false> {};

template <class Config>
struct SharedStorage : Gathered<Config, (Shape<Config>::kCluster > 1)> {
  using S = Shape<Config>;
  Stage<Config> ring[Config::kTeams][Config::kStages];
  PieceQueue<Config> pieces[S::kWarps];
  i32 pages[S::kOnePage ? 1 : Config::kTeams][S::kOnePage ? 1 : Config::kStages + 1]
           [S::kOnePage ? 4 : S::kStep];
  float scale[Config::kTeams][Config::kBlockM];
  float reference[Config::kTeams][Config::kBlockM];
  float sum[Config::kTeams][Config::kBlockM];
  int last[Config::kTeams];  // the stage that o is in
};

template <class Config, class Params>
struct Warp {
  using S = Shape<Config>;
  using Element = typename S::Element;
  using KvElement = typename S::KvElement;
  using Operand = typename S::Operand;
  using Scores = float[S::kKeyTiles][S::kRowTiles][4];

  SharedStorage<Config>& shared;
  const Params& params;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int team = warp / Config::kRowWarps;
  // Of the tile: this warp's first.
  const int first_row = warp % Config::kRowWarps * S::kRowTiles * 8;

  StepQueue<Config, Params, S::kTeamsOfPiece, S::kTeamThreads, false> queue;
  int copied = 0;   // steps of this team whose copies have started
  int done = 0;     // and that have been computed
  u32 missing = 0;  // bit n % 32: the page of step n is missing
  bool waited = false;
  u32 q[S::kRowTiles][S::kQSteps][2];
  float row_factor[S::kRowTiles][2];
  float o[S::kVTiles][S::kRowTiles][4];
  ColumnSoftmax<S::kRowTiles> softmax;
  float value_reference[S::kRowTiles][2];  // kScalePerToken: of O
  const u32 wide_bytes = S::kBytes ? WideBytes() : 0;

  __device__ __forceinline__ Warp(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        queue(shared.pieces[warp], RankOfBlock() * Config::kTeams + team, params) {}

  // Within the cluster.
  __device__ __forceinline__ static int RankOfBlock() {
    return S::kCluster > 1 ? static_cast<int>(ptx::cluster_ctarank()) : 0;
  }

  __device__ __forceinline__ void Sync() const {
    if constexpr (Config::kRowWarps == 1) {
      __syncwarp();
    } else {
      ptx::bar_sync(1 + team, S::kTeamThreads);
    }
  }

  // ---- copies
  // -----------------------------------------------------------------------------------------

  __device__ __forceinline__ void StartStep() {
    const abi::AttnFwdParams& core = params.core;
    const auto& copy = queue.copy;
    const u32 bit = 1u << (copied & 31);
    missing = copy.Missing() ? missing | bit : missing & ~bit;
    Stage<Config>& stage = shared.ring[team][copied % Config::kStages];
    const i32* pages = PagesOf(copied);
    copy.template Start<Config::kHeadDimQk, S::kDimK>(stage.k, copy.k, core.k_strides, copy.wide_k,
                                                      queue.key, pages);
    copy.template Start<Config::kHeadDimV, S::kDimV>(stage.v, copy.v, core.v_strides, copy.wide_v,
                                                     queue.key, pages);
    if constexpr (Config::kScalePerToken) {
      copy.StartScales(stage.scales[0], params.k_scale, copy.scales_k, queue.key, pages);
      copy.StartScales(stage.scales[1], params.v_scale, copy.scales_v, queue.key, pages);
    }
    ptx::cp_async_commit_group();
    ++copied;
    queue.Advance();
  }

  // Starts copies until `limit` steps have been copied, or nothing is left to be.
  __device__ __forceinline__ void Fill(int limit) {
    while (copied < limit && queue.Find()) {
      WaitForKernelAhead();
      if constexpr (!S::kOnePage) {
        queue.copy.Publish(PagesOf(copied));
        Sync();
      }
      StartStep();
    }
    // Not earlier: what the next kernel asks L2 for would be gone again when it begins.
    if constexpr (!kStartsEarly) {
      if (copied < limit && !queue.more) ptx::griddepcontrol_launch_dependents();
    }
  }

  // `behind` steps, kMost at most, are under way behind the one that is waited for.
  template <int kMost>
  __device__ __forceinline__ static void WaitForStepAnd(int behind) {
    if constexpr (kMost == 0) {
      ptx::cp_async_wait_group<0>();
    } else if (behind == kMost) {
      ptx::cp_async_wait_group<kMost>();
    } else {
      WaitForStepAnd<kMost - 1>(behind);
    }
  }

  // Waits for this thread's copies of the step that is computed next.
  __device__ __forceinline__ void WaitForStep() const {
    WaitForStepAnd<Config::kStages - 1>(copied - done - 1);
  }

  // What the kernel ahead has left may be read from then on; it may be attn_combine of another
  // call, or anything. The first piece is found meanwhile, if that takes no memory.
  static constexpr bool kStartsEarly = kSequencesAreAlike<Config> && Config::KvRows::kIsDense;
  __device__ __forceinline__ void WaitForKernelAhead() {
    if constexpr (kStartsEarly) {
      if (waited) return;
      waited = true;
      ptx::griddepcontrol_wait();
      // attn_combine may take its place behind this kernel; it waits for the end of it.
      ptx::griddepcontrol_launch_dependents();
    }
  }

  // Where the pages of step n's keys are, when there are several.
  __device__ __forceinline__ i32* PagesOf(int n) const {
    return S::kOnePage ? nullptr : &shared.pages[team][n % (Config::kStages + 1)][0];
  }

  // ---- queries
  // ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void LoadQueries(const Piece& piece) {
    // Fragments hold columns 2 q, 2 q + 1 and 8 more; of stored bytes four in a row.
    LoadQueryColumns<Config, S::kBytes>(q, piece, first_row, 0, params);
    if constexpr (S::kScalesRows) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        const float factor = FitRow(q[tile]);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          row_factor[tile][c] = __shfl_sync(kAllLanes, factor, (lane % 4 * 2 + c) * 4);
        }
      }
    }
  }

  // bf16 to fp16: a power of two brings the largest element of the row to [2^14, 2^15). What then
  // underflows is below 2^-38 of it. Returns what the products are to be multiplied with.
  __device__ __forceinline__ static float FitRow(u32 (&row)[S::kQSteps][2]) {
    float highest = 0;
#pragma unroll
    for (int step = 0; step < S::kQSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 pair = row[step][half];
        highest = fmaxf(highest, FloatOfBits(pair << 16 & 0x7fffffffu));
        highest = fmaxf(highest, FloatOfBits(pair & 0x7fff0000u));
      }
    }
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
    const int exponent = static_cast<int>(Max(BitsOfFloat(highest) >> 23, 41)) - 127 - 14;
    const float inverse = FloatOfBits(static_cast<u32>(127 - exponent) << 23);
#pragma unroll
    for (int step = 0; step < S::kQSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32& pair = row[step][half];
        pair = ptx::cvt_rn_x2_f32(FloatOfBits(pair & 0xffff0000u) * inverse,
                                  FloatOfBits(pair << 16) * inverse, Fp16{});
      }
    }
    return FloatOfBits(static_cast<u32>(127 + exponent) << 23);
  }

  // ---- products
  // --------------------------------------------------------------------------------------

  // The lane's row in the 8x8 matrices of an ldmatrix of 16 rows and two chunks, and its chunk.
  // K: matrices go down the rows first; V, transposed: to the right first.
  __device__ __forceinline__ unsigned KeyAddress(const Stage<Config>& stage) const {
    return ptx::SharedAddress(&stage.k[0][0]) + ChunkOffset<S::kPitchK>(lane % 16, lane / 16);
  }
  __device__ __forceinline__ unsigned ValueAddress(const Stage<Config>& stage) const {
    // Of stored bytes one chunk is 16 columns, and the second matrix has further keys.
    return ptx::SharedAddress(&stage.v[0][0]) +
           (S::kBytes ? ChunkOffset<S::kPitchV>(lane % 16, lane / 16)
                      : ChunkOffset<S::kPitchV>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
  }

  // s = K Q^T of a step, in two chains where products would wait for one another.
  __device__ __forceinline__ void MultiplyKeys(Scores& s, const Stage<Config>& stage) const {
    constexpr int kChains = S::kChains;
    float chain[kChains][S::kKeyTiles][S::kRowTiles][4] = {};
    const unsigned address = KeyAddress(stage);
#pragma unroll
    for (int step = 0; step < S::kQSteps; step += S::kBytes ? 2 : 1) {
#pragma unroll
      for (int key = 0; key < S::kKeyTiles; ++key) {
        u32 stored[4];
        ptx::ldmatrix_x4(
            stored, ChunkBehind<kTradesChunks<S::kPitchK>>(address, step * (S::kBytes ? 16 : 32)) +
                        key * 16 * S::kPitchK);
        if constexpr (S::kBytes) {
          constexpr KvElement kStored{};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 upper = stored[2 * half], lower = stored[2 * half + 1];
            const u32 a[4] = {WidenTwo<0, 1>(upper, wide_bytes, kStored),
                              WidenTwo<0, 1>(lower, wide_bytes, kStored),
                              WidenTwo<2, 3>(upper, wide_bytes, kStored),
                              WidenTwo<2, 3>(lower, wide_bytes, kStored)};
            AddKeys(chain[half % kChains][key], a, step + half);
          }
        } else {
          AddKeys(chain[step % kChains][key], stored, step);
        }
      }
    }
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[key][tile][c] = chain[0][key][tile][c];
          if constexpr (kChains == 2) s[key][tile][c] += chain[1][key][tile][c];
        }
      }
    }
  }
  __device__ __forceinline__ void AddKeys(float (&s)[S::kRowTiles][4], const u32 (&a)[4],
                                          int step) const {
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
      ptx::mma_m16n8k16(s[tile], a, q[tile][step][0], q[tile][step][1], Operand{});
    }
  }

  // o += V^T P^T of a step, where P is the 16-bit form of `weights`.
  __device__ __forceinline__ void AddValues(const Scores& weights, const Stage<Config>& stage) {
    const unsigned v_address = ValueAddress(stage);
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
      u32 p[S::kRowTiles][2];
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        const float(&w)[4] = weights[key][tile];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          p[tile][half] =
              ptx::movmatrix_trans(ptx::cvt_rn_x2_f32(w[2 * half + 1], w[2 * half], Operand{}));
        }
      }
      const unsigned address = v_address + key * 16 * S::kPitchV;
      if constexpr (S::kBytes) {
#pragma unroll
        for (int n = 0; n + 2 <= S::kVTiles; n += 2) {
          u32 stored[4];
          ptx::ldmatrix_x4_trans(stored, ChunkBehind<kTradesChunks<S::kPitchV>>(address, n * 16));
          AddColumns(n, stored[0], stored[1], p);
          AddColumns(n + 1, stored[2], stored[3], p);
        }
        if constexpr (S::kVTiles % 2 == 1) {
          u32 stored[2];
          ptx::ldmatrix_x2_trans(stored, address + (S::kVTiles - 1) * 16);
          AddColumns(S::kVTiles - 1, stored[0], stored[1], p);
        }
      } else {
#pragma unroll
        for (int n = 0; n < S::kVTiles; ++n) {
          u32 a[4];
          ptx::ldmatrix_x4_trans(a, ChunkBehind<kTradesChunks<S::kPitchV>>(address, n * 32));
#pragma unroll
          for (int tile = 0; tile < S::kRowTiles; ++tile) {
            ptx::mma_m16n8k16(o[n][tile], a, p[tile][0], p[tile][1], Operand{});
          }
        }
      }
    }
  }
  // 16 columns of 8 and of 8 further keys, stored as bytes.
  __device__ __forceinline__ void AddColumns(int n, u32 keys, u32 further,
                                             const u32 (&p)[S::kRowTiles][2]) {
    constexpr KvElement kStored{};
    const u32 a[4] = {
        WidenTwo<0, 2>(keys, wide_bytes, kStored), WidenTwo<1, 3>(keys, wide_bytes, kStored),
        WidenTwo<0, 2>(further, wide_bytes, kStored), WidenTwo<1, 3>(further, wide_bytes, kStored)};
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
      ptx::mma_m16n8k16(o[n][tile], a, p[tile][0], p[tile][1], Operand{});
    }
  }
  // The column of V behind element c of tile n.
  __device__ __forceinline__ static int OutputColumn(int n, int c) {
    const int row = static_cast<int>(threadIdx.x % 32) / 4;
    return S::kBytes ? n * 16 + 2 * row + c / 2 : n * 16 + row + c / 2 * 8;
  }

  // ---- scores
  // ----------------------------------------------------------------------------------------

  // Zeroes the rows of V that a rule per element hides from all rows, for NaN * 0 is NaN.
  __device__ __forceinline__ void ZeroUnseenValues(const Scores& s, Stage<Config>& stage) const {
    u32 unseen = 0;  // bit 2 * tile + half: of this lane's keys
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bool hidden = true;
#pragma unroll
        for (int tile = 0; tile < S::kRowTiles; ++tile) {
          hidden = hidden && s[key][tile][2 * half] == -Infinity() &&
                   s[key][tile][2 * half + 1] == -Infinity();
        }
        unseen |= hidden ? 1u << (2 * key + half) : 0u;
      }
    }
    unseen &= __shfl_xor_sync(kAllLanes, unseen, 1);
    unseen &= __shfl_xor_sync(kAllLanes, unseen, 2);
    if (!__any_sync(kAllLanes, unseen != 0)) return;
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if ((unseen >> (2 * key + half) & 1) == 0) continue;
        KvElement* row = reinterpret_cast<KvElement*>(stage.v[key * 16 + half * 8 + lane / 4]);
        for (int d = lane % 4; d < S::kDimV; d += 4) row[d] = KvElement{0};
      }
    }
    __syncwarp();
  }

  // Turns weights into those of stored values: times the values' scales, to a reference that keeps
  // them below 2^8.
  __device__ __forceinline__ void ScaleWeights(Scores& weights, const Stage<Config>& stage) {
    float of_key[S::kKeyTiles][2];
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        of_key[key][half] = stage.scales[1][key * 16 + half * 8 + lane / 4];
      }
    }
    bool moves = false;
    float highest[S::kRowTiles][2];
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        highest[tile][c] = 0;
#pragma unroll
        for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& w = weights[key][tile][2 * half + c];
            // A key that is not seen may have any scale.
            w = w == 0 ? 0.f : w * of_key[key][half];
            highest[tile][c] = fmaxf(highest[tile][c], fabsf(w));
          }
        }
        moves |= highest[tile][c] >
                 PowerBetween(value_reference[tile][c], softmax.reference[tile][c]) * 256;
      }
    }
    if (__any_sync(kAllLanes, moves)) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float top = ColumnMax(highest[tile][c]);
          const float before = value_reference[tile][c];
          if (top > 0) {
            const float after = softmax.reference[tile][c] + ptx::lg2_approx_ftz(top);
            value_reference[tile][c] = fmaxf(before, after);
          }
          ScaleColumn(o, tile, c, ptx::ex2_approx_ftz(before - value_reference[tile][c]));
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float factor = PowerBetween(softmax.reference[tile][c], value_reference[tile][c]);
#pragma unroll
        for (int key = 0; key < S::kKeyTiles; ++key) {
          weights[key][tile][c] *= factor;
          weights[key][tile][2 + c] *= factor;
        }
      }
    }
  }
  // 2^(a - b), kept finite. Where one of the references has not been set, weights are 0.
  __device__ __forceinline__ static float PowerBetween(float a, float b) {
    return ptx::ex2_approx_ftz(fminf(a - b, 120.f));
  }

  // The step that is computed next, whose copies have arrived.
  __device__ __forceinline__ void Step(const OpenPiece& open, int key, float scale, float to_log2) {
    Stage<Config>& stage = shared.ring[team][done % Config::kStages];
    Scores s;
    MultiplyKeys(s, stage);
    if constexpr (S::kScalesRows || Config::kScalePerToken) {
#pragma unroll
      for (int tile_key = 0; tile_key < S::kKeyTiles; ++tile_key) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float of_key = 1;
          if constexpr (Config::kScalePerToken) {
            of_key = stage.scales[0][tile_key * 16 + c / 2 * 8 + lane / 4];
          }
#pragma unroll
          for (int tile = 0; tile < S::kRowTiles; ++tile) {
            float factor = of_key;
            if constexpr (S::kScalesRows) factor *= row_factor[tile][c % 2];
            s[tile_key][tile][c] *= factor;
          }
        }
      }
    }
    const bool full = key >= open.bounds.full_begin && key + S::kStep <= open.bounds.full_end;
    ApplyPoliciesToColumns<Config, S::kOnePage>(s, open.piece, first_row, key, full, scale,
                                                PagesOf(done), params);
    if constexpr (!Config::Mask::kIsInterval) ZeroUnseenValues(s, stage);
    if constexpr (Config::kScalePerToken) {
      MoveReferences(s, softmax, to_log2, [](int, int, float) {});
      ColumnWeights(s, softmax, to_log2);
      ScaleWeights(s, stage);
    } else {
      MoveReferences(s, softmax, to_log2,
                     [this](int tile, int c, float factor) { ScaleColumn(o, tile, c, factor); });
      ColumnWeights(s, softmax, to_log2);
    }
    AddValues(s, stage);
  }

  // ---- a piece
  // ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void Open(const OpenPiece& open) {
    WaitForKernelAhead();
    LoadQueries(open.piece);
    StartSoftmax(softmax);
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        value_reference[tile][c % 2] = kNoReference;
#pragma unroll
        for (int n = 0; n < S::kVTiles; ++n) o[n][tile][c] = 0;
      }
    }
  }

  // Puts O and the softmax's state where StoreResult finds them: in the stage that was used last,
  // which copies leave alone until the next step.
  __device__ __forceinline__ void Deposit() {
    const int last = (done + Config::kStages - 1) % Config::kStages;
    Stage<Config>& stage = shared.ring[team][last];
    // All of the team have read it.
    Sync();
    if (lane == 0 && first_row == 0) shared.last[team] = last;
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = ColumnSum(softmax.sum[tile][c]);
        const int row = first_row + tile * 8 + lane % 4 * 2 + c;
        if (lane / 4 == 0) {
          shared.reference[team][row] = softmax.reference[tile][c];
          shared.sum[team][row] = sum;
          shared.scale[team][row] =
              Config::kScalePerToken ? value_reference[tile][c] : softmax.reference[tile][c];
        }
#pragma unroll
        for (int n = 0; n < S::kVTiles; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int column = OutputColumn(n, 2 * half);
            if (column >= Config::kHeadDimV) continue;
            // Stored by twos, neighbours would live in neighbouring registers, where no product
            // wants them.
            volatile float& to = stage.o[row][column];
            to = o[n][tile][2 * half + c];
          }
        }
      }
    }
  }

  // Merges the teams' results and writes them, to O and LSE or to the piece's slot; of a cluster's
  // block to the cluster's first.
  __device__ __forceinline__ void StoreResult(const Piece& piece) {
    using OutElement = typename Config::OutElement;
    constexpr int kQuads = (Config::kHeadDimV + 3) / 4;
    const abi::AttnFwdParams& core = params.core;
    float* const part_o =
        static_cast<float*>(params.parts.o) + i64{piece.slot} * Config::kBlockM * Config::kHeadDimV;
    const bool complete = S::kCluster == 1 && piece.slot < 0;
    const int rows = static_cast<int>(
        Min(Config::kBlockM, piece.problem.seqlen_q * Config::kGroup - piece.first_row));
    for (int index = static_cast<int>(threadIdx.x); index < rows * kQuads; index += S::kThreads) {
      const int row = index / kQuads, column = index % kQuads * 4;
      const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
      Problem problem = piece.problem;
      problem.h = at.h;
      float reference = kNoReference, sum = 0;
#pragma unroll
      for (int t = 0; t < Config::kTeams; ++t) {
        reference = fmaxf(reference, shared.reference[t][row]);
      }
#pragma unroll
      for (int t = 0; t < Config::kTeams; ++t) {
        sum += shared.sum[t][row] * ptx::ex2_approx_ftz(shared.reference[t][row] - reference);
      }
      const SoftmaxEnd end =
          FinishRow(reference, sum, complete ? Config::Sink::Logit(problem, params) : -Infinity());
      const float lse = WithCutOff<Config>(end.lse, kLostPlaces<S::kQSteps / S::kChains>, params);
      float o_scale = end.o_scale;
      if constexpr (!Config::kScalePerToken) {
        o_scale *= Config::ScaleOfKv::OfValue(problem, KvRow{0, 0}, params);
      }
      float value[4] = {};
#pragma unroll
      for (int t = 0; t < Config::kTeams; ++t) {
        const float own = shared.scale[t][row];
        // What a team without keys has left is not looked at.
        if (end.empty || own == kNoReference) continue;
        const float scale = ptx::ex2_approx_ftz(own - reference) * o_scale;
        const Stage<Config>& stage = shared.ring[t][shared.last[t]];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (Config::kHeadDimV % 4 != 0 && column + c >= Config::kHeadDimV) break;
          value[c] = fmaf(stage.o[row][column + c], scale, value[c]);
        }
      }
      if constexpr (S::kCluster > 1) {
        const u32 rank = ptx::cluster_ctarank();
        const auto in_first = [](const float* own) {
          return ptx::mapa(ptx::SharedAddress(own), 0);
        };
        if (column == 0) ptx::st_cluster_f32(in_first(&shared.gathered_lse[rank][row]), lse);
        ptx::st_cluster_v4_f32(in_first(&shared.gathered_o[rank][row][column]), value);
        continue;
      }
      if (column == 0) {
        if (complete) {
          Config::Lse::Store(lse, problem, at.i, params);
        } else {
          params.parts.lse[i64{piece.slot} * kPartLses<Config> + row] = lse;
        }
      }
      if (Config::kHeadDimV % 4 == 0 && !complete) {
        *reinterpret_cast<FourColumns*>(&part_o[row * Config::kHeadDimV + column]) = {
            {value[0], value[1], value[2], value[3]}};
        continue;
      }
      OutElement* o = static_cast<OutElement*>(core.o) + problem.q_batch * core.o_strides.batch +
                      at.h * core.o_strides.head + (problem.q_row + at.i) * core.o_strides.seq;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (column + c >= Config::kHeadDimV) break;
        if (complete) {
          FromFloat(value[c], &o[column + c]);
        } else {
          part_o[row * Config::kHeadDimV + column + c] = value[c];
        }
      }
    }
  }

  // Merges what the cluster's blocks have gathered in this one and writes it, to O and LSE or to
  // the piece's slot.
  __device__ __forceinline__ void StoreGathered(const Piece& piece) {
    using OutElement = typename Config::OutElement;
    constexpr int kQuads = (Config::kHeadDimV + 3) / 4;
    const abi::AttnFwdParams& core = params.core;
    const bool complete = piece.slot < 0;
    const int rows = static_cast<int>(
        Min(Config::kBlockM, piece.problem.seqlen_q * Config::kGroup - piece.first_row));
    for (int index = static_cast<int>(threadIdx.x); index < rows * kQuads; index += S::kThreads) {
      const int row = index / kQuads, column = index % kQuads * 4;
      const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
      Problem problem = piece.problem;
      problem.h = at.h;
      float highest = -Infinity(), sum = 0, value[4] = {};
#pragma unroll
      for (int n = 0; n < S::kCluster; ++n) {
        highest = fmaxf(highest, shared.gathered_lse[n][row]);
      }
      const float reference = SoftmaxReference(highest);
#pragma unroll
      for (int n = 0; n < S::kCluster; ++n) {
        const float weight = Exp(shared.gathered_lse[n][row] - reference);
        sum += weight;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          value[c] = fmaf(weight, shared.gathered_o[n][row][column + c], value[c]);
        }
      }
      const SoftmaxEnd end = FinishSoftmax(
          highest, sum, complete ? Config::Sink::Logit(problem, params) : -Infinity());
      if (column == 0) {
        if (complete) {
          Config::Lse::Store(end.lse, problem, at.i, params);
        } else {
          params.parts.lse[i64{piece.slot} * kPartLses<Config> + row] = end.lse;
        }
      }
      OutElement* o = static_cast<OutElement*>(core.o) + problem.q_batch * core.o_strides.batch +
                      at.h * core.o_strides.head + (problem.q_row + at.i) * core.o_strides.seq;
      float* const part_o = static_cast<float*>(params.parts.o) +
                            (i64{piece.slot} * Config::kBlockM + row) * Config::kHeadDimV;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (column + c >= Config::kHeadDimV) break;
        const float result = end.empty ? 0.f : value[c] * end.o_scale;
        if (complete) {
          FromFloat(result, &o[column + c]);
        } else {
          part_o[column + c] = result;
        }
      }
    }
  }

  // The end of a piece whose teams have deposited their results.
  __device__ __forceinline__ void Finish(const Piece& piece) {
    if constexpr (S::kCluster == 1) {
      StoreResult(piece);
      __syncthreads();  // O becomes a stage again
    } else {
      ptx::barrier_cluster_wait();  // the first block is through with the piece before
      StoreResult(piece);
      __syncwarp();
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
      const bool is_first = ptx::cluster_ctarank() == 0;
      if (is_first) StoreGathered(piece);
      __syncwarp();
      ptx::barrier_cluster_arrive();
      if (!is_first) return;
      if (piece.slot >= 0) __syncthreads();
    }
    if (piece.slot >= 0) MergeIfLast(piece);
  }

  // Merges the parts of the piece's item if no other is still to come.
  __device__ __forceinline__ void MergeIfLast(const Piece& piece) {
    using OutElement = typename Config::OutElement;
    constexpr int kQuads = (Config::kHeadDimV + 3) / 4;
    const abi::AttnFwdParams& core = params.core;
    const PartSlots slots = queue.pieces.walk.SlotsOfItem(piece, params.parts.lines);
    bool is_last = false;
    if (threadIdx.x == 0) {
      float* const word = params.parts.lse + i64{slots.first} * kPartLses<Config> + Config::kBlockM;
      is_last = ArriveLast(reinterpret_cast<u64*>(word), slots.count);
    }
    if (__syncthreads_or(is_last) == 0) return;
    const int rows = static_cast<int>(
        Min(Config::kBlockM, piece.problem.seqlen_q * Config::kGroup - piece.first_row));
    // Two lanes share four columns of a row, each with every other part.
    const int wanted = rows * kQuads * 2;
#pragma unroll 1
    for (int first = 0; first < wanted; first += S::kThreads) {
      const int index = first + static_cast<int>(threadIdx.x);
      const int quad = Min(index, wanted - 1) / 2;
      const int row = quad / kQuads, column = quad % kQuads * 4;
      const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
      Problem problem = piece.problem;
      problem.h = at.h;
      const MergedRow merged = MergeParts<Config>(
          slots, row, column, Config::Sink::Logit(problem, params), params.parts);
      if (index >= wanted || index % 2 != 0) continue;
      if (column == 0) Config::Lse::Store(merged.end.lse, problem, at.i, params);
      OutElement* o = static_cast<OutElement*>(core.o) + problem.q_batch * core.o_strides.batch +
                      at.h * core.o_strides.head + (problem.q_row + at.i) * core.o_strides.seq;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (column + c >= Config::kHeadDimV) break;
        FromFloat(merged.end.empty ? 0.f : merged.value[c] * merged.end.o_scale, &o[column + c]);
      }
    }
  }

  // Steps and the ends of pieces in one loop, so that the code of copies is there once.
  __device__ __forceinline__ void Run() {
    const OpenPiece* open = nullptr;
    int key = 0, end = 0;
    float scale = 0, to_log2 = 0;
    bool merged = true;  // no step since all teams have met
    if constexpr (S::kCluster > 1) ptx::barrier_cluster_arrive();
#pragma unroll 1
    while (true) {
      const bool computes = key < end;
      if (computes && !merged) {
        WaitForStep();
        Sync();
      }
      // Until a step has been waited for, or where there is none, the stage that was used last may
      // hold O.
      Fill(done + Config::kStages - (computes ? 0 : 1));
      if (computes) {
        if (merged) {
          WaitForStep();
          Sync();
        }
        merged = false;
        const bool skips = S::kOnePage && !Config::KvRows::kIsDense && missing >> (done & 31) & 1;
        if (!skips) Step(*open, key, scale, to_log2);
        ++done;
        key += S::kTeamsOfPiece * S::kStep;
        continue;
      }
      if (open != nullptr) {
        Deposit();
        __syncthreads();
        Finish(open->piece);
        __syncwarp();  // the piece's place may be taken
        ++queue.left;
        merged = true;
      }
      // Fill enters pieces as long as there are any.
      if (queue.left == queue.entered) break;
      open = &queue.At(queue.left);
      Open(*open);
      key = open->first_key;
      end = open->piece.kv_end;
      scale = params.core.scale;
      if constexpr (!Config::kScalePerToken) {
        scale *= Config::ScaleOfKv::OfKey(open->piece.problem, KvRow{0, 0}, params);
      }
      to_log2 = Config::Score::kIdentity ? scale * kLog2OfE : kLog2OfE;
    }
    // The first block's memory is stored to until all have.
    if constexpr (S::kCluster > 1) ptx::barrier_cluster_wait();
  }
};

// Asks L2 for what finding the first keys will read: lengths, and pages of the sequence that the
// block would begin in if all had the most keys.
template <class Config, class Params>
__device__ __forceinline__ void PrefetchLengths(const Params& params) {
  const int thread = static_cast<int>(threadIdx.x);
  const i64 batch = Batch<Config>(params);
  using Lengths = typename Config::Lengths;
  if constexpr (kIsSame<Lengths, LengthsVarlen>) {
    constexpr int kWords = ptx::kL2LineBytes / 4;
    const abi::VarlenArgs& varlen = params.varlen;
    if (i64{thread} * kWords < batch) {
      const i32* const arrays[] = {varlen.cu_seqlens_q, varlen.cu_seqlens_kv, varlen.seqused_q,
                                   varlen.seqused_kv};
#pragma unroll
      for (const i32* array : arrays) {
        if (array != nullptr) ptx::prefetch_global_l2(array + thread * kWords);
      }
    }
  }
  // Which row of the table is that of a sequence must not take memory to know.
  if constexpr (!Config::KvRows::kIsDense &&
                (kIsSame<Lengths, LengthsVarlen> || kSequencesAreAlike<Config>)) {
    const abi::PartsArgs& parts = params.parts;
    const i64 keys = SeqlenKv<Config>(params);
    if (keys <= 0 || batch <= 0) return;
    // Divisions of 32 bits, for the 64-bit ones take longer than what this saves; a place that
    // overflows is one that nothing is asked for.
    const bool is_split = parts.parts > 1;
    const u32 block = is_split ? blockIdx.x / static_cast<u32>(parts.lines) : blockIdx.x;
    const u32 blocks = is_split ? static_cast<u32>(parts.line_blocks) : gridDim.x;
    const u32 items = is_split ? static_cast<u32>(batch * parts.line_heads) : gridDim.x;
    const u32 item = block * items / blocks;
    const u32 b = item * static_cast<u32>(batch) / items;
    const i64 share = static_cast<u32>(keys) / blocks;
    const i64 key = (block * items - item * blocks) * share + i64{thread} * Config::kStepKeys;
    Problem problem = {};
    problem.b = problem.kv_batch = b;
    if (block < blocks && b < batch && key < keys) {
      ptx::prefetch_global_l2(Config::KvRows::TableOf(problem, params) + key / Config::kPageRows);
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::Dropout::kIdentity);
  static_assert(Config::kBlockM == 8 * Config::kRowTiles * Config::kRowWarps);
  static_assert(Config::kBlockN == Config::kTeams * Config::kStepKeys);
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStages >= 2 && Config::kTeams <= 15);
  static_assert(Config::Mask::kIsInterval || Config::kRowWarps == 1);
  extern __shared__ __align__(128) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  if constexpr (!Warp<Config, Params>::kStartsEarly) {
    PrefetchLengths<Config>(params);
    ptx::griddepcontrol_wait();
  }
  Warp<Config, Params>(shared, params).Run();
}

}  // namespace decode
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_CUH_

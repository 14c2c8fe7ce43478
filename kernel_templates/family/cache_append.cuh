// Writes the keys and values of new tokens into a cache, contiguous or paged, after a rotary
// embedding and a change of type if wanted; rotates their queries too.
//
// Work      A tile is some tokens (tile_tokens, at most kTokens: few where there are few) with all
//           their rows: kHeadsQ of Q, kHeadsKv of K and of V. A token is shared by kShare groups of
//           kLanes lanes of a warp; a group has whole rows, a lane units of two chunks of kVec
//           elements of each. Pairs of an embedding are in one unit, so that a lane rotates all its
//           rows by the same few angles, which it keeps in registers.
// Steps     Where the tokens go (one thread a token), the sines and cosines of their positions (a
//           pair each), then the rows; those that are rotated are loaded a step ahead.
// Wide      Chunks of 16 bytes of new rows where every row of every tensor starts on a multiple of
//           a chunk; else element by element.
// In place  Q may be rotated where it lies: a lane reads what it writes, and no other does.
// Lengths   Written by the last block to end where they take the place of what all blocks read:
//           `ticket` counts the blocks and is 0 again afterwards.
// Barriers  Two a tile: before the tokens of the tile before are overwritten, and around them and
//           their sines.
// Shared    tokens [kTokens], cos and sin [kTokens][pairs] fp32
#ifndef TILEWRIGHT_FAMILY_CACHE_APPEND_CUH_
#define TILEWRIGHT_FAMILY_CACHE_APPEND_CUH_

#include "abi/cache_append_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/types.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "policy/rotary.cuh"
#ifdef __CUDACC__
#include "ptx/convert.cuh"
#include "ptx/mma_sync.cuh"
#endif

namespace tilewright {
namespace cache_append {

// The largest value that is stored of an 8-bit type.
template <class Element>
inline constexpr float kLargest = 0;
template <>
inline constexpr float kLargest<Fp8E4m3> = 448;
template <>
inline constexpr float kLargest<Fp8E5m2> = 57344;
template <>
inline constexpr float kLargest<Int8> = 127;

// Rows of a token: an index of its arrays.
enum Kind { kQ, kK, kV };

// A new token and its place in the cache.
struct Token {
  const void* from[3];  // its rows of head 0, by kind
  void* to[3];
  i64 block;  // slot or page
  i64 block_row;
  i32 position;
  bool exists;
  bool stored;  // the cache has a place for it
};

template <class Config>
struct Shape {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kHalf = Config::kRotaryDim / 2;
  static constexpr bool kRotates = Config::kHalfSplit || Config::kInterleaved;
  // A cosine and a sine for each pair.
  static constexpr int kAngles = RoundUp(kHalf == 0 ? 1 : kHalf, 4);
  static constexpr int kRows = Config::kHeadsQ + Config::kHeadsKv * (Config::kDimV > 0 ? 2 : 1);
  static constexpr int kDim = Config::kDimQk > Config::kDimV ? Config::kDimQk : Config::kDimV;
};

template <class Config>
struct SharedStorage {
  alignas(16) float cos[Config::kTokens][Shape<Config>::kAngles];
  alignas(16) float sin[Config::kTokens][Shape<Config>::kAngles];
  Token tokens[Config::kTokens];
  i32 is_last;
  i32 padding[3];
};

// Lanes of a warp that share a row of so many chunks.
TILEWRIGHT_HOST_DEVICE constexpr int LanesFor(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < 32) lanes *= 2;
  return lanes;
}

// The largest power of two that is neither above `wanted` nor above `most`; at least 1.
TILEWRIGHT_HOST_DEVICE constexpr int PowerOfTwoUpTo(int wanted, int most) {
  int power = 1;
  while (2 * power <= wanted && 2 * power <= most) power *= 2;
  return power;
}

template <class Params>
__device__ __forceinline__ i64 NewTokensOf(i64 b, const Params& params) {
  const abi::CacheAppendParams& core = params.core;
  i64 count =
      core.cu_seqlens != nullptr ? core.cu_seqlens[b + 1] - core.cu_seqlens[b] : core.seqlen;
  if (core.seqused != nullptr) count = Min(count, core.seqused[b]);
  return count;
}

// Row `row` of head 0 of a batch, slot or page.
template <class Element>
__device__ __forceinline__ Element* RowOf(Element* base, const abi::TensorStrides& strides,
                                          i64 batch, i64 row) {
  return base + batch * strides.batch + row * strides.seq;
}

template <class Config, class Params>
__device__ __forceinline__ Token FindToken(i64 token, const Params& params) {
  const abi::CacheAppendParams& core = params.core;
  Token found = {};
  i64 b, i, batch = 0, row = token;  // of the new tensors
  if (core.cu_seqlens != nullptr) {
    if (token >= core.cu_seqlens[core.batch]) return found;
    // The first sequence that ends behind the token.
    i64 low = 0, high = core.batch - 1;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (core.cu_seqlens[middle + 1] > token) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    b = low;
    i = token - core.cu_seqlens[b];
  } else {
    b = Quotient(token, core.seqlen);
    i = token - b * core.seqlen;
    batch = b;
    row = i;
  }
  found.exists = core.seqused == nullptr || i < core.seqused[b];
  if (!found.exists) return found;
  using Element = typename Config::Element;
  using CacheElement = typename Config::CacheElement;
  found.from[kQ] = RowOf(static_cast<const Element*>(core.q), core.q_strides, batch, row);
  found.from[kK] = RowOf(static_cast<const Element*>(core.k), core.k_strides, batch, row);
  found.from[kV] = RowOf(static_cast<const Element*>(core.v), core.v_strides, batch, row);
  found.to[kQ] = RowOf(static_cast<Element*>(core.q_out), core.q_out_strides, batch, row);
  const i64 j = i + (core.lengths != nullptr ? core.lengths[b] : 0);
  found.position = core.positions != nullptr ? core.positions[token] : static_cast<i32>(j);
  const i64 slot = core.cache_batch_idx != nullptr ? core.cache_batch_idx[b] : b;
  found.stored = j < core.capacity;
  found.block = slot;
  found.block_row = j;
  if constexpr (Config::kPageRows != 0) {
    if (!found.stored) return found;
    found.block = core.page_table[slot * core.page_table_stride + j / Config::kPageRows];
    found.block_row = j % Config::kPageRows;
    found.stored = found.block >= 0;
  }
  found.to[kK] = RowOf(static_cast<CacheElement*>(core.k_cache), core.k_cache_strides, found.block,
                       found.block_row);
  found.to[kV] = RowOf(static_cast<CacheElement*>(core.v_cache), core.v_cache_strides, found.block,
                       found.block_row);
  return found;
}

template <class Config, class Params>
__device__ __forceinline__ SinCos SinCosAt(i64 position, int pair, const Params& params) {
  if constexpr (Config::kRotaryTable) {
    using Element = typename Config::TableElement;
    const i64 at = position * params.core.table_stride + pair;
    return {static_cast<float>(static_cast<const Element*>(params.core.sin)[at]),
            static_cast<float>(static_cast<const Element*>(params.core.cos)[at])};
  } else {
    return SinCosOfTurns(static_cast<u64>(position) * params.frequencies[pair]);
  }
}

template <class Element, int kVec>
struct PackedAs {
  using Type = Words<kVec* static_cast<int>(sizeof(Element))>;
};
template <class Element>
struct PackedAs<Element, 1> {
  using Type = Element;
};

// Elements of a row that a thread has at a time.
template <class Element, int kVec>
struct Chunk {
  static constexpr int kBytes = kVec * static_cast<int>(sizeof(Element));
  // What is loaded and stored at a time.
  using Packed = typename PackedAs<Element, kVec>::Type;
  Element element[kVec];

  __device__ __forceinline__ void Store(Element* to) const {
    *reinterpret_cast<Packed*>(to) = __builtin_bit_cast(Packed, *this);
  }
};

// kCount neighbours, the first a multiple of the size of all or of 16 bytes.
template <int kCount>
__device__ __forceinline__ void LoadFloats(const float* from, float (&to)[kCount]) {
  constexpr int kTogether = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int n = 0; n < kCount; n += kTogether) {
    const auto words = *reinterpret_cast<const Words<4 * kTogether>*>(from + n);
#pragma unroll
    for (int w = 0; w < kTogether; ++w) to[n + w] = FloatOfBits(words.word[w]);
  }
}

template <class Element>
inline constexpr bool kIsHalf = kIsSame<Element, Bf16> || kIsSame<Element, Fp16>;
template <class Element>
inline constexpr bool kIsFp8 = kIsSame<Element, Fp8E4m3> || kIsSame<Element, Fp8E5m2>;

#ifdef __CUDACC__
// Whether there are instructions that narrow two values at a time.
template <class Element, int kVec>
inline constexpr bool kNarrowsPairs = kVec % 4 == 0 && ((kIsHalf<Element> && ptx::kHasCvtBf16) ||
                                                        (kIsFp8<Element> && ptx::kHasCvtFp8));

template <class Element, int kVec>
__device__ __forceinline__ Chunk<Element, kVec> NarrowPairs(const float (&value)[kVec],
                                                            float factor) {
  Words<kVec* static_cast<int>(sizeof(Element))> words = {};
#pragma unroll
  for (int n = 0; n < kVec; n += 2) {
    const float low = value[n] * factor, high = value[n + 1] * factor;
    if constexpr (kIsHalf<Element>) {
      words.word[n / 2] = ptx::cvt_rn_x2_f32(high, low, Element{});
    } else {
      const u32 pair = kIsSame<Element, Fp8E4m3> ? ptx::cvt_rn_satfinite_e4m3x2_f32(high, low)
                                                 : ptx::cvt_rn_satfinite_e5m2x2_f32(high, low);
      words.word[n / 4] |= pair << (n % 4 * 8);
    }
  }
  return __builtin_bit_cast(Chunk<Element, kVec>, words);
}
#else
template <class Element, int kVec>
inline constexpr bool kNarrowsPairs = false;
template <class Element, int kVec>
Chunk<Element, kVec> NarrowPairs(const float (&value)[kVec], float factor);
#endif

// value * factor in the type of an output.
template <class Element, int kVec>
__device__ __forceinline__ Chunk<Element, kVec> Narrowed(const float (&value)[kVec], float factor) {
  if constexpr (kNarrowsPairs<Element, kVec>) {
    return NarrowPairs<Element>(value, factor);
  } else {
    Chunk<Element, kVec> out;
#pragma unroll
    for (int n = 0; n < kVec; ++n) FromFloat(value[n] * factor, &out.element[n]);
    return out;
  }
}

// The rows of a tile, kVec elements at a time.
template <class Config, class Params, int kVec>
struct Rows {
  using S = Shape<Config>;
  using Element = typename Config::Element;
  using CacheElement = typename Config::CacheElement;
  using NewChunk = Chunk<Element, kVec>;

  // A unit is two chunks of a row, so that what is rotated with an element of one is in the other
  // or in the same: units of rotated chunks first, then the others.
  static constexpr int kChunksOfRow = (S::kDim + kVec - 1) / kVec;
  static constexpr int kRotatedUnits = S::kRotates ? S::kHalf / kVec : 0;
  static constexpr int kFirstRotated = S::kRotates ? Config::kRotaryBegin / kVec : 0;
  static constexpr int kOtherChunks = kChunksOfRow - 2 * kRotatedUnits;
  static constexpr int kOtherUnits = (kOtherChunks + 1) / 2;
  static constexpr int kUnitsOfRow = kRotatedUnits + kOtherUnits;
  static constexpr int kLanes = LanesFor(kUnitsOfRow);
  static constexpr int kUnits = (kUnitsOfRow + kLanes - 1) / kLanes;  // of a lane
  static constexpr int kGroups = S::kThreads / kLanes;
  // Columns that lie apart in the chunk they are in: pairs of an interleaved embedding.
  static constexpr bool kPairsInChunk = Config::kInterleaved && kVec > 1;

  // Groups that share a token: each has two rows of Q, or of K and V, if there are so many.
  static constexpr int kRowsQ = Config::kHeadsQ, kRowsKv = S::kRows - Config::kHeadsQ;
  static constexpr int kShare = PowerOfTwoUpTo((kRowsQ > kRowsKv ? kRowsQ : kRowsKv) / 2, kGroups);
  // Rows in flight of a lane, as registers allow.
  static constexpr int kMost = kVec > 1 && kUnits == 1 ? 2 : 1;
  static constexpr int kTogetherQ = kRowsQ > kShare ? kMost : 1;
  static constexpr int kTogetherKv = kRowsKv > kShare ? kMost : 1;

  // As they were loaded: as elements they would take a register each.
  using Loaded = typename NewChunk::Packed;
  struct Row {
    bool active;
    int head;
    Loaded x[kUnits][2];
  };
  using Values = float[kUnits][2][kVec];
  // Of a lane's rotated units: the angle of element e of the first chunk, or of pair e of both.
  struct Angles {
    float cos[kUnits][kVec];
    float sin[kUnits][kVec];
  };

  SharedStorage<Config>& shared;
  const Params& params;
  const int tokens;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;

  __device__ __forceinline__ int UnitOf(int n) const { return n * kLanes + lane; }
  // First column of a chunk of the lane's unit n; kNoColumn where there is none.
  static constexpr int kNoColumn = 1 << 30;
  __device__ __forceinline__ int ColumnOf(int n, int chunk) const {
    const int unit = UnitOf(n);
    if (unit < kRotatedUnits) {
      const int apart =
          Config::kInterleaved && kVec == 1 ? 2 * unit + chunk : unit + chunk * kRotatedUnits;
      return (kFirstRotated + apart) * kVec;
    }
    const int other = unit - kRotatedUnits + chunk * kOtherUnits;
    if (unit >= kUnitsOfRow || other >= kOtherChunks) return kNoColumn;
    return (other < kFirstRotated ? other : other + 2 * kRotatedUnits) * kVec;
  }
  template <Kind kKind>
  static constexpr int kDimOf = kKind == kV ? Config::kDimV : Config::kDimQk;
  // Whether the rows go to the cache as they are.
  template <Kind kKind>
  static constexpr bool kCopies = kIsSame<Element, CacheElement> && (!S::kRotates || kKind == kV);

  template <Kind kKind>
  __device__ __forceinline__ Row Load(const Token& token, int head, bool exists,
                                      const abi::TensorStrides& strides) const {
    Row row = {};
    row.head = head;
    row.active = exists && (kKind == kQ || token.stored);
    if (!row.active) return row;
    const Element* const from =
        static_cast<const Element*>(token.from[kKind]) + head * strides.head;
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int column = ColumnOf(n, chunk);
        if (column < kDimOf<kKind>)
          row.x[n][chunk] = *reinterpret_cast<const Loaded*>(from + column);
      }
    }
    return row;
  }

  __device__ __forceinline__ void LoadAngles(int token, Angles& angles) const {
    const float* const cosines = shared.cos[token];
    const float* const sines = shared.sin[token];
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      const int unit = UnitOf(n);
      if (unit >= kRotatedUnits) continue;
      if constexpr (kPairsInChunk) {
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          constexpr int kPairs = kVec / 2;
          float cos[kPairs], sin[kPairs];
          const int first = (unit + chunk * kRotatedUnits) * kPairs;
          LoadFloats(cosines + first, cos);
          LoadFloats(sines + first, sin);
#pragma unroll
          for (int e = 0; e < kPairs; ++e) {
            angles.cos[n][chunk * kPairs + e] = cos[e];
            angles.sin[n][chunk * kPairs + e] = sin[e];
          }
        }
      } else {
        LoadFloats(cosines + unit * kVec, angles.cos[n]);
        LoadFloats(sines + unit * kVec, angles.sin[n]);
      }
    }
  }

  // (x, y) turned by an angle.
  __device__ __forceinline__ static void Turn(float& x, float& y, float cos, float sin) {
    const float before = x;
    x = fmaf(-y, sin, x * cos);
    y = fmaf(before, sin, y * cos);
  }
  __device__ __forceinline__ void Rotate(Values& value, const Angles& angles) const {
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      if (UnitOf(n) >= kRotatedUnits) continue;
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if constexpr (kPairsInChunk) {
          constexpr int kPairs = kVec / 2;
          float(&pairs)[kVec] = value[n][e / kPairs];
          Turn(pairs[e % kPairs * 2], pairs[e % kPairs * 2 + 1], angles.cos[n][e],
               angles.sin[n][e]);
        } else {
          Turn(value[n][0][e], value[n][1][e], angles.cos[n][e], angles.sin[n][e]);
        }
      }
    }
  }

  // What the values of a row of K or V are multiplied with before they are stored. All lanes call
  // it, whatever their rows.
  template <Kind kKind>
  __device__ __forceinline__ float StoredFactor(const Row& row, const Token& token,
                                                const Values& value) const {
    if constexpr (Config::kScaled && kKind != kQ) {
      const abi::StoredScaleArgs& args = kKind == kV ? params.core.v_scale : params.core.k_scale;
      float* const scale = args.scale + token.block * args.stride_batch +
                           token.block_row * args.stride_seq + row.head * args.stride_head;
      if constexpr (Config::kScalePerToken) {
        const float largest = LargestOfRow(value);
        // So small that the factor would overflow: the row is one of zeros.
        const bool vanishes = largest <= 1e-30f;
        if (row.active && lane == 0) *scale = vanishes ? 0.f : largest / kLargest<CacheElement>;
        return vanishes ? 0.f : kLargest<CacheElement> / largest;
      } else {
        return row.active ? 1 / *scale : 1;
      }
    } else {
      return 1;
    }
  }

  // The largest magnitude of the lanes that share a row; NaN is above all others. Other lanes of
  // the warp may have rows of another kind and be elsewhere.
  __device__ __forceinline__ static float LargestOfRow(const Values& value) {
    u32 largest = 0;  // as bits
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int e = 0; e < 2 * kVec; ++e) {
        const u32 magnitude = BitsOfFloat(value[n][e / kVec][e % kVec]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
    }
    const u32 lanes = (kAllLanes >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      const u32 other = __shfl_xor_sync(lanes, largest, distance);
      largest = other > largest ? other : largest;
    }
    return FloatOfBits(largest);
  }

  template <Kind kKind, class Out>
  __device__ __forceinline__ void Finish(const Row& row, const Token& token, const Angles& angles,
                                         const abi::TensorStrides& strides) const {
    Out* const to = static_cast<Out*>(token.to[kKind]) + row.head * strides.head;
    Values value;
    float factor = 1;
    if constexpr (!kCopies<kKind>) {
#pragma unroll
      for (int n = 0; n < kUnits; ++n) {
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          const NewChunk elements = __builtin_bit_cast(NewChunk, row.x[n][chunk]);
#pragma unroll
          for (int e = 0; e < kVec; ++e) {
            value[n][chunk][e] = static_cast<float>(elements.element[e]);
          }
        }
      }
      if constexpr (S::kRotates && kKind != kV) Rotate(value, angles);
      factor = StoredFactor<kKind>(row, token, value);
    }
    if (!row.active) return;
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int column = ColumnOf(n, chunk);
        if (column >= kDimOf<kKind>) continue;
        if constexpr (kCopies<kKind>) {
          *reinterpret_cast<Loaded*>(to + column) = row.x[n][chunk];
        } else {
          Narrowed<Out>(value[n][chunk], factor).Store(to + column);
        }
      }
    }
  }

  // Rows of K, then of V.
  __device__ __forceinline__ Row LoadKv(const Token& token, int row, bool exists) const {
    const abi::CacheAppendParams& core = params.core;
    exists = exists && row < kRowsKv;
    if (Config::kDimV == 0 || row < Config::kHeadsKv) {
      return Load<kK>(token, row, exists, core.k_strides);
    }
    return Load<kV>(token, row - Config::kHeadsKv, exists, core.v_strides);
  }

  // A group's rows of a token are the work of kRounds steps.
  static constexpr int kRoundsQ = (kRowsQ + kShare * kTogetherQ - 1) / (kShare * kTogetherQ);
  static constexpr int kRoundsKv = (kRowsKv + kShare * kTogetherKv - 1) / (kShare * kTogetherKv);
  static constexpr int kRounds = kRoundsQ > kRoundsKv ? kRoundsQ : kRoundsKv;
  static constexpr int kTokensOfStep = kGroups / kShare;
  static constexpr int kStepRowsQ = kRowsQ > 0 ? kTogetherQ : 0;
  static constexpr int kStepRowsKv = kRowsKv > 0 ? kTogetherKv : 0;

  struct Step {
    Row q[kStepRowsQ > 0 ? kStepRowsQ : 1];
    Row kv[kStepRowsKv > 0 ? kStepRowsKv : 1];
  };
  // The group's token and its first row in a step.
  __device__ __forceinline__ int TokenOf(int step) const {
    return step / kRounds * kTokensOfStep + group / kShare;
  }
  __device__ __forceinline__ static int RowOf(int step, int row, int together, int member) {
    return (step % kRounds * together + row) * kShare + member;
  }

  __device__ __forceinline__ void LoadStep(int step, Step& rows) const {
    const abi::CacheAppendParams& core = params.core;
    const int at = TokenOf(step), member = group % kShare;
    const Token& token = shared.tokens[at < tokens ? at : 0];
    const bool exists = at < tokens && token.exists;
#pragma unroll
    for (int n = 0; n < kStepRowsQ; ++n) {
      const int head = RowOf(step, n, kTogetherQ, member);
      rows.q[n] = Load<kQ>(token, head, exists && head < kRowsQ, core.q_strides);
    }
#pragma unroll
    for (int n = 0; n < kStepRowsKv; ++n) {
      rows.kv[n] = LoadKv(token, RowOf(step, n, kTogetherKv, member), exists);
    }
  }

  __device__ __forceinline__ void FinishStep(int step, const Step& rows) const {
    const abi::CacheAppendParams& core = params.core;
    const int at = TokenOf(step), member = group % kShare;
    const Token& token = shared.tokens[at < tokens ? at : 0];
    Angles angles = {};
    if (S::kRotates && at < tokens && token.exists) LoadAngles(at, angles);
#pragma unroll
    for (int n = 0; n < kStepRowsQ; ++n) {
      Finish<kQ, Element>(rows.q[n], token, angles, core.q_out_strides);
    }
#pragma unroll
    for (int n = 0; n < kStepRowsKv; ++n) {
      if (Config::kDimV == 0 || RowOf(step, n, kTogetherKv, member) < Config::kHeadsKv) {
        Finish<kK, CacheElement>(rows.kv[n], token, angles, core.k_cache_strides);
      } else {
        Finish<kV, CacheElement>(rows.kv[n], token, angles, core.v_cache_strides);
      }
    }
  }

  // `find_angles` makes the angles of the tile's tokens known to the block: while the first rows
  // are on their way. Rows that are rotated are loaded ahead.
  template <class FindAngles>
  __device__ __forceinline__ void WriteTile(const FindAngles& find_angles) const {
    Step rows;
    LoadStep(0, rows);
    find_angles();
    const int steps = (tokens + kTokensOfStep - 1) / kTokensOfStep * kRounds;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if constexpr (S::kRotates) {
        Step next;
        LoadStep(step + 1, next);
        FinishStep(step, rows);
        rows = next;
      } else {
        FinishStep(step, rows);
        LoadStep(step + 1, rows);
      }
    }
  }
};

// How many tokens the cache holds of each sequence, afterwards: by the blocks from `block` on with
// the stride `blocks`.
template <class Config, class Params>
__device__ __forceinline__ void WriteLengths(i64 block, i64 blocks, const Params& params) {
  const abi::CacheAppendParams& core = params.core;
  constexpr int kThreads = Shape<Config>::kThreads;
  for (i64 b = block * kThreads + threadIdx.x; b < core.batch; b += blocks * kThreads) {
    const i64 before = core.lengths != nullptr ? core.lengths[b] : 0;
    core.new_lengths[b] =
        static_cast<i32>(Max(before, Min(before + NewTokensOf(b, params), core.capacity)));
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  using S = Shape<Config>;
  // Elements of a chunk: of 16 bytes of new rows, or of less where chunks would be rotated in part.
  constexpr int kVec =
      AlignmentOf(Config::kDimQk | Config::kDimV | Config::kRotaryBegin | S::kHalf |
                  16 / static_cast<int>(sizeof(typename Config::Element)));
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const abi::CacheAppendParams& core = params.core;
  const int thread = static_cast<int>(threadIdx.x);
  const int tile_tokens = core.tile_tokens;
  for (i64 first = i64{blockIdx.x} * tile_tokens; first < core.tokens;
       first += i64{gridDim.x} * tile_tokens) {
    const int tokens = static_cast<int>(Min(tile_tokens, core.tokens - first));
    __syncthreads();
    if (thread < tokens) shared.tokens[thread] = FindToken<Config>(first + thread, params);
    __syncthreads();
    const auto find_angles = [&] {
      if constexpr (S::kRotates) {
        for (int at = thread; at < tokens * S::kHalf; at += S::kThreads) {
          const int token = at / S::kHalf, pair = at % S::kHalf;
          if (!shared.tokens[token].exists) continue;
          const SinCos both = SinCosAt<Config>(shared.tokens[token].position, pair, params);
          shared.sin[token][pair] = both.sin;
          shared.cos[token][pair] = both.cos;
        }
        __syncthreads();
      }
    };
    if (kVec > 1 && core.wide != 0) {
      Rows<Config, Params, kVec>{shared, params, tokens}.WriteTile(find_angles);
    } else {
      Rows<Config, Params, 1>{shared, params, tokens}.WriteTile(find_angles);
    }
  }
  if (core.new_lengths == nullptr) return;
  if (core.new_lengths != core.lengths) {
    WriteLengths<Config>(blockIdx.x, gridDim.x, params);
    return;
  }
  __syncthreads();  // the block has read all lengths that it will read
  if (thread == 0) {
    __threadfence();
    shared.is_last = atomicAdd(core.ticket, 1) + 1 == static_cast<i32>(gridDim.x);
  }
  __syncthreads();
  if (shared.is_last == 0) return;
  WriteLengths<Config>(0, 1, params);
  if (thread == 0) *core.ticket = 0;
}

}  // namespace cache_append
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_CACHE_APPEND_CUH_

// Writes the keys and values of new tokens into a cache, contiguous or paged, after a rotary
// embedding and a change of type if wanted; rotates their queries too.
//
// Work      A tile is some tokens (tile_tokens, at most kTokens: few where there are few) with all
//           their rows: kHeadsQ of Q, kHeadsKv of K and of V. A row is the work of kLanes lanes of
//           a warp, a lane has chunks of kVec elements.
// Steps     Where the tokens go (one thread a token), the sines and cosines of their positions (a
//           pair each), then the rows: kUnroll of them are loaded before any is stored.
// Wide      Chunks of 16 bytes of new rows where every row of every tensor starts on a multiple of
//           a chunk; else element by element.
// In place  Q may be rotated where it lies: a row is read by one warp, and before it is written.
// Lengths   Written by the last block to end where they take the place of what all blocks read:
//           `ticket` counts the blocks and is 0 again afterwards.
// Barriers  Two a tile: before the tokens of the tile before are overwritten, and around them and
//           their sines.
// Shared    tokens [kTokens], cos and sin [kTokens][pairs, or rotated columns] fp32
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
  // A cosine and a sine for each column (half split: the sine of the first of a pair is negative)
  // or for each pair.
  static constexpr int kAngles = RoundUp(kHalf == 0           ? 1
                                         : Config::kHalfSplit ? 2 * kHalf
                                                              : kHalf,
                                         4);
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

// Elements of a row that a thread has at a time.
template <class Element, int kVec>
struct Chunk {
  static constexpr int kBytes = kVec * static_cast<int>(sizeof(Element));
  Element element[kVec];

  __device__ __forceinline__ static Chunk Load(const Element* from) {
    if constexpr (kVec == 1) {
      return {{*from}};
    } else {
      return __builtin_bit_cast(Chunk, *reinterpret_cast<const Words<kBytes>*>(from));
    }
  }
  __device__ __forceinline__ void Store(Element* to) const {
    if constexpr (kVec == 1) {
      *to = element[0];
    } else {
      *reinterpret_cast<Words<kBytes>*>(to) = __builtin_bit_cast(Words<kBytes>, *this);
    }
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
  static constexpr int kChunksOfRow = (S::kDim + kVec - 1) / kVec;
  static constexpr int kLanes = LanesFor(kChunksOfRow);
  static constexpr int kChunks = (kChunksOfRow + kLanes - 1) / kLanes;  // of a lane
  static constexpr int kGroups = S::kThreads / kLanes;
  // Rows in flight, as registers allow.
  static constexpr int kUnroll = kVec > 1 && kChunks == 1 ? 2 : 1;
  static constexpr bool kHalfSplit = Config::kHalfSplit;
  // What an element is rotated with is not in its chunk.
  static constexpr bool kPartnersApart = S::kRotates && (kHalfSplit || kVec == 1);
  // A chunk is rotated as a whole or not at all, its partners are a chunk.
  static constexpr bool kWholeChunks = kVec > 1 && Config::kRotaryBegin % kVec == 0 &&
                                       (kHalfSplit ? S::kHalf : Config::kRotaryDim) % kVec == 0;

  struct Row {
    Kind kind;
    int head;
    int token;
    bool active;
    NewChunk x[kChunks];
    NewChunk partner[kPartnersApart ? kChunks : 1];
  };

  SharedStorage<Config>& shared;
  const Params& params;
  const int tile_rows;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;

  // Column of the lane's chunk n.
  __device__ __forceinline__ int ColumnOf(int n) const { return (n * kLanes + lane) * kVec; }
  __device__ __forceinline__ static bool Exists(const Row& row, int column) {
    return row.active && column < (row.kind == kV ? Config::kDimV : Config::kDimQk);
  }
  __device__ __forceinline__ static bool IsRotated(const Row& row, int column) {
    return S::kRotates && row.kind != kV && column >= Config::kRotaryBegin &&
           column < Config::kRotaryBegin + Config::kRotaryDim;
  }
  __device__ __forceinline__ static bool InFirstHalf(int column) {
    return column < Config::kRotaryBegin + S::kHalf;
  }
  __device__ __forceinline__ static int PartnerOf(int column) {
    if (kHalfSplit) return InFirstHalf(column) ? column + S::kHalf : column - S::kHalf;
    return Config::kRotaryBegin + ((column - Config::kRotaryBegin) ^ 1);
  }
  __device__ __forceinline__ static int AngleOf(int column) {
    const int e = column - Config::kRotaryBegin;
    return kHalfSplit ? e : e / 2;
  }
  // Whether the row goes to the cache as it is.
  __device__ __forceinline__ static bool IsCopied(const Row& row) {
    return kIsSame<Element, CacheElement> && (!S::kRotates || row.kind == kV);
  }

  __device__ __forceinline__ Row Load(int index) const {
    const abi::CacheAppendParams& core = params.core;
    Row row = {};
    if (index >= tile_rows) return row;
    row.token = index / S::kRows;
    const int of_token = index % S::kRows;
    const Token& token = shared.tokens[row.token];
    i64 stride;
    if (of_token < Config::kHeadsQ) {
      row.kind = kQ;
      row.head = of_token;
      stride = core.q_strides.head;
    } else if (of_token < Config::kHeadsQ + Config::kHeadsKv) {
      row.kind = kK;
      row.head = of_token - Config::kHeadsQ;
      stride = core.k_strides.head;
    } else {
      row.kind = kV;
      row.head = of_token - Config::kHeadsQ - Config::kHeadsKv;
      stride = core.v_strides.head;
    }
    row.active = row.kind == kQ ? token.exists : token.stored;
    const Element* const from =
        static_cast<const Element*>(token.from[row.kind]) + row.head * stride;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int column = ColumnOf(n);
      if (!Exists(row, column)) continue;
      row.x[n] = NewChunk::Load(from + column);
      if constexpr (kPartnersApart) {
        if constexpr (kWholeChunks) {
          if (IsRotated(row, column)) row.partner[n] = NewChunk::Load(from + PartnerOf(column));
        } else {
#pragma unroll
          for (int e = 0; e < kVec; ++e) {
            if (IsRotated(row, column + e)) {
              row.partner[n].element[e] = from[PartnerOf(column + e)];
            }
          }
        }
      }
    }
    return row;
  }

  __device__ __forceinline__ void Rotate(const Row& row, int n, float (&value)[kVec]) const {
    const int column = ColumnOf(n);
    const float* const cosines = shared.cos[row.token];
    const float* const sines = shared.sin[row.token];
    if constexpr (kWholeChunks) {
      if (!IsRotated(row, column)) return;
      constexpr int kAnglesOfChunk = kHalfSplit ? kVec : kVec / 2;
      float sin[kAnglesOfChunk], cos[kAnglesOfChunk];
      LoadFloats(cosines + AngleOf(column), cos);
      LoadFloats(sines + AngleOf(column), sin);
      if constexpr (kHalfSplit) {
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          value[e] = fmaf(static_cast<float>(row.partner[n].element[e]), sin[e], value[e] * cos[e]);
        }
      } else {
#pragma unroll
        for (int e = 0; e < kVec; e += 2) {
          const float first = value[e], second = value[e + 1];
          value[e] = fmaf(-second, sin[e / 2], first * cos[e / 2]);
          value[e + 1] = fmaf(first, sin[e / 2], second * cos[e / 2]);
        }
      }
    } else {
      float before[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) before[e] = value[e];
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const int own = column + e;
        if (!IsRotated(row, own)) continue;
        float partner;
        if constexpr (kPartnersApart) {
          partner = static_cast<float>(row.partner[n].element[e]);
        } else {
          partner = before[e ^ 1];  // the embedding begins at an even column, and so do chunks
        }
        const bool is_negative = !kHalfSplit && PartnerOf(own) > own;
        const int angle = AngleOf(own);
        value[e] = fmaf(is_negative ? -partner : partner, sines[angle], value[e] * cosines[angle]);
      }
    }
  }

  // What the values of a row of K or V are multiplied with before they are stored. All lanes call
  // it, whatever their rows.
  __device__ __forceinline__ float StoredFactor(const Row& row,
                                                const float (&value)[kChunks][kVec]) const {
    if constexpr (Config::kScaled) {
      const abi::StoredScaleArgs& args = row.kind == kV ? params.core.v_scale : params.core.k_scale;
      const Token& token = shared.tokens[row.token];
      float* const scale = args.scale + token.block * args.stride_batch +
                           token.block_row * args.stride_seq + row.head * args.stride_head;
      const bool stores = row.active && row.kind != kQ;
      if constexpr (Config::kScalePerToken) {
        const float largest = LargestOfRow(value);
        // So small that the factor would overflow: the row is one of zeros.
        const bool vanishes = largest <= 1e-30f;
        if (stores && lane == 0) *scale = vanishes ? 0.f : largest / kLargest<CacheElement>;
        return vanishes ? 0.f : kLargest<CacheElement> / largest;
      } else {
        return stores ? 1 / *scale : 1;
      }
    } else {
      return 1;
    }
  }

  // The largest magnitude of the lanes that share a row; NaN is above all others.
  __device__ __forceinline__ static float LargestOfRow(const float (&value)[kChunks][kVec]) {
    u32 largest = 0;  // as bits
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const u32 magnitude = BitsOfFloat(value[n][e]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      const u32 other = __shfl_xor_sync(kAllLanes, largest, distance);
      largest = other > largest ? other : largest;
    }
    return FloatOfBits(largest);
  }

  __device__ __forceinline__ void Finish(const Row& row) const {
    const Token& token = shared.tokens[row.token];
    const abi::CacheAppendParams& core = params.core;
    if (IsCopied(row)) {
      if (!row.active) return;
      const i64 stride = row.kind == kK ? core.k_cache_strides.head : core.v_cache_strides.head;
      Element* const to = static_cast<Element*>(token.to[row.kind]) + row.head * stride;
#pragma unroll
      for (int n = 0; n < kChunks; ++n) {
        if (Exists(row, ColumnOf(n))) row.x[n].Store(to + ColumnOf(n));
      }
      return;
    }
    float value[kChunks][kVec];
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) value[n][e] = static_cast<float>(row.x[n].element[e]);
      if constexpr (S::kRotates) {
        if (row.active) Rotate(row, n, value[n]);
      }
    }
    const float factor = StoredFactor(row, value);
    if (!row.active) return;
    if (row.kind == kQ) {
      StoreRow(row, value, 1,
               static_cast<Element*>(token.to[kQ]) + row.head * core.q_out_strides.head);
    } else {
      const i64 stride = row.kind == kK ? core.k_cache_strides.head : core.v_cache_strides.head;
      StoreRow(row, value, factor,
               static_cast<CacheElement*>(token.to[row.kind]) + row.head * stride);
    }
  }

  template <class Out>
  __device__ __forceinline__ void StoreRow(const Row& row, const float (&value)[kChunks][kVec],
                                           float factor, Out* to) const {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int column = ColumnOf(n);
      if (Exists(row, column)) Narrowed<Out>(value[n], factor).Store(to + column);
    }
  }

  __device__ __forceinline__ void WriteTile() const {
#pragma unroll 1
    for (int first = 0; first < tile_rows; first += kGroups * kUnroll) {
      Row rows[kUnroll];
#pragma unroll
      for (int n = 0; n < kUnroll; ++n) rows[n] = Load(first + n * kGroups + group);
      __syncwarp();  // other lanes may have read what this one writes
#pragma unroll
      for (int n = 0; n < kUnroll; ++n) Finish(rows[n]);
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
  // Elements of the new rows in 16 bytes, if rows are multiples of so many.
  constexpr int kWide = 16 / static_cast<int>(sizeof(typename Config::Element));
  constexpr bool kMayBeWide = Config::kDimQk % kWide == 0 && Config::kDimV % kWide == 0;
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
    if constexpr (S::kRotates) {
      for (int at = thread; at < tokens * S::kHalf; at += S::kThreads) {
        const int token = at / S::kHalf, pair = at % S::kHalf;
        if (!shared.tokens[token].exists) continue;
        const SinCos both = SinCosAt<Config>(shared.tokens[token].position, pair, params);
        if constexpr (Config::kHalfSplit) {
          shared.sin[token][pair] = -both.sin;
          shared.cos[token][pair] = both.cos;
          shared.sin[token][pair + S::kHalf] = both.sin;
          shared.cos[token][pair + S::kHalf] = both.cos;
        } else {
          shared.sin[token][pair] = both.sin;
          shared.cos[token][pair] = both.cos;
        }
      }
      __syncthreads();
    }
    if (kMayBeWide && core.wide != 0) {
      Rows<Config, Params, kMayBeWide ? kWide : 1>{shared, params, tokens * S::kRows}.WriteTile();
    } else {
      Rows<Config, Params, 1>{shared, params, tokens * S::kRows}.WriteTile();
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

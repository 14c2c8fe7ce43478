// Exact attention, forward, of many short sequences, on mma.sync tensor cores with cp.async copies:
// sm_80 and later, 16-bit operands, fp32 accumulators.
//
// Where attn_fwd_sm80 has wide tiles and a block for each of them, the blocks of this family stay:
// each walks the tiles of rows of many (batch, head), and the copies of a visit run behind the
// visit before, across tiles. A visit brings kBlockN keys to shared memory, usually all of a
// sequence, and each warp goes through them kStepKeys at a time without a barrier. Any length is
// right; longer sequences take further visits through the same loop.
//
// Visit     one tile of query rows and kBlockN of its keys. A tile of rows without keys is a visit
//           without.
// Walks     WalkAlikeTiles, where a block's tiles are the same ones of other batches, which they
//           usually are, and nothing but the length or what is kept of the terms says which keys a
//           row sees: from one visit to the next by additions, nothing is looked up. WalkCarefully
//           for what it leaves: O that came out non-finite, rows that are no multiples of 16 bytes
//           in a plan for those that are, sizes that were not planned for. Kernels of other masks
//           and scores have WalkTiles: all threads find the next visit, in registers.
// Teams     A block has kTeams, which have nothing in common but the terms; each walks tiles of its
//           own. Or two of them have neighbouring heads and copy together (JoinsHeads).
// Terms     Bias terms and masks do not depend on Q and K. Those of Config::kKeptTerms are added up
//           once, -inf where a key is masked, and kept in shared memory if all of the block's tiles
//           have the same and no more than kTermKeys keys: the tables of windowed attention serve
//           many batches, and so does the pair bias of a protein. All teams make them. One term of
//           16 bits stays as it is (kPackedTerms), several are summed as fp32.
//           Masks that are not kept look at the key alone; what they keep of the next visit is
//           found, as a bit for each key, while this one is attended to.
// Barriers  One of a team's threads a visit, when its copies have arrived and the visit before has
//           been read. One of all threads when the terms have been made.
// NaN, Inf  A tile whose O comes out non-finite is attended to once more, with masks by selection
//           (a term of -inf does not exclude NaN) and the rows of V zeroed that no row of the tile
//           may see. Behind WalkAlikeTiles those are all tiles of the block. WalkTiles knows of one
//           a visit later, at its barrier; the visits from there on follow once more.
// Shared    teams  of each
//             q      [2][kBlockM][pitch]   of this tile of rows and the next; at its end O
//             k      [2][kBlockN][pitch]
//             v      [2][kBlockN][pitch]
//             keep   [2][kBlockN / 2]      what masks keep which are not among the terms: of two
//                                          keys, 16 bits each
//           terms  [m16 tiles][n8 tiles][32 lanes]
#ifndef TILEWRIGHT_FAMILY_ATTN_FWD_SMALL_CUH_
#define TILEWRIGHT_FAMILY_ATTN_FWD_SMALL_CUH_

#include "abi/attn_fwd_params.h"
#include "core/concepts.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "mma/exact_lse.cuh"
#include "mma/half_core.cuh"
#include "mma/key_blocks.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/bias_terms.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace fwd_small {

template <class Config>
using Rows = HalfRows<Config, Config::kStepKeys>;

// Whether every row sees every key that exists.
template <class Config>
inline constexpr bool kAllRowsAlike = Config::Mask::kIsEmpty&& Config::KvRows::kIsDense;

// The terms that are kept, by the policies of a Config with no others.
template <class Config>
struct OfKeptTerms : Config {
  using Score = typename Config::KeptScore;
  using Mask = typename Config::KeptMask;
};

// Of a lane's four elements of an m16n8 tile, or, packed as 16 bits, of two tiles side by side.
struct alignas(16) Term {
  u32 word[4];
};

// Whether there are masks that are not kept: terms that look at the key alone.
template <class Config>
concept HasOtherMasks = requires {
  requires Config::kOtherMasks != 0;
};

// Whether the same tile of another batch has as many rows, and the same blocks of keys.
template <class Config>
inline constexpr bool kTilesAreAlike = kIsSame<typename Config::Lengths, LengthsUniform> &&
                                       (Config::Mask::kIsInterval || Config::kKeptTerms != 0);

// Whether a block may find its tiles all alike (WalkAlikeTiles): nothing but what is kept of the
// terms, or the length, says which keys a row sees.
template <class Config>
inline constexpr bool kMayBeAlike =
    kTilesAreAlike<Config>&& Config::KvRows::kIsDense&& Config::Dropout::kIdentity &&
    (Config::kKeptTerms != 0 || (Config::Score::kIdentity && Config::Mask::kIsEmpty));

// Whether two teams have neighbouring heads of one batch, and copy the rows of both together: where
// heads lie side by side, twice as many bytes of memory at a time.
template <class Config>
concept JoinsHeads = requires {
  requires Config::kKeptTerms == 0 && Config::kTeams == 2;
};
template <class Config>
__device__ __forceinline__ int TeamOfThread() {
  return static_cast<int>(threadIdx.x) / kThreads<Config>;
}
template <class Config, class Params>
__device__ __forceinline__ bool HasPairsOfHeads(const Params& params) {
  return params.core.heads_q % 2 == 0 && SeqlenQ<Config>(params) <= Config::kBlockM;
}
// A barrier of those who copy together.
template <class Config>
__device__ __forceinline__ void SyncCopiers() {
  if constexpr (JoinsHeads<Config>) {
    __syncthreads();
  } else {
    SyncTeam<Config>();
  }
}

// Of a sequence.
template <class Config, class Params>
__device__ __forceinline__ int KeyBlocks(const Params& params) {
  return static_cast<int>((SeqlenKv<Config>(params) + Config::kBlockN - 1) / Config::kBlockN);
}

// A tile of query rows: of which (batch, head), and which of its tiles.
struct Place {
  u32 b;
  int h;
  int m;
};

// From one tile of a block to its next, gridDim.x further on: an addition with carries instead of
// divisions.
struct Distance {
  i64 b;
  i64 h;
  i64 m;
  bool same_terms;  // all tiles of the block have the same bias terms
  // Elements between the tensors' rows, where the tiles are the same ones of other batches. Of k
  // and v, if they may be alike: from the row behind the last block of keys of a tile.
  i64 q;
  i64 k;
  i64 v;
  i64 o;
  bool steady;

  template <class Config, class Params>
  static __device__ __forceinline__ Distance Of(i64 tiles, const Params& params) {
    Distance distance;
    const i64 m_tiles = CeilDiv(SeqlenQ<Config>(params), Config::kBlockM);
    const i64 heads = Quotient(tiles, m_tiles);
    distance.m = tiles - heads * m_tiles;
    distance.b = Quotient(heads, params.core.heads_q);
    distance.h = heads - distance.b * params.core.heads_q;
    distance.same_terms = distance.m == 0 && distance.h == 0;
    distance.steady = distance.same_terms && kTilesAreAlike<Config>;
    distance.q = distance.b * params.core.q_strides.batch;
    distance.k = distance.b * params.core.k_strides.batch;
    distance.v = distance.b * params.core.v_strides.batch;
    distance.o = distance.b * params.core.o_strides.batch;
    if constexpr (Config::kKeptTerms != 0) {
#pragma unroll
      for (int term = 0; Config::kKeptTerms >> term != 0; ++term) {
        if ((Config::kKeptTerms >> term & 1) == 0) continue;
        const abi::BiasArgs& bias = params.bias[term];
        const bool repeats = Remainder(distance.b, bias.batch_div * bias.batch_mod) == 0;
        distance.same_terms = distance.same_terms && (bias.stride_batch == 0 || repeats);
      }
    }
    return distance;
  }
};

template <class Config, class Params>
__device__ __forceinline__ void Move(Place& place, const Distance& distance, const Params& params) {
  const int m_tiles = static_cast<int>(CeilDiv(SeqlenQ<Config>(params), Config::kBlockM));
  place.m += static_cast<int>(distance.m);
  place.h += static_cast<int>(distance.h);
  place.b += static_cast<u32>(distance.b);
  if (place.m >= m_tiles) place.m -= m_tiles, ++place.h;
  if (place.h >= params.core.heads_q) {
    place.h -= static_cast<int>(params.core.heads_q), ++place.b;
  }
}

// Where a thread's part of a visit lies.
template <class Element>
struct Addresses {
  const Element* q;
  const Element* k;
  const Element* v;
};

// A tile of query rows. Shared memory has it while it is attended to, where it costs no registers.
template <class Config>
struct alignas(16) Tile {
  Place place;
  int rows;
  int begin;  // its blocks of keys: from `top` down to this one
  int top;
  typename Config::Element* o;  // its first row

  __device__ __forceinline__ i64 q_begin() const { return i64{place.m} * Config::kBlockM; }
  template <class Params>
  __device__ __forceinline__ Problem MakeProblem(const Params& params) const {
    return tilewright::MakeProblem<Config>(place.b, place.h, params);
  }
};

// A block of keys of a tile.
template <class Config>
struct Visit {
  static constexpr bool kHasTerms = false;
  static constexpr bool kMayBeCareful = true;
  Tile<Config> tile;
  Addresses<typename Config::Element> at;
  int n;     // block of keys; below tile.begin the tile has none
  int keys;  // of the block
  // In one register.
  bool exists : 1;  // beyond the last tile of this block nothing does
  bool first : 1;   // of its tile
  bool again : 1;   // the tile's second attempt

  __device__ __forceinline__ bool careful() const { return again; }

  __device__ __forceinline__ i64 kv_begin() const { return i64{n} * Config::kBlockN; }
  template <class Params>
  __device__ __forceinline__ int Below(const Problem& problem, const Params& params) const {
    return BlockBelow<Config>(n, {tile.begin, n, 0, 0}, problem, tile.q_begin(),
                              Min(tile.q_begin() + Config::kBlockM, problem.seqlen_q), params);
  }

  // The first block of keys of the tile at `place`, or of the next one of this block that has rows.
  template <class Copier, class Params>
  __device__ __forceinline__ void Begin(const Distance& distance, const Copier& copier,
                                        const Params& params) {
    Problem problem;
    for (;; Move<Config>(tile.place, distance, params)) {
      exists = tile.place.b < Batch<Config>(params);
      if (!exists) return;
      problem = tile.MakeProblem(params);
      if (tile.q_begin() < problem.seqlen_q) break;
    }
    first = true;
    const i64 q_end = Min(tile.q_begin() + Config::kBlockM, problem.seqlen_q);
    tile.rows = static_cast<int>(q_end - tile.q_begin());
    const BlockRange range =
        Config::Mask::NBlocks(problem, tile.q_begin(), q_end, Config::kBlockN, params);
    tile.begin = static_cast<int>(range.begin);
    n = static_cast<int>(range.end);
    n = tile.top = Below(problem, params);
    FindKeys(problem.seqlen_kv);
    at = copier.Find(problem, tile.q_begin(), kv_begin(), params);
    tile.o = copier.RowsOfO(problem, tile.q_begin(), params);
  }

  __device__ __forceinline__ void FindKeys(i64 seqlen_kv) {
    keys = n < tile.begin ? 0 : static_cast<int>(Min(Config::kBlockN, seqlen_kv - kv_begin()));
  }

  // To the next block of keys, or to the next tile; whether that has to begin.
  template <class Params>
  __device__ __forceinline__ bool Follow(const Distance& distance, const Params& params) {
    if (!exists) return false;
    const int below = n > tile.begin ? Below(tile.MakeProblem(params), params) : tile.begin - 1;
    if (below >= tile.begin) {
      const i64 keys_up = i64{n - below} * Config::kBlockN;
      at.k -= keys_up * params.core.k_strides.seq;
      at.v -= keys_up * params.core.v_strides.seq;
      n = below;
      keys = Config::kBlockN;  // only the last block, which comes first, has fewer
      first = false;
      return false;
    }
    again = false;
    if (!distance.steady) {
      Move<Config>(tile.place, distance, params);
      return true;
    }
    tile.place.b += static_cast<u32>(distance.b);
    tile.o += distance.o;
    exists = tile.place.b < Batch<Config>(params);
    at.q += distance.q;
    at.k += distance.k;
    at.v += distance.v;
    first = true;
    if (n < tile.top) {
      const i64 keys_up = i64{tile.top - n} * Config::kBlockN;
      at.k += keys_up * params.core.k_strides.seq;
      at.v += keys_up * params.core.v_strides.seq;
      n = tile.top;
      FindKeys(SeqlenKv<Config>(params));
    }
    return false;
  }
};

// The same of tiles that are all alike: what they have in common is left out.
template <class Config>
struct AlikeVisit {
  static constexpr bool kHasTerms = Config::kKeptTerms != 0;
  static constexpr bool kMayBeCareful = false;
  u32 b;
  int n;
  int keys;
  bool exists;
  bool first;

  static __device__ __forceinline__ constexpr bool careful() { return false; }
  __device__ __forceinline__ i64 kv_begin() const { return i64{n} * Config::kBlockN; }
};

TILEWRIGHT_HOST_DEVICE constexpr int BitCount(unsigned bits) {
  return bits == 0 ? 0 : 1 + BitCount(bits & (bits - 1));
}

template <int kCount>
__device__ __forceinline__ bool AnyByte(const u8 (&bytes)[kCount]) {
  u32 any = 0;
#pragma unroll
  for (int n = 0; n < kCount; n += 4) any |= *reinterpret_cast<const u32*>(&bytes[n]);
  return any != 0;
}

// Whether rows may be copied by chunks of 16 bytes, those of Q, K and V and those of O. In shared
// memory, for the registers.
struct Widths {
  bool in;
  bool out;

  template <class Config, class Params>
  static __device__ __forceinline__ Widths Of(const Params& params) {
    using Element = typename Config::Element;
    const abi::AttnFwdParams& core = params.core;
    return {Aligned16<Element>(core.q, core.q_strides) &&
                Aligned16<Element>(core.k, core.k_strides) &&
                Aligned16<Element>(core.v, core.v_strides),
            Config::kHeadDimV % 8 == 0 && Aligned16<Element>(core.o, core.o_strides)};
  }
};

// What a team has of its own.
template <class Config>
struct TeamStorage {
  using Element = typename Config::Element;

  alignas(16) Element q[2][Config::kBlockM][Rows<Config>::kPitchQo];
  alignas(16) Element k[2][Config::kBlockN][Rows<Config>::kPitchQk];
  alignas(16) Element v[2][Config::kBlockN][Rows<Config>::kPitchV];
  u32 keep[2][Config::kBlockN / 2];
  Tile<Config> tiles[2];  // as of q
  // Which warps found at this visit and at the one before that the tile has to be computed again.
  // Read as words.
  alignas(4) u8 failed[2][RoundUp(kThreads<Config> / 32, 4)];
};

template <class Config>
struct SharedStorage {
  static constexpr int kTermTiles =
      Config::kBlockM / 16 * Config::kTermKeys / 8 / (Config::kPackedTerms ? 2 : 1);

  TeamStorage<Config> teams[Config::kTeams];
  Term terms[kTermTiles + 1][32];  // one more, for there are no arrays of nothing
  Distance distance;
  Widths wide;
  bool alike;   // all tiles of this block, whose terms are then kept
  Place first;  // tile of this block
};

// What a thread copies of each tile: chunks of 16 bytes in one column, kRows rows apart. Without
// `wide`, for rows that are no multiples of 16 bytes, whatever StartCopy has for them.
template <class Config, int kColumnCount, int kColumnStep, int kRunKeys>
struct TileCopier {
  using Element = typename Config::Element;
  using Shape = TileShape<kColumnCount, kColumnStep, kRunKeys>;
  static constexpr int kChunks = Shape::kPadded / 8;
  static constexpr int kLanes = PowerOfTwoFrom(kChunks);
  static constexpr int kRows = kThreads<Config> / kLanes;

  static __device__ __forceinline__ int Row() {
    return JoinsHeads<Config> ? static_cast<int>(threadIdx.x) / (2 * kLanes)
                              : ThreadOfTeam<Config>() / kLanes;
  }
  static __device__ __forceinline__ int Chunk() { return ThreadOfTeam<Config>() % kLanes; }
  // Whose rows this thread copies.
  static __device__ __forceinline__ int Team() {
    return JoinsHeads<Config> ? static_cast<int>(threadIdx.x) / kLanes % 2 : TeamOfThread<Config>();
  }
  // Of its first chunk, from the tile's first row.
  static __device__ __forceinline__ i64 Offset(i64 stride) { return Row() * stride + Chunk() * 8; }

  // `from`: the thread's first chunk.
  template <int kTileRows, int kPitch>
  static __device__ __forceinline__ void Start(Element (&tile)[kTileRows][kPitch],
                                               const Element* from, i64 stride, int rows,
                                               bool wide) {
    if (!wide) {
      StartCopy<Config, Shape>(tile, rows, false,
                               DenseRows<Element>{from - Offset(stride), stride});
      return;
    }
    if (kLanes != kChunks && Chunk() >= kChunks) return;
    // All bytes of a chunk, those below kColumnCount, or none.
    const int bytes =
        kChunks * 8 == kColumnCount ? 16 : Min(16, Max(0, (kColumnCount - Chunk() * 8) * 2));
    const int left = rows - Row();
    const i64 distance = ptx::Opaque(stride * kRows);
#pragma unroll
    for (int step = 0; step < kTileRows; step += kRows) {
      if (kTileRows % kRows == 0 || step + Row() < kTileRows) {
        CopyChunk<Config>(&tile[ColumnOfKey<kRunKeys>(step + Row())][Chunk() * 8], from,
                          step < left ? bytes : 0);
      }
      from += distance;
    }
  }

  // The same for wide rows, leaving alone what lies behind the last of them. Returns the
  // place of the row behind all these steps.
  template <int kTileRows, int kPitch>
  static __device__ __forceinline__ const Element* StartExisting(Element (&tile)[kTileRows][kPitch],
                                                                 const Element* from, i64 stride,
                                                                 int rows) {
    const int bytes =
        kChunks * 8 == kColumnCount ? 16 : Min(16, Max(0, (kColumnCount - Chunk() * 8) * 2));
    const int left = kLanes != kChunks && Chunk() >= kChunks ? 0 : rows - Row();
    const i64 distance = ptx::Opaque(stride * (2 * kRows));  // bytes
    u64 address = reinterpret_cast<u64>(from);
#pragma unroll
    for (int step = 0; step < kTileRows; step += kRows) {
      if (step < left) {
        CopyChunk<Config>(&tile[ColumnOfKey<kRunKeys>(step + Row())][Chunk() * 8],
                          reinterpret_cast<const Element*>(address), bytes);
      }
      address += static_cast<u64>(distance);
    }
    return reinterpret_cast<const Element*>(address);
  }
};

// Row i of Q or O.
template <class AnyElement>
__device__ __forceinline__ AnyElement* RowAt(AnyElement* base, const abi::TensorStrides& strides,
                                             const Problem& problem, i64 i) {
  return base + problem.q_batch * strides.batch + problem.h * strides.head +
         (problem.q_row + i) * strides.seq;
}

template <class Config>
struct Copier {
  using Element = typename Config::Element;
  using Q = TileCopier<Config, Config::kHeadDimQk, Rows<Config>::kQStep, 2>;
  using K = TileCopier<Config, Config::kHeadDimQk, Rows<Config>::kQStep, Config::kRunKeys>;
  using V = TileCopier<Config, Config::kHeadDimV, Rows<Config>::kVStep, Config::kRunKeys>;
  // Of a warp's rows of O.
  static constexpr int kChunksOfO = RoundUp(Config::kHeadDimV, 8) / 8;
  static constexpr int kLanesOfO = PowerOfTwoFrom(kChunksOfO);
  static constexpr int kRowsOfO = 32 / kLanesOfO;
  const Widths& wide;

  // Of this thread's first chunks.
  template <class Params>
  __device__ __forceinline__ Addresses<Element> Find(const Problem& problem, i64 q_begin,
                                                     i64 kv_begin, const Params& params) const {
    const abi::AttnFwdParams& core = params.core;
    return {RowAt(static_cast<const Element*>(core.q), core.q_strides, OfTeam(problem, Q::Team()),
                  q_begin) +
                Q::Offset(core.q_strides.seq),
            KeyAt(core.k, core.k_strides, OfTeam(problem, K::Team()), kv_begin, params) +
                K::Offset(core.k_strides.seq),
            KeyAt(core.v, core.v_strides, OfTeam(problem, V::Team()), kv_begin, params) +
                V::Offset(core.v_strides.seq)};
  }
  template <class Params>
  __device__ __forceinline__ Element* RowsOfO(const Problem& problem, i64 q_begin,
                                              const Params& params) const {
    return RowAt(static_cast<Element*>(params.core.o), params.core.o_strides, problem, q_begin);
  }

  // Starts the copies of a visit: Q with the first of a tile.
  template <class Params>
  __device__ __forceinline__ void Start(TeamStorage<Config>& shared, int q_slot, int slot,
                                        const Visit<Config>& visit, const Params& params) const {
    const abi::AttnFwdParams& core = params.core;
    if (visit.first) {
      Q::Start(shared.q[q_slot], visit.at.q, core.q_strides.seq, visit.tile.rows, wide.in);
    }
    if (visit.keys > 0) {
      K::Start(shared.k[slot], visit.at.k, core.k_strides.seq, visit.keys, wide.in);
      V::Start(shared.v[slot], visit.at.v, core.v_strides.seq, visit.keys, wide.in);
    }
  }

  // Writes the warp's rows of O, as far as they exist, from shared memory.
  template <class Params>
  __device__ __forceinline__ void Store(const Element* rows, const Tile<Config>& tile,
                                        const Params& params) const {
    if (!wide.out) {
      StoreTileOfRows<Config>(rows, Rows<Config>::kPitchQo,
                              tile.q_begin() + Rows<Config>::FirstRow(), Config::kRowsPerWarp,
                              tile.MakeProblem(params), params);
      return;
    }
    StoreWide(rows, tile.o + OffsetOfO(params), params.core.o_strides.seq * (2 * kRowsOfO),
              tile.rows);
  }

  // Of the first chunk of O that this thread writes, from the tile's first row.
  template <class Params>
  __device__ __forceinline__ i64 OffsetOfO(const Params& params) const {
    return (Rows<Config>::FirstRow() + RowOfO()) * params.core.o_strides.seq + ChunkOfO() * 8;
  }
  // The same for wide rows. `to`: this thread's first chunk; `distance`: bytes between rows that
  // are kRowsOfO apart.
  __device__ __forceinline__ void StoreWide(const Element* rows, Element* to, i64 distance,
                                            int tile_rows) const {
    if (kLanesOfO != kChunksOfO && ChunkOfO() >= kChunksOfO) return;
    const int left = tile_rows - Rows<Config>::FirstRow() - RowOfO();
    const Element* from = rows + RowOfO() * Rows<Config>::kPitchQo + ChunkOfO() * 8;
    u64 address = reinterpret_cast<u64>(to);
#pragma unroll
    for (int step = 0; step < Config::kRowsPerWarp; step += kRowsOfO) {
      if (step < left) {
        *reinterpret_cast<Words<16>*>(address) =
            *reinterpret_cast<const Words<16>*>(from + step * Rows<Config>::kPitchQo);
      }
      address += static_cast<u64>(distance);
    }
  }

 private:
  static __device__ __forceinline__ int RowOfO() {
    return static_cast<int>(threadIdx.x % 32) / kLanesOfO;
  }
  static __device__ __forceinline__ int ChunkOfO() {
    return static_cast<int>(threadIdx.x % 32) % kLanesOfO;
  }

  // The same for the head that `team` has.
  static __device__ __forceinline__ Problem OfTeam(Problem problem, int team) {
    problem.h += team - TeamOfThread<Config>();
    problem.h_kv = problem.h / Config::kGroup;
    return problem;
  }

  template <class Params>
  static __device__ __forceinline__ const Element* KeyAt(const void* base,
                                                         const abi::TensorStrides& strides,
                                                         const Problem& problem, i64 kv_begin,
                                                         const Params& params) {
    return static_cast<const Element*>(FirstKeyRow<Config>(base, strides, problem, params)) +
           kv_begin * strides.seq;
  }
};

// Which keys of a visit the masks keep that are not among the terms. A thread asks for some before
// a visit is attended to and puts the answers together after it: nothing waits for them.
template <class Config, class Params>
struct OtherMasks {
  __device__ __forceinline__ explicit OtherMasks(const Place&) {}
  __device__ __forceinline__ void Ask(const AlikeVisit<Config>&, const Params&) {}
  __device__ __forceinline__ void Store(u32*) const {}
};
template <class Config, class Params>
requires HasOtherMasks<Config>
struct OtherMasks<Config, Params> {
  static constexpr int kPairs = Config::kBlockN / 2;
  static constexpr int kSteps = (kPairs + kThreads<Config> - 1) / kThreads<Config>;
  static constexpr int kMasks = BitCount(Config::kOtherMasks);
  const Bool8* of_tile[kMasks];
  Bool8 answers[kSteps][2][kMasks];

  const int h;

  __device__ __forceinline__ explicit OtherMasks(const Place& place) : h(place.h) {}

  // Calls use(n, args) for each of the masks.
  template <class Use>
  static __device__ __forceinline__ void ForEach(const Params& params, const Use& use) {
    int n = 0;
#pragma unroll
    for (int term = 0; Config::kOtherMasks >> term != 0; ++term) {
      if (Config::kOtherMasks >> term & 1) use(n++, params.bias[term]);
    }
  }
  __device__ __forceinline__ void Find(i64 b, const Params& params) {
    ForEach(params, [&](int n, const abi::BiasArgs& bias) {
      // Without divisions where each batch has a row of its own.
      const i64 row = bias.batch_div == 1 && b < bias.batch_mod
                          ? b
                          : Remainder(Quotient(b, bias.batch_div), bias.batch_mod);
      of_tile[n] =
          static_cast<const Bool8*>(bias.data) + row * bias.stride_batch + h * bias.stride_head;
    });
  }

  // Pairs of keys.
  static __device__ __forceinline__ int PairOf(int step) {
    return step * kThreads<Config> + ThreadOfTeam<Config>();
  }
  __device__ __forceinline__ void Ask(const AlikeVisit<Config>& visit, const Params& params) {
    if (PairOf(0) >= kPairs) return;
    if (visit.first) Find(visit.b, params);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = 2 * PairOf(step) + e;
        const bool exists = visit.exists && key < visit.keys;
        ForEach(params, [&](int n, const abi::BiasArgs& bias) {
          answers[step][e][n] = Bool8{0};
          if (exists) answers[step][e][n] = of_tile[n][(visit.kv_begin() + key) * bias.stride_kv];
        });
      }
    }
  }
  __device__ __forceinline__ void Store(u32* keep) const {
    if (PairOf(0) >= kPairs) return;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32 kept = ~0u;
#pragma unroll
      for (int n = 0; n < kMasks; ++n) {
        kept &= (answers[step][0][n] ? 0xffffu : 0) | (answers[step][1][n] ? 0xffff0000u : 0);
      }
      if (PairOf(step) < kPairs) keep[PairOf(step)] = kept;
    }
  }
};

// Reads an element of a single kept term in each of a warp's rows, a step of keys ahead: policies
// ask for rows one after the other, and then find them in L1.
template <class Config>
struct BiasTouch {
  static constexpr bool kWorks =
      Config::kPackedTerms && BitCount(Config::kKeptTerms) == 1 && !Config::KeptScore::kIdentity;
  const u16* row = nullptr;
  i64 stride;
  int keys;

  template <class Params>
  __device__ __forceinline__ BiasTouch(const Problem& problem, i64 first_row,
                                       const Params& params) {
    if constexpr (kWorks) {
      const abi::BiasArgs& bias = params.bias[BitCount(Config::kKeptTerms - 1)];
      const int lane = static_cast<int>(threadIdx.x % 32);
      stride = bias.stride_kv;
      keys = static_cast<int>(problem.seqlen_kv);
      if (lane < Config::kRowsPerWarp && first_row + lane < problem.seqlen_q) {
        row = static_cast<const u16*>(bias.data) + BiasOffset(bias, problem, first_row + lane, 0);
      }
    }
  }
  __device__ __forceinline__ u32 Read(int key) const {
    if constexpr (kWorks) {
      if (row != nullptr && key < keys) return row[key * stride];
    }
    return 0;
  }
};

// The keys of a visit, by one warp.
template <class Config, class Params, class AnyVisit>
struct Attention {
  using Element = typename Config::Element;
  using Scores = typename Rows<Config>::ScoreTile;
  static constexpr int kMTiles = Rows<Config>::kMTiles;
  static constexpr int kNTiles = Config::kStepKeys / 8;
  // Whether a score is hidden only where there is no key, and otherwise the scaled product.
  static constexpr bool kKeysOnly = Config::Score::kIdentity && kAllRowsAlike<Config>;

  TeamStorage<Config>& shared;
  Term (*terms)[32];
  const Params& params;
  Rows<Config>& rows;
  const Tile<Config>& tile;
  const AnyVisit& visit;
  int q_slot;
  int slot;

  __device__ __forceinline__ void Run() const {
    if constexpr (AnyVisit::kMayBeCareful) {
      const Problem problem = tile.MakeProblem(params);
      const HeadPolicies<Config, Params> policies(problem, params);
      Steps(&policies);
    } else {
      Steps(nullptr);
    }
  }

  // Attends to the keys. AlikeVisits need no `policies`.
  __device__ __forceinline__ void Steps(const HeadPolicies<Config, Params>* policies) const {
    const int steps = (visit.keys + Config::kStepKeys - 1) / Config::kStepKeys;
    if (visit.careful()) {
      ZeroUnseenValues<Config>(shared.v[slot], tile.MakeProblem(params), tile.q_begin(),
                               visit.kv_begin(), params);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Scores scores;
      rows.Scores(scores, &shared.q[q_slot][Rows<Config>::FirstRow()][0],
                  &shared.k[slot][step * Config::kStepKeys][0]);
      if constexpr (AnyVisit::kHasTerms) {
        AddTerms(scores, step);
      } else if constexpr (kKeysOnly) {
        MaskKeys(scores, step);
      } else {
        Apply(scores, *policies, step);
      }
      AddValues(scores, policies, step);
    }
    // Few steps overflow where many would, and what overflows is computed again.
    if (visit.keys == Config::kBlockN) rows.Raise();
  }

  // Whether the tile has to be computed again: by the sums alone where every row sees every key, as
  // then a NaN of V belongs into all rows.
  static __device__ __forceinline__ bool Failed(const Rows<Config>& rows) {
    return kKeysOnly ? rows.HasNonFiniteSums() : rows.NonFinite();
  }

  // Terms are the policies of scores that are 0. Of this team: every kTeams-th kKeys of the keys.
  static __device__ __forceinline__ void MakeTerms(Term (*terms)[32], const Place& place, int team,
                                                   const Params& params) {
    using Kept = OfKeptTerms<Config>;
    const Problem problem = MakeProblem<Config>(place.b, place.h, params);
    const HeadPolicies<Kept, Params> policies(problem, params);
    const i64 row = i64{place.m} * Config::kBlockM + Rows<Config>::FirstRow();
    constexpr int kKeys = Config::kStepKeys > 32 ? 32 : Config::kStepKeys;
    constexpr int kStride = Config::kTeams * kKeys;
    // Tiles of rows one after the other where making terms takes no time to speak of: policies of
    // elements are much code.
    constexpr int kTogether = Config::kPackedTerms && Config::kTermKeys > 128 ? kMTiles : 1;
    int key = team * kKeys;
    const BiasTouch<Config> touch(problem, row, params);
    u32 before = touch.Read(key);
#pragma unroll 1
    for (; key < Config::kTermKeys; key += kStride) {
      const u32 next = touch.Read(key + kStride);
#pragma unroll 1
      for (int m = 0; m < kMTiles; m += kTogether) {
        float terms_of_step[kTogether][kKeys / 8][4];
        ClearTile(terms_of_step);
        ApplyPolicies<Kept>(terms_of_step, policies, problem, row + m * 16, key, false, params);
        StoreTerms(terms, terms_of_step, m, key / 8 / kTermTiles);
      }
      ptx::Opaque(before);
      before = next;
    }
  }

  // The term `column` of m16 tile `m`, a term being of kTermTiles n8 tiles.
  static constexpr int kTermTiles = Config::kPackedTerms ? 2 : 1;
  static __device__ __forceinline__ Term& TermOf(Term (*terms)[32], int m, int column) {
    constexpr int kColumns = Config::kTermKeys / 8 / kTermTiles;
    const int row = ThreadOfTeam<Config>() / 32 * kMTiles + m;
    return terms[row * kColumns + column][threadIdx.x % 32];
  }
  __device__ __forceinline__ int FirstTerm(int step) const {
    return visit.n * (Config::kBlockN / 8 / kTermTiles) + step * (kNTiles / kTermTiles);
  }
  template <int kTogether, int kTiles>
  static __device__ __forceinline__ void StoreTerms(Term (*terms)[32],
                                                    const float (&scores)[kTogether][kTiles][4],
                                                    int first_tile, int first) {
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      if constexpr (Config::kPackedTerms) {
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          const float(&s)[4] = scores[m][n];
          const float(&t)[4] = scores[m][n + 1];
          using Ops = typename Rows<Config>::Ops;
          TermOf(terms, first_tile + m,
                 first + n / kTermTiles) = {{Ops::Pack(s[1], s[0]), Ops::Pack(s[3], s[2]),
                                             Ops::Pack(t[1], t[0]), Ops::Pack(t[3], t[2])}};
        }
      } else {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float(&s)[4] = scores[m][n];
          TermOf(terms, first_tile + m, first + n / kTermTiles) = {
              {BitsOfFloat(s[0]), BitsOfFloat(s[1]), BitsOfFloat(s[2]), BitsOfFloat(s[3])}};
        }
      }
    }
  }
  __device__ __forceinline__ void AddTerms(Scores& scores, int step) const {
    using Ops = typename Rows<Config>::Ops;
    const float scale = Config::Score::kIdentity ? 1.f : params.core.scale;
    const int first = FirstTerm(step);
    u32 kept[kNTiles];
    GetKept(kept, step);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      if constexpr (Config::kPackedTerms) {
        const u32 hidden = Ops::Pack(-Infinity(), -Infinity());
#pragma unroll
        for (int n = 0; n < kNTiles; n += 2) {
          const Term term = TermOf(terms, m, first + n / kTermTiles);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 of_keys = kept[n + half];
            u64 words = 0;  // of the two rows
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const u32 word = (term.word[2 * half + r] & of_keys) | (hidden & ~of_keys);
              words |= static_cast<u64>(word) << (32 * r);
            }
            // Else each element would be selected from what it becomes.
            if constexpr (HasOtherMasks<Config>) words = ptx::Opaque(static_cast<i64>(words));
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              float& s = scores[m][n + half][c];
              s = s * scale + static_cast<float>(Element{static_cast<u16>(words >> (c * 16))});
            }
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          const Term term = TermOf(terms, m, first + n / kTermTiles);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float s = scores[m][n][c] * scale + FloatOfBits(term.word[c]);
            scores[m][n][c] = kept[n] >> (c % 2 * 16) & 1 ? s : -Infinity();
          }
        }
      }
    }
  }

  // What the other masks keep of the lane's two keys in each tile of the step, by 16 bits each.
  __device__ __forceinline__ void GetKept(u32 (&kept)[kNTiles], int step) const {
    if constexpr (HasOtherMasks<Config>) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        kept[n] = shared.keep[slot][step * (Config::kStepKeys / 2) + n * 4 + threadIdx.x % 4];
      }
    } else {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) kept[n] = ~0u;
    }
  }

  __device__ __forceinline__ void MaskKeys(Scores& scores, int step) const {
    using Runs = LaneRuns<Config, kNTiles>;
    const int keys = visit.keys - step * Config::kStepKeys;
    if (keys >= Config::kStepKeys) return;
#pragma unroll
    for (int n = 0; n < Runs::kCount; ++n) {
      const bool keep = Runs::Offset(n) < keys - FirstKeyOfLane<Config>();
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& s = scores[m][n / 2][2 * r + n % 2];
          s = keep ? s : -Infinity();
        }
      }
    }
  }

  __device__ __forceinline__ void Apply(Scores& scores,
                                        const HeadPolicies<Config, Params>& policies,
                                        int step) const {
    const Problem problem = tile.MakeProblem(params);
    const i64 kv_begin = visit.kv_begin() + step * Config::kStepKeys;
    const i64 kv_end = kv_begin + Config::kStepKeys;
    const bool whole = Config::KvRows::kIsDense && Config::Mask::kKnowsFull &&
                       kv_end <= problem.seqlen_kv &&
                       Config::Mask::Full(problem, tile.q_begin(), tile.q_begin() + tile.rows,
                                          kv_begin, kv_end, params);
    if (!Config::Score::kIdentity || !whole) {
      ApplyPolicies<Config>(scores, policies, problem, tile.q_begin() + Rows<Config>::FirstRow(),
                            kv_begin, whole, params);
    }
  }

  __device__ __forceinline__ void AddValues(Scores& scores,
                                            const HeadPolicies<Config, Params>* policies,
                                            int step) const {
    // The scale of an empty chain is folded into the exponent.
    const float to_log2 = Config::Score::kIdentity ? params.core.scale * kLog2OfE : kLog2OfE;
    constexpr bool kAlways = Rows<Config>::kWatchAlways;
    constexpr bool kNeverWatches = kKeysOnly && !AnyVisit::kMayBeCareful;
    if (visit.first && step == 0) {
      if (kKeysOnly && !kAlways && !visit.careful()) {
        rows.StartWithFirstKey(scores, to_log2);
      } else {
        rows.StartReferences(scores, to_log2, kAlways || visit.careful());
      }
    } else if (kAlways || (!kNeverWatches && rows.softmax.watch)) {
      __syncwarp();  // else maxima are taken before it is known whether they are needed
      rows.WatchScores(scores, to_log2, kAlways || visit.careful());
    }
    if constexpr (!Config::Dropout::kIdentity) {
      Weights<kNTiles>(scores, rows.softmax, to_log2, 0);
      MarkDropped<Config>(scores, *policies, tile.q_begin() + Rows<Config>::FirstRow(),
                          visit.kv_begin() + step * Config::kStepKeys);
    }
    rows.AddValues(scores, &shared.v[slot][step * Config::kStepKeys][0], to_log2);
  }
};

// As Rows::Finish where nothing but O is asked for, to places that are one address and constants.
// kIsFinite: or what is written will not be kept.
template <class Config, bool kIsFinite>
__device__ __forceinline__ void Normalise(const Rows<Config>& rows, typename Config::Element* own) {
  using Of = Rows<Config>;
  const unsigned lane = threadIdx.x % 32;
  u32* const first = reinterpret_cast<u32*>(own + lane / 4 * Of::kPitchQo + lane % 4 * 2);
#pragma unroll
  for (int m = 0; m < Of::kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = rows.o[m][Of::kAllTiles - 1][2 * r];
      const bool empty = sum == 0;
      // The approximation is off by the last bit of fp32, and O is rounded to 16.
      const float scale = empty ? 0.f : ptx::rcp_approx_ftz(sum);
#pragma unroll
      for (int n = 0; n < Of::kVTiles; ++n) {
        // What is no number stays none where every row sees every key.
        const float(&o)[4] = rows.o[m][n];
        const bool cleared = empty && !kIsFinite && !kAllRowsAlike<Config>;
        const float low = cleared ? 0.f : o[2 * r] * scale;
        const float high = cleared ? 0.f : o[2 * r + 1] * scale;
        first[((16 * m + 8 * r) * Of::kPitchQo + 8 * n) / 2] = Of::Ops::Pack(high, low);
      }
    }
  }
  __syncwarp();
}

// Normalises O into the warp's rows `own` of shared memory, and writes the LSE.
template <class Config, bool kIsFinite, class Params>
__device__ __forceinline__ void FinishRows(Rows<Config>& rows, typename Config::Element* own,
                                           const Tile<Config>& tile, const Params& params) {
  if constexpr (Rows<Config>::kStoresLse || Rows<Config>::kHasSink || !Config::Dropout::kIdentity) {
    rows.template Finish<kAllRowsAlike<Config>>(own, tile.MakeProblem(params), tile.q_begin(),
                                                params);
  } else {
    Normalise<Config, kIsFinite>(rows, own);
  }
}

// Clears the rows of a tile from `first` on, by a team: no copy may reach them, and they meet
// weights of 0, which a NaN survives.
template <class Config, int kRunKeys, int kTileRows, int kPitch>
__device__ __forceinline__ void ClearRowsFrom(int first,
                                              typename Config::Element (&tile)[kTileRows][kPitch]) {
  constexpr int kChunks = kPitch / 8;
#pragma unroll 1
  for (int n = first * kChunks + ThreadOfTeam<Config>(); n < kTileRows * kChunks;
       n += kThreads<Config>) {
    auto* const row = reinterpret_cast<Words<16>*>(&tile[ColumnOfKey<kRunKeys>(n / kChunks)][0]);
    row[n % kChunks] = {{0, 0, 0, 0}};
  }
}

// The tiles of a block that are the same ones of other batches, with the terms that are kept of
// them: what Run does for any, without what it would find to be the same at each visit. False when
// O of one of them came out non-finite: then Run attends to all of them once more.
template <class Config, class Params>
__device__ __forceinline__ bool WalkAlikeTiles(SharedStorage<Config>& storage,
                                               TeamStorage<Config>& shared, int team,
                                               const Params& params) {
  using Element = typename Config::Element;
  using Attend = Attention<Config, Params, AlikeVisit<Config>>;
  const Distance& distance = storage.distance;
  const Copier<Config> copier{storage.wide};
  const abi::AttnFwdParams& core = params.core;
  const Place& place = shared.tiles[0].place;
  Tile<Config> tile = shared.tiles[0];
  const Problem problem = tile.MakeProblem(params);
  const i64 q_end = Min(tile.q_begin() + Config::kBlockM, problem.seqlen_q);
  tile.rows = static_cast<int>(q_end - tile.q_begin());
  tile.o = copier.RowsOfO(problem, tile.q_begin(), params);
  const int blocks = KeyBlocks<Config>(params);
  const int keys_of_last = static_cast<int>(problem.seqlen_kv - (blocks - 1) * Config::kBlockN);
  Addresses<Element> at = copier.Find(problem, tile.q_begin(), 0, params);
  Element* o = tile.o + copier.OffsetOfO(params);
  AlikeVisit<Config> next = {.b = place.b,
                             .n = 0,
                             .keys = blocks == 1 ? keys_of_last : Config::kBlockN,
                             .exists = place.b < Batch<Config>(params),
                             .first = true};
  // Leaves `at` at the next block of keys.
  const auto start_copies = [&](int q_slot, int slot) {
    using Of = Copier<Config>;
    if constexpr (Config::kNarrowRows) {
      const bool wide = storage.wide.in;
      if (next.first) Of::Q::Start(shared.q[q_slot], at.q, core.q_strides.seq, tile.rows, wide);
      Of::K::Start(shared.k[slot], at.k, core.k_strides.seq, next.keys, wide);
      Of::V::Start(shared.v[slot], at.v, core.v_strides.seq, next.keys, wide);
      at.k += Config::kBlockN * core.k_strides.seq;
      at.v += Config::kBlockN * core.v_strides.seq;
    } else {
      if (next.first) {
        Of::Q::StartExisting(storage.teams[Of::Q::Team()].q[q_slot], at.q, core.q_strides.seq,
                             tile.rows);
      }
      at.k = Of::K::StartExisting(storage.teams[Of::K::Team()].k[slot], at.k, core.k_strides.seq,
                                  next.keys);
      at.v = Of::V::StartExisting(storage.teams[Of::V::Team()].v[slot], at.v, core.v_strides.seq,
                                  next.keys);
      constexpr int kBehindK = RoundUp(Config::kBlockN, Of::K::kRows) - Config::kBlockN;
      constexpr int kBehindV = RoundUp(Config::kBlockN, Of::V::kRows) - Config::kBlockN;
      if constexpr (kBehindK > 0) at.k -= kBehindK * core.k_strides.seq;
      if constexpr (kBehindV > 0) at.v -= kBehindV * core.v_strides.seq;
    }
  };
  Rows<Config> rows;
  rows.Start();
  if constexpr (!Config::kNarrowRows) {
#pragma unroll 1
    for (int slot = 0; slot < 2; ++slot) {
      ClearRowsFrom<Config, 2>(tile.rows, shared.q[slot]);
      ClearRowsFrom<Config, Config::kRunKeys>(keys_of_last, shared.k[slot]);
      ClearRowsFrom<Config, Config::kRunKeys>(keys_of_last, shared.v[slot]);
    }
    SyncCopiers<Config>();
  }
  if (next.exists) start_copies(0, 0);
  CommitCopies<Config>();
  OtherMasks<Config, Params> masks(place);
  masks.Ask(next, params);
  if constexpr (Config::kKeptTerms != 0) {
    // Behind the first copies. All tiles of the block have the terms of its first.
    Attend::MakeTerms(storage.terms, storage.first, team, params);
    __syncthreads();
  }
  masks.Store(shared.keep[0]);
  bool fails = false;
  int q_slot = 0;
#pragma unroll 1
  for (int slot = 0; next.exists; slot ^= 1) {
    WaitForCopies<Config>();
    SyncCopiers<Config>();
    const AlikeVisit<Config> visit = next;
    const bool last = ++next.n == blocks;
    next.first = last;
    if (last) {
      next.n = 0;
      next.b += static_cast<u32>(distance.b);
      next.exists = next.b < Batch<Config>(params);
      at.q += distance.q;
      at.k += distance.k;
      at.v += distance.v;
    }
    next.keys = next.n + 1 == blocks ? keys_of_last : Config::kBlockN;
    if (next.exists) start_copies(last ? q_slot ^ 1 : q_slot, slot ^ 1);
    CommitCopies<Config>();
    masks.Ask(next, params);
    Attend{shared, storage.terms, params, rows, tile, visit, q_slot, slot}.Run();
    if (last) {
      fails |= Attend::Failed(rows);
      Element* const own = &shared.q[q_slot][Rows<Config>::FirstRow()][0];
      __syncwarp();                         // Q has been read
      Tile<Config> done = shared.tiles[0];  // its head, which takes no registers meanwhile
      done.place.b = visit.b;
      FinishRows<Config, true>(rows, own, done, params);
      if constexpr (Config::kNarrowRows) {
        done.rows = tile.rows;
        done.o = tile.o;
        copier.Store(own, done, params);
        tile.o += distance.o;
      } else {
        copier.StoreWide(own, o, ptx::Opaque(core.o_strides.seq * (2 * Copier<Config>::kRowsOfO)),
                         tile.rows);
        o += distance.o;
      }
      rows.Start();
      q_slot ^= 1;
    }
    masks.Store(shared.keep[slot ^ 1]);
  }
  return !__syncthreads_or(fails);
}

// The tiles of a block, whatever they are.
template <class Config, class Params>
__device__ __forceinline__ void WalkTiles(SharedStorage<Config>& storage,
                                          TeamStorage<Config>& shared, const Params& params) {
  using Element = typename Config::Element;
  const bool is_first = ThreadOfTeam<Config>() == 0;
  const Copier<Config> copier{storage.wide};
  const Distance& distance = storage.distance;
  Rows<Config> rows;
  // Before the first visit, and when the last tile is to be computed again, there is none to attend
  // to.
  Visit<Config> visit = {};
  bool begins = true;
  rows.Start();
  int q_slot = 0, slot = 0;
  for (;; slot ^= 1) {
    WaitForCopies<Config>();
    SyncTeam<Config>();
    const bool failed = AnyByte(shared.failed[slot ^ 1]);
    const bool idle = begins || !visit.exists;
    if (idle && !begins && !failed) break;
    // After a tile that failed it comes next, from its first block of keys, and then this one once
    // more: what it writes then is right.
    const Tile<Config>& tile = shared.tiles[q_slot];
    Visit<Config> next = visit;
    next.tile = failed ? shared.tiles[q_slot ^ 1] : tile;
    if (failed || begins || next.Follow(distance, params)) {
      next.Begin(distance, copier, params);
      next.again = failed;
    }
    const bool last = !next.exists || next.first;
    if (next.exists) {
      if (next.first && is_first && !failed) shared.tiles[q_slot ^ 1] = next.tile;
      copier.Start(shared, next.first ? q_slot ^ 1 : q_slot, slot ^ 1, next, params);
    }
    CommitCopies<Config>();
    bool fails_here = false;
    if (!idle) {
      if (visit.careful() && visit.first) {
        __syncwarp();  // a branch that is not taken, instead of a selection for each register
        rows.Start();
      }
      if (visit.keys > 0) {
        Attention<Config, Params, Visit<Config>>{shared, storage.terms, params, rows,
                                                 tile,   visit,         q_slot, slot}
            .Run();
      }
      if (last) {
        // This tile comes once more, if the one before failed, which may have cut it short.
        const bool fails = Attention<Config, Params, Visit<Config>>::Failed(rows);
        fails_here = !failed && !visit.again && __any_sync(kAllLanes, fails);
        Element* const own = &shared.q[q_slot][Rows<Config>::FirstRow()][0];
        __syncwarp();  // Q has been read
        FinishRows<Config, false>(rows, own, tile, params);
        copier.Store(own, tile, params);
        rows.Start();
      }
    }
    if (threadIdx.x % 32 == 0) shared.failed[slot][ThreadOfTeam<Config>() / 32] = fails_here;
    begins = false;
    if (last) q_slot ^= 1;
    visit = next;
  }
}

// 16 rows a warp and 16 keys a step, for WalkCarefully.
template <class Config>
struct CarefulConfig : Config {
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kStepKeys = 16;
};

// 16 keys from `key_begin` on, attended to by a warp for its 16 rows from `row_begin` on. Operands
// come from global memory, wherever they lie there, and policies are asked by their definition.
template <class Config, class Params>
__device__ __forceinline__ void AttendCarefully(Rows<Config>& rows, const Problem& problem,
                                                i64 row_begin, i64 key_begin,
                                                const Params& params) {
  using Ops = typename Rows<Config>::Ops;
  constexpr int kColumns = Config::kHeadDimQk;
  const abi::AttnFwdParams& core = params.core;
  const int lane = LaneHere(), row = lane / 4, quad = lane % 4;
  const u16* const k_rows =
      static_cast<const u16*>(FirstKeyRow<Config>(core.k, core.k_strides, problem, params));
  const u16* const v_rows =
      static_cast<const u16*>(FirstKeyRow<Config>(core.v, core.v_strides, problem, params));
  const u16* q[2];
  const u16* k[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 i = Min(row_begin + row + half * 8, problem.seqlen_q - 1);
    const i64 j = key_begin + row + half * 8;
    q[half] = RowAt(static_cast<const u16*>(core.q), core.q_strides, problem, i);
    k[half] = j < problem.seqlen_kv ? k_rows + j * core.k_strides.seq : nullptr;
  }
  typename Rows<Config>::ScoreTile scores;
  ClearTile(scores);
#pragma unroll 1
  for (int column = quad * 2; column < RoundUp(kColumns, 16); column += 16) {
    const u32 a[4] = {PairOfRow<kColumns>(q[0], column), PairOfRow<kColumns>(q[1], column),
                      PairOfRow<kColumns>(q[0], column + 8), PairOfRow<kColumns>(q[1], column + 8)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      Ops::Multiply(scores[0][n], a, PairOfRow<kColumns>(k[n], column),
                    PairOfRow<kColumns>(k[n], column + 8));
    }
  }
  u32 kept = 0;  // a bit for each of the lane's scores
  const auto finish = [&](int e, float& score) {
    const i64 i = Min(row_begin + row + e / 2 % 2 * 8, problem.seqlen_q - 1);
    const i64 j = key_begin + e / 4 * 8 + quad * 2 + e % 2;
    const bool keep = j < problem.seqlen_kv && Config::Mask::Keep(problem, i, j, params);
    score = keep ? Config::Score::Apply(score * core.scale, problem, i, j, params) : -Infinity();
    kept |= static_cast<u32>(keep) << e;
  };
  if constexpr (Config::Score::kIdentity && Config::Mask::kIsEmpty) {
#pragma unroll
    for (int e = 0; e < 8; ++e) finish(e, scores[0][e / 4][e % 4]);
  } else {
    // A loop, for a policy may be much code.
#pragma unroll 1
    for (int e = 0; e < 8; ++e) {
      float score = 0;
#pragma unroll
      for (int t = 0; t < 8; ++t) score = t == e ? scores[0][t / 4][t % 4] : score;
      finish(e, score);
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        float& s = scores[0][t / 4][t % 4];
        s = t == e ? score : s;
      }
    }
  }
  rows.WatchScores(scores, kLog2OfE, true);
  Weights<2>(scores, rows.softmax, kLog2OfE, 0);
  u32 p[1][4];
  PackWeights<Ops>(p[0], scores[0], 0);
  // A lane's keys are those of its scores. What no row sees may be a NaN, and is left out.
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) kept |= __shfl_xor_sync(kAllLanes, kept, lanes);
  kept |= kept >> 2;  // of both rows
  const u16* v[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const i64 j = key_begin + n / 2 * 8 + quad * 2 + n % 2;
    v[n] = kept >> (n / 2 * 4 + n % 2) & 1 ? v_rows + j * core.v_strides.seq : nullptr;
  }
#pragma unroll
  for (int n = 0; n < Rows<Config>::kVTiles; ++n) {
    u32 b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      b[half] = ElementOfRow<Config::kHeadDimV>(v[2 * half + 1], n * 8 + row) << 16 |
                ElementOfRow<Config::kHeadDimV>(v[2 * half], n * 8 + row);
    }
    Ops::Multiply(rows.o[0][n], p[0], b[0], b[1]);
  }
  AddRowSums<Ops>(rows.o, p);
}

// What WalkAlikeTiles does not serve, in as little code as does it right: each warp attends to its
// rows of the team's tiles, 16 at a time, masks by selection.
template <class Config, class Params>
__device__ __forceinline__ void WalkCarefully(TeamStorage<Config>& shared, const Distance& distance,
                                              const Params& params) {
  using Element = typename Config::Element;
  using Careful = CarefulConfig<Config>;
  const abi::AttnFwdParams& core = params.core;
  Element* const own = &shared.q[0][Rows<Config>::FirstRow()][0];
  Rows<Careful> rows;
#pragma unroll 1
  for (Place place = shared.tiles[0].place; place.b < Batch<Config>(params);
       Move<Config>(place, distance, params)) {
    const Problem problem = MakeProblem<Config>(place.b, place.h, params);
    const i64 first = i64{place.m} * Config::kBlockM + Rows<Config>::FirstRow();
    const i64 end = Min(first + Config::kRowsPerWarp, problem.seqlen_q);
#pragma unroll 1
    for (i64 row = first; row < end; row += 16) {
      rows.Start();
#pragma unroll 1
      for (i64 key = 0; key < problem.seqlen_kv; key += 16) {
        AttendCarefully<Careful>(rows, problem, row, key, params);
      }
      rows.template Finish<kAllRowsAlike<Config>>(own, problem, row - Rows<Careful>::FirstRow(),
                                                  params);
      const int elements = static_cast<int>(Min(16, end - row)) * Config::kHeadDimV;
#pragma unroll 1
      for (int n = LaneHere(); n < elements; n += 32) {
        const int of_row = n / Config::kHeadDimV, column = n % Config::kHeadDimV;
        RowAt(static_cast<Element*>(core.o), core.o_strides, problem, row + of_row)[column] =
            own[of_row * Rows<Config>::kPitchQo + column];
      }
      __syncwarp();
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::kBlockM * Config::kTeams == Config::kWarps * Config::kRowsPerWarp);
  static_assert(Config::kRowsPerWarp % 16 == 0);
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStepKeys % (4 * Config::kRunKeys) == 0);
  static_assert(Config::kBlockN % Config::kStepKeys == 0);
  static_assert(Config::kTermKeys % Config::kBlockN == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& storage = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const int team = static_cast<int>(threadIdx.x) / kThreads<Config>;
  TeamStorage<Config>& shared = storage.teams[team];
  if (threadIdx.x == 0) {
    Distance distance = Distance::Of<Config>(i64{gridDim.x} * Config::kTeams, params);
    if constexpr (Config::kKeptTerms != 0) {
      distance.same_terms = Distance::Of<Config>(gridDim.x, params).same_terms &&
                            SeqlenKv<Config>(params) <= Config::kTermKeys;
    }
    if constexpr (kMayBeAlike<Config>) {
      const i64 rows = KeyBlocks<Config>(params) * Config::kBlockN;
      distance.k -= rows * params.core.k_strides.seq;
      distance.v -= rows * params.core.v_strides.seq;
    }
    storage.distance = distance;
    storage.wide = Widths::Of<Config>(params);
    storage.alike = distance.steady && (!JoinsHeads<Config> || HasPairsOfHeads<Config>(params)) &&
                    distance.same_terms && SeqlenKv<Config>(params) > 0 &&
                    (Config::kNarrowRows || (storage.wide.in && storage.wide.out));
  }
  // By another warp, where there is one: the divisions take their time.
  if (ThreadOfTeam<Config>() == kThreads<Config> - 1) {
    const i64 tile =
        JoinsHeads<Config> ? i64{blockIdx.x} * 2 + team : blockIdx.x + i64{gridDim.x} * team;
    const Distance start = Distance::Of<Config>(tile, params);
    const Place place = {static_cast<u32>(start.b), static_cast<int>(start.h),
                         static_cast<int>(start.m)};
    shared.tiles[0] = {.place = place, .rows = 0, .begin = 0, .top = 0, .o = nullptr};
    if (team == 0) storage.first = place;
    for (auto& of_visit : shared.failed) {
      for (u8& failed : of_visit) failed = 0;
    }
  }
  __syncthreads();
  if constexpr (kMayBeAlike<Config>) {
    if (storage.alike && WalkAlikeTiles<Config>(storage, shared, team, params)) return;
    WalkCarefully<Config>(shared, storage.distance, params);
  } else {
    WalkTiles<Config>(storage, shared, params);
  }
}

}  // namespace fwd_small
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SMALL_CUH_

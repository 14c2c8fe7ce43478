// How attn_decode shares the keys of all sequences among its blocks, from lengths that only the
// device knows, and where attn_combine finds what they left.
//
// An item is one tile of kBlockM packed rows of one (sequence, key/value head); its work is counted
// in units of kUnitKeys keys. Heads stand in `lines` lines, head h in line h % lines, and the units
// of all items of a line one after the other, sequences first. A line is cut into shares that
// differ by one unit at most, whatever the lengths are, and block g has share g / lines of line
// g % lines: blocks that run side by side read the same keys of neighbouring heads, which lie next
// to each other in memory. A piece is the part of an item that one block has. The result of a piece
// that is its whole item goes to the output; the others go to slots of the workspace: slot 2 g for
// a block's first piece, 2 g + 1 for a last one that is not the first.
//
// With fixed chunks (Config::kChunk, batch_invariant) every unit is a piece, and its slot is its
// number: how an item is cut then depends on nothing but its own length.
#ifndef TILEWRIGHT_POLICY_DECODE_WORK_CUH_
#define TILEWRIGHT_POLICY_DECODE_WORK_CUH_

#include "core/concepts.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

// Keys of a unit.
template <class Config>
inline constexpr int kUnitKeys =
    Config::kChunk == 0 ? Config::kStepKeys : Config::kBlockN* Config::kChunk;

// A block is not started for less than this.
template <class Config>
inline constexpr int kMinUnits = Config::kChunk != 0       ? 1
                                 : 256 > Config::kStepKeys ? 256 / Config::kStepKeys
                                                           : 1;

// What the items of one sequence have in common.
struct DecodeSequence {
  int first_unit;  // the unit of the first key that any row sees
  int units;       // of an item; at least 1, for rows without keys have a result too
  int row_tiles;   // items of a key/value head; 0 without rows
};

template <class Config, class Params>
__device__ __forceinline__ DecodeSequence SequenceAt(const Problem& problem, const Params& params) {
  if (problem.seqlen_q <= 0) return {0, 1, 0};
  // Both ends of the interval grow with the row.
  const KeyInterval first = Config::Mask::RowKeys(problem, 0, params);
  const KeyInterval last = Config::Mask::RowKeys(problem, problem.seqlen_q - 1, params);
  const int begin = static_cast<int>(Max(first.begin, 0));
  const int end = static_cast<int>(Min(last.end, problem.seqlen_kv));
  const u32 first_unit = static_cast<u32>(begin) / kUnitKeys<Config>;
  const u32 units =
      begin < end ? (static_cast<u32>(end) - 1) / kUnitKeys<Config> + 1 - first_unit : 1;
  const u32 rows = static_cast<u32>(problem.seqlen_q) * Config::kGroup;
  return {begin < end ? static_cast<int>(first_unit) : 0, static_cast<int>(units),
          static_cast<int>((rows - 1) / Config::kBlockM + 1)};
}

// a / b for a >= 0, b > 0: half the instructions of a signed division.
TILEWRIGHT_HOST_DEVICE int DivideInts(int a, int b) {
  return static_cast<int>(static_cast<u32>(a) / static_cast<u32>(b));
}

// Units of all items of sequence b in a line. The host has seen to it that their sum fits an int.
template <class Config, class Params>
__device__ __forceinline__ int UnitsOfSequence(i64 b, const Params& params) {
  const DecodeSequence sequence = SequenceAt<Config>(MakeProblem<Config>(b, 0, params), params);
  return sequence.units * sequence.row_tiles * params.parts.line_heads;
}

// Whether all sequences have as many units, and nothing in memory says how many.
template <class Config>
inline constexpr bool kSequencesAreAlike = kIsSame<typename Config::Lengths, LengthsUniform>;

// Units of the sequences before `end`. All lanes of a warp call it.
template <class Config, class Params>
__device__ __forceinline__ int UnitsBefore(int end, const Params& params) {
  if constexpr (kSequencesAreAlike<Config>) {
    return end * UnitsOfSequence<Config>(0, params);
  } else {
    int sum = 0;
    for (int b = static_cast<int>(threadIdx.x % 32); b < end; b += 32) {
      sum += UnitsOfSequence<Config>(b, params);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
  }
}

// The sequence that `unit`, which is below the total, belongs to, and the units before it.
struct SequencePlace {
  int b;
  int units_before;
};
template <class Config, class Params>
__device__ __forceinline__ SequencePlace FindSequence(int unit, const Params& params) {
  if constexpr (kSequencesAreAlike<Config>) {
    const int units = UnitsOfSequence<Config>(0, params);
    const int b = DivideInts(unit, units);
    return {b, b * units};
  } else {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int batch = static_cast<int>(Batch<Config>(params));
    int before = 0;
    for (int first = 0;; first += 32) {
      int sum = first + lane < batch ? UnitsOfSequence<Config>(first + lane, params) : 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_sync(kAllLanes, sum, lane - distance);
        if (lane >= distance) sum += below;
      }
      // Lanes whose sequence ends at or before the unit.
      const u32 passed = __ballot_sync(kAllLanes, before + sum <= unit);
      if (passed != kAllLanes) {
        const int index = __popc(passed);
        const int sum_before = __shfl_sync(kAllLanes, sum, index == 0 ? 0 : index - 1);
        return {first + index, before + (index == 0 ? 0 : sum_before)};
      }
      before += __shfl_sync(kAllLanes, sum, 31);
    }
  }
}

// A line of units cut among blocks.
struct UnitShares {
  int blocks;  // of the line that have a share
  int each;    // units of a share
  int larger;  // shares with one more, the first ones

  TILEWRIGHT_HOST_DEVICE int Begin(int block) const {
    return block * each + (block < larger ? block : larger);
  }
  // The one that has `unit`.
  TILEWRIGHT_HOST_DEVICE int BlockOf(int unit) const {
    const int in_larger = larger * (each + 1);
    return unit < in_larger ? DivideInts(unit, each + 1)
                            : larger + DivideInts(unit - in_larger, each);
  }
};

// `blocks` is how many were launched for the line.
template <class Config>
TILEWRIGHT_HOST_DEVICE UnitShares SharesOf(int total, int blocks) {
  const int sharing = static_cast<int>(Max(1, Min(blocks, total / kMinUnits<Config>)));
  const int each = DivideInts(total, sharing);
  return {sharing, each, total - each * sharing};
}

// Which packed row of the item, and which query row and head, a row of a warp's fragments is.
struct PackedRow {
  i64 i;
  i64 h;
  bool inside;
};
template <class Config>
__device__ __forceinline__ PackedRow RowAt(const Problem& problem, i64 first_row, int row) {
  const u32 packed = static_cast<u32>(first_row + row);
  return {packed / Config::kGroup, problem.h_kv * Config::kGroup + packed % Config::kGroup,
          packed < problem.seqlen_q * Config::kGroup};
}

// One piece of the work: rows from `first_row` on of (sequence, key/value head), keys [kv_begin,
// kv_end).
struct Piece {
  Problem problem;
  i64 first_row;
  int kv_begin;
  int kv_end;
  int slot;  // of the workspace; -1: the result is complete
  // Of the item, in its line: its first unit and how many it has. Not set where it is complete.
  int item_begin;
  int item_units;
};

// Where the parts of an item are: part p in slot first for p = 0, further + p * apart else.
struct PartSlots {
  int first;
  int further;
  int apart;
  int count;

  TILEWRIGHT_HOST_DEVICE int Of(int part) const {
    return part == 0 ? first : further + part * apart;
  }
};
template <class Config>
TILEWRIGHT_HOST_DEVICE PartSlots SlotsOf(const UnitShares& shares, int lines, int line, int begin,
                                         int units) {
  if constexpr (Config::kChunk != 0) {
    return {begin, begin, 1, units};
  } else {
    const int block = shares.BlockOf(begin);
    const int slot = 2 * (block * lines + line);
    // The first block's last piece, unless it begins with it.
    return {slot + (shares.Begin(block) == begin ? 0 : 1), slot, 2 * lines,
            shares.BlockOf(begin + units - 1) - block + 1};
  }
}

// The keys of a piece that any row of its tile sees, and those that all rows see.
struct KeyBounds {
  int seen_begin, seen_end, full_begin, full_end;
};
template <class Config, class Params>
__device__ __forceinline__ KeyBounds BoundsOf(const Piece& piece, const Params& params) {
  const Problem& problem = piece.problem;
  const i64 rows = problem.seqlen_q * Config::kGroup;
  const i64 last_row = Min(piece.first_row + Config::kBlockM, rows) - 1;
  // Both ends of the interval grow with the row.
  const KeyInterval first =
      Config::Mask::RowKeys(problem, piece.first_row / Config::kGroup, params);
  const KeyInterval last = Config::Mask::RowKeys(problem, last_row / Config::kGroup, params);
  return {static_cast<int>(Max(first.begin, piece.kv_begin)),
          static_cast<int>(Max(0, Min(last.end, piece.kv_end))),
          static_cast<int>(Max(last.begin, 0)),
          static_cast<int>(Max(0, Min(first.end, piece.kv_end)))};
}

// Units [offset, offset + count) of an item of a sequence: the item-th of a line of heads.
template <class Config>
__device__ __forceinline__ Piece PieceOf(const Problem& problem, const DecodeSequence& sequence,
                                         int item, int lines, int line, int offset, int count,
                                         int slot) {
  const int head = sequence.row_tiles == 1 ? item : DivideInts(item, sequence.row_tiles);
  const int row_tile = item - head * sequence.row_tiles;
  Piece piece = {.problem = problem,
                 .first_row = i64{row_tile} * Config::kBlockM,
                 .kv_begin = (sequence.first_unit + offset) * kUnitKeys<Config>,
                 .kv_end = (sequence.first_unit + offset + count) * kUnitKeys<Config>,
                 .slot = slot,
                 .item_begin = 0,
                 .item_units = 0};
  piece.problem.h_kv = head * lines + line;
  piece.problem.h = piece.problem.h_kv * Config::kGroup;
  piece.kv_end = static_cast<int>(Min(piece.kv_end, problem.seqlen_kv));
  return piece;
}

// Blocks that have one share together: those of a cluster.
template <class Config>
TILEWRIGHT_HOST_DEVICE constexpr int BlocksOfShare() {
  if constexpr (requires { Config::kCluster; }) {
    return Config::kCluster;
  } else {
    return 1;
  }
}
template <class Config>
__device__ __forceinline__ int ShareOfBlock() {
  return static_cast<int>(blockIdx.x) / BlocksOfShare<Config>();
}
template <class Config>
__device__ __forceinline__ int SharesOfGrid() {
  return static_cast<int>(gridDim.x) / BlocksOfShare<Config>();
}

// The pieces of a block, one after the other:
//   PieceWalk<Config> walk(params);
//   for (Piece piece; walk.Next(&piece, params);) ...
// With parts (abi::PartsArgs) a block has its share of all units, without it whole items: those
// from blockIdx.x on, with the stride of the grid.
template <class Config>
class PieceWalk {
 public:
  template <class Params>
  __device__ __forceinline__ explicit PieceWalk(const Params& params) {
    if (params.parts.parts > 1) {
      const int total = UnitsBefore<Config>(static_cast<int>(Batch<Config>(params)), params);
      shares_ = SharesOf<Config>(total, params.parts.line_blocks);
      if (total == 0) shares_.blocks = 0;
      block_ = ShareOfBlock<Config>() - SharesOfGrid<Config>();
    } else {
      block_ = ShareOfBlock<Config>();
    }
  }

  // Of a piece that is not its whole item.
  __device__ __forceinline__ PartSlots SlotsOfItem(const Piece& piece, int lines) const {
    const int h_kv = static_cast<int>(piece.problem.h_kv);
    return SlotsOf<Config>(shares_, lines, h_kv - DivideInts(h_kv, lines) * lines, piece.item_begin,
                           piece.item_units);
  }

  // Whether the shares of `count` blocks, this one's among them and the first a multiple of
  // `count`, are the item of a piece that is a part of it, and nothing else. Asked with one line of
  // heads.
  __device__ __forceinline__ bool IsItemOfShares(const Piece& piece, int count) const {
    const int first = DivideInts(block_, count) * count;
    return SharesOfGrid<Config>() >= shares_.blocks && first + count <= shares_.blocks &&
           shares_.Begin(first) == piece.item_begin &&
           shares_.Begin(first + count) == piece.item_begin + piece.item_units;
  }

  template <class Params>
  __device__ __forceinline__ bool Next(Piece* piece, const Params& params) {
    return params.parts.parts > 1 ? NextOfShare(piece, params) : NextItem(piece, params);
  }

 private:
  template <class Params>
  __device__ __forceinline__ bool NextItem(Piece* piece, const Params& params) {
    const int row_tiles =
        static_cast<int>(CeilDiv(SeqlenQ<Config>(params) * Config::kGroup, Config::kBlockM));
    const int items_of_sequence = static_cast<int>(params.core.heads_kv) * row_tiles;
    const int items = static_cast<int>(Batch<Config>(params)) * items_of_sequence;
    while (block_ < items) {
      const int b = DivideInts(block_, items_of_sequence);
      const int item = block_ - b * items_of_sequence;
      block_ += SharesOfGrid<Config>();
      const Problem problem = MakeProblem<Config>(b, 0, params);
      const DecodeSequence sequence = SequenceAt<Config>(problem, params);
      // Shorter sequences than the longest have fewer items.
      if (item >= sequence.row_tiles * static_cast<int>(params.core.heads_kv)) continue;
      *piece = PieceOf<Config>(problem, sequence, item, 1, 0, 0, sequence.units, -1);
      return true;
    }
    return false;
  }

  template <class Params>
  __device__ __forceinline__ bool NextOfShare(Piece* piece, const Params& params) {
    const int lines = params.parts.lines;
    while (true) {
      const int share = DivideInts(block_ + (unit_ == end_ ? SharesOfGrid<Config>() : 0), lines);
      if (unit_ == end_) {
        if (share >= shares_.blocks) return false;
        block_ += SharesOfGrid<Config>();
        unit_ = shares_.Begin(share);
        end_ = shares_.Begin(share + 1);
        place_ = FindSequence<Config>(unit_, params);
      }
      const Problem problem = MakeProblem<Config>(place_.b, 0, params);
      const DecodeSequence sequence = SequenceAt<Config>(problem, params);
      const int units_of_sequence = sequence.units * sequence.row_tiles * params.parts.line_heads;
      const int local = unit_ - place_.units_before;
      if (local >= units_of_sequence) {
        place_ = {place_.b + 1, place_.units_before + units_of_sequence};
        continue;
      }
      const int item = DivideInts(local, sequence.units);
      const int offset = local - item * sequence.units;
      const int left = sequence.units - offset;
      const int count = Config::kChunk != 0 ? 1 : left < end_ - unit_ ? left : end_ - unit_;
      int slot = -1;
      if (count != sequence.units) {
        const bool first = unit_ == shares_.Begin(share);
        slot = Config::kChunk != 0 ? unit_ : 2 * block_ + (first ? 0 : 1);
      }
      *piece = PieceOf<Config>(problem, sequence, item, lines, block_ - share * lines, offset,
                               count, slot);
      piece->item_begin = unit_ - offset;
      piece->item_units = sequence.units;
      unit_ += count;
      return true;
    }
  }

  UnitShares shares_ = {0, 0, 0};
  // Whose share it is: this one's, or another's where the grid is smaller. Without parts: the item.
  int block_ = 0;
  int unit_ = 0, end_ = 0;
  SequencePlace place_ = {0, 0};
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_DECODE_WORK_CUH_

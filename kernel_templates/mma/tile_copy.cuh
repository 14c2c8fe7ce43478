// Tiles of rows from global to shared memory, by all threads of a block. Shared rows lie an odd
// number of 16-byte chunks apart: the eight rows that a phase of ldmatrix reads lie in different
// banks.
#ifndef TILEWRIGHT_MMA_TILE_COPY_CUH_
#define TILEWRIGHT_MMA_TILE_COPY_CUH_

#include "abi/attn_fwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "core/words.cuh"
#include "mma/score_tile.cuh"
#include "policy/kv_rows.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// The smallest power of two that is not below `n`.
TILEWRIGHT_HOST_DEVICE constexpr int PowerOfTwoFrom(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Whether the warps of a block are teams, each with tiles of its own; only some families have them.
template <class Config>
concept HasTeams = requires {
  requires(Config::kTeams > 1);
};
template <class Config>
inline constexpr int kTeamCount = 1;
template <HasTeams Config>
inline constexpr int kTeamCount<Config> = Config::kTeams;

// The threads that share a tile, this one's number among them, and their barrier.
template <class Config>
inline constexpr int kThreads = Config::kWarps * 32 / kTeamCount<Config>;
template <class Config>
__device__ __forceinline__ int ThreadOfTeam() {
  const int thread = static_cast<int>(threadIdx.x);
  return HasTeams<Config> ? thread % kThreads<Config> : thread;
}
template <class Config>
__device__ __forceinline__ void SyncTeam() {
  if constexpr (HasTeams<Config>) {
    ptx::bar_sync(1 + static_cast<int>(threadIdx.x) / kThreads<Config>, kThreads<Config>);
  } else {
    __syncthreads();
  }
}

// Whether the plan has only instructions of sm_75; only some families have one.
template <class Config>
concept IsForTuring = requires {
  requires Config::kTuring;
};

// Whether the plan is one for rows that are no multiples of 16 bytes; only some families have one.
template <class Config>
concept IsForNarrowRows = requires {
  requires Config::kNarrowRows;
};

// Elements that 16 bytes hold.
template <class Element>
inline constexpr int kChunkElements = 16 / static_cast<int>(sizeof(Element));

// Whether every row of a tensor, of 16-bit elements unless said otherwise, starts on a multiple of
// 16 bytes.
template <class Element = u16>
__device__ __forceinline__ bool Aligned16(const void* base, const abi::TensorStrides& strides) {
  return (reinterpret_cast<u64>(base) % 16 == 0) &&
         (strides.batch | strides.seq | strides.head) % kChunkElements<Element> == 0;
}

// Bytes, 2 to 16, that the first elements of all rows of a 16-bit tensor are multiples of.
__device__ __forceinline__ int RowAlignment(const void* base, const abi::TensorStrides& strides) {
  return AlignmentOf(reinterpret_cast<u64>(base) |
                     static_cast<u64>(strides.batch | strides.seq | strides.head) * 2);
}

// Rows of 16-bit elements that are no multiples of 16 bytes, but lie a multiple of 16 bytes apart
// (several heads side by side), all begin the same number of columns behind such a multiple. They
// are copied by whole chunks of 16 bytes and stay where they then lie in shared memory, shifted.
// The columns before them are somebody else's: of V they become columns of O that nobody writes,
// and of K they meet zeros of Q.
inline constexpr int kNotShifted = -1;

// The shift of rows from `first` on of the tensor at `base`; kNotShifted for rows that have not all
// the same, one above `most`, or might begin before the tensor.
template <class Element>
__device__ __forceinline__ int ShiftOf(const void* base, const void* first,
                                       const abi::TensorStrides& strides, int most) {
  const int shift = static_cast<int>(reinterpret_cast<u64>(first) % 16 / sizeof(Element));
  const bool same = (strides.batch | strides.seq) % kChunkElements<Element> == 0;
  return same && reinterpret_cast<u64>(base) % 16 == 0 && shift <= most ? shift : kNotShifted;
}

// Elements between rows of a shared tile that holds `columns` of them.
TILEWRIGHT_HOST_DEVICE constexpr int Pitch(int columns) {
  return 8 * (RoundUp(columns, 8) / 8 | 1);
}

// Copies of sm_80 run behind what follows them, until they are waited for; sm_75's are done at
// once.
template <class Config>
__device__ __forceinline__ void CommitCopies() {
  if constexpr (!IsForTuring<Config>) ptx::cp_async_commit_group();
}
template <class Config>
__device__ __forceinline__ void WaitForCopies() {
  if constexpr (!IsForTuring<Config>) ptx::cp_async_wait_group<0>();
}

// Copies 16 bytes, of which those from `bytes` on become zeros and are not read.
template <class Config, class Element>
__device__ __forceinline__ void CopyChunk(Element* to, const Element* from, int bytes) {
  if constexpr (IsForTuring<Config>) {
    Words<16> chunk = {};
    if (bytes == 16) {
      chunk = *reinterpret_cast<const Words<16>*>(from);
    } else {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const u32 half = 2 * n < bytes ? reinterpret_cast<const u16*>(from)[n] : 0;
        chunk.word[n / 2] |= half << (n % 2 * 16);
      }
    }
    *reinterpret_cast<Words<16>*>(to) = chunk;
  } else {
    ptx::cp_async_cg_16(ptx::SharedAddress(to), from, bytes);
  }
}

// Rows `stride` elements apart.
template <class Element>
struct DenseRows {
  static constexpr bool kMayBeMissing = false;
  const Element* first;
  i64 stride;
  __device__ __forceinline__ const Element* operator()(int row) const {
    return first + row * stride;
  }
};

// Rows of K or V found one by one; null where there is none.
template <class Config, class Params>
struct LocatedRows {
  static constexpr bool kMayBeMissing = true;
  const typename Config::Element* head;
  const abi::TensorStrides& strides;
  const Problem& problem;
  const Params& params;
  i64 kv_begin;
  __device__ __forceinline__ const typename Config::Element* operator()(int row) const {
    const i64 j = kv_begin + row;
    if (j >= problem.seqlen_kv) return nullptr;
    const KvRow at = Config::KvRows::Locate(problem, j, params);
    return at.exists() ? head + at.block * strides.batch + at.row * strides.seq : nullptr;
  }
};

// Copies 16 bytes' elements to a multiple of 16 bytes. Those from `columns` on become zeros and are
// not read.
template <class Element>
__device__ __forceinline__ void StartNarrowCopy(Element* to, const Element* from, int columns) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(Element));
  if (kPerWord == 1 || reinterpret_cast<u64>(from) % 4 == 0) {
#pragma unroll
    for (int n = 0; n < kChunkElements<Element>; n += kPerWord) {
      const int bytes = columns >= n + kPerWord ? 4 : columns > n ? 2 : 0;
      ptx::cp_async_ca<4>(ptx::SharedAddress(to + n), from + n, bytes);
    }
  } else if constexpr (kPerWord == 2) {
    // Element 0, three aligned pairs, element 7; a pair with one element is read as that.
    const auto* const halves = reinterpret_cast<const u16*>(from);
    u32 first = columns > 0 ? halves[0] : 0;
    Words<16> chunk;
#pragma unroll
    for (int n = 1; n < 9; n += 2) {
      u32 pair = 0;
      if (n + 1 < 8 && columns > n + 1) {
        pair = *reinterpret_cast<const u32*>(halves + n);
      } else if (columns > n) {
        pair = halves[n];
      }
      chunk.word[n / 2] = first | pair << 16;
      first = pair >> 16;
    }
    *reinterpret_cast<Words<16>*>(to) = chunk;
  }
}

// A tile to copy: rows of kColumns elements, row r to tile[ColumnOfKey<kRunKeys>(r)];
// columns from kColumns to the next multiple of kColumnStep become zeros. With kShift rows may lie
// up to so many columns further on.
template <int kColumnCount, int kColumnStep, int kRunKeysOfTile, int kShift = 0>
struct TileShape {
  static constexpr int kColumns = kColumnCount;
  static constexpr int kMostShift = kShift;
  static constexpr int kPadded = RoundUp(kColumnCount + kShift, kColumnStep);
  static constexpr int kRunKeys = kRunKeysOfTile;
};

// Rows that are multiples of 16 bytes, or begin `shift` columns behind one: a copy for each 16.
template <class Config, class Shape, class Element, int kRows, int kPitch, class RowPointer>
__device__ __forceinline__ void StartWideCopy(Element (&tile)[kRows][kPitch], int valid_rows,
                                              const RowPointer& row_pointer, int shift = 0) {
  constexpr int kColumns = Shape::kColumns, kPadded = Shape::kPadded;
  constexpr int kPer = kChunkElements<Element>, kChunks = kPadded / kPer;
  // A power of two of threads side by side, so that each keeps its column and its addresses are a
  // constant step apart; for other chunk counts the last of them rest.
  constexpr int kLanes = PowerOfTwoFrom(kChunks);
  constexpr int kStep = kThreads<Config> / kLanes;
  const int thread = ThreadOfTeam<Config>();
  const int first_row = thread / kLanes, chunk = thread % kLanes;
  // first_row has no bit of a multiple of kStep, when that is a power of two.
  constexpr bool kPlacesAdd = (kStep & (kStep - 1)) == 0;
  const int first_place = ColumnOfKey<Shape::kRunKeys>(first_row);
  const auto copy = [&](int step, const Element* source_row) {
    const int row = first_row + step;
    const int place = kPlacesAdd ? first_place + ColumnOfKey<Shape::kRunKeys>(step)
                                 : ColumnOfKey<Shape::kRunKeys>(row);
    // All bytes of a chunk, those below kColumns, or none: then the address is not followed.
    int bytes = 16;
    if (kColumns % kPer != 0 && chunk == kColumns / kPer) {
      bytes = kColumns % kPer * static_cast<int>(sizeof(Element));
    }
    if (kPadded - kColumns >= kPer && chunk * kPer >= kColumns) bytes = 0;
    if constexpr (Shape::kMostShift > 0) {
      bytes = static_cast<int>(Min(16, Max(0, (shift + kColumns - chunk * kPer) * 2)));
      source_row -= shift;
    }
    if (row >= valid_rows || (RowPointer::kMayBeMissing && source_row == nullptr)) bytes = 0;
    CopyChunk<Config>(&tile[place][chunk * kPer], source_row + chunk * kPer, bytes);
  };
  if (kLanes == kChunks || chunk < kChunks) {
    if constexpr (!RowPointer::kMayBeMissing) {
      // In bytes, each from the one before: an addition for a row, no multiplication.
      u64 source_row = reinterpret_cast<u64>(row_pointer(first_row));
      const u64 distance = static_cast<u64>(
          ptx::Opaque(row_pointer.stride * kStep * static_cast<i64>(sizeof(Element))));
#pragma unroll
      for (int step = 0; step < kRows / kStep * kStep; step += kStep) {
        copy(step, reinterpret_cast<const Element*>(source_row));
        source_row += distance;
      }
    } else {
#pragma unroll
      for (int step = 0; step < kRows / kStep * kStep; step += kStep) {
        copy(step, row_pointer(first_row + step));
      }
    }
    constexpr int kLast = kRows / kStep * kStep;
    if (kRows % kStep != 0 && first_row < kRows % kStep)
      copy(kLast, row_pointer(first_row + kLast));
  }
}

// Rows anywhere, kUnit elements at a time: those of 16 bytes as StartNarrowCopy does, or 1.
template <class Config, class Shape, int kUnit, class Element, int kRows, int kPitch,
          class RowPointer>
__device__ __forceinline__ void CopyRows(Element (&tile)[kRows][kPitch], int valid_rows,
                                         const RowPointer& row_pointer) {
  constexpr int kUnits = Shape::kPadded / kUnit;
#pragma unroll 1
  for (int index = ThreadOfTeam<Config>(); index < kRows * kUnits; index += kThreads<Config>) {
    const int row = index / kUnits, column = index % kUnits * kUnit;
    const Element* source_row = row < valid_rows ? row_pointer(row) : nullptr;
    const bool exists = row < valid_rows && (!RowPointer::kMayBeMissing || source_row != nullptr);
    const int columns = exists ? Shape::kColumns - column : 0;
    Element* const to = &tile[ColumnOfKey<Shape::kRunKeys>(row)][column];
    if constexpr (kUnit > 1) {
      StartNarrowCopy(to, source_row + column, columns);
    } else {
      *to = columns > 0 ? source_row[column] : Element{0};
    }
  }
}

// Copies the rows of a tile from global memory; those from `valid_rows` on become zeros.
// `row_pointer(r)` is only followed for the others. `wide`: all are multiples of 16 bytes. A plan
// for rows of 16 bytes (not IsForNarrowRows) keeps the code for others short, as it costs
// compile time and registers; a plan for narrow rows has that of shifted rows and no other.
template <class Config, class Shape, class Element, int kRows, int kPitch, class RowPointer>
__device__ __forceinline__ void StartCopy(Element (&tile)[kRows][kPitch], int valid_rows, bool wide,
                                          const RowPointer& row_pointer, int shift = kNotShifted) {
  if constexpr (Shape::kMostShift > 0) {
    if (shift != kNotShifted) {
      return StartWideCopy<Config, Shape>(tile, valid_rows, row_pointer, shift);
    }
  }
  if constexpr (!IsForNarrowRows<Config>) {
    if (wide) return StartWideCopy<Config, Shape>(tile, valid_rows, row_pointer);
  }
  constexpr bool kByChunks = IsForNarrowRows<Config> || sizeof(Element) == 4;
  CopyRows<Config, Shape, kByChunks ? kChunkElements<Element> : 1>(tile, valid_rows, row_pointer);
}

// Where the rows of K or V of a problem begin: dense ones with row 0 of the sequence, others with
// the head.
template <class Config, class Params>
__device__ __forceinline__ const void* FirstKeyRow(const void* base,
                                                   const abi::TensorStrides& strides,
                                                   const Problem& problem, const Params& params) {
  auto* first = static_cast<const typename Config::Element*>(base) + problem.h_kv * strides.head;
  if constexpr (Config::KvRows::kIsDense) {
    const KvRow row = Config::KvRows::Locate(problem, 0, params);
    first += row.block * strides.batch + row.row * strides.seq;
  }
  return first;
}

// Starts the copy of the rows from `kv_begin` on, of a tensor that FirstKeyRow gives.
template <class Config, class Shape, int kPitch, class Params>
__device__ __forceinline__ void StartCopyOfKeys(
    typename Config::Element (&tile)[Config::kBlockN][kPitch], const void* first_row,
    const abi::TensorStrides& strides, const Problem& problem, i64 kv_begin, const Params& params,
    int shift = kNotShifted) {
  using Element = typename Config::Element;
  const auto* const first = static_cast<const Element*>(first_row);
  const bool wide = Aligned16<Element>(first, strides);
  const int valid_rows = static_cast<int>(Min(Config::kBlockN, problem.seqlen_kv - kv_begin));
  if constexpr (Config::KvRows::kIsDense) {
    StartCopy<Config, Shape>(tile, valid_rows, wide,
                             DenseRows<Element>{first + kv_begin * strides.seq, strides.seq},
                             shift);
  } else if constexpr (Config::KvRows::kPageRows % Config::kBlockN == 0) {
    // The tile lies on one page.
    const KvRow row = Config::KvRows::Locate(problem, kv_begin, params);
    const Element* rows = first + row.block * strides.batch + row.row * strides.seq;
    StartCopy<Config, Shape>(tile, row.exists() ? valid_rows : 0, wide,
                             DenseRows<Element>{rows, strides.seq}, shift);
  } else {
    StartCopy<Config, Shape>(tile, valid_rows, wide,
                             LocatedRows<Config, Params>{first, strides, problem, params, kv_begin},
                             shift);
  }
}

template <int kColumns, int kBytes, class Element>
__device__ __forceinline__ void StoreTileBy(Element* to, i64 stride, const Element* from, int pitch,
                                            int rows) {
  constexpr int kElements = kBytes / 2, kUnits = kColumns / kElements;
  // The lane is found here: kept from the start of a kernel of 255 registers it would spill.
  const int lane = static_cast<int>(ptx::Opaque(threadIdx.x) % 32);
  for (int index = lane; index < rows * kUnits; index += 32) {
    const int row = index / kUnits, column = index % kUnits * kElements;
    *reinterpret_cast<Words<kBytes>*>(to + row * stride + column) =
        *reinterpret_cast<const Words<kBytes>*>(from + row * pitch + column);
  }
}

// Copies rows [0, rows) of kColumns elements of 16 bits to rows of global memory that lie `stride`
// elements apart, by one warp. `from` and its pitch are multiples of 16 bytes, the rows of `to` of
// `alignment`.
template <int kColumns, class Element>
__device__ __forceinline__ void StoreTile(Element* to, i64 stride, const Element* from, int pitch,
                                          int rows, int alignment) {
  if constexpr (kColumns % 8 == 0) {
    if (alignment == 16) return StoreTileBy<kColumns, 16>(to, stride, from, pitch, rows);
  }
  if constexpr (kColumns % 4 == 0) {
    if (alignment >= 8) return StoreTileBy<kColumns, 8>(to, stride, from, pitch, rows);
  }
  if constexpr (kColumns % 4 == 2) {
    if (alignment >= 4) return StoreTileBy<kColumns, 4>(to, stride, from, pitch, rows);
  }
  StoreTileBy<kColumns, 2>(to, stride, from, pitch, rows);
}

// Writes rows [i_begin, i_begin + rows) of O, as far as they exist, from shared memory, by one
// warp.
template <class Config, class Params>
__device__ __forceinline__ void StoreTileOfRows(const typename Config::Element* from, int pitch,
                                                i64 i_begin, int rows, const Problem& problem,
                                                const Params& params) {
  using Element = typename Config::Element;
  const abi::TensorStrides& strides = params.core.o_strides;
  Element* o = static_cast<Element*>(params.core.o) + problem.q_batch * strides.batch +
               problem.h * strides.head + (problem.q_row + i_begin) * strides.seq;
  // As for copies, narrow rows have code of their own in plans for them only.
  const int alignment = IsForNarrowRows<Config> ? RowAlignment(params.core.o, strides)
                                                : (Aligned16(params.core.o, strides) ? 16 : 2);
  StoreTile<Config::kHeadDimV>(o, strides.seq, from, pitch,
                               static_cast<int>(Min(rows, problem.seqlen_q - i_begin)), alignment);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_TILE_COPY_CUH_

// Tiles of rows from global to shared memory, by all threads of a block. Shared rows lie an odd
// number of 16-byte chunks apart: the eight rows that a phase of ldmatrix reads lie in different
// banks.
#ifndef TILEWRIGHT_MMA_TILE_COPY_CUH_
#define TILEWRIGHT_MMA_TILE_COPY_CUH_

#include "abi/attn_fwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "policy/kv_rows.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// The smallest power of two that is not below `n`.
TILEWRIGHT_HOST_DEVICE constexpr int PowerOfTwoFrom(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

template <class Config>
inline constexpr int kThreads = Config::kWarps * 32;

struct alignas(16) Vec16 {
  u32 words[4];
};

// Whether every row of a 16-bit tensor starts on a multiple of 16 bytes.
__device__ __forceinline__ bool Aligned16(const void* base, const abi::TensorStrides& strides) {
  return (reinterpret_cast<u64>(base) % 16 == 0) &&
         (strides.batch | strides.seq | strides.head) % 8 == 0;
}

// Elements between rows of a shared tile that holds `columns` of them.
TILEWRIGHT_HOST_DEVICE constexpr int Pitch(int columns) {
  return 8 * (RoundUp(columns, 8) / 8 | 1);
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

// Copies rows [0, kRows) of a tile from global memory; rows from `valid_rows` on and columns from
// kColumns to the next multiple of kColumnStep become zeros. `row_pointer(r)` is only read for
// valid rows. `wide`: every row starts on a multiple of 16 bytes and is copied by cp.async; else
// element by element.
template <int kColumns, int kColumnStep, int kThreads, class Element, int kRows, int kPitch,
          class RowPointer>
__device__ __forceinline__ void StartCopy(Element (&tile)[kRows][kPitch], int valid_rows, bool wide,
                                          const RowPointer& row_pointer) {
  constexpr int kPadded = RoundUp(kColumns, kColumnStep);
  const int thread = static_cast<int>(threadIdx.x);
  if (wide) {
    constexpr int kChunks = kPadded / 8;
    const auto copy = [&](int row, int chunk, const Element* source_row) {
      // All bytes of a chunk, those below kColumns, or none: then the address is not followed.
      int bytes = 16;
      if (kColumns % 8 != 0 && chunk == kColumns / 8) bytes = kColumns % 8 * 2;
      if (kPadded - kColumns >= 8 && chunk * 8 >= kColumns) bytes = 0;
      if (row >= valid_rows || (RowPointer::kMayBeMissing && source_row == nullptr)) bytes = 0;
      ptx::cp_async_cg_16(ptx::SharedAddress(&tile[row][chunk * 8]), source_row + chunk * 8, bytes);
    };
    // A power of two of threads side by side, so that each keeps its column and its addresses are a
    // constant step apart; for other chunk counts the last of them rest.
    constexpr int kLanes = PowerOfTwoFrom(kChunks);
    constexpr int kStep = kThreads / kLanes;
    const int first_row = thread / kLanes, chunk = thread % kLanes;
    if (kLanes == kChunks || chunk < kChunks) {
      if constexpr (!RowPointer::kMayBeMissing) {
        // In bytes, each from the one before: an addition for a row, no multiplication.
        u64 source_row = reinterpret_cast<u64>(row_pointer(first_row));
        const u64 step = static_cast<u64>(
            ptx::Opaque(row_pointer.stride * kStep * static_cast<i64>(sizeof(Element))));
#pragma unroll
        for (int row = 0; row < kRows / kStep * kStep; row += kStep) {
          copy(first_row + row, chunk, reinterpret_cast<const Element*>(source_row));
          source_row += step;
        }
      } else {
#pragma unroll
        for (int row = 0; row < kRows / kStep * kStep; row += kStep) {
          copy(first_row + row, chunk, row_pointer(first_row + row));
        }
      }
      if (kRows % kStep != 0 && first_row < kRows % kStep) {
        copy(kRows / kStep * kStep + first_row, chunk,
             row_pointer(kRows / kStep * kStep + first_row));
      }
    }
  } else {
#pragma unroll 1
    for (int index = thread; index < kRows * kPadded; index += kThreads) {
      const int row = index / kPadded, column = index % kPadded;
      Element element = {0};
      if (row < valid_rows && column < kColumns) {
        const Element* source_row = row_pointer(row);
        if (!RowPointer::kMayBeMissing || source_row != nullptr) element = source_row[column];
      }
      tile[row][column] = element;
    }
  }
}

// Starts the copy of the K or V rows of block n.
template <class Config, int kColumns, int kColumnStep, int kPitch, class Params>
__device__ __forceinline__ void StartCopyOfKeys(
    typename Config::Element (&tile)[Config::kBlockN][kPitch], const void* base,
    const abi::TensorStrides& strides, bool wide, const Problem& problem, i64 kv_begin,
    const Params& params) {
  using Element = typename Config::Element;
  const Element* head = static_cast<const Element*>(base) + problem.h_kv * strides.head;
  const int valid_rows = static_cast<int>(Min(Config::kBlockN, problem.seqlen_kv - kv_begin));
  if constexpr (Config::KvRows::kIsDense) {
    const KvRow first = Config::KvRows::Locate(problem, kv_begin, params);
    const Element* rows = head + first.block * strides.batch + first.row * strides.seq;
    StartCopy<kColumns, kColumnStep, kThreads<Config>>(tile, valid_rows, wide,
                                                       DenseRows<Element>{rows, strides.seq});
  } else {
    StartCopy<kColumns, kColumnStep, kThreads<Config>>(
        tile, valid_rows, wide,
        LocatedRows<Config, Params>{head, strides, problem, params, kv_begin});
  }
}

// Writes rows [i_begin, i_begin + rows) of O, as far as they exist, from shared memory, by one
// warp.
template <class Config, class Params>
__device__ __forceinline__ void StoreTileOfRows(const typename Config::Element* from, int pitch,
                                                i64 i_begin, int rows, const Problem& problem,
                                                const Params& params) {
  using Element = typename Config::Element;
  const abi::AttnFwdParams& core = params.core;
  Element* o = static_cast<Element*>(core.o) + problem.q_batch * core.o_strides.batch +
               problem.h * core.o_strides.head + (problem.q_row + i_begin) * core.o_strides.seq;
  const int lane = static_cast<int>(threadIdx.x % 32);
  rows = static_cast<int>(Min(rows, problem.seqlen_q - i_begin));
  constexpr int kChunks = RoundUp(Config::kHeadDimV, 8) / 8;
  if (Config::kHeadDimV % 8 == 0 && Aligned16(core.o, core.o_strides)) {
    for (int index = lane; index < rows * kChunks; index += 32) {
      const int row = index / kChunks, column = index % kChunks * 8;
      *reinterpret_cast<Vec16*>(o + row * core.o_strides.seq + column) =
          *reinterpret_cast<const Vec16*>(from + row * pitch + column);
    }
  } else {
    for (int index = lane; index < rows * Config::kHeadDimV; index += 32) {
      const int row = index / Config::kHeadDimV, column = index % Config::kHeadDimV;
      o[row * core.o_strides.seq + column] = from[row * pitch + column];
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_TILE_COPY_CUH_

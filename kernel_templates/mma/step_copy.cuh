// Steps of keys from global to shared memory for attn_decode: kStep rows of K or V of 16 or 8 bits,
// copied by the kThreads threads of a team, from wherever their pages lie.
#ifndef TILEWRIGHT_MMA_STEP_COPY_CUH_
#define TILEWRIGHT_MMA_STEP_COPY_CUH_

#include "abi/attn_fwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/chunked_rows.cuh"
#include "policy/decode_work.cuh"
#include "ptx/cp_async.cuh"

namespace tilewright {

// Whether all keys of a step lie on one page, or follow one another anyway. Steps begin at
// multiples of kStep.
template <class Config, int kStep>
inline constexpr bool kOnePage = Config::KvRows::kIsDense || Config::kPageRows % kStep == 0;

template <class Config, class Params, int kStep, int kThreads>
struct StepCopy {
  using KvElement = typename Config::KvElement;
  static constexpr int kSize = sizeof(KvElement);

  const Params& params;
  const int thread;  // of the team
  const bool wide_k, wide_v;
  // Of the piece that is copied: the rows of its head, from the sequence's first or page 0 on.
  const KvElement* k;
  const KvElement* v;
  i64 scales_k, scales_v;  // the same as offsets, where each key has its own
  const i32* table;        // of the sequence's pages
  int seen_begin, seen_end;
  // Looked up ahead: the page of the next step to be copied, or of this thread's keys in it.
  static constexpr bool kEach = !kOnePage<Config, kStep>;
  static constexpr int kLookUps = kEach ? (kStep + kThreads - 1) / kThreads : 1;
  i32 page[kLookUps];

  __device__ __forceinline__ StepCopy(const Params& params, int thread)
      : params(params),
        thread(thread),
        wide_k(Aligned(params.core.k, params.core.k_strides)),
        wide_v(Aligned(params.core.v, params.core.v_strides)) {}

  // Whether every row starts on a multiple of 16 bytes.
  static __device__ __forceinline__ bool Aligned(const void* base,
                                                 const abi::TensorStrides& strides) {
    return reinterpret_cast<u64>(base) % 16 == 0 &&
           (strides.batch | strides.seq | strides.head) % (16 / kSize) == 0;
  }

  // The steps that follow are those of a piece.
  __device__ __forceinline__ void Enter(const Problem& problem, const KeyBounds& bounds) {
    const abi::AttnFwdParams& core = params.core;
    seen_begin = bounds.seen_begin;
    seen_end = bounds.seen_end;
    k = static_cast<const KvElement*>(core.k) + problem.h_kv * core.k_strides.head;
    v = static_cast<const KvElement*>(core.v) + problem.h_kv * core.v_strides.head;
    if constexpr (Config::kScalePerToken) {
      scales_k = problem.h_kv * params.k_scale.stride_head;
      scales_v = problem.h_kv * params.v_scale.stride_head;
    }
    if constexpr (Config::KvRows::kIsDense) {
      k += problem.kv_batch * core.k_strides.batch + problem.kv_row * core.k_strides.seq;
      v += problem.kv_batch * core.v_strides.batch + problem.kv_row * core.v_strides.seq;
      if constexpr (Config::kScalePerToken) {
        scales_k += problem.kv_batch * params.k_scale.stride_batch +
                    problem.kv_row * params.k_scale.stride_seq;
        scales_v += problem.kv_batch * params.v_scale.stride_batch +
                    problem.kv_row * params.v_scale.stride_seq;
      }
    } else {
      table = Config::KvRows::TableOf(problem, params);
    }
  }

  // Reads the table for the step at `key`, long before its copies start.
  __device__ __forceinline__ void LookUp(int key) {
    if constexpr (!Config::KvRows::kIsDense) {
#pragma unroll
      for (int n = 0; n < kLookUps; ++n) {
        const int row = thread + n * kThreads;
        const int own = key + (kEach ? row : 0);
        page[n] = -1;
        if ((!kEach || row < kStep) && own < seen_end && own + kStep > seen_begin) {
          page[n] = table[own / static_cast<int>(Config::kPageRows)];
        }
      }
    }
  }
  // Makes what was looked up known to the team, before a barrier ahead of the step's copies.
  __device__ __forceinline__ void Publish(i32* pages) const {
    if constexpr (kEach) {
#pragma unroll
      for (int n = 0; n < kLookUps; ++n) {
        const int row = thread + n * kThreads;
        if (row < kStep) pages[row] = page[n];
      }
    }
  }
  // Whether the whole step that was looked up is masked.
  __device__ __forceinline__ bool Missing() const {
    return kOnePage<Config, kStep> && !Config::KvRows::kIsDense && page[0] < 0;
  }

  // Starts the copy of the step at `key` from `rows`, which is k or v. Rows that no row of the tile
  // sees become zeros, as columns from kColumns to kPadded do.
  template <int kColumns, int kPadded, int kPitch>
  __device__ __forceinline__ void Start(u8 (&tile)[kStep][kPitch], const KvElement* rows,
                                        const abi::TensorStrides& strides, bool wide, int key,
                                        [[maybe_unused]] const i32* pages) const {
    constexpr int kPageRows = static_cast<int>(Config::kPageRows);
    const int first = seen_begin - key;
    const int end = Missing() ? 0 : seen_end - key;
    const KvElement* head = rows;
    if constexpr (Config::KvRows::kIsDense) {
      head += key * strides.seq;
    } else if constexpr (!kEach) {
      head += page[0] * strides.batch + key % kPageRows * strides.seq;
    }
    const auto row_pointer = [&](int row) -> const KvElement* {
      if constexpr (!kEach) {
        return head + row * strides.seq;
      } else {
        return head + pages[row] * strides.batch + (key + row) % kPageRows * strides.seq;
      }
    };
    const auto exists = [&](int row) {
      bool there = row >= first && row < end;
      if constexpr (kEach) there = there && pages[row] >= 0;
      return there;
    };
    constexpr int kChunks = RoundUp(kPadded * kSize, 16) / 16;
    constexpr int kCopies = kStep * kChunks;
    // A thread's copies lie in one column, whole rows apart.
    constexpr int kRows = kThreads % kChunks == 0 ? kThreads / kChunks : 1;
    constexpr bool kColumnOfThread = !kEach && kThreads % kChunks == 0 && kCopies % kThreads == 0 &&
                                     kColumns == kPadded && kStaysInColumn<kPitch, kRows>;
    if constexpr (kColumnOfThread) {
      if (wide && first <= 0 && end >= kStep) {
        const int row = thread / kChunks, chunk = thread % kChunks;
        const u8* source = reinterpret_cast<const u8*>(head + row * strides.seq) + chunk * 16;
        const i64 apart = kRows * strides.seq * kSize;
        const unsigned first_chunk =
            ptx::SharedAddress(&tile[0][0]) + ChunkOffset<kPitch>(row, chunk);
#pragma unroll
        for (int n = 0; n < kCopies / kThreads; ++n) {
          ptx::cp_async_cg_16(RowsBelow<kPitch, kRows>(first_chunk, n), source, 16);
          source += apart;
        }
        return;
      }
    }
    if (wide) {
      // Few steps are like this where most may be copied as above.
#pragma unroll(kColumnOfThread ? 1 : kCopies)
      for (int at = 0; at < kCopies; at += kThreads) {
        const int index = at + thread;
        if (kCopies % kThreads != 0 && index >= kCopies) break;
        const int row = index / kChunks, chunk = index % kChunks;
        int bytes = 16;
        if (kColumns * kSize % 16 != 0 && chunk == kColumns * kSize / 16) {
          bytes = kColumns * kSize % 16;
        }
        if (kChunks * 16 - kColumns * kSize >= 16 && chunk * 16 >= kColumns * kSize) bytes = 0;
        if (!exists(row)) bytes = 0;
        ptx::cp_async_cg_16(ptx::SharedAddress(&tile[0][0]) + ChunkOffset<kPitch>(row, chunk),
                            reinterpret_cast<const u8*>(row_pointer(row)) + chunk * 16, bytes);
      }
    } else {
#pragma unroll 1
      for (int index = thread; index < kStep * kPadded; index += kThreads) {
        const int row = index / kPadded, column = index % kPadded;
        KvElement element = {0};
        if (column < kColumns && exists(row)) element = row_pointer(row)[column];
        const int byte = column * kSize;
        *reinterpret_cast<KvElement*>(&tile[0][0] + ChunkOffset<kPitch>(row, byte / 16) +
                                      byte % 16) = element;
      }
    }
  }

  // Starts the copy of the scales of the step at `key`, one for each; what no row sees has 0.
  // `offset` is scales_k or scales_v.
  __device__ __forceinline__ void StartScales(float* scales, const abi::ScaleArgs& args, i64 offset,
                                              int key, [[maybe_unused]] const i32* pages) const {
    constexpr int kPageRows = static_cast<int>(Config::kPageRows);
#pragma unroll
    for (int at = 0; at < kStep; at += kThreads) {
      const int row = at + thread;
      if (kStep % kThreads != 0 && row >= kStep) break;
      bool there = !Missing() && key + row >= seen_begin && key + row < seen_end;
      const float* source = args.scale + offset;
      if constexpr (Config::KvRows::kIsDense) {
        source += (key + row) * args.stride_seq;
      } else {
        i64 block = page[0];
        if constexpr (kEach) {
          block = pages[row];
          there = there && block >= 0;
        }
        source += block * args.stride_batch + (key + row) % kPageRows * args.stride_seq;
      }
      ptx::cp_async_ca<4>(ptx::SharedAddress(&scales[row]), source, there ? 4 : 0);
    }
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_STEP_COPY_CUH_

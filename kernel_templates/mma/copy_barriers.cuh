// Where the warps of a block wait for the copies of K and V to one of two stages: an mbarrier for
// each, at which every thread arrives once what it copies has landed. A warp goes on as soon as
// that is so, and one computes weights while another multiplies; behind a barrier of the block all
// of them do the same thing at the same time. Where a multiprocessor has several blocks these do so
// by themselves, and barriers of the block are cheaper (d64 by 4 %, H200).
#ifndef TILEWRIGHT_MMA_COPY_BARRIERS_CUH_
#define TILEWRIGHT_MMA_COPY_BARRIERS_CUH_

#include "core/types.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"

namespace tilewright {

// Whether a plan has them: two stages, and so many columns of O that its warps share rows.
template <class Config>
inline constexpr bool kHasCopyBarriers = Config::kStages == 2 && Config::kColumnWarps > 1;

// Lies in shared memory, where a plan has them.
template <bool kExist>
struct CopyBarriers {
  __device__ __forceinline__ void Start(int) {}
};
template <>
struct alignas(16) CopyBarriers<true> {
  u64 k_landed[2];
  u64 v_landed[2];

  // By one thread, ahead of a barrier of the `threads` that copy.
  __device__ __forceinline__ void Start(int threads) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::mbarrier_init(ptx::SharedAddress(&k_landed[stage]), static_cast<u32>(threads));
      ptx::mbarrier_init(ptx::SharedAddress(&v_landed[stage]), static_cast<u32>(threads));
    }
  }
};

// This thread's part of a tile has been asked for. `by_threads`: or has been stored by it.
__device__ __forceinline__ void ArriveBehindCopies(u64& barrier, bool by_threads) {
  if (by_threads) __threadfence_block();
  ptx::cp_async_mbarrier_arrive(ptx::SharedAddress(&barrier));
}

// Tile number `count` of those that have been copied here.
__device__ __forceinline__ void WaitForTile(u64 (&landed)[2], u32 count) {
  const u32 barrier = ptx::SharedAddress(&landed[count % 2]);
  while (!ptx::mbarrier_try_wait_parity(barrier, count / 2 % 2)) {
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_COPY_BARRIERS_CUH_

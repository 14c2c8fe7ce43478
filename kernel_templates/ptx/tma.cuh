// Bulk copies of boxes of a tensor that a tensor map describes (TMA; sm_90 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-tensor-copy
//
// `map` is the address of a tensor map in global, constant or parameter memory. Coordinates are
// elements, the contiguous dimension first. Loads write zeros for what lies outside the tensor and
// count all bytes of the box; stores leave it out.
#ifndef TILEWRIGHT_PTX_TMA_CUH_
#define TILEWRIGHT_PTX_TMA_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_4d_load(u32 destination, const void* map,
                                                             u32 barrier, int x, int y, int z,
                                                             int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// The same for what nobody reads again: L2 gives it up before anything else. The policy is the word
// that `createpolicy.fractional.L2::evict_first.b64 _, 1.0` makes.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_load_evict_first(u32 destination,
                                                                         const void* map,
                                                                         u32 barrier, int x, int y,
                                                                         int z, int w) {
  constexpr u64 kEvictFirst = 0x12F0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(kEvictFirst)
      : "memory");
}

// To the same address, and the barrier at the same address, of every block in `blocks` (a bit
// each).
__device__ __forceinline__ void cp_async_bulk_tensor_4d_load_multicast(u32 destination,
                                                                       const void* map, u32 barrier,
                                                                       int x, int y, int z, int w,
                                                                       u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_4d_store(const void* map, u32 source, int x,
                                                              int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(source), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Adds `bytes` of floats, each on its own, to what lies from `at` on. `at`, `source` and `bytes`
// are multiples of 16.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk
__device__ __forceinline__ void cp_reduce_async_bulk_add_f32(float* at, u32 source, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(at),
      "r"(source), "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read their source.
__device__ __forceinline__ void cp_async_bulk_wait_group_read_0() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's stores have been made.
__device__ __forceinline__ void cp_async_bulk_wait_group_0() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Makes this thread's ordinary writes to shared memory visible to bulk copies and to wgmma, once
// the reader has been synchronised with.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_TMA_CUH_

// Global memory that several blocks share: additions without a result, and flags.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
#ifndef TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_
#define TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_

#include "core/types.cuh"

// nvcc's host pass has no __CUDA_ARCH__; it only parses these functions.
#ifdef __CUDA_ARCH__
#define TILEWRIGHT_PTX_GLOBAL_ARCH __CUDA_ARCH__
#else
#define TILEWRIGHT_PTX_GLOBAL_ARCH 0
#endif

namespace tilewright {
namespace ptx {

inline constexpr bool kHasRedV4 = TILEWRIGHT_PTX_GLOBAL_ARCH >= 900;

__device__ __forceinline__ void red_global_add_f32(float* at, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;\n" ::"l"(at), "f"(value) : "memory");
}

// Four neighbours; `at` is a multiple of 16 bytes. Each of the four is added on its own. Needs
// kHasRedV4.
__device__ __forceinline__ void red_global_add_v4_f32(float* at, const float (&value)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(at),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ i32 ld_acquire_gpu_s32(i32* at) {
  i32 value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Says nothing about other memory.
__device__ __forceinline__ i32 ld_relaxed_gpu_s32(i32* at) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// What this thread wrote before, and what it knows others to have written, is visible to whoever
// acquires the sum.
__device__ __forceinline__ void red_release_gpu_add_s32(i32* at, i32 value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(at), "r"(value) : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_

// kernel_templates/ptx/global_memory.cuh on the host.
#ifndef TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_
#define TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

inline constexpr bool kHasRedV4 = true;

inline void red_global_add_f32(float* at, float value) { cuda_on_host::AtomicAdd(at, value); }
inline void red_global_add_v4_f32(float* at, const float (&value)[4]) {
  for (int n = 0; n < 4; ++n) cuda_on_host::AtomicAdd(at + n, value[n]);
}

// Blocks run one after the other, and adding nothing reads.
inline i32 ld_relaxed_gpu_s32(i32* at) { return cuda_on_host::AtomicAdd(at, 0); }
inline i32 ld_acquire_gpu_s32(i32* at) { return cuda_on_host::AtomicAdd(at, 0); }
inline void red_release_gpu_add_s32(i32* at, i32 value) { cuda_on_host::AtomicAdd(at, value); }

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_GLOBAL_MEMORY_CUH_

// griddepcontrol: kernels that overlap the end of the one before them on their stream (programmatic
// dependent launch), sm_90 and later; before that a kernel starts when the one ahead has ended.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
#ifndef TILEWRIGHT_PTX_GRIDDEP_CUH_
#define TILEWRIGHT_PTX_GRIDDEP_CUH_

namespace tilewright {
namespace ptx {

// Once every block has said so or ended, a dependent grid may start.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Until the grids that this one depends on have ended and what they wrote can be read. Nothing to
// wait for when it was launched the ordinary way.
__device__ __forceinline__ void griddepcontrol_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_GRIDDEP_CUH_

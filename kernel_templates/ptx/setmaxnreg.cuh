// setmaxnreg: warpgroups of a block give and take registers (sm_90a). Executed by all warps of a
// warpgroup. Draws on the registers that the block was launched with, threads x registers at entry,
// and waits until they are there: ask for more and the kernel hangs.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
#ifndef TILEWRIGHT_PTX_SETMAXNREG_CUH_
#define TILEWRIGHT_PTX_SETMAXNREG_CUH_

namespace tilewright {
namespace ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_SETMAXNREG_CUH_

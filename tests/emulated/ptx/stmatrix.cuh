// kernel_templates/ptx/stmatrix.cuh on the host.
#ifndef TILEWRIGHT_PTX_STMATRIX_CUH_
#define TILEWRIGHT_PTX_STMATRIX_CUH_

#include "core/types.cuh"

namespace cuda_on_host {

void StoreMatrices(unsigned address, const unsigned* registers, int matrices, bool transposed);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void stmatrix_x4(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  const u32 registers[4] = {m0, m1, m2, m3};
  cuda_on_host::StoreMatrices(address, registers, 4, false);
}

inline void stmatrix_x2(u32 address, u32 m0, u32 m1) {
  const u32 registers[2] = {m0, m1};
  cuda_on_host::StoreMatrices(address, registers, 2, false);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_STMATRIX_CUH_

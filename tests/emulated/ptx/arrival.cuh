// kernel_templates/ptx/arrival.cuh on the host.
#ifndef TILEWRIGHT_PTX_ARRIVAL_CUH_
#define TILEWRIGHT_PTX_ARRIVAL_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

inline u64 atom_acq_rel_gpu_add_u64(u64* at, u64 value) {
  return cuda_on_host::AtomicAdd(at, value);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_ARRIVAL_CUH_

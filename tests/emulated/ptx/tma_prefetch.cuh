// kernel_templates/ptx/tma_prefetch.cuh on the host, where there is no L2 to fill.
#ifndef TILEWRIGHT_PTX_TMA_PREFETCH_CUH_
#define TILEWRIGHT_PTX_TMA_PREFETCH_CUH_

namespace tilewright {
namespace ptx {

inline void cp_async_bulk_prefetch_tensor_4d(const void*, int, int, int, int) {}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_TMA_PREFETCH_CUH_

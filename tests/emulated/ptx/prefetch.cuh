// kernel_templates/ptx/prefetch.cuh on the host, where there is no L2 to fill.
#ifndef TILEWRIGHT_PTX_PREFETCH_CUH_
#define TILEWRIGHT_PTX_PREFETCH_CUH_

namespace tilewright {
namespace ptx {

inline constexpr int kL2LineBytes = 128;

inline void prefetch_global_l2(const void*) {}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_PREFETCH_CUH_

// kernel_templates/ptx/griddep.cuh on the host, where kernels run one after the other.
#ifndef TILEWRIGHT_PTX_GRIDDEP_CUH_
#define TILEWRIGHT_PTX_GRIDDEP_CUH_

namespace tilewright {
namespace ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_GRIDDEP_CUH_

// kernel_templates/ptx/setmaxnreg.cuh on the host, where registers are no matter.
#ifndef TILEWRIGHT_PTX_SETMAXNREG_CUH_
#define TILEWRIGHT_PTX_SETMAXNREG_CUH_

namespace tilewright {
namespace ptx {

template <int kRegisters>
void setmaxnreg_dec() {}

template <int kRegisters>
void setmaxnreg_inc() {}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_SETMAXNREG_CUH_

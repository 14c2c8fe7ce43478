// kernel_templates/ptx/ldmatrix.cuh on the host.
#ifndef TILEWRIGHT_PTX_LDMATRIX_CUH_
#define TILEWRIGHT_PTX_LDMATRIX_CUH_

namespace cuda_on_host {

void LoadMatrices(unsigned* registers, unsigned address, int matrices, bool transposed);
unsigned TransposeMatrix(unsigned pair);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
  cuda_on_host::LoadMatrices(r, address, 4, false);
}
inline void ldmatrix_x2(unsigned (&r)[2], unsigned address) {
  cuda_on_host::LoadMatrices(r, address, 2, false);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
  cuda_on_host::LoadMatrices(r, address, 4, true);
}
inline void ldmatrix_x2_trans(unsigned (&r)[2], unsigned address) {
  cuda_on_host::LoadMatrices(r, address, 2, true);
}

inline unsigned movmatrix_trans(unsigned pair) { return cuda_on_host::TransposeMatrix(pair); }

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_LDMATRIX_CUH_

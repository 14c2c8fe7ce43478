// ldmatrix: a warp reads 8x8 matrices of 16-bit elements from shared memory in the layout that
// mma.sync wants.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
//
// Lanes 8i to 8i+7 give the addresses of the rows (16 bytes each, 16-byte aligned) of matrix i.
// Lane t receives of each matrix the elements (t / 4, 2 * (t % 4)) and the one after; of the
// transposed form the elements of the transpose.
#ifndef TILEWRIGHT_PTX_LDMATRIX_CUH_
#define TILEWRIGHT_PTX_LDMATRIX_CUH_

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// The transpose of an 8x8 matrix of 16-bit elements that the warp holds in this layout.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-movmatrix
__device__ __forceinline__ unsigned movmatrix_trans(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_LDMATRIX_CUH_

// Sums of products whose inner loops a compiler turns into vector instructions without changing the
// order of any sum.
#ifndef TILEWRIGHT_REFERENCE_LINEAR_H_
#define TILEWRIGHT_REFERENCE_LINEAR_H_

#include <cstdint>

namespace tilewright::reference {

// sums[n] += sum over d of x[d] * columns[d * stride + n]; columns are summed in the order of d,
// four at a time to spare passes over `sums`.
template <typename Real>
void AddWeightedColumns(const Real* x, int64_t count_d, const Real* columns, int64_t stride,
                        int64_t count, Real* __restrict sums) {
  int64_t d = 0;
  for (; d + 4 <= count_d; d += 4) {
    const Real x0 = x[d], x1 = x[d + 1], x2 = x[d + 2], x3 = x[d + 3];
    const Real* c0 = columns + d * stride;
    const Real* c1 = c0 + stride;
    const Real* c2 = c1 + stride;
    const Real* c3 = c2 + stride;
    for (int64_t n = 0; n < count; ++n) {
      sums[n] = (((sums[n] + x0 * c0[n]) + x1 * c1[n]) + x2 * c2[n]) + x3 * c3[n];
    }
  }
  for (; d < count_d; ++d) {
    const Real x0 = x[d];
    const Real* c0 = columns + d * stride;
    for (int64_t n = 0; n < count; ++n) sums[n] += x0 * c0[n];
  }
}

// sum[d] += factor * x[d].
template <typename Real>
void AddScaled(Real factor, const Real* x, int64_t count, Real* __restrict sum) {
  for (int64_t d = 0; d < count; ++d) sum[d] += factor * x[d];
}

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_LINEAR_H_

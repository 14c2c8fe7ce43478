// The log-sum-exp output, in the caller's convention.
#ifndef TILEWRIGHT_POLICY_LSE_CUH_
#define TILEWRIGHT_POLICY_LSE_CUH_

#include "core/problem.cuh"

namespace tilewright {

struct LseNone {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static void Store(float, const Problem&, i64, const Params&) {}
};

// `lse` is natural, -inf for a row without keys.
template <bool kBaseTwo, bool kEmptyIsPlusInfinity>
struct LseStored {
  TILEWRIGHT_HOST_DEVICE static float Convert(float lse) {
    if (kEmptyIsPlusInfinity && lse == -Infinity()) return Infinity();
    return kBaseTwo ? lse * kLog2OfE : lse;
  }
  // The natural LSE that `stored` stands for, for a backward pass: +inf for a row without keys, and
  // NaN for the +inf of a row that had a score of +inf.
  TILEWRIGHT_HOST_DEVICE static float Natural(float stored) {
    if (stored == -Infinity()) return Infinity();
    if (stored == Infinity()) return kEmptyIsPlusInfinity ? Infinity() : Infinity() - Infinity();
    return kBaseTwo ? stored * kLn2 : stored;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Load(const Problem& problem, i64 i, const Params& params) {
    const abi::AttnFwdParams& core = params.core;
    return Natural(core.lse[problem.q_batch * core.lse_stride_batch +
                            problem.h * core.lse_stride_head + problem.q_row + i]);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static void Store(float lse, const Problem& problem, i64 i,
                                           const Params& params) {
    const abi::AttnFwdParams& core = params.core;
    core.lse[problem.q_batch * core.lse_stride_batch + problem.h * core.lse_stride_head +
             problem.q_row + i] = Convert(lse);
  }
};

// The LSE of a part, made natural, -inf for a part without keys: as the kernels leave it, and in
// the caller's convention.
struct LsePartNatural {
  TILEWRIGHT_HOST_DEVICE static float Natural(float lse) { return lse; }
};
template <bool kBaseTwo, bool kEmptyIsPlusInfinity>
struct LsePartStored {
  TILEWRIGHT_HOST_DEVICE static float Natural(float lse) {
    if (kEmptyIsPlusInfinity && lse == Infinity()) return -Infinity();
    return kBaseTwo ? lse * kLn2 : lse;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_LSE_CUH_

// Dropout of normalised weights: Factor is what a weight is multiplied by.
#ifndef TILEWRIGHT_POLICY_DROPOUT_CUH_
#define TILEWRIGHT_POLICY_DROPOUT_CUH_

#include "abi/policy_args.h"
#include "core/philox.cuh"
#include "core/problem.cuh"

namespace tilewright {

struct DropoutNone {
  static constexpr bool kIdentity = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Factor(const Problem&, i64, i64, const Params&) {
    return 1;
  }
};

struct DropoutPhilox {
  static constexpr bool kIdentity = false;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Factor(const Problem& problem, i64 i, i64 j,
                                             const Params& params) {
    const abi::DropoutArgs& dropout = params.dropout;
    const u64 seed = dropout.seed_ptr != nullptr ? *dropout.seed_ptr : dropout.seed;
    const u64 offset = dropout.offset_ptr != nullptr ? *dropout.offset_ptr : dropout.offset;
    const i64 bh = problem.b * params.core.heads_q + problem.h;
    return DropoutWord(seed, offset, bh, i, j) >= dropout.threshold ? dropout.keep_scale : 0;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_DROPOUT_CUH_

// Attention sinks: a logit per head that takes part in the softmax and has no value row. No sink is
// a sink of -inf.
#ifndef TILEWRIGHT_POLICY_SINK_CUH_
#define TILEWRIGHT_POLICY_SINK_CUH_

#include "abi/policy_args.h"
#include "core/problem.cuh"

namespace tilewright {

struct SinkNone {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Logit(const Problem&, const Params&) {
    return -Infinity();
  }
};

struct SinkPerHead {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Logit(const Problem& problem, const Params& params) {
    return params.sinks.sinks[problem.h];
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SINK_CUH_

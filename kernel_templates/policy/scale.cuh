// Scales of stored fp8 and int8 values: value = stored * scale. Which axes have scales of their own
// is in the strides, 0 for those that share one.
#ifndef TILEWRIGHT_POLICY_SCALE_CUH_
#define TILEWRIGHT_POLICY_SCALE_CUH_

#include "abi/policy_args.h"
#include "policy/kv_rows.cuh"

namespace tilewright {

struct ScaleNone {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfQuery(const Problem&, const Params&) {
    return 1;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfKey(const Problem&, const KvRow&, const Params&) {
    return 1;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfValue(const Problem&, const KvRow&, const Params&) {
    return 1;
  }
};

struct ScaleQ {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfQuery(const Problem& problem, const Params& params) {
    return params.q_scale.scale[problem.h * params.q_scale.stride_head];
  }
};

struct ScaleKv {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfKey(const Problem& problem, const KvRow& row,
                                            const Params& params) {
    return Load(params.k_scale, problem, row);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float OfValue(const Problem& problem, const KvRow& row,
                                              const Params& params) {
    return Load(params.v_scale, problem, row);
  }

 private:
  TILEWRIGHT_HOST_DEVICE static float Load(const abi::ScaleArgs& args, const Problem& problem,
                                           const KvRow& row) {
    return args.scale[row.block * args.stride_batch + row.row * args.stride_seq +
                      problem.h_kv * args.stride_head];
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCALE_CUH_

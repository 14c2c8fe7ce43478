// Bounds scores smoothly: cap * tanh(score / cap).
#ifndef TILEWRIGHT_POLICY_SCORE_SOFTCAP_CUH_
#define TILEWRIGHT_POLICY_SCORE_SOFTCAP_CUH_

#include "abi/policy_args.h"
#include "core/problem.cuh"
#include "core/tanh.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

struct ScoreSoftcap {
  static constexpr bool kHasSlopeOne = false;
  static constexpr bool kHasOwnGradient = false;

  static constexpr bool kPointwise = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Unit(const Params& params) {
    return params.softcap.cap;
  }
  template <int kCount, class Params>
  TILEWRIGHT_HOST_DEVICE static void ApplyToAll(float (&products)[kCount], float scale,
                                                const Params& params) {
    TanhOfAll(products, scale * params.softcap.inverse_cap);
  }

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, const Problem&, i64, i64,
                                             const Params& params) {
    return params.softcap.cap * Tanh(score * params.softcap.inverse_cap);
  }

  template <class Params>
  struct Head {
    abi::SoftcapArgs softcap;

    TILEWRIGHT_HOST_DEVICE Head(const Problem&, const Params& params) : softcap(params.softcap) {}

    struct Row {
      abi::SoftcapArgs softcap;

      TILEWRIGHT_HOST_DEVICE Row(const Head& head, const LaneKeys&) : softcap(head.softcap) {}

      template <class Runs>
      TILEWRIGHT_HOST_DEVICE void Apply(float (&scores)[Runs::kCount], u32) const {
        TanhOfAll(scores, softcap.inverse_cap);
        TILEWRIGHT_UNROLL
        for (int n = 0; n < Runs::kCount; ++n) scores[n] *= softcap.cap;
      }
    };
  };
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCORE_SOFTCAP_CUH_

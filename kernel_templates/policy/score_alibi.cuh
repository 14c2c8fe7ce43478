// ALiBi (Press, Smith, Lewis, arXiv 2108.12409): a penalty that grows with the distance from the
// diagonal.
#ifndef TILEWRIGHT_POLICY_SCORE_ALIBI_CUH_
#define TILEWRIGHT_POLICY_SCORE_ALIBI_CUH_

#include "abi/policy_args.h"
#include "core/convert.cuh"
#include "policy/mask_chain.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

template <Align kAlign>
struct ScoreAlibi {
  static constexpr bool kHasSlopeOne = true;

  // Distances are summed in fp32, where those below 2^24 are exact.
  struct Row {
    float slope;
    float first_offset;

    template <class Params>
    TILEWRIGHT_HOST_DEVICE Row(const Problem& problem, i64 i, i64 first_key, const Params& params)
        : slope(params.alibi.slopes[problem.b * params.alibi.stride_batch + problem.h]),
          first_offset(static_cast<float>(first_key - DiagonalKey<kAlign>(problem, i))) {}
    TILEWRIGHT_HOST_DEVICE float Apply(float score, int column) const {
      const float offset = first_offset + static_cast<float>(column);
      return score - slope * (offset < 0 ? -offset : offset);
    }
  };

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, const Problem& problem, i64 i, i64 j,
                                             const Params& params) {
    const abi::AlibiArgs& alibi = params.alibi;
    const i64 offset = j - DiagonalKey<kAlign>(problem, i);
    const float distance = static_cast<float>(offset < 0 ? -offset : offset);
    return score - Slope(problem, alibi) * distance;
  }

  template <class Params>
  struct Head {
    float slope;
    i64 diagonal;  // key of row 0

    TILEWRIGHT_HOST_DEVICE Head(const Problem& problem, const Params& params)
        : slope(Slope(problem, params.alibi)), diagonal(DiagonalKey<kAlign>(problem, 0)) {}

    struct Row {
      float slope;
      float first;  // slope * distance of the first key

      TILEWRIGHT_HOST_DEVICE Row(const Head& head, const LaneKeys& keys)
          : slope(head.slope), first(slope * static_cast<float>(keys.j - keys.i - head.diagonal)) {}

      template <class Runs>
      TILEWRIGHT_HOST_DEVICE void Apply(float (&scores)[Runs::kCount], u32) const {
        const u32 sign = ~BitsOfFloat(slope) & 0x80000000u;
        TILEWRIGHT_UNROLL
        for (int n = 0; n < Runs::kCount; ++n) {
          const u32 bits = BitsOfFloat(first + slope * static_cast<float>(Runs::Offset(n)));
          scores[n] += FloatOfBits((bits & 0x7fffffffu) | sign);  // -slope * |distance|
        }
      }
    };
  };

 private:
  TILEWRIGHT_HOST_DEVICE static float Slope(const Problem& problem, const abi::AlibiArgs& alibi) {
    return alibi.slopes[problem.b * alibi.stride_batch + problem.h];
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCORE_ALIBI_CUH_

// Bias terms, additive and masking: params.bias[k] describes term k of the spec.
#ifndef TILEWRIGHT_POLICY_BIAS_TERMS_CUH_
#define TILEWRIGHT_POLICY_BIAS_TERMS_CUH_

#include "abi/policy_args.h"
#include "core/convert.cuh"
#include "core/words.cuh"
#include "policy/mask_chain.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

// Strides of broadcast axes are 0.
TILEWRIGHT_HOST_DEVICE i64 BiasHeadOffset(const abi::BiasArgs& bias, const Problem& problem) {
  return Remainder(Quotient(problem.b, bias.batch_div), bias.batch_mod) * bias.stride_batch +
         problem.h * bias.stride_head;
}
TILEWRIGHT_HOST_DEVICE i64 BiasOffset(const abi::BiasArgs& bias, const Problem& problem, i64 i,
                                      i64 j) {
  return BiasHeadOffset(bias, problem) + i * bias.stride_q + j * bias.stride_kv;
}

// The elements of one (batch, head) of a term.
template <class Element>
struct BiasPlane {
  const Element* first;
  i64 stride_q;
  i64 stride_kv;
  int row_alignment;  // bytes that the first elements of all rows are multiples of, 16 at most

  TILEWRIGHT_HOST_DEVICE BiasPlane(const abi::BiasArgs& bias, const Problem& problem)
      : first(static_cast<const Element*>(bias.data) + BiasHeadOffset(bias, problem)),
        stride_q(bias.stride_q),
        stride_kv(bias.stride_kv),
        row_alignment(AlignmentOf(reinterpret_cast<u64>(first) |
                                  static_cast<u64>(bias.stride_q) * sizeof(Element))) {}

  TILEWRIGHT_HOST_DEVICE const Element* At(const LaneKeys& keys) const {
    return first + keys.i * stride_q + keys.j * stride_kv;
  }
  // Bytes of one load of a run's elements, and whether all runs of the lane can be loaded so. Then
  // keys.j is a multiple of Runs::kKeys.
  template <class Runs>
  static constexpr int kLoadBytes = Runs::kKeys* static_cast<int>(sizeof(Element)) < 16
                                        ? Runs::kKeys* static_cast<int>(sizeof(Element))
                                        : 16;
  template <class Runs>
  TILEWRIGHT_HOST_DEVICE bool Wide(const LaneKeys& keys) const {
    return stride_kv == 1 && row_alignment >= kLoadBytes<Runs> &&
           keys.existing > Runs::Offset(Runs::kCount - 1);
  }

  // Calls use(n, element) for those of the lane's keys that exist.
  template <class Runs, class Use>
  TILEWRIGHT_HOST_DEVICE void ForEach(const LaneKeys& keys, const Use& use) const {
    const Element* const at = At(keys);
    if (Wide<Runs>(keys)) {
      constexpr int kBytes = kLoadBytes<Runs>;
      constexpr int kElements = kBytes / static_cast<int>(sizeof(Element));
      TILEWRIGHT_UNROLL
      for (int n = 0; n < Runs::kCount; n += kElements) {
        const auto words = *reinterpret_cast<const Words<kBytes>*>(at + Runs::Offset(n));
        const auto elements = __builtin_bit_cast(Elements<kElements>, words);
        TILEWRIGHT_UNROLL
        for (int e = 0; e < kElements; ++e) use(n + e, elements.value[e]);
      }
    } else {
      TILEWRIGHT_UNROLL
      for (int n = 0; n < Runs::kCount; ++n) {
        if (Runs::Offset(n) < keys.existing) use(n, at[Runs::Offset(n) * stride_kv]);
      }
    }
  }

 private:
  template <int kCount>
  struct Elements {
    Element value[kCount];
  };
};

template <int kTerm, class Element>
struct ScoreBias {
  static constexpr bool kHasSlopeOne = true;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, const Problem& problem, i64 i, i64 j,
                                             const Params& params) {
    const abi::BiasArgs& bias = params.bias[kTerm];
    return score + static_cast<float>(
                       static_cast<const Element*>(bias.data)[BiasOffset(bias, problem, i, j)]);
  }

  template <class Params>
  struct Head {
    BiasPlane<Element> plane;

    TILEWRIGHT_HOST_DEVICE Head(const Problem& problem, const Params& params)
        : plane(params.bias[kTerm], problem) {}

    struct Row {
      const BiasPlane<Element>& plane;
      LaneKeys keys;

      TILEWRIGHT_HOST_DEVICE Row(const Head& head, const LaneKeys& keys)
          : plane(head.plane), keys(keys) {}

      template <class Runs>
      TILEWRIGHT_HOST_DEVICE void Apply(float (&scores)[Runs::kCount], u32) const {
        plane.template ForEach<Runs>(
            keys, [&](int n, Element element) { scores[n] += static_cast<float>(element); });
      }
    };
  };
};

// Nonzero keeps.
template <int kTerm>
struct MaskBias : MaskElementwise {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    const abi::BiasArgs& bias = params.bias[kTerm];
    return static_cast<const Bool8*>(bias.data)[BiasOffset(bias, problem, i, j)];
  }

  template <class Params>
  struct Head {
    BiasPlane<Bool8> plane;

    TILEWRIGHT_HOST_DEVICE Head(const Problem& problem, const Params& params)
        : plane(params.bias[kTerm], problem) {}
    TILEWRIGHT_HOST_DEVICE bool SameForAllRows() const { return plane.stride_q == 0; }
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE u32 Keep(const LaneKeys& keys) const {
      u32 keep = 0;
      if constexpr (Runs::kKeys % 4 == 0) {
        if (plane.template Wide<Runs>(keys)) {
          TILEWRIGHT_UNROLL
          for (int n = 0; n < Runs::kCount; n += 4) {
            const auto words = *reinterpret_cast<const Words<4>*>(plane.At(keys) + Runs::Offset(n));
            keep |= NonzeroBytes(words.word[0]) << n;
          }
          return keep;
        }
      }
      plane.template ForEach<Runs>(keys,
                                   [&](int n, Bool8 element) { keep |= (element ? 1u : 0u) << n; });
      return keep;
    }
  };

 private:
  // Bit n: byte n is not 0.
  TILEWRIGHT_HOST_DEVICE static u32 NonzeroBytes(u32 word) {
    // The highest bit of each byte; the product moves bits 7, 15, 23, 31 to 28, 29, 30, 31.
    const u32 high = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    return (high * 0x00204081u) >> 28;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_BIAS_TERMS_CUH_

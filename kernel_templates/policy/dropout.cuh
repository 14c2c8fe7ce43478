// Dropout of normalised weights: Factor is what a weight is multiplied by.
//
// For families that hold many weights of a row at once:
//   Head<Params> head(problem, params)             once a problem
//   head.template Mark<Runs>(weights, i, j)        turns the sign of what is dropped; weights[n]
//                                                  belongs to key j + Runs::Offset(n)
//   head.KeptOfFour(i, j)                          bit n: whether key j + n is kept; j is a
//                                                  multiple of 4
// What is kept is multiplied by Scale(params), and where a weight is rounded to an operand only
// after that: O of a row with one key would have that rounding.
#ifndef TILEWRIGHT_POLICY_DROPOUT_CUH_
#define TILEWRIGHT_POLICY_DROPOUT_CUH_

#include "abi/policy_args.h"
#include "core/philox.cuh"
#include "core/problem.cuh"

namespace tilewright {

struct DropoutNone {
  static constexpr bool kIdentity = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Scale(const Params&) {
    return 1;
  }

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Factor(const Problem&, i64, i64, const Params&) {
    return 1;
  }

  template <class Params>
  struct Head {
    TILEWRIGHT_HOST_DEVICE Head(const Problem&, const Params&) {}
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE void Mark(float (&)[Runs::kCount], i64, i64) const {}
  };
};

struct DropoutPhilox {
  static constexpr bool kIdentity = false;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Scale(const Params& params) {
    return params.dropout.keep_scale;
  }

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Factor(const Problem& problem, i64 i, i64 j,
                                             const Params& params) {
    const Head<Params> head(problem, params);
    const u32 word = DropoutWord(head.seed, head.offset, head.bh, i, j);
    return word >= params.dropout.threshold ? params.dropout.keep_scale : 0;
  }

  template <class Params>
  struct Head {
    const abi::DropoutArgs& args;
    u64 seed;
    u64 offset;
    i64 bh;

    TILEWRIGHT_HOST_DEVICE Head(const Problem& problem, const Params& params)
        : args(params.dropout),
          seed(args.seed_ptr != nullptr ? *args.seed_ptr : args.seed),
          offset(args.offset_ptr != nullptr ? *args.offset_ptr : args.offset),
          bh(problem.b * params.core.heads_q + problem.h) {}

    TILEWRIGHT_HOST_DEVICE u32 KeptOfFour(i64 i, i64 j) const {
      const PhiloxCounter random = DropoutWords(seed, offset, bh, i, j);
      u32 kept = 0;
      TILEWRIGHT_UNROLL
      for (int n = 0; n < 4; ++n) kept |= random.word[n] >= args.threshold ? 1u << n : 0u;
      return kept;
    }

    // j is a multiple of Runs::kKeys, which divides 4 or is a multiple of it.
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE void Mark(float (&weights)[Runs::kCount], i64 i, i64 j) const {
      constexpr int kTogether = Runs::kKeys < 4 ? Runs::kKeys : 4;
      TILEWRIGHT_UNROLL
      for (int n = 0; n < Runs::kCount; n += kTogether) {
        const i64 key = j + Runs::Offset(n);
        const PhiloxCounter random = DropoutWords(seed, offset, bh, i, key);
        TILEWRIGHT_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          const u32 word = kTogether == 4 ? random.word[k] : WordOf(random, key + k);
          weights[n + k] = word >= args.threshold ? weights[n + k] : -weights[n + k];
        }
      }
    }
  };
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_DROPOUT_CUH_

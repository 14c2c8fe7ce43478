// The elements of a bias term that belong to a thread's scores of a block of keys, in the layout of
// ptx/wgmma.cuh: of rows r = 0, 1 the keys 8n and 8n + 1 behind the thread's first. They are loaded
// a block ahead of their use, so that products and weights of the block before hide how long that
// takes; four lanes have 16 bytes of a row, and the other half of their sector comes from L1.
#ifndef TILEWRIGHT_POLICY_BIAS_FRAGMENT_CUH_
#define TILEWRIGHT_POLICY_BIAS_FRAGMENT_CUH_

#include "abi/policy_args.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/words.cuh"

namespace tilewright {

template <int kTerm, class Element>
struct ScoreBias;
template <class... Scores>
struct ScoreChain;

// Of a chain that does not begin with a bias term whose pairs of elements are whole words: nothing.
template <class Chain>
struct FirstBias {
  static constexpr bool kExists = false;
  using Rest = Chain;  // what is left to apply
  template <int kColumns>
  struct Fragment {};
};

template <int kTerm, class Element_, class... Scores>
requires(sizeof(Element_) == 2 ||
         sizeof(Element_) ==
             4) struct FirstBias<ScoreChain<ScoreBias<kTerm, Element_>, Scores...>> {
  static constexpr bool kExists = true;
  static constexpr int kIndex = kTerm;
  using Element = Element_;
  using Rest = ScoreChain<Scores...>;

  // kColumns: keys of a block that a warpgroup has.
  template <int kColumns>
  struct Fragment {
    static constexpr int kPairs = kColumns / 8;  // of a row
    using Pair = Words<2 * sizeof(Element)>;
    struct TwoElements {
      Element value[2];
    };

    const Element* rows[2];  // their keys 0
    i64 stride_kv;
    bool whole_pairs;  // are loaded at a time; the same in all threads
    Pair pairs[2][kPairs];

    // Of rows that exist.
    template <class Params>
    __device__ __forceinline__ void SetRows(const Problem& problem, const i64 (&i)[2],
                                            const Params& params) {
      const abi::BiasArgs& bias = params.bias[kTerm];
      const Element* const plane =
          static_cast<const Element*>(bias.data) +
          Remainder(Quotient(problem.b, bias.batch_div), bias.batch_mod) * bias.stride_batch +
          problem.h * bias.stride_head;
      rows[0] = plane + i[0] * bias.stride_q;
      rows[1] = plane + i[1] * bias.stride_q;
      stride_kv = bias.stride_kv;
      const u64 begins =
          reinterpret_cast<u64>(plane) | static_cast<u64>(bias.stride_q) * sizeof(Element);
      whole_pairs = stride_kv == 1 && begins % sizeof(Pair) == 0;
    }

    // Those of keys from first_key, the thread's first and an even one, to `seqlen_kv`; the others
    // become 0.
    __device__ __forceinline__ void Load(i64 first_key, i64 seqlen_kv) {
      // What the warpgroup's block has behind the thread's first key, at the least.
      const bool all_exist = first_key / kColumns * kColumns + kColumns <= seqlen_kv;
      if (whole_pairs && all_exist) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int n = 0; n < kPairs; ++n) {
            pairs[r][n] = *reinterpret_cast<const Pair*>(rows[r] + first_key + 8 * n);
          }
        }
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int n = 0; n < kPairs; ++n) {
            TwoElements two = {};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const i64 key = first_key + 8 * n + c;
              if (key < seqlen_kv) two.value[c] = rows[r][key * stride_kv];
            }
            pairs[r][n] = __builtin_bit_cast(Pair, two);
          }
        }
      }
    }

    // Of a thread's score number n.
    __device__ __forceinline__ float At(int n) const {
      const auto two = __builtin_bit_cast(TwoElements, pairs[n / 2 % 2][n / 4]);
      return static_cast<float>(two.value[n % 2]);
    }
  };
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_BIAS_FRAGMENT_CUH_

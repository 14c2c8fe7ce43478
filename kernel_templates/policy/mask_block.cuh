// Block-sparse attention: one byte for each block of kBlockQ rows and kBlockKv keys, nonzero =
// compute.
#ifndef TILEWRIGHT_POLICY_MASK_BLOCK_CUH_
#define TILEWRIGHT_POLICY_MASK_BLOCK_CUH_

#include "abi/policy_args.h"
#include "policy/mask_chain.cuh"

namespace tilewright {

template <i64 kBlockQ, i64 kBlockKv>
struct MaskBlock : MaskElementwise {
  static constexpr bool kKnowsFull = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip(const Problem& problem, i64 q_begin, i64 q_end,
                                          i64 kv_begin, i64 kv_end, const Params& params) {
    for (i64 q_block = q_begin / kBlockQ; q_block * kBlockQ < q_end; ++q_block) {
      for (i64 kv_block = kv_begin / kBlockKv; kv_block * kBlockKv < kv_end; ++kv_block) {
        if (Computed(problem, q_block, kv_block, params.block_mask)) return false;
      }
    }
    return true;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Full(const Problem& problem, i64 q_begin, i64 q_end,
                                          i64 kv_begin, i64 kv_end, const Params& params) {
    for (i64 q_block = q_begin / kBlockQ; q_block * kBlockQ < q_end; ++q_block) {
      for (i64 kv_block = kv_begin / kBlockKv; kv_block * kBlockKv < kv_end; ++kv_block) {
        if (!Computed(problem, q_block, kv_block, params.block_mask)) return false;
      }
    }
    return true;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    return Computed(problem, i / kBlockQ, j / kBlockKv, params.block_mask);
  }

  template <class Params>
  struct Head {
    const u8* blocks;  // of the (batch, head)
    i64 stride_q;

    TILEWRIGHT_HOST_DEVICE Head(const Problem& problem, const Params& params)
        : blocks(params.block_mask.mask + HeadOffset(problem, params.block_mask)),
          stride_q(params.block_mask.stride_q) {}
    TILEWRIGHT_HOST_DEVICE bool SameForAllRows() const { return false; }
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE u32 Keep(const LaneKeys& keys) const {
      constexpr int kTogether = kBlockKv % Runs::kKeys == 0 ? Runs::kKeys : 1;
      const u8* const row = blocks + keys.i / kBlockQ * stride_q;
      u32 keep = 0;
      TILEWRIGHT_UNROLL
      for (int n = 0; n < Runs::kCount; n += kTogether) {
        const bool computed =
            Runs::Offset(n) < keys.existing && row[(keys.j + Runs::Offset(n)) / kBlockKv] != 0;
        keep |= computed ? ((1u << kTogether) - 1) << n : 0u;
      }
      return keep;
    }
  };

 private:
  TILEWRIGHT_HOST_DEVICE static i64 HeadOffset(const Problem& problem,
                                               const abi::BlockMaskArgs& args) {
    return problem.b * args.stride_batch + problem.h * args.stride_head;
  }
  TILEWRIGHT_HOST_DEVICE static bool Computed(const Problem& problem, i64 q_block, i64 kv_block,
                                              const abi::BlockMaskArgs& args) {
    return args.mask[HeadOffset(problem, args) + q_block * args.stride_q + kv_block] != 0;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_BLOCK_CUH_

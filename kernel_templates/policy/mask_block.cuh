// Block-sparse attention: one byte for each block of kBlockQ rows and kBlockKv keys, nonzero =
// compute.
#ifndef TILEWRIGHT_POLICY_MASK_BLOCK_CUH_
#define TILEWRIGHT_POLICY_MASK_BLOCK_CUH_

#include "abi/policy_args.h"
#include "policy/mask_chain.cuh"

namespace tilewright {

template <i64 kBlockQ, i64 kBlockKv>
struct MaskBlock : MaskElementwise {
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
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    return Computed(problem, i / kBlockQ, j / kBlockKv, params.block_mask);
  }

 private:
  TILEWRIGHT_HOST_DEVICE static bool Computed(const Problem& problem, i64 q_block, i64 kv_block,
                                              const abi::BlockMaskArgs& args) {
    return args.mask[problem.b * args.stride_batch + problem.h * args.stride_head +
                     q_block * args.stride_q + kv_block] != 0;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_BLOCK_CUH_

// Parameters with every slot, for policies under test on the CPU: each reads its own.
#ifndef TILEWRIGHT_TESTS_POLICY_POLICY_PARAMS_H_
#define TILEWRIGHT_TESTS_POLICY_POLICY_PARAMS_H_

#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "core/problem.cuh"

namespace tilewright {

struct PolicyParams {
  abi::AttnFwdParams core = {};
  abi::WindowArgs window = {};
  abi::VarlenArgs varlen = {};
  abi::PageTableArgs page_table = {};
  abi::LeftPaddingArgs left_padding = {};
  abi::CacheSlotArgs cache_slots = {};
  abi::AlibiArgs alibi = {};
  abi::BiasArgs bias[2] = {};
  abi::SoftcapArgs softcap = {};
  abi::SinkArgs sinks = {};
  abi::BlockMaskArgs block_mask = {};
  abi::ScaleArgs q_scale = {};
  abi::ScaleArgs k_scale = {};
  abi::ScaleArgs v_scale = {};
  abi::DropoutArgs dropout = {};
};

// Batch 0, head 0 of a dense problem.
inline Problem DenseProblem(i64 seqlen_q, i64 seqlen_kv) {
  return {.b = 0,
          .h = 0,
          .h_kv = 0,
          .seqlen_q = seqlen_q,
          .seqlen_kv = seqlen_kv,
          .q_batch = 0,
          .q_row = 0,
          .kv_batch = 0,
          .kv_row = 0};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_TESTS_POLICY_POLICY_PARAMS_H_

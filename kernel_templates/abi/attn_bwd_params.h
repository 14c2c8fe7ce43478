// What a backward kernel gets beside abi::AttnFwdParams, whose `o` and `lse` it reads:
//   struct Params { abi::AttnFwdParams core; abi::AttnBwdParams gradients; <slots> };
// All kernels of a backward plan share one Params. Strides are in elements.
#ifndef TILEWRIGHT_ABI_ATTN_BWD_PARAMS_H_
#define TILEWRIGHT_ABI_ATTN_BWD_PARAMS_H_

#include "abi/attn_fwd_params.h"

namespace tilewright {
namespace abi {

// Of one query row. attn_bwd_prep writes it.
struct RowStats {
  float lse;    // natural; +inf for a row that sees no key, so that its weights are exp(-inf) = 0
  float delta;  // dot(dO, O)
};

struct AttnBwdParams {
  const void* d_o;
  void* d_q;
  void* d_k;
  void* d_v;
  TensorStrides d_o_strides;
  TensorStrides d_q_strides;
  TensorStrides d_k_strides;
  TensorStrides d_v_strides;
  // Workspace. Row i of a problem has row_stats[(q_batch * heads_q + h) * stats_rows + q_row + i].
  RowStats* row_stats;
  i64 stats_rows;  // seqlen_q, or the packed rows
  // Sums of dQ in fp32, tiles of block_m rows in the order of fragments: see mma/dq_sums.cuh. Null
  // for families without.
  float* dq_sums;
  // Deterministic: whose turn it is to add to a tile. Then the counter of the blocks' work.
  i32* dq_turns;
  i64 tiles_of_head;  // tiles of dq_sums of one head of one batch, or of all packed sequences
  i64 sums_batches;   // batches of dq_sums: 1 where rows are packed
};

// Where the gradient of one bias term goes: element (b', h', i', j') at data + b' * stride_batch +
// ..., where an index is 0 on axes of extent 1 and b' = (b / batch_div) % batch_mod.
struct BiasGradientArgs {
  float* data;
  i64 stride_batch;
  i64 stride_head;
  i64 stride_q;
  i64 stride_kv;
  i64 batch;  // extents
  i64 heads;
  i64 rows;
  i64 keys;
  i64 batch_div;
  i64 batch_mod;
};

struct SinkGradientArgs {
  float* d_sinks;
};

static_assert(sizeof(AttnBwdParams) == 208, "host and device must agree");
static_assert(sizeof(BiasGradientArgs) == 88, "host and device must agree");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_ATTN_BWD_PARAMS_H_

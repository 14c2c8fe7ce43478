// The part of a forward kernel's parameters that every spec has. The emitted translation unit
// declares
//   struct Params { abi::AttnFwdParams core; <one slot of policy_args.h for each feature in use> };
// and src/emit/param_layout.cc computes the same offsets for the host. Strides are in elements.
#ifndef TILEWRIGHT_ABI_ATTN_FWD_PARAMS_H_
#define TILEWRIGHT_ABI_ATTN_FWD_PARAMS_H_

#include "abi/fixed_width.h"

namespace tilewright {
namespace abi {

struct TensorStrides {
  i64 batch;  // paged K and V: stride of a page
  i64 seq;
  i64 head;
  i64 dim;
};

struct AttnFwdParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;  // null unless the spec asks for it
  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  i64 lse_stride_batch;
  i64 lse_stride_head;
  i64 batch;
  i64 heads_q;
  i64 heads_kv;
  i64 seqlen_q;   // varlen: upper bound
  i64 seqlen_kv;  // varlen, paged: upper bound
  float scale;
  float padding_;
};

static_assert(sizeof(TensorStrides) == 32, "host and device must agree");
static_assert(sizeof(AttnFwdParams) == 232, "host and device must agree");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_ATTN_FWD_PARAMS_H_

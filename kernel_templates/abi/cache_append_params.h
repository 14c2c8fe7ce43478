// Parameters of cache_append, which writes new tokens into a cache of keys and values. The emitted
// translation unit declares
//   struct Params { abi::CacheAppendParams core; u64 frequencies[<pairs>]; };
// where `frequencies` is there for a rotary embedding without a table. Strides are in elements.
#ifndef TILEWRIGHT_ABI_CACHE_APPEND_PARAMS_H_
#define TILEWRIGHT_ABI_CACHE_APPEND_PARAMS_H_

#include "abi/attn_fwd_params.h"
#include "abi/fixed_width.h"

namespace tilewright {
namespace abi {

// Of stored values; per token the kernel writes them. Strides are 0 where all share one.
struct StoredScaleArgs {
  float* scale;
  i64 stride_batch;  // paged: of a page
  i64 stride_head;
  i64 stride_seq;
};

struct CacheAppendParams {
  const void* q;
  const void* k;
  const void* v;
  void* q_out;
  void* k_cache;
  void* v_cache;
  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides q_out_strides;
  TensorStrides k_cache_strides;
  TensorStrides v_cache_strides;
  StoredScaleArgs k_scale;
  StoredScaleArgs v_scale;
  const i32* page_table;
  i64 page_table_stride;
  // Any of these may be null.
  const i32* cu_seqlens;       // new tokens of sequence b are rows [cu[b], cu[b + 1])
  const i32* seqused;          // of the new tokens, this many exist
  const i32* lengths;          // tokens in the cache before; null: none
  const i32* cache_batch_idx;  // slot of each sequence
  const i32* positions;        // of each new token; null: its place in the sequence
  i32* new_lengths;            // tokens in the cache after; may be `lengths`
  i32* ticket;                 // 0 before and after, where new_lengths is `lengths`
  const void* cos;             // [position][pair]
  const void* sin;
  i64 table_stride;
  i64 batch;
  i64 seqlen;       // new tokens of each sequence, unless cu_seqlens is set
  i64 tokens;       // batch * seqlen, or the packed rows
  i64 capacity;     // tokens that a sequence has room for
  i32 tile_tokens;  // of a block's turn, at most Config::kTokens
  i32 wide;         // whether all rows start on multiples of what one thread copies
};

static_assert(sizeof(StoredScaleArgs) == 32, "host and device must agree");
static_assert(sizeof(CacheAppendParams) == 440, "host and device must agree");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_CACHE_APPEND_PARAMS_H_

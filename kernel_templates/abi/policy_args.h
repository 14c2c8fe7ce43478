// Run-time arguments of the policies: one POD a feature, present in Params only when the spec uses
// the feature. Every struct is a multiple of 8 bytes with 8-byte alignment, so that offsets are
// prefix sums.
#ifndef TILEWRIGHT_ABI_POLICY_ARGS_H_
#define TILEWRIGHT_ABI_POLICY_ARGS_H_

#include "abi/fixed_width.h"

namespace tilewright {
namespace abi {

// Causal masks are windows with right = 0. -1: unbounded.
struct WindowArgs {
  i64 left;
  i64 right;
};

// Any pointer may be null (see AttentionArgs).
struct VarlenArgs {
  const i32* cu_seqlens_q;
  const i32* cu_seqlens_kv;
  const i32* seqused_q;
  const i32* seqused_kv;
};

// Keys of each sequence before its first valid one.
struct LeftPaddingArgs {
  const i32* keys;
};

// Where in the cache each sequence is: its batch of K and V, or its row of the page table.
struct CacheSlotArgs {
  const i32* slots;
};

struct PageTableArgs {
  const i32* table;
  i64 stride;  // between the rows of the table
};

struct AlibiArgs {
  const float* slopes;
  i64 stride_batch;
};

// Element address: ((b / batch_div) % batch_mod) * stride_batch + h * stride_head + i * stride_q +
// j * stride_kv.
struct BiasArgs {
  const void* data;
  i64 stride_batch;
  i64 stride_head;
  i64 stride_q;
  i64 stride_kv;
  i64 batch_div;
  i64 batch_mod;
};

struct SoftcapArgs {
  float cap;
  float inverse_cap;
};

struct SinkArgs {
  const float* sinks;
};

struct BlockMaskArgs {
  const u8* mask;
  i64 stride_batch;
  i64 stride_head;
  i64 stride_q;  // between the rows of query blocks; key blocks are adjacent
};

// Scale of stored values. Strides are 0 where the kind does not distinguish (per tensor: all 0).
struct ScaleArgs {
  const float* scale;
  i64 stride_batch;  // paged: of a page
  i64 stride_head;
  i64 stride_seq;
};

struct DropoutArgs {
  u64 seed;
  u64 offset;
  const u64* seed_ptr;  // when not null, read instead of `seed`
  const u64* offset_ptr;
  u32 threshold;     // a weight is kept when its Philox word is >= threshold
  float keep_scale;  // 1 / (1 - p)
};

// Results of attention over parts of the keys: O normalised within the part, and its LSE (-inf
// where a row sees none of its keys, and then O is not to be read). Strides in elements.
struct PartsArgs {
  void* o;
  float* lse;
  i64 o_stride_part;
  i64 o_stride_batch;
  i64 o_stride_seq;
  i64 o_stride_head;
  i64 lse_stride_part;
  i64 lse_stride_batch;
  i64 lse_stride_head;
  i64 parts;  // 1: there are none, the kernel writes the result itself
  // attn_decode, see policy/decode_work.cuh:
  i32 lines;
  i32 line_blocks;  // parts / lines
  i32 line_heads;   // heads_kv / lines
  i32 padding_;
};

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_POLICY_ARGS_H_

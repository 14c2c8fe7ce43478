// Appending: the keys and values of new tokens go into a cache, contiguous or paged, as attention
// reads it. On the way K may get a rotary embedding (and the tokens' queries with it), and become
// fp8 or int8 with the cache's scales.
//
//   auto append = runtime->PrepareAppend({.heads_q = 32, .heads_kv = 8, .page_size = 16,
//                                         .rotary = Rotary::kHalfSplit});
//   absl::Status status = runtime->Append(*append, args, stream);
//
// Token i of sequence b becomes key n + i of that sequence, where n = seqused_kv[b] is how many it
// had. A token whose place lies beyond `capacity` or on a page of negative number is not stored;
// nothing else is written. Runs like Runtime::Run: one launch, no lock, no allocation, may be
// captured in a graph and replayed while the lengths on the device grow; empty sizes launch
// nothing.
//
// Rotary embedding (Su et al., arXiv 2104.09864): with R = rotary_dim, columns x and y of pair p in
// [0, R/2) become x cos - y sin and y cos + x sin of the angle position * rotary_base^(-2p/R), in
// fp32, rounded once to the type that is stored. The angle is reduced exactly, however large.
#ifndef TILEWRIGHT_CACHE_APPEND_H_
#define TILEWRIGHT_CACHE_APPEND_H_

#include <array>
#include <cstdint>
#include <optional>

#include "tilewright/attention.h"

namespace tilewright {

// Which columns of a head make pair p: p and p + R/2 (GPT-NeoX, Llama in transformers), or 2p and
// 2p + 1 (GPT-J, Llama as published).
enum class Rotary { kNone, kHalfSplit, kInterleaved };

struct CacheAppendSpec {
  ElementType type = ElementType::kBf16;       // of the new Q, K and V: fp16, bf16 or fp32
  std::optional<ElementType> cache_type = {};  // absent: as `type`; or e4m3, e5m2, int8

  // Of an 8-bit cache, where value = stored * scale. kPerTensor and kPerHead are read. kPerToken is
  // written: the scale that makes the largest magnitude of a head the largest value of the type.
  ScaleKind cache_scale = ScaleKind::kNone;

  int64_t heads_q = 0;  // queries of the new tokens, to be rotated; 0: none
  int64_t heads_kv = 1;
  int64_t dim_qk = 128;
  int64_t dim_v = 128;    // 0: there are no values apart from the keys (latent attention)
  int64_t page_size = 0;  // tokens of one page of the cache; 0: not paged

  Rotary rotary = Rotary::kNone;
  int64_t rotary_begin = 0;  // first column that is rotated; even
  int64_t rotary_dim = 0;    // columns that are rotated, even; 0: all from rotary_begin on
  double rotary_base = 10000;
  // The type of CacheAppendArgs::cos and sin, which then take the place of rotary_base: fp32, fp16
  // or bf16. For scaled embeddings (YaRN, Llama 3, NTK).
  std::optional<ElementType> rotary_table = {};

  bool operator==(const CacheAppendSpec&) const = default;
};

// Device pointers; strides in elements, those of the innermost dimension 1. Pointers that say "or
// null" may be null, others must not unless their extent is 0.
struct CacheAppendArgs {
  int64_t batch = 0;
  int64_t seqlen = 0;  // new tokens of each sequence; with cu_seqlens unused
  int64_t total = 0;   // with cu_seqlens: its last entry, rows of the packed new tensors

  Tensor q;             // [batch, seqlen, heads_q, dim_qk]; packed: [total, heads_q, dim_qk],
                        // strides.batch unused
  MutableTensor q_out;  // likewise; may be q itself
  Tensor k;             // [batch, seqlen, heads_kv, dim_qk]; packed likewise
  Tensor v;             // [batch, seqlen, heads_kv, dim_v]; packed likewise

  const int32_t* cu_seqlens =
      nullptr;                         // or null; [batch + 1]: where each sequence's new tokens lie
  const int32_t* seqused = nullptr;    // or null; [batch]: how many of them there are
  const int32_t* positions = nullptr;  // or null: their places in the sequences; [batch, seqlen] or
                                       // [total]: of the rotary embedding

  MutableTensor k_cache;  // [slots, capacity, heads_kv, dim_qk]; paged: [pages, page_size, ...],
                          // strides.batch is the stride of a page
  MutableTensor v_cache;  // likewise with dim_v
  int64_t capacity = 0;   // tokens that a sequence has room for; paged: max_pages * page_size
  const int32_t* page_table = nullptr;  // [batch or slots, max_pages]
  int64_t page_table_stride = 0;
  const int32_t* cache_batch_idx = nullptr;  // or null; [batch]: slot, or row of the page table

  // [1], [heads_kv], or per token with the strides below; k_scale and v_scale of the cache.
  float* k_scale = nullptr;
  float* v_scale = nullptr;
  std::array<int64_t, 3> k_scale_strides = {0, 0, 0};  // batch (page when paged), head, token
  std::array<int64_t, 3> v_scale_strides = {0, 0, 0};

  const int32_t* seqused_kv = nullptr;  // or null: the cache is empty; [batch]: tokens in it before
  // Or null; [batch]: tokens in the cache after, at most `capacity`. May be seqused_kv itself; then
  // `ticket` is a word that is 0 before the call, as it is again after it. Calls that may run at
  // the same time need words of their own.
  int32_t* new_seqused_kv = nullptr;
  int32_t* ticket = nullptr;

  // Spec's rotary_table: [positions, rotary_dim / 2], a row for each position that occurs.
  const void* cos = nullptr;
  const void* sin = nullptr;
  int64_t rotary_stride = 0;  // between rows; 0: dense
};

}  // namespace tilewright

#endif  // TILEWRIGHT_CACHE_APPEND_H_

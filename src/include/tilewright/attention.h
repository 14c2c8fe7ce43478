// What to compute (AttentionSpec) and on which memory (AttentionArgs).
//
// An AttentionSpec describes one attention operation: types, head counts, head dims, masks, biases.
// It owns no memory and says nothing about how the result is computed. `Runtime::Prepare` turns it
// into a kernel; `Runtime::Run` applies that kernel to an AttentionArgs any number of times.
//
// What is computed, for batch b, query head h, its key/value head h / (heads_q / heads_kv), query
// row i of Sq, key j of Skv and off = Skv - Sq, in this order:
//   1. s = scale * dot(q_i, k_j)
//   2. s += every bias term; then s += alibi_slope[h] * -|i + off - j|
//   3. s = softcap * tanh(s / softcap)              (steps 2 and 3 swap with softcap_before_bias)
//   4. s = score_snippet(s, b, h, i, j)
//   5. keys that causal, window, length, a bool term, block mask or mask_snippet exclude have
//   weight exactly 0
//   6. m_i = max s_ij, l_i = sum exp(s_ij - m_i); a sink adds exp(sink[h] - m_i) to l_i
//   7. dropout zeroes some normalised weights and divides the others by 1 - p; l_i and LSE do not
//   see it
//   8. o_i = sum weight_ij * v_j / l_i, lse_i = m_i + ln(l_i)
// A row that may see no key gives o = 0 and lse = -inf.
//
// The online form of the softmax follows Milakov and Gimelshein (arXiv 1805.02867), the tiling Dao
// et al., FlashAttention (arXiv 2205.14135).
#ifndef TILEWRIGHT_ATTENTION_H_
#define TILEWRIGHT_ATTENTION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/export.h"

namespace tilewright {

enum class Operation { kForward, kBackward };

// Element types of tensors. kBool is one byte per element, zero or not zero.
enum class ElementType { kFp16, kBf16, kFp32, kFp8E4m3, kFp8E5m2, kInt8, kBool, kInt32 };

// How Q, K, V and O lie in memory when no explicit strides are given: batch, sequence, head (and
// always the head dim innermost). kThd is the packed form of varlen: [total tokens, heads, dim].
enum class Layout { kBshd, kBhsd, kSbhd, kThd };

// Where the diagonal of causal masks, windows and ALiBi lies when Sq != Skv.
enum class MaskAlign { kBottomRight, kTopLeft };

// Logarithm of the LSE output, and its value for a row that may see no key.
enum class LseBase { kE, kTwo };
enum class EmptyLse { kMinusInf, kPlusInf };

// Granularity of the scales that turn stored fp8 or int8 values into real ones (value = stored *
// scale).
enum class ScaleKind { kNone, kPerTensor, kPerHead, kPerToken };

// How the batch index of a bias term that has fewer batches than the problem is found:
// kMod: b % term.batch, kDiv: b / (batch / term.batch).
enum class BatchMap { kMod, kDiv };

// One additive (fp16, bf16, fp32) or masking (bool: nonzero keeps) term over the scores. Each
// extent is 1 (broadcast) or the size of the problem; `batch` may also be any divisor of the batch
// (see BatchMap).
struct BiasTerm {
  ElementType type = ElementType::kFp32;
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t seqlen_q = 1;
  int64_t seqlen_kv = 1;
  BatchMap batch_map = BatchMap::kMod;
  bool gradient = false;  // backward: AttentionArgs::d_bias is wanted; additive terms only

  bool operator==(const BiasTerm&) const = default;
};

// A device array or a scalar that the snippets of a spec may read by name.
struct SnippetArray {
  std::string name;  // a C++ identifier, used in the snippet as `const T* name`
  ElementType type = ElementType::kFp32;
  // Backward: score_gradient_snippet adds to AttentionArgs::d_snippet_arrays, which it sees as
  // `float* d_<name>`.
  bool gradient = false;
  bool operator==(const SnippetArray&) const = default;
};
enum class ScalarType { kFloat, kInt64 };
struct SnippetScalar {
  std::string name;
  ScalarType type = ScalarType::kFloat;
  bool operator==(const SnippetScalar&) const = default;
};

// CUDA C++ text of a user rule: one expression, or a function body with `return`. In scope are
//   score            the score so far (score snippets only), of type Scalar
//   b, h, i, j       int64_t: batch, query head, query row and key, counted within the sequence
//   seqlen_q, seqlen_kv   int64_t: lengths of this sequence
//   the arrays and scalars that the spec names
// A score snippet yields the new score; a mask snippet yields true for keys to keep.
//
// A mask tile snippet says what a mask snippet does to whole tiles, so that kernels skip tiles of
// which nothing is kept and spare the others its rule where all is. In scope are, instead of i and
// j, int64_t i_begin, i_end, j_begin, j_end: the rows [i_begin, i_end) and keys [j_begin, j_end) of
// a tile, neither empty and all of them existing. It yields `none`, `some` or `all`: no pair of
// them is kept, it depends on the pair, every pair is kept. `some` is always right.
//
// In a backward pass the score snippet is also compiled with a Scalar that carries a derivative
// (forward mode; core/dual.cuh): write `auto` or `Scalar`, not `float`, for what depends on
// `score`. A score gradient snippet replaces that. It has in scope also
//   score            the score that the score snippet was given, float
//   d_score          float: the gradient of the score that the score snippet gave
//   d_<array>        float*, for each array with `gradient`
//   Accumulate(p, x) adds x to the float at p; other threads may do the same
// and yields the gradient of `score`: d_score times the derivative.
struct Snippet {
  std::string text;
  std::string file_name;  // shown in compile errors; empty: the name of the spec's field
  bool empty() const { return text.empty(); }
  bool operator==(const Snippet&) const = default;
};

// Element strides of one tensor with its innermost dimension contiguous unless `dim` says
// otherwise.
struct Strides {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t head = 0;
  int64_t dim = 1;
  bool operator==(const Strides&) const = default;
};

struct AttentionSpec {
  Operation operation = Operation::kForward;

  // Q (and O, unless `out_type` is set). kFp16, kBf16, kFp32, or kFp8E4m3 / kFp8E5m2 with out_type
  // 16-bit.
  ElementType type = ElementType::kBf16;
  std::optional<ElementType> kv_type;   // K and V; absent: as `type`
  std::optional<ElementType> out_type;  // O; absent: as `type`

  // Sizes. Heads and dims are fixed; batch and sequence lengths are the typical ones that planning
  // looks at: Run accepts any (but with `exact`). Varlen: the longest sequence. heads_q is a
  // multiple of heads_kv.
  int64_t batch = 1;
  int64_t heads_q = 1;
  int64_t heads_kv = 1;
  int64_t seqlen_q = 1;
  int64_t seqlen_kv = 1;
  int64_t dim_qk = 64;
  int64_t dim_v = 64;

  Layout layout = Layout::kBshd;
  // Typical strides where `layout` does not describe them, in the order q, k, v, o. They decide how
  // wide copies may be; Run accepts other strides and pointers as long as `strided_innermost`
  // covers them, and copies by element, slowly, where they do not fit. 8-bit Q, K and V of a spec
  // of aligned rows must stay so: bases and strides are multiples of 16 bytes, or Run says which.
  std::optional<std::array<Strides, 4>> strides;
  bool strided_innermost = false;  // the head dim may have a stride other than 1 (slow path)

  // Masks.
  bool causal = false;
  MaskAlign align = MaskAlign::kBottomRight;
  int64_t window_left = -1;   // keys to the left of the diagonal that stay visible; -1: all
  int64_t window_right = -1;  // to the right; causal is window_right = 0
  int64_t block_mask_q = 0;   // rows and keys of one block of the block mask; 0: no block mask
  int64_t block_mask_kv = 0;

  // Scores.
  std::optional<float> scale;  // any finite value; absent: 1 / sqrt(dim_qk)
  float softcap = 0;           // 0: off
  bool softcap_before_bias = false;
  bool alibi = false;
  std::vector<BiasTerm> bias;  // up to 4
  bool sinks = false;
  float dropout = 0;                      // probability of dropping a weight, in [0, 1)
  ScaleKind q_scale = ScaleKind::kNone;   // fp8 Q: kPerTensor or kPerHead
  ScaleKind kv_scale = ScaleKind::kNone;  // fp8 or int8 K and V: any

  Snippet score_snippet;
  Snippet score_gradient_snippet;  // backward only; empty: the derivative of score_snippet
  Snippet mask_snippet;
  Snippet mask_tile_snippet;  // empty: the rule of a pair is asked for every pair
  std::vector<SnippetArray>
      snippet_arrays;  // up to 8, in the order of AttentionArgs::snippet_arrays
  std::vector<SnippetScalar> snippet_scalars;  // up to 8

  // Lengths and paging.
  bool varlen =
      false;  // lengths come from the device: AttentionArgs::cu_seqlens_q and what follows
  int64_t page_size = 0;  // tokens of one page of K and V; 0: not paged
  // Keys of a sequence before its first valid one are masked, as AttentionArgs::left_padding says.
  // Rows and keys are counted as without it. Needs varlen.
  bool left_padding = false;
  // Sequence b reads the keys of slot AttentionArgs::cache_batch_idx[b] of a cache. Forward only.
  bool cache_batch_idx = false;

  // Backward: gradients wanted beside those of Q, K and V (see also BiasTerm and SnippetArray).
  bool alibi_gradient = false;
  bool sinks_gradient = false;

  // Outputs. In a backward pass the LSE is an input and `lse` says nothing.
  bool lse = false;
  LseBase lse_base = LseBase::kE;
  EmptyLse empty_lse = EmptyLse::kMinusInf;

  // Execution.
  bool allow_tf32 = false;  // fp32 only: permit TF32 accuracy
  // Backward: bitwise equal between runs. Not with gradients of snippet arrays.
  bool deterministic = false;
  bool batch_invariant =
      false;           // a sequence's result does not depend on its neighbours in the batch
  bool exact = false;  // bake batch and lengths into the kernel; Run then accepts only those

  bool operator==(const AttentionSpec&) const = default;
};

// One tensor of a call. Strides are in elements and may be 0 to broadcast.
struct Tensor {
  const void* data = nullptr;
  Strides strides;
};
struct MutableTensor {
  void* data = nullptr;
  Strides strides;
};

// Memory of one bias term. Strides may be 0; those of extents of 1 are ignored.
struct BiasTensor {
  const void* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_head = 0;
  int64_t stride_q = 0;
  int64_t stride_kv = 0;
};

// Gradient of one bias term, summed over the axes that the term broadcasts. fp32 whatever the type
// of the term. Strides of extents of 1 are ignored, the others must be > 0.
struct BiasGradient {
  float* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_head = 0;
  int64_t stride_q = 0;
  int64_t stride_kv = 0;
};

union SnippetValue {
  float f;
  int64_t i;
};

// The memory and run-time sizes of one call. All pointers are device pointers (host pointers for
// `reference::Forward`). Pointers of features that the spec does not use are ignored. Arrays named
// by a feature that the spec does use must not be null unless their extent is 0.
struct AttentionArgs {
  int64_t batch = 0;
  int64_t seqlen_q = 0;   // varlen: at least the longest query sequence
  int64_t seqlen_kv = 0;  // varlen or paged: at least the longest key sequence

  Tensor q;  // [batch, seqlen_q, heads_q, dim_qk]; packed: [total_q, heads_q, dim_qk],
             // strides.batch unused
  Tensor k;  // [batch, seqlen_kv, heads_kv, dim_qk]; paged: strides.batch is the stride of a page;
             // with cache_batch_idx: [slots, ...]
  Tensor v;  // [batch, seqlen_kv, heads_kv, dim_v]; likewise
  MutableTensor o;  // as q with dim_v; a backward pass only reads it

  // Backward. The gradient of O lies as O may and has its type, those of Q, K and V have their
  // types. Every element of d_q, d_k and d_v that belongs to a sequence is written: keys that no
  // row sees get 0. (A call without any rows launches nothing and writes nothing.)
  Tensor d_o;
  MutableTensor d_q;
  MutableTensor d_k;
  MutableTensor d_v;

  // fp32 [batch, heads_q, seqlen_q]; packed: [heads_q, total_q] (lse_stride_batch unused). The
  // sequence stride is 1. Strides of 0 mean dense. A backward pass reads what the forward wrote, in
  // the spec's lse_base and empty_lse.
  float* lse = nullptr;
  int64_t lse_stride_batch = 0;
  int64_t lse_stride_head = 0;

  // Varlen: any of these. With cu_seqlens_q, Q, O and LSE are packed; with cu_seqlens_kv, K and
  // V are packed (unless paged). seqused_kv limits the keys of each sequence, seqused_q its rows:
  // those from there on are neither read nor written, and bottom-right alignment goes by the rows
  // that are left. total_q is cu_seqlens_q[batch].
  const int32_t* cu_seqlens_q = nullptr;   // [batch + 1]
  const int32_t* cu_seqlens_kv = nullptr;  // [batch + 1]
  const int32_t* seqused_q = nullptr;      // [batch]
  const int32_t* seqused_kv = nullptr;     // [batch]
  int64_t total_q = 0;   // with cu_seqlens_q: rows of the packed Q; 0 launches nothing
  int64_t total_kv = 0;  // with cu_seqlens_kv and no paging: rows of the packed K and V

  // Spec's left_padding: [batch], the keys of each sequence that come before its first valid one.
  // Lengths count them.
  const int32_t* left_padding = nullptr;
  // Spec's cache_batch_idx: [batch]. Sequence b reads batch cache_batch_idx[b] of K, V and scales
  // per token; paged, row cache_batch_idx[b] of the page table. Everything else, lengths included,
  // goes by b. Not with a cu_seqlens_kv that packs K and V.
  const int32_t* cache_batch_idx = nullptr;

  // Paged: [batch, max_pages]; page p of sequence b holds keys p * page_size and on. Negative
  // entries are masked.
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;  // elements between the rows of the table

  const float* alibi_slopes =
      nullptr;  // [heads_q], or [batch, heads_q] with alibi_stride_batch != 0
  int64_t alibi_stride_batch = 0;
  std::array<BiasTensor, 4> bias;  // in the order of the spec's terms
  const float* sinks = nullptr;    // [heads_q]

  // Backward, for what the spec wants a gradient of. Written, not added to.
  float* d_alibi_slopes = nullptr;     // as alibi_slopes, [batch, heads_q] dense or [heads_q]
  std::array<BiasGradient, 4> d_bias;  // in the order of the spec's terms
  float* d_sinks = nullptr;            // [heads_q]
  std::array<float*, 8> d_snippet_arrays = {};  // added to: the caller clears them

  const uint8_t* block_mask =
      nullptr;  // [batch, heads_q, ceil(Sq / QB), ceil(Skv / KB)], 1 = compute
  std::array<int64_t, 3> block_mask_strides = {0, 0, 0};  // batch, head, query block (0 broadcasts)

  const float* q_scale = nullptr;  // per tensor [1] or per head [heads_q]
  const float* k_scale = nullptr;  // [1], [heads_kv] or per token with the strides below
  const float* v_scale = nullptr;
  // Batch (page when paged), head, token. Scales of a head that follow one another, a stride of 1
  // for tokens, are read fastest by calls of few queries.
  std::array<int64_t, 3> k_scale_strides = {0, 0, 0};
  std::array<int64_t, 3> v_scale_strides = {0, 0, 0};

  // Dropout: Philox seed and offset by value, or from device memory where the pointers are set
  // (graph replay).
  uint64_t dropout_seed = 0;
  uint64_t dropout_offset = 0;
  const uint64_t* dropout_seed_ptr = nullptr;
  const uint64_t* dropout_offset_ptr = nullptr;

  std::array<const void*, 8> snippet_arrays = {};
  std::array<SnippetValue, 8> snippet_scalars = {};

  void* workspace = nullptr;  // PreparedAttention::workspace_bytes(args) bytes, 256-byte aligned
};

// Dense strides of a [batch, seqlen, heads, dim] tensor stored in `layout`.
TILEWRIGHT_API Strides DenseStrides(Layout layout, int64_t batch, int64_t seqlen, int64_t heads,
                                    int64_t dim);

}  // namespace tilewright

#endif  // TILEWRIGHT_ATTENTION_H_

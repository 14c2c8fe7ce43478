// Is a spec well formed? No knowledge of kernels or architectures here.
#ifndef TILEWRIGHT_SPEC_VALIDATE_H_
#define TILEWRIGHT_SPEC_VALIDATE_H_

#include "absl/status/status.h"
#include "tilewright/attention.h"

namespace tilewright::spec {

// InvalidArgument names the field, its value and the rule it breaks.
absl::Status Validate(const AttentionSpec& spec);

// Do the sizes, pointers and strides of a call fit the (valid) spec? The part that needs no device:
// null and misaligned pointers, negative sizes and strides, overflow of addresses in 64 bits, sizes
// that `exact` forbids. Cheap: no allocation when OK, tens of nanoseconds.
//
// Extents of a bias term that equal the spec's sizes follow those of the call; a batch extent below
// the spec's is a table of that many, and must divide the call's batch.
absl::Status ValidateArgs(const AttentionSpec& spec, const AttentionArgs& args);

// Bytes of one element. kBool and int8 and fp8: 1.
int ElementBytes(ElementType type);

// The types of K/V and O of a spec, with the defaults applied.
ElementType KvType(const AttentionSpec& spec);
ElementType OutType(const AttentionSpec& spec);

// 1 / sqrt(dim_qk) unless the spec says otherwise.
float EffectiveScale(const AttentionSpec& spec);

// heads_q / heads_kv; 1 when heads_kv is 0.
int64_t GroupSize(const AttentionSpec& spec);

// Causal merged into the window: right = 0.
int64_t EffectiveWindowRight(const AttentionSpec& spec);

// The keys [begin, end) of a sequence that the window lets some row see; begin >= end: none. Any
// distance is served: no sum of lengths may overflow.
struct KeyBounds {
  int64_t begin;
  int64_t end;
};
KeyBounds KeysInWindow(const AttentionSpec& spec, int64_t seqlen_q, int64_t seqlen_kv);

// Strides q, k, v, o: the explicit ones, or dense in the spec's layout. Of K and V in pages: those
// within one page, [page_size, heads, dim] or for bhsd [heads, page_size, dim], and `batch` from
// page to page.
std::array<Strides, 4> EffectiveStrides(const AttentionSpec& spec);

}  // namespace tilewright::spec

#endif  // TILEWRIGHT_SPEC_VALIDATE_H_

// Merging: results of attention over parts of the keys become the result over all of them. The
// parts may come from other calls of Tilewright (cascades, a shared prefix, keys spread over
// devices) or from other libraries.
//
//   auto merge = runtime->PrepareMerge({.heads = 32, .dim_v = 128});
//   absl::Status status = runtime->Merge(*merge, args, stream);
//
// Exact: the weight of a part is exp(lse_part - lse), where lse = ln(sum of exp(lse_part)). A part
// in which a row saw no key (LSE -inf, or +inf by EmptyLse) adds nothing, and its O is not read;
// where all parts are empty the result is O = 0 with the LSE of an empty row. Runs like
// Runtime::Run: it takes no lock, allocates nothing and may be captured in a graph; empty sizes
// launch nothing.
#ifndef TILEWRIGHT_MERGE_H_
#define TILEWRIGHT_MERGE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "tilewright/attention.h"

namespace tilewright {

struct MergeSpec {
  ElementType part_type = ElementType::kFp32;  // O of the parts: fp32, fp16 or bf16
  ElementType out_type = ElementType::kBf16;   // O of the result: likewise
  int64_t heads = 1;
  int64_t dim_v = 128;
  bool lse = true;  // write the LSE of the result too
  // Of the parts' LSE and of the result's.
  LseBase lse_base = LseBase::kE;
  EmptyLse empty_lse = EmptyLse::kMinusInf;
};

// Device pointers; strides in elements. Packed sequences are a batch of one with all rows.
struct MergeArgs {
  int64_t parts = 0;
  int64_t batch = 0;
  int64_t seqlen_q = 0;

  Tensor o_parts;  // [parts, batch, seqlen_q, heads, dim_v]; strides.dim is 1
  int64_t o_stride_part = 0;
  const float* lse_parts = nullptr;  // fp32 [parts, batch, heads, seqlen_q], rows adjacent
  int64_t lse_stride_part = 0;
  int64_t lse_stride_batch = 0;
  int64_t lse_stride_head = 0;

  MutableTensor o;                   // [batch, seqlen_q, heads, dim_v]; strides.dim is 1
  float* lse = nullptr;              // [batch, heads, seqlen_q], rows adjacent; with MergeSpec::lse
  int64_t lse_out_stride_batch = 0;  // 0: dense
  int64_t lse_out_stride_head = 0;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MERGE_H_

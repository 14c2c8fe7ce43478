// Which specs share one tuning record. The one bucketing function: the tuner, the look-up of
// Prepare, `explain` and `compile --plan` all use it.
#ifndef TILEWRIGHT_TUNE_BUCKET_H_
#define TILEWRIGHT_TUNE_BUCKET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tilewright/attention.h"

namespace tilewright::tune {

// The smallest bucket edge >= n. Lengths: powers of two to 64, from there on half-way steps too
// (96, 128, 192, ...), as the share of a last, partly filled tile falls; batches: powers of two.
// Sizes above 2^40 are left alone.
int64_t RoundLength(int64_t n);
int64_t RoundBatch(int64_t n);

struct Bucket {
  // What decides which plans are legal and what a kernel does: the canonical spec in words without
  // its sizes (b=1 s=1/1), without what costs no time (scale, base of the LSE) and with the values
  // of run-time arguments rounded. Snippets are named by their digest, strides by the powers of two
  // that divide them.
  std::string kind;
  // Edges; those of `exact` specs are the sizes themselves.
  int64_t batch = 1;
  int64_t seqlen_q = 1;
  int64_t seqlen_kv = 1;

  // "fwd bf16 b=1 h=32/8 s=1/1 d=128/128 causal @ b<=2 s<=4096/4096"
  std::string ToText() const;
  bool operator==(const Bucket&) const = default;
};

// `spec` is canonical.
Bucket BucketOf(const AttentionSpec& spec);

// How far two buckets are apart: octaves of batch and lengths, summed. Infinite for another kind.
double Distance(const Bucket& a, const Bucket& b);

// The canonical spec with the sizes of every bucket whose batch and lengths are at most those
// given, bias terms following: what a caller with random sizes of one model can reach. Of
// self-attention (seqlen_q == seqlen_kv in `spec`) only the diagonal; with seqlen_q <= 16 the
// queries stay.
std::vector<AttentionSpec> ReachableSpecs(const AttentionSpec& spec, int64_t max_batch,
                                          int64_t max_seqlen);

// `spec` with other sizes: extents of bias terms that are the spec's sizes follow.
AttentionSpec WithSizes(const AttentionSpec& spec, int64_t batch, int64_t seqlen_q,
                        int64_t seqlen_kv);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_BUCKET_H_

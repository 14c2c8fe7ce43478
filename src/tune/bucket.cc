#include "tune/bucket.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "spec/canonical.h"

namespace tilewright::tune {
namespace {

constexpr int64_t kMostRounded = int64_t{1} << 40;
constexpr int64_t kHalfStepsFrom = 64;
constexpr int64_t kStrideClass = 64;  // elements: above the widest copy nothing changes
constexpr int kDigestDigits = 16;

int64_t RoundUpToPowerOfTwo(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// The largest power of two that divides `stride`, at most kStrideClass; 0 stays 0.
int64_t StrideClass(int64_t stride) {
  if (stride == 0) return 0;
  return std::min(kStrideClass, stride & -stride);
}

void NameByDigest(Snippet& snippet) {
  if (snippet.empty()) return;
  snippet.file_name = Sha256(snippet.text).ToHex().substr(0, kDigestDigits);
}

// A window's side: -1 (open) and 0 mean what they say.
int64_t RoundWindow(int64_t side) { return side <= 0 ? side : RoundLength(side); }

double Octaves(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(std::max<int64_t>(a, 1))) -
                  std::log2(static_cast<double>(std::max<int64_t>(b, 1))));
}

}  // namespace

int64_t RoundLength(int64_t n) {
  if (n > kMostRounded) return n;
  const int64_t power = RoundUpToPowerOfTwo(n);
  const int64_t half_way = power / 4 * 3;
  return power > kHalfStepsFrom && n <= half_way ? half_way : power;
}

int64_t RoundBatch(int64_t n) { return n > kMostRounded ? n : RoundUpToPowerOfTwo(n); }

std::string Bucket::ToText() const {
  return absl::StrCat(kind, " @ b<=", batch, " s<=", seqlen_q, "/", seqlen_kv);
}

AttentionSpec WithSizes(const AttentionSpec& spec, int64_t batch, int64_t seqlen_q,
                        int64_t seqlen_kv) {
  AttentionSpec out = spec;
  out.batch = batch;
  out.seqlen_q = seqlen_q;
  out.seqlen_kv = seqlen_kv;
  // An extent of 1 broadcasts, whatever the size.
  for (BiasTerm& term : out.bias) {
    if (term.batch != 1 && term.batch == spec.batch) term.batch = batch;
    if (term.seqlen_q != 1) term.seqlen_q = seqlen_q;
    if (term.seqlen_kv != 1) term.seqlen_kv = seqlen_kv;
  }
  return out;
}

Bucket BucketOf(const AttentionSpec& spec) {
  Bucket bucket;
  bucket.batch = spec.exact ? spec.batch : RoundBatch(spec.batch);
  bucket.seqlen_q = spec.exact ? spec.seqlen_q : RoundLength(spec.seqlen_q);
  bucket.seqlen_kv = spec.exact ? spec.seqlen_kv : RoundLength(spec.seqlen_kv);
  AttentionSpec kind = WithSizes(spec, 1, 1, 1);
  // Which extents broadcast is a matter of the kind, and with sizes of 1 no longer visible.
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    BiasTerm& term = kind.bias[n];
    term.batch = spec.bias[n].batch == 1 ? 1 : spec.bias[n].batch == spec.batch ? 2 : 3;
    term.seqlen_q = spec.bias[n].seqlen_q == 1 ? 1 : 2;
    term.seqlen_kv = spec.bias[n].seqlen_kv == 1 ? 1 : 2;
  }
  kind.scale.reset();
  kind.lse_base = LseBase::kE;
  kind.empty_lse = EmptyLse::kMinusInf;
  if (kind.softcap != 0) kind.softcap = 1;
  if (kind.dropout != 0) kind.dropout = 0.5f;
  kind.window_left = RoundWindow(kind.window_left);
  kind.window_right = RoundWindow(kind.window_right);
  if (kind.strides.has_value()) {
    for (Strides& strides : *kind.strides) {
      strides = {StrideClass(strides.batch), StrideClass(strides.seq), StrideClass(strides.head),
                 strides.dim};
    }
  }
  NameByDigest(kind.score_snippet);
  NameByDigest(kind.score_gradient_snippet);
  NameByDigest(kind.mask_snippet);
  NameByDigest(kind.mask_tile_snippet);
  bucket.kind = spec::ToText(kind);
  return bucket;
}

double Distance(const Bucket& a, const Bucket& b) {
  if (a.kind != b.kind) return std::numeric_limits<double>::infinity();
  return Octaves(a.batch, b.batch) + Octaves(a.seqlen_q, b.seqlen_q) +
         Octaves(a.seqlen_kv, b.seqlen_kv);
}

std::vector<AttentionSpec> ReachableSpecs(const AttentionSpec& spec, int64_t max_batch,
                                          int64_t max_seqlen) {
  constexpr int64_t kFewQueries = 16;
  std::vector<AttentionSpec> specs;
  const auto next = [](int64_t edge) { return RoundLength(edge + 1); };
  for (int64_t batch = 1; batch <= max_batch; batch *= 2) {
    for (int64_t kv = 1; kv <= max_seqlen; kv = next(kv)) {
      if (spec.seqlen_q <= kFewQueries && spec.seqlen_q != spec.seqlen_kv) {
        specs.push_back(WithSizes(spec, batch, spec.seqlen_q, kv));
      } else if (spec.seqlen_q == spec.seqlen_kv) {
        specs.push_back(WithSizes(spec, batch, kv, kv));
      } else {
        for (int64_t q = 1; q <= max_seqlen; q = next(q)) {
          specs.push_back(WithSizes(spec, batch, q, kv));
        }
      }
    }
  }
  return specs;
}

}  // namespace tilewright::tune

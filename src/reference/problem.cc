#include "reference/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "reference/element.h"
#include "spec/validate.h"

namespace tilewright::reference {
namespace {

// spec::ValidateArgs, which wants outputs, with stand-ins for those that the caller left out: the
// reference writes none of them. The inputs of a backward pass are those of the forward.
absl::Status CheckArguments(const AttentionSpec& spec, const AttentionArgs& args) {
  alignas(64) std::byte unwritten[64];
  AttentionArgs checked = args;
  if (checked.o.data == nullptr) {
    checked.o.data = unwritten;
    checked.o.strides =
        DenseStrides(spec.layout, args.batch, args.seqlen_q, spec.heads_q, spec.dim_v);
  }
  if (checked.lse == nullptr) checked.lse = reinterpret_cast<float*>(unwritten);
  if (spec.operation == Operation::kForward) return spec::ValidateArgs(spec, checked);
  AttentionSpec forward = spec;
  forward.operation = Operation::kForward;
  return spec::ValidateArgs(forward, checked);
}

absl::Status CheckCumulative(const char* name, const int32_t* cumulative, int64_t batch,
                             const char* bound_name, int64_t bound, const char* total_name,
                             int64_t total) {
  if (cumulative[0] < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "[0] = ", cumulative[0], " must not be negative"));
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = static_cast<int64_t>(cumulative[b + 1]) - cumulative[b];
    if (length < 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, "[", b + 1, "] = ", cumulative[b + 1],
                                                     " must be at least ", name, "[", b,
                                                     "] = ", cumulative[b]));
    }
    if (length > bound) {
      return absl::InvalidArgumentError(absl::StrCat(bound_name, " = ", bound,
                                                     " must be at least the length ", length,
                                                     " of sequence ", b, " in ", name));
    }
  }
  if (cumulative[batch] > total) {
    return absl::InvalidArgumentError(absl::StrCat(total_name, " = ", total, " must be at least ",
                                                   name, "[", batch, "] = ", cumulative[batch]));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const AttentionSpec& spec, const AttentionArgs& args) {
  if (HasPackedQ(spec, args)) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckCumulative("cu_seqlens_q", args.cu_seqlens_q, args.batch,
                                               "seqlen_q", args.seqlen_q, "total_q", args.total_q));
  }
  if (HasCumulativeKv(spec, args)) {
    // Paged keys lie in pages: nothing has total_kv rows.
    const int64_t total_kv =
        spec.page_size > 0 ? std::numeric_limits<int64_t>::max() : args.total_kv;
    TILEWRIGHT_RETURN_IF_ERROR(CheckCumulative("cu_seqlens_kv", args.cu_seqlens_kv, args.batch,
                                               "seqlen_kv", args.seqlen_kv, "total_kv", total_kv));
  }
  const struct {
    const char* name;
    const int32_t* values;
  } counts[] = {{"seqused_q", spec.varlen ? args.seqused_q : nullptr},
                {"seqused_kv", spec.varlen ? args.seqused_kv : nullptr},
                {"left_padding", spec.left_padding ? args.left_padding : nullptr},
                {"cache_batch_idx", spec.cache_batch_idx ? args.cache_batch_idx : nullptr}};
  for (const auto& count : counts) {
    for (int64_t b = 0; count.values != nullptr && b < args.batch; ++b) {
      if (count.values[b] < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(count.name, "[", b, "] = ", count.values[b], " must not be negative"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCallables(const AttentionSpec& spec, const Callables& callables,
                            bool needs_derivative) {
  const auto check = [](bool snippet, bool callable, const char* name) {
    if (snippet == callable) return absl::OkStatus();
    return absl::InvalidArgumentError(
        snippet
            ? absl::StrCat("callables.", name, " is empty, but the spec has a ", name,
                           "_snippet, and CUDA text cannot run here")
            : absl::StrCat("callables.", name, " is set, but the spec has no ", name, "_snippet"));
  };
  TILEWRIGHT_RETURN_IF_ERROR(
      check(!spec.score_snippet.empty(), static_cast<bool>(callables.score), "score"));
  TILEWRIGHT_RETURN_IF_ERROR(
      check(!spec.mask_snippet.empty(), static_cast<bool>(callables.mask), "mask"));
  if (needs_derivative && callables.score && !callables.score_derivative) {
    return absl::InvalidArgumentError(
        "callables.score_derivative is empty, but gradients through callables.score need it");
  }
  return absl::OkStatus();
}

DropoutRule MakeDropout(const AttentionSpec& spec, const AttentionArgs& args) {
  const uint64_t seed = args.dropout_seed_ptr != nullptr && spec.dropout != 0
                            ? *args.dropout_seed_ptr
                            : args.dropout_seed;
  const uint64_t offset = args.dropout_offset_ptr != nullptr && spec.dropout != 0
                              ? *args.dropout_offset_ptr
                              : args.dropout_offset;
  return DropoutRule(spec.dropout, seed, offset, spec.heads_q);
}

const std::byte* ElementAddress(const void* data, ElementType type, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset * spec::ElementBytes(type);
}

}  // namespace

bool HasPackedQ(const AttentionSpec& spec, const AttentionArgs& args) {
  return spec.varlen && args.cu_seqlens_q != nullptr;
}

bool HasCumulativeKv(const AttentionSpec& spec, const AttentionArgs& args) {
  return spec.varlen && args.cu_seqlens_kv != nullptr;
}

Sequence SequenceOf(const AttentionSpec& spec, const AttentionArgs& args, int64_t b) {
  Sequence sequence;
  sequence.b = b;
  sequence.seqlen_q = args.seqlen_q;
  sequence.seqlen_kv = args.seqlen_kv;
  if (HasPackedQ(spec, args)) {
    sequence.first_q = args.cu_seqlens_q[b];
    sequence.seqlen_q = args.cu_seqlens_q[b + 1] - sequence.first_q;
  }
  if (HasCumulativeKv(spec, args)) {
    sequence.first_kv = args.cu_seqlens_kv[b];
    sequence.seqlen_kv = args.cu_seqlens_kv[b + 1] - sequence.first_kv;
  }
  if (spec.varlen && args.seqused_q != nullptr) {
    sequence.seqlen_q = std::min<int64_t>(sequence.seqlen_q, args.seqused_q[b]);
  }
  if (spec.varlen && args.seqused_kv != nullptr) {
    sequence.seqlen_kv = std::min<int64_t>(sequence.seqlen_kv, args.seqused_kv[b]);
  }
  if (spec.left_padding) sequence.left_padding = args.left_padding[b];
  sequence.slot = spec.cache_batch_idx ? args.cache_batch_idx[b] : b;
  if (spec.align == MaskAlign::kBottomRight) {
    sequence.diagonal = sequence.seqlen_kv - sequence.seqlen_q;
  }
  return sequence;
}

BiasExtents ExtentsOf(const AttentionSpec& spec, const AttentionArgs& args, const BiasTerm& term) {
  BiasExtents extents;
  extents.batch = term.batch == 1 || term.batch != spec.batch ? term.batch : args.batch;
  extents.heads = term.heads;
  extents.seqlen_q = term.seqlen_q == 1 ? 1 : args.seqlen_q;
  extents.seqlen_kv = term.seqlen_kv == 1 ? 1 : args.seqlen_kv;
  return extents;
}

int64_t BiasBatch(const BiasTerm& term, const BiasExtents& extents, int64_t batch, int64_t b) {
  return term.batch_map == BatchMap::kMod ? b % extents.batch : b / (batch / extents.batch);
}

Problem::Problem(const AttentionSpec& spec, const AttentionArgs& args, const Options& options)
    : spec_(&spec),
      args_(&args),
      options_(&options),
      dropout_(MakeDropout(spec, args)),
      group_(spec::GroupSize(spec)),
      window_right_(spec::EffectiveWindowRight(spec)),
      kv_type_(spec::KvType(spec)),
      out_type_(spec::OutType(spec)) {}

absl::StatusOr<Problem> Problem::Create(const AttentionSpec& spec, const AttentionArgs& args,
                                        const Options& options, bool needs_derivative) {
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  TILEWRIGHT_RETURN_IF_ERROR(CheckArguments(spec, args));
  TILEWRIGHT_RETURN_IF_ERROR(CheckLengths(spec, args));
  TILEWRIGHT_RETURN_IF_ERROR(CheckCallables(spec, options.callables, needs_derivative));
  return Problem(spec, args, options);
}

KeyRange Problem::VisibleKeys(const Sequence& sequence, int64_t i) const {
  KeyRange range{sequence.left_padding, sequence.seqlen_kv};
  const int64_t diagonal = i + sequence.diagonal;
  // Wider than both lengths together is unbounded, which keeps the sums below from overflowing.
  const int64_t unbounded = sequence.seqlen_q + sequence.seqlen_kv;
  if (spec_->window_left >= 0) {
    range.begin =
        std::max<int64_t>(range.begin, diagonal - std::min(spec_->window_left, unbounded));
  }
  if (window_right_ >= 0) {
    range.end = std::min(range.end, diagonal + std::min(window_right_, unbounded) + 1);
  }
  return range;
}

KeySlot Problem::Locate(const Sequence& sequence, int64_t j) const {
  KeySlot slot;
  if (spec_->page_size > 0) {
    const int32_t page =
        args_->page_table[sequence.slot * args_->page_table_stride + j / spec_->page_size];
    slot.present = page >= 0;
    slot.outer = page;
    slot.inner = j % spec_->page_size;
  } else if (HasCumulativeKv(*spec_, *args_)) {
    slot.inner = sequence.first_kv + j;
  } else {
    slot.outer = sequence.slot;
    slot.inner = j;
  }
  return slot;
}

template <typename Real>
void Problem::LoadQuery(const Sequence& sequence, int64_t h, int64_t i, Real* out) const {
  const Strides& strides = args_->q.strides;
  const int64_t offset = (HasPackedQ(*spec_, *args_) ? 0 : sequence.b * strides.batch) +
                         (sequence.first_q + i) * strides.seq + h * strides.head;
  Real scale = 1;
  if (spec_->q_scale == ScaleKind::kPerTensor) scale = args_->q_scale[0];
  if (spec_->q_scale == ScaleKind::kPerHead) scale = args_->q_scale[h];
  DecodeRow(spec_->type, ElementAddress(args_->q.data, spec_->type, offset), strides.dim,
            spec_->dim_qk, scale, out);
}

template <typename Real>
void Problem::LoadLikeOutput(const Tensor& tensor, const Sequence& sequence, int64_t h, int64_t i,
                             Real* out) const {
  const Strides& strides = tensor.strides;
  const int64_t offset = (HasPackedQ(*spec_, *args_) ? 0 : sequence.b * strides.batch) +
                         (sequence.first_q + i) * strides.seq + h * strides.head;
  DecodeRow(out_type_, ElementAddress(tensor.data, out_type_, offset), strides.dim, spec_->dim_v,
            Real{1}, out);
}

template <typename Real>
void Problem::LoadKv(const Tensor& tensor, const float* scale,
                     const std::array<int64_t, 3>& scale_strides, int64_t dim,
                     const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
                     int64_t key_stride, int64_t dim_stride) const {
  const Strides& strides = tensor.strides;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    Real* key = out + (j - keys.begin) * key_stride;
    const KeySlot slot = Locate(sequence, j);
    if (!slot.present) {
      for (int64_t d = 0; d < dim; ++d) key[d * dim_stride] = 0;
      continue;
    }
    Real factor = 1;
    switch (spec_->kv_scale) {
      case ScaleKind::kNone:
        break;
      case ScaleKind::kPerTensor:
        factor = scale[0];
        break;
      case ScaleKind::kPerHead:
        factor = scale[h_kv];
        break;
      case ScaleKind::kPerToken:
        factor = scale[slot.outer * scale_strides[0] + h_kv * scale_strides[1] +
                       slot.inner * scale_strides[2]];
        break;
    }
    const int64_t offset =
        slot.outer * strides.batch + slot.inner * strides.seq + h_kv * strides.head;
    DecodeRow(kv_type_, ElementAddress(tensor.data, kv_type_, offset), strides.dim, dim, factor,
              key, dim_stride);
  }
}

template <typename Real>
void Problem::LoadKeys(const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
                       int64_t key_stride, int64_t dim_stride) const {
  LoadKv(args_->k, args_->k_scale, args_->k_scale_strides, spec_->dim_qk, sequence, h_kv, keys, out,
         key_stride, dim_stride);
}

template <typename Real>
void Problem::LoadValues(const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
                         int64_t key_stride, int64_t dim_stride) const {
  LoadKv(args_->v, args_->v_scale, args_->v_scale_strides, spec_->dim_v, sequence, h_kv, keys, out,
         key_stride, dim_stride);
}

template <typename Real>
RowScorer<Real>::RowScorer(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i)
    : problem_(problem),
      sequence_(sequence),
      h_(h),
      i_(i),
      keys_(problem.VisibleKeys(sequence, i)) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  // The default is taken in Real: the fp64 result is that of 1 / sqrt(dim), not of its rounding.
  scale_ = spec.scale.has_value() ? static_cast<Real>(*spec.scale)
                                  : 1 / std::sqrt(static_cast<Real>(spec.dim_qk));
  // Arrays over keys may be null when there are none.
  if (keys_.empty()) return;
  if (spec.alibi) slope_ = args.alibi_slopes[sequence.b * args.alibi_stride_batch + h];
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    const BiasTensor& tensor = args.bias[n];
    const BiasExtents extents = ExtentsOf(spec, args, term);
    int64_t offset = 0;
    if (extents.batch > 1) {
      offset += BiasBatch(term, extents, args.batch, sequence.b) * tensor.stride_batch;
    }
    if (extents.heads > 1) offset += h * tensor.stride_head;
    if (extents.seqlen_q > 1) offset += i * tensor.stride_q;
    const Term row = {term.type, ElementAddress(tensor.data, term.type, offset),
                      extents.seqlen_kv > 1 ? tensor.stride_kv : 0};
    if (term.type == ElementType::kBool) {
      bool_[bool_count_++] = row;
    } else {
      additive_[additive_count_++] = row;
    }
  }
  if (spec.block_mask_q > 0) {
    block_mask_ = args.block_mask + sequence.b * args.block_mask_strides[0] +
                  h * args.block_mask_strides[1] +
                  (i / spec.block_mask_q) * args.block_mask_strides[2];
  }
}

template <typename Real>
bool RowScorer<Real>::Keeps(int64_t j) const {
  const AttentionSpec& spec = problem_.spec();
  if (spec.page_size > 0 && !problem_.Locate(sequence_, j).present) return false;
  if (block_mask_ != nullptr && block_mask_[j / spec.block_mask_kv] == 0) return false;
  for (int n = 0; n < bool_count_; ++n) {
    if (bool_[n].row[j * bool_[n].stride_kv] == std::byte{0}) return false;
  }
  const auto& mask = problem_.callables().mask;
  return !mask || mask(Where{sequence_.b, h_, i_, j, sequence_.seqlen_q, sequence_.seqlen_kv});
}

template <typename Real>
Real RowScorer<Real>::AlibiDistance(int64_t j) const {
  return -static_cast<Real>(std::abs(i_ + sequence_.diagonal - j));
}

template <typename Real>
Real RowScorer<Real>::Evaluate(int64_t j, Real dot, ScoreSlopes<Real>* slopes) const {
  const AttentionSpec& spec = problem_.spec();
  Real bias = 0;
  for (int n = 0; n < additive_count_; ++n) {
    const Term& term = additive_[n];
    Real value = 0;
    DecodeRow(term.type, term.row + j * term.stride_kv * spec::ElementBytes(term.type), 1, 1,
              Real{1}, &value);
    bias += value;
  }
  if (spec.alibi) bias += slope_ * AlibiDistance(j);

  Real score = scale_ * dot;
  Real by_dot = 1;
  Real by_bias = 1;
  const bool biased = additive_count_ > 0 || spec.alibi;
  if (biased && !spec.softcap_before_bias) score += bias;
  if (spec.softcap != 0) {
    const Real cap = spec.softcap;
    const Real squashed = std::tanh(score / cap);
    score = cap * squashed;
    by_dot = 1 - squashed * squashed;
    if (!spec.softcap_before_bias) by_bias = by_dot;
  }
  if (biased && spec.softcap_before_bias) score += bias;

  const Callables& callables = problem_.callables();
  if (callables.score) {
    const Where where = {sequence_.b, h_, i_, j, sequence_.seqlen_q, sequence_.seqlen_kv};
    if (slopes != nullptr) {
      const Real derivative = static_cast<Real>(callables.score_derivative(score, where));
      by_dot *= derivative;
      by_bias *= derivative;
    }
    score = static_cast<Real>(callables.score(score, where));
  }
  if (slopes != nullptr) *slopes = {by_dot, by_bias};
  return score;
}

template <typename Real>
RowSoftmax<Real> SoftmaxInPlace(const uint8_t* keep, int64_t count, const float* sink,
                                Real* scores) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  RowSoftmax<Real> softmax;
  bool poisoned = false;  // by what has no softmax: NaN or +inf
  Real max = -kInfinity;
  for (int64_t n = 0; n < count; ++n) {
    if (!keep[n]) continue;
    poisoned = poisoned || !(scores[n] < kInfinity);
    max = std::max(max, scores[n]);
  }
  softmax.any_key = poisoned || max > -kInfinity;
  softmax.any_term = softmax.any_key;
  if (sink != nullptr) {
    poisoned = poisoned || !(*sink < std::numeric_limits<float>::infinity());
    softmax.any_term = softmax.any_term || poisoned || *sink > -kInfinity;
    max = std::max(max, static_cast<Real>(*sink));
  }
  if (!softmax.any_term || poisoned) {
    // Without any term the weights are 0 by selection: -inf - -inf must not be formed.
    const Real weight = poisoned ? std::numeric_limits<Real>::quiet_NaN() : 0;
    for (int64_t n = 0; n < count; ++n) scores[n] = keep[n] ? weight : 0;
    softmax.max = poisoned ? weight : -kInfinity;
    softmax.sum = weight;
    softmax.sink_weight = weight;
    softmax.any_key = softmax.any_key || poisoned;
    return softmax;
  }
  softmax.max = max;
  for (int64_t n = 0; n < count; ++n) {
    scores[n] = keep[n] ? std::exp(scores[n] - max) : 0;
    softmax.sum += scores[n];
  }
  if (sink != nullptr) {
    softmax.sink_weight = std::exp(static_cast<Real>(*sink) - max);
    softmax.sum += softmax.sink_weight;
  }
  return softmax;
}

#define TILEWRIGHT_INSTANTIATE(Real)                                                            \
  template void Problem::LoadQuery<Real>(const Sequence&, int64_t, int64_t, Real*) const;       \
  template void Problem::LoadLikeOutput<Real>(const Tensor&, const Sequence&, int64_t, int64_t, \
                                              Real*) const;                                     \
  template void Problem::LoadKeys<Real>(const Sequence&, int64_t, KeyRange, Real*, int64_t,     \
                                        int64_t) const;                                         \
  template void Problem::LoadValues<Real>(const Sequence&, int64_t, KeyRange, Real*, int64_t,   \
                                          int64_t) const;                                       \
  template class RowScorer<Real>;                                                               \
  template RowSoftmax<Real> SoftmaxInPlace<Real>(const uint8_t*, int64_t, const float*, Real*);

TILEWRIGHT_INSTANTIATE(double)
TILEWRIGHT_INSTANTIATE(float)
#undef TILEWRIGHT_INSTANTIATE

}  // namespace tilewright::reference

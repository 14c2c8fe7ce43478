// Gradients in fp64. For one row with weights p_j (before dropout), dropout factors f_j (0 or
// 1 / (1 - p)) and upstream gradient dO:
//   dv_j += p_j f_j dO,   delta = sum p_j f_j (dO . v_j),   ds_j = p_j (f_j (dO . v_j) - delta)
// ds goes back through the score snippet, softcap and bias in the order of the spec. A sink is one
// more key of value 0: its ds is -p_sink * delta. Gradients of scaled (fp8, int8) tensors are those
// of the real values, stored * scale.
//
// Once in fp64, and once as the straightforward computation: fp32, with P and dS rounded where they
// are operands of 16 bits, and delta from the rounded O, as dot(dO, O).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "reference/linear.h"
#include "reference/parallel.h"
#include "reference/problem.h"
#include "reference/reference.h"

namespace tilewright::reference {
namespace {

// Pieces that the work is cut into when batches and heads alone are fewer. A constant and not the
// number of threads: the order of the sums must not depend on the machine.
constexpr int64_t kTasks = 32;
// Private copies of bias gradients that several rows add to, in elements, all together.
constexpr int64_t kPartialBiasElements = int64_t{1} << 26;

// The part of one (batch, key/value head) that one task does: rows [begin, end) of every query head
// of the group.
struct Slice {
  int64_t b;
  int64_t h_kv;
  int64_t begin;
  int64_t end;
};

// How the straightforward computation rounds.
class OperandRounding {
 public:
  // None: fp64.
  OperandRounding() = default;
  // `out` is the type of O.
  OperandRounding(ElementType type, ElementType out) : active_(true), operand_(type), out_(out) {}

  bool active() const { return active_; }
  template <typename Real>
  Real Operand(Real value) const {
    return active_ ? Round(operand_, value) : value;
  }
  template <typename Real>
  Real Output(Real value) const {
    return Round(out_, value);
  }
  double Result(double value, ElementType type) const {
    return active_ ? Round(type, value) : value;
  }

 private:
  template <typename Real>
  static Real Round(ElementType type, Real value) {
    std::array<std::byte, 4> rounded;
    FromDouble(type, static_cast<double>(value), rounded.data());
    return static_cast<Real>(ToDouble(type, rounded.data()));
  }

  bool active_ = false;
  ElementType operand_ = ElementType::kFp32;
  ElementType out_ = ElementType::kFp32;
};

// What a task leaves to be added up afterwards, in the order of the tasks.
template <typename Real>
struct SliceSums {
  std::vector<Real> dk, dv;            // [seqlen_kv, dim]
  std::vector<double> dsinks, dalibi;  // [group]
};

// One additive term of the bias.
struct DBias {
  size_t term;
  BiasExtents extents;
  // Whether every row (b, h, i) has elements of its own.
  bool owned_by_rows;
  int64_t count() const {
    return extents.batch * extents.heads * extents.seqlen_q * extents.seqlen_kv;
  }
};

std::vector<DBias> AdditiveTerms(const AttentionSpec& spec, const AttentionArgs& args) {
  std::vector<DBias> terms;
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    if (spec.bias[n].type == ElementType::kBool) continue;
    const BiasExtents extents = ExtentsOf(spec, args, spec.bias[n]);
    const bool owned = extents.batch == args.batch && extents.heads == spec.heads_q &&
                       extents.seqlen_q == args.seqlen_q;
    terms.push_back({n, extents, owned});
  }
  return terms;
}

std::vector<Slice> MakeSlices(const Problem& problem) {
  const int64_t heads_kv = problem.spec().heads_kv;
  const int64_t pairs = std::max<int64_t>(1, problem.args().batch * heads_kv);
  const int64_t per_pair = std::max<int64_t>(1, kTasks / pairs);
  std::vector<Slice> slices;
  for (int64_t b = 0; b < problem.args().batch; ++b) {
    const int64_t rows = problem.SequenceAt(b).seqlen_q;
    for (int64_t h_kv = 0; h_kv < heads_kv; ++h_kv) {
      for (int64_t n = 0; n < per_pair; ++n) {
        const Slice slice = {b, h_kv, rows * n / per_pair, rows * (n + 1) / per_pair};
        if (slice.begin < slice.end) slices.push_back(slice);
      }
    }
  }
  return slices;
}

// The gradients of one slice.
template <typename Real>
class SliceBackward {
 public:
  // `dbias` has one entry per element of `terms`: where the slice adds to.
  SliceBackward(const Problem& problem, const OperandRounding& rounding, const Tensor& d_o,
                const Slice& slice, absl::Span<const DBias> terms, absl::Span<double* const> dbias)
      : problem_(problem),
        rounding_(rounding),
        d_o_(d_o),
        slice_(slice),
        sequence_(problem.SequenceAt(slice.b)),
        terms_(terms),
        dbias_(dbias),
        keys_(sequence_.seqlen_kv),
        dim_qk_(problem.spec().dim_qk),
        dim_v_(problem.spec().dim_v) {}

  SliceSums<Real> Run(std::vector<double>& dq) {
    const int64_t group = problem_.group();
    sums_.dk.resize(keys_ * dim_qk_);
    sums_.dv.resize(keys_ * dim_v_);
    sums_.dsinks.resize(group);
    sums_.dalibi.resize(group);
    LoadKeysAndValues();
    for (int64_t g = 0; g < group; ++g) {
      const int64_t h = slice_.h_kv * group + g;
      for (int64_t i = slice_.begin; i < slice_.end; ++i) {
        const bool packed = HasPackedQ(problem_.spec(), problem_.args());
        const int64_t row =
            (packed ? 0 : slice_.b * problem_.args().seqlen_q) + sequence_.first_q + i;
        AddRow(g, h, i, dq.data() + (row * problem_.spec().heads_q + h) * dim_qk_);
      }
    }
    return std::move(sums_);
  }

 private:
  void LoadKeysAndValues() {
    const KeyRange all = {0, keys_};
    k_.resize(keys_ * dim_qk_);
    k_columns_.resize(keys_ * dim_qk_);
    v_columns_.resize(keys_ * dim_v_);
    problem_.LoadKeys(sequence_, slice_.h_kv, all, k_.data(), dim_qk_, 1);
    problem_.LoadKeys(sequence_, slice_.h_kv, all, k_columns_.data(), 1, keys_);
    problem_.LoadValues(sequence_, slice_.h_kv, all, v_columns_.data(), 1, keys_);
  }

  // Factors of the row's weights by dropout.
  void LoadDropoutFactors(const RowScorer<Real>& scorer) {
    const DropoutRule& dropout = problem_.dropout();
    const KeyRange range = scorer.keys();
    factor_.assign(range.end - range.begin, 1);
    if (!dropout.enabled()) return;
    std::array<uint32_t, 4> words{};
    for (int64_t j = range.begin; j < range.end; ++j) {
      if (j % 4 == 0 || j == range.begin) {
        words = dropout.Words(slice_.b, scorer.h(), scorer.i(), j / 4);
      }
      factor_[j - range.begin] =
          dropout.Keeps(words[j % 4]) ? static_cast<Real>(dropout.keep_scale()) : 0;
    }
  }

  // `dq` is the row's own.
  void AddRow(int64_t g, int64_t h, int64_t i, double* dq) {
    const RowScorer<Real> scorer(problem_, sequence_, h, i);
    const KeyRange range = scorer.keys();
    if (range.empty()) return;
    const int64_t count = range.end - range.begin;
    q_.resize(dim_qk_);
    d_o_row_.resize(dim_v_);
    problem_.LoadQuery(sequence_, h, i, q_.data());
    problem_.LoadLikeOutput(d_o_, sequence_, h, i, d_o_row_.data());

    weights_.assign(count, 0);
    keep_.assign(count, 0);
    slopes_.resize(count);
    AddWeightedColumns(q_.data(), dim_qk_, k_columns_.data() + range.begin, keys_, count,
                       weights_.data());
    for (int64_t n = 0; n < count; ++n) {
      if (!scorer.Keeps(range.begin + n)) continue;
      keep_[n] = 1;
      weights_[n] = scorer.Score(range.begin + n, weights_[n], &slopes_[n]);
    }
    const float* sink = problem_.spec().sinks ? problem_.args().sinks + h : nullptr;
    const RowSoftmax<Real> softmax = SoftmaxInPlace(keep_.data(), count, sink, weights_.data());
    if (!softmax.any_key) return;

    d_weights_.assign(count, 0);
    AddWeightedColumns(d_o_row_.data(), dim_v_, v_columns_.data() + range.begin, keys_, count,
                       d_weights_.data());
    LoadDropoutFactors(scorer);
    for (int64_t n = 0; n < count; ++n) weights_[n] /= softmax.sum;
    const Real delta = rounding_.active() ? DeltaOfOutput(range, softmax.sum) : DeltaOfWeights();
    dq_row_.assign(dim_qk_, 0);
    for (int64_t n = 0; n < count; ++n) {
      if (!keep_[n]) continue;
      const int64_t j = range.begin + n;
      AddScaled(rounding_.Operand(weights_[n] * factor_[n]), d_o_row_.data(), dim_v_,
                sums_.dv.data() + j * dim_v_);
      const Real d_score = weights_[n] * (factor_[n] * d_weights_[n] - delta);
      const Real d_dot = rounding_.Operand(d_score * slopes_[n].by_dot) * scorer.scale();
      AddScaled(d_dot, q_.data(), dim_qk_, sums_.dk.data() + j * dim_qk_);
      AddScaled(d_dot, k_.data() + j * dim_qk_, dim_qk_, dq_row_.data());
      AddBias(h, i, j, d_score * slopes_[n].by_bias);
      if (problem_.spec().alibi) {
        sums_.dalibi[g] += static_cast<double>(d_score * slopes_[n].by_bias) *
                           static_cast<double>(scorer.AlibiDistance(j));
      }
    }
    for (int64_t d = 0; d < dim_qk_; ++d) dq[d] += static_cast<double>(dq_row_[d]);
    sums_.dsinks[g] -= static_cast<double>(softmax.sink_weight / softmax.sum * delta);
  }

  Real DeltaOfWeights() const {
    Real delta = 0;
    for (size_t n = 0; n < weights_.size(); ++n) {
      if (keep_[n]) delta += weights_[n] * factor_[n] * d_weights_[n];
    }
    return delta;
  }

  // dot(dO, O) with the O that the straightforward forward gives: its weights are rounded before
  // they are divided by their sum, which rows of few keys notice.
  Real DeltaOfOutput(KeyRange range, Real sum) const {
    Real delta = 0;
    std::vector<Real> rounded(weights_.size());
    for (size_t n = 0; n < weights_.size(); ++n) {
      rounded[n] = rounding_.Operand(weights_[n] * sum) / sum * factor_[n];
    }
    for (int64_t d = 0; d < dim_v_; ++d) {
      Real o = 0;
      for (size_t n = 0; n < weights_.size(); ++n) {
        if (!keep_[n]) continue;
        o += rounded[n] * v_columns_[d * keys_ + range.begin + static_cast<int64_t>(n)];
      }
      delta += rounding_.Output(o) * d_o_row_[d];
    }
    return delta;
  }

  void AddBias(int64_t h, int64_t i, int64_t j, Real gradient) {
    for (size_t n = 0; n < terms_.size(); ++n) {
      const BiasExtents& extents = terms_[n].extents;
      const BiasTerm& term = problem_.spec().bias[terms_[n].term];
      const int64_t batch = BiasBatch(term, extents, problem_.args().batch, slice_.b);
      int64_t at = extents.heads == 1 ? batch : batch * extents.heads + h;
      at = at * extents.seqlen_q + (extents.seqlen_q == 1 ? 0 : i);
      at = at * extents.seqlen_kv + (extents.seqlen_kv == 1 ? 0 : j);
      dbias_[n][at] += static_cast<double>(gradient);
    }
  }

  const Problem& problem_;
  const OperandRounding& rounding_;
  const Tensor& d_o_;
  const Slice slice_;
  const Sequence sequence_;
  absl::Span<const DBias> terms_;
  absl::Span<double* const> dbias_;
  const int64_t keys_;
  const int64_t dim_qk_;
  const int64_t dim_v_;
  SliceSums<Real> sums_;
  std::vector<Real> k_;          // [key, dim_qk]
  std::vector<Real> k_columns_;  // [dim_qk, key]
  std::vector<Real> v_columns_;  // [dim_v, key]
  // Of one row; the last five by key of its range.
  std::vector<Real> q_, d_o_row_, dq_row_, weights_, d_weights_, factor_;
  std::vector<ScoreSlopes<Real>> slopes_;
  std::vector<uint8_t> keep_;
};

void AddTo(const std::vector<double>& from, double* to) {
  for (size_t n = 0; n < from.size(); ++n) to[n] += from[n];
}

// Adds a slice's dk or dv, [seqlen_kv, dim], into [rows, heads_kv, dim].
template <typename Real>
void ScatterKeys(const std::vector<Real>& sums, int64_t first_row, int64_t heads_kv, int64_t h_kv,
                 int64_t dim, std::vector<double>& gradient) {
  const int64_t keys = static_cast<int64_t>(sums.size()) / dim;
  for (int64_t j = 0; j < keys; ++j) {
    double* out = gradient.data() + ((first_row + j) * heads_kv + h_kv) * dim;
    for (int64_t d = 0; d < dim; ++d) out[d] += static_cast<double>(sums[j * dim + d]);
  }
}

template <typename Real>
void AddSlice(const Problem& problem, const Slice& slice, const SliceSums<Real>& sums,
              BackwardResult& result) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const Sequence sequence = problem.SequenceAt(slice.b);
  const int64_t first_row =
      HasCumulativeKv(spec, args) ? sequence.first_kv : slice.b * args.seqlen_kv;
  ScatterKeys(sums.dk, first_row, spec.heads_kv, slice.h_kv, spec.dim_qk, result.dk);
  ScatterKeys(sums.dv, first_row, spec.heads_kv, slice.h_kv, spec.dim_v, result.dv);
  const int64_t h = slice.h_kv * problem.group();
  if (spec.sinks) AddTo(sums.dsinks, result.dsinks.data() + h);
  if (spec.alibi) {
    const int64_t batch = args.alibi_stride_batch != 0 ? slice.b : 0;
    AddTo(sums.dalibi, result.dalibi.data() + batch * spec.heads_q + h);
  }
}

BackwardResult ZeroGradients(const Problem& problem, absl::Span<const DBias> terms) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const int64_t rows_q =
      HasPackedQ(spec, args) ? args.cu_seqlens_q[args.batch] : args.batch * args.seqlen_q;
  const int64_t rows_kv =
      HasCumulativeKv(spec, args) ? args.cu_seqlens_kv[args.batch] : args.batch * args.seqlen_kv;
  BackwardResult result;
  result.dq.resize(rows_q * spec.heads_q * spec.dim_qk);
  result.dk.resize(rows_kv * spec.heads_kv * spec.dim_qk);
  result.dv.resize(rows_kv * spec.heads_kv * spec.dim_v);
  for (const DBias& term : terms) result.dbias[term.term].resize(term.count());
  if (spec.sinks) result.dsinks.resize(spec.heads_q);
  if (spec.alibi) {
    result.dalibi.resize((args.alibi_stride_batch != 0 ? args.batch : 1) * spec.heads_q);
  }
  return result;
}

template <typename Real>
absl::StatusOr<BackwardResult> BackwardIn(const AttentionSpec& spec, const AttentionArgs& args,
                                          const Tensor& d_o, const Options& options,
                                          const OperandRounding& rounding) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const Problem problem,
                              Problem::Create(spec, args, options, /*needs_derivative=*/true));
  const std::vector<DBias> terms = AdditiveTerms(spec, args);
  const std::vector<Slice> slices = MakeSlices(problem);
  if (!slices.empty() && d_o.data == nullptr) {
    return absl::InvalidArgumentError("d_o.data = null must be set");
  }
  BackwardResult result = ZeroGradients(problem, terms);

  // Lanes run at the same time, the slices of a lane one after the other. Bias gradients that
  // several rows add to have a copy per lane.
  int64_t shared_elements = 0;
  for (const DBias& term : terms) {
    if (!term.owned_by_rows) shared_elements += term.count();
  }
  const int64_t count = static_cast<int64_t>(slices.size());
  int64_t lanes = count;
  if (shared_elements > 0) {
    lanes = std::min({lanes, kTasks, std::max<int64_t>(1, kPartialBiasElements / shared_elements)});
  }
  std::vector<SliceSums<Real>> sums(count);
  std::vector<std::array<std::vector<double>, 4>> partial(lanes);
  ParallelFor(options.threads, lanes, [&](int64_t lane) {
    std::vector<double*> dbias;
    for (const DBias& term : terms) {
      std::vector<double>& own = partial[lane][term.term];
      if (!term.owned_by_rows) own.resize(term.count());
      dbias.push_back(term.owned_by_rows ? result.dbias[term.term].data() : own.data());
    }
    for (int64_t n = count * lane / lanes; n < count * (lane + 1) / lanes; ++n) {
      sums[n] = SliceBackward<Real>(problem, rounding, d_o, slices[n], terms, dbias).Run(result.dq);
    }
  });
  for (int64_t n = 0; n < count; ++n) AddSlice(problem, slices[n], sums[n], result);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (const DBias& term : terms) {
      if (!term.owned_by_rows) AddTo(partial[lane][term.term], result.dbias[term.term].data());
    }
  }
  for (double& x : result.dq) x = rounding.Result(x, spec.type);
  for (auto* gradient : {&result.dk, &result.dv}) {
    for (double& x : *gradient) x = rounding.Result(x, problem.kv_type());
  }
  return result;
}

}  // namespace

absl::StatusOr<BackwardResult> Backward(const AttentionSpec& spec, const AttentionArgs& args,
                                        const Tensor& d_o, const Options& options) {
  return BackwardIn<double>(spec, args, d_o, options, OperandRounding());
}

absl::StatusOr<BackwardResult> StraightforwardBackward(const AttentionSpec& spec,
                                                       const AttentionArgs& args, const Tensor& d_o,
                                                       const Options& options) {
  const ElementType kv = spec.kv_type.value_or(spec.type);
  const ElementType out = spec.out_type.value_or(spec.type);
  if (kv != spec.type || (spec.type != ElementType::kFp32 && spec.type != ElementType::kFp16 &&
                          spec.type != ElementType::kBf16)) {
    return absl::InvalidArgumentError(
        "the straightforward backward: type and kv_type must be fp16, bf16 or fp32, both the same");
  }
  return BackwardIn<float>(spec, args, d_o, options, OperandRounding(spec.type, out));
}

}  // namespace tilewright::reference

// The forward, in fp64 and as the straightforward computation in fp32 with rounded weights.
#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "reference/element.h"
#include "reference/linear.h"
#include "reference/parallel.h"
#include "reference/problem.h"

namespace tilewright::reference {
namespace {

// Keys that are decoded at a time, for all the rows of a task.
constexpr int64_t kKeyBlock = 256;
// Rows of one task: enough to pay for decoding the keys, few enough to share out the work.
constexpr int64_t kRowsPerTask = 64;
// Scores of one task, at most (but one row is always taken).
constexpr int64_t kScoresPerTask = int64_t{1} << 22;

// What happens to a weight before it multiplies V.
class WeightRounding {
 public:
  // None: the fp64 reference, and fp32 problems.
  WeightRounding() = default;

  static WeightRounding Straightforward(ElementType type) {
    WeightRounding rounding;
    rounding.type_ = type;
    rounding.rounds_ = type != ElementType::kFp32;
    // e4m3 has its steps where 256 * weight lies for the weights that matter.
    if (type == ElementType::kFp8E4m3 || type == ElementType::kFp8E5m2) {
      rounding.type_ = ElementType::kFp8E4m3;
      rounding.factor_ = 256;
    }
    return rounding;
  }

  template <typename Real>
  Real operator()(Real weight) const {
    if (!rounds_) return weight;
    switch (type_) {
      case ElementType::kFp16:
        return DecodeFp16(static_cast<uint16_t>(EncodeFloat(kFp16Format, weight)));
      case ElementType::kBf16:
        return DecodeBf16(static_cast<uint16_t>(EncodeFloat(kBf16Format, weight)));
      default:
        return DecodeE4m3(static_cast<uint8_t>(EncodeFloat(kE4m3Format, weight * factor_)));
    }
  }
  // The results carry this factor.
  float factor() const { return factor_; }

 private:
  ElementType type_ = ElementType::kFp32;
  bool rounds_ = false;
  float factor_ = 1;
};

// Rows of one key/value head of one sequence, as indices into the caller's rows.
struct RowGroup {
  int64_t b;
  int64_t h_kv;
  absl::Span<const int64_t> rows;
};

// One task of the forward: scores of all rows, softmax, then the weighted sum of the values. Each
// row's result depends on that row alone, not on the other rows of the task.
template <typename Real>
class GroupForward {
 public:
  GroupForward(const Problem& problem, const RowGroup& group, absl::Span<const Row> rows)
      : problem_(problem), group_(group), sequence_(problem.SequenceAt(group.b)) {
    span_ = {sequence_.seqlen_kv, 0};
    for (int64_t index : group.rows) {
      scorers_.emplace_back(problem, sequence_, rows[index].h, rows[index].i);
      const KeyRange keys = scorers_.back().keys();
      if (keys.empty()) continue;
      span_ = {std::min(span_.begin, keys.begin), std::max(span_.end, keys.end)};
    }
    width_ = std::max<int64_t>(0, span_.end - span_.begin);
    scores_.assign(scorers_.size() * width_, 0);
    keep_.assign(scorers_.size() * width_, 0);
  }

  void Run(const WeightRounding& rounding, bool round_output, ForwardResult& result) {
    ComputeDots();
    ComputeScores();
    std::vector<RowSoftmax<Real>> softmax;
    for (size_t r = 0; r < scorers_.size(); ++r) {
      const float* sink = problem_.spec().sinks ? problem_.args().sinks + scorers_[r].h() : nullptr;
      softmax.push_back(SoftmaxInPlace(Keep(r), width_, sink, Scores(r)));
      RoundAndDrop(scorers_[r], rounding, Scores(r));
    }
    std::vector<Real> sums = SumValues(softmax);
    for (size_t r = 0; r < scorers_.size(); ++r) {
      const Real* sum = sums.data() + r * problem_.spec().dim_v;
      Store(softmax[r], sum, group_.rows[r], rounding.factor(), round_output, result);
    }
  }

 private:
  Real* Scores(size_t r) { return scores_.data() + r * width_; }
  uint8_t* Keep(size_t r) { return keep_.data() + r * width_; }

  KeyRange Overlap(size_t r, KeyRange block) const {
    const KeyRange keys = scorers_[r].keys();
    return {std::max(keys.begin, block.begin), std::min(keys.end, block.end)};
  }

  // Calls use(block) for each block of keys that some row may see.
  template <typename Use>
  void ForEachBlock(const Use& use) const {
    for (int64_t begin = span_.begin; begin < span_.end; begin += kKeyBlock) {
      const KeyRange block = {begin, std::min(begin + kKeyBlock, span_.end)};
      for (size_t r = 0; r < scorers_.size(); ++r) {
        if (!Overlap(r, block).empty()) {
          use(block);
          break;
        }
      }
    }
  }

  void ComputeDots() {
    const int64_t dim = problem_.spec().dim_qk;
    std::vector<Real> queries(scorers_.size() * dim);
    for (size_t r = 0; r < scorers_.size(); ++r) {
      problem_.LoadQuery(sequence_, scorers_[r].h(), scorers_[r].i(), queries.data() + r * dim);
    }
    std::vector<Real> columns(dim * kKeyBlock);  // [dim][key]
    ForEachBlock([&](KeyRange block) {
      problem_.LoadKeys(sequence_, group_.h_kv, block, columns.data(), 1, kKeyBlock);
      for (size_t r = 0; r < scorers_.size(); ++r) {
        const KeyRange keys = Overlap(r, block);
        if (keys.empty()) continue;
        AddWeightedColumns(queries.data() + r * dim, dim, columns.data() + keys.begin - block.begin,
                           kKeyBlock, keys.end - keys.begin, Scores(r) + keys.begin - span_.begin);
      }
    });
  }

  void ComputeScores() {
    for (size_t r = 0; r < scorers_.size(); ++r) {
      const RowScorer<Real>& scorer = scorers_[r];
      for (int64_t j = scorer.keys().begin; j < scorer.keys().end; ++j) {
        const int64_t n = j - span_.begin;
        if (!scorer.Keeps(j)) continue;
        Keep(r)[n] = 1;
        Scores(r)[n] = scorer.Score(j, Scores(r)[n]);
      }
    }
  }

  void RoundAndDrop(const RowScorer<Real>& scorer, const WeightRounding& rounding, Real* weights) {
    for (int64_t n = 0; n < width_; ++n) weights[n] = rounding(weights[n]);
    const DropoutRule& dropout = problem_.dropout();
    if (!dropout.enabled()) return;
    std::array<uint32_t, 4> words{};
    for (int64_t j = scorer.keys().begin; j < scorer.keys().end; ++j) {
      if (j % 4 == 0 || j == scorer.keys().begin) {
        words = dropout.Words(sequence_.b, scorer.h(), scorer.i(), j / 4);
      }
      // A NaN that is lost here is still in the sum that divides the row.
      if (!dropout.Keeps(words[j % 4])) weights[j - span_.begin] = 0;
    }
  }

  // [rows, dim_v]: sums of weight * value over the kept keys.
  std::vector<Real> SumValues(const std::vector<RowSoftmax<Real>>& softmax) {
    const int64_t dim = problem_.spec().dim_v;
    std::vector<Real> sums(scorers_.size() * dim);
    std::vector<Real> values(kKeyBlock * dim);
    ForEachBlock([&](KeyRange block) {
      problem_.LoadValues(sequence_, group_.h_kv, block, values.data(), dim, 1);
      for (size_t r = 0; r < scorers_.size(); ++r) {
        if (!softmax[r].any_key) continue;
        const KeyRange keys = Overlap(r, block);
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          if (!Keep(r)[j - span_.begin]) continue;
          AddScaled(Scores(r)[j - span_.begin], values.data() + (j - block.begin) * dim, dim,
                    sums.data() + r * dim);
        }
      }
    });
    return sums;
  }

  void Store(const RowSoftmax<Real>& softmax, const Real* sum, int64_t index, float factor,
             bool round_output, ForwardResult& result) const {
    const AttentionSpec& spec = problem_.spec();
    double* o = result.o.data() + index * spec.dim_v;
    const Real keep_scale =
        problem_.dropout().enabled() ? static_cast<Real>(problem_.dropout().keep_scale()) : 1;
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      o[d] = softmax.any_key ? sum[d] * keep_scale / (softmax.sum * factor) : 0;
      if (round_output) {
        std::array<std::byte, 4> rounded;
        FromDouble(problem_.out_type(), o[d], rounded.data());
        o[d] = ToDouble(problem_.out_type(), rounded.data());
      }
    }
    if (!softmax.any_term) {
      const double infinity = std::numeric_limits<double>::infinity();
      result.lse[index] = spec.empty_lse == EmptyLse::kPlusInf ? infinity : -infinity;
      return;
    }
    Real lse = softmax.max + std::log(softmax.sum);
    if (spec.lse_base == LseBase::kTwo) lse /= std::log(Real{2});
    result.lse[index] = lse;
  }

  const Problem& problem_;
  const RowGroup& group_;
  const Sequence sequence_;
  std::vector<RowScorer<Real>> scorers_;
  KeyRange span_;              // keys that some row may see
  int64_t width_ = 0;          // of span_
  std::vector<Real> scores_;   // [rows, width]: dot products, then scores, then weights
  std::vector<uint8_t> keep_;  // [rows, width]
};

absl::Status CheckRows(const Problem& problem, absl::Span<const Row> rows) {
  for (size_t n = 0; n < rows.size(); ++n) {
    const Row& row = rows[n];
    const auto check = [&](const char* field, int64_t value, int64_t limit) {
      if (value >= 0 && value < limit) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("rows[", n, "].", field, " = ", value,
                                                     " must be at least 0 and below ", limit));
    };
    TILEWRIGHT_RETURN_IF_ERROR(check("b", row.b, problem.args().batch));
    TILEWRIGHT_RETURN_IF_ERROR(check("h", row.h, problem.spec().heads_q));
    TILEWRIGHT_RETURN_IF_ERROR(check("i", row.i, problem.SequenceAt(row.b).seqlen_q));
  }
  return absl::OkStatus();
}

template <typename Real>
absl::StatusOr<ForwardResult> ForwardIn(const AttentionSpec& spec, const AttentionArgs& args,
                                        absl::Span<const Row> rows, const Options& options,
                                        const WeightRounding& rounding, bool round_output) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const Problem problem,
                              Problem::Create(spec, args, options, /*needs_derivative=*/false));
  TILEWRIGHT_RETURN_IF_ERROR(CheckRows(problem, rows));

  // Rows that share keys together, neighbours first: they also share windows.
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t n) {
    return std::make_tuple(rows[n].b, rows[n].h / problem.group(), rows[n].i, rows[n].h);
  };
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return key(x) < key(y); });

  std::vector<RowGroup> groups;
  for (size_t begin = 0; begin < order.size();) {
    const Row& first = rows[order[begin]];
    const int64_t h_kv = first.h / problem.group();
    const int64_t keys = std::max<int64_t>(1, problem.SequenceAt(first.b).seqlen_kv);
    const int64_t limit = std::clamp<int64_t>(kScoresPerTask / keys, 1, kRowsPerTask);
    size_t end = begin + 1;
    while (end < order.size() && static_cast<int64_t>(end - begin) < limit &&
           rows[order[end]].b == first.b && rows[order[end]].h / problem.group() == h_kv) {
      ++end;
    }
    groups.push_back({first.b, h_kv, absl::MakeConstSpan(order).subspan(begin, end - begin)});
    begin = end;
  }

  ForwardResult result;
  result.o.resize(rows.size() * spec.dim_v);
  result.lse.resize(rows.size());
  ParallelFor(problem.threads(), static_cast<int64_t>(groups.size()), [&](int64_t n) {
    GroupForward<Real>(problem, groups[n], rows).Run(rounding, round_output, result);
  });
  return result;
}

}  // namespace

absl::StatusOr<ForwardResult> Forward(const AttentionSpec& spec, const AttentionArgs& args,
                                      absl::Span<const Row> rows, const Options& options) {
  return ForwardIn<double>(spec, args, rows, options, WeightRounding(), /*round_output=*/false);
}

absl::StatusOr<ForwardResult> StraightforwardForward(const AttentionSpec& spec,
                                                     const AttentionArgs& args,
                                                     absl::Span<const Row> rows,
                                                     const Options& options) {
  return ForwardIn<float>(spec, args, rows, options, WeightRounding::Straightforward(spec.type),
                          /*round_output=*/true);
}

}  // namespace tilewright::reference

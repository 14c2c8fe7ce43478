#include "cli/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "reference/reference.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

// One gradient: where its elements lie, in the order of the reference.
struct Place {
  std::string name;
  std::byte* data;
  ElementType type;
  Strides strides;  // elements, of the four axes below
  int64_t batch, rows, heads, dim;
  std::vector<double> reference::BackwardResult::*whole = nullptr;
  int bias = -1;  // or this term's
  // Rows that belong to a sequence, [batch * rows]; empty: all. Nobody promises to write the
  // others.
  std::vector<bool> owned = {};
  bool whole_rows = false;  // a gradient of Q, K or V; others add up all pairs of row and key

  const std::vector<double>& Of(const reference::BackwardResult& result) const {
    return bias >= 0 ? result.dbias[bias] : result.*whole;
  }
};

// Which rows of [batch, rows] belong to a sequence; empty where all do. `starts` are those of
// packed sequences, or null.
std::vector<bool> OwnedRows(const HostProblem& problem, int64_t batch, int64_t rows,
                            const int32_t* starts, int64_t (HostProblem::*length)(int64_t) const) {
  if (!problem.spec().varlen) return {};
  std::vector<bool> owned(batch * rows, false);
  for (int64_t b = 0; b < problem.args().batch; ++b) {
    const int64_t first = starts != nullptr ? starts[b] : b * rows;
    std::fill_n(owned.begin() + first, (problem.*length)(b), true);
  }
  return owned;
}

// All gradients that the spec asks for.
std::vector<Place> PlacesOf(const HostProblem& problem) {
  using Result = reference::BackwardResult;
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const bool packed_q = spec.varlen && args.cu_seqlens_q != nullptr;
  const bool packed_kv = spec.varlen && args.cu_seqlens_kv != nullptr;
  const int64_t q_batch = packed_q ? 1 : args.batch, kv_batch = packed_kv ? 1 : args.batch;
  const int64_t q_rows = packed_q ? args.total_q : args.seqlen_q;
  const int64_t kv_rows = packed_kv ? args.total_kv : args.seqlen_kv;
  const auto bytes = [](void* data) { return static_cast<std::byte*>(data); };
  std::vector<Place> places = {
      {"dq", bytes(args.d_q.data), spec.type, args.d_q.strides, q_batch, q_rows, spec.heads_q,
       spec.dim_qk, &Result::dq},
      {"dk", bytes(args.d_k.data), spec.type, args.d_k.strides, kv_batch, kv_rows, spec.heads_kv,
       spec.dim_qk, &Result::dk},
      {"dv", bytes(args.d_v.data), spec.type, args.d_v.strides, kv_batch, kv_rows, spec.heads_kv,
       spec.dim_v, &Result::dv},
  };
  for (Place& place : places) place.whole_rows = true;
  places[0].owned = OwnedRows(problem, q_batch, q_rows, packed_q ? args.cu_seqlens_q : nullptr,
                              &HostProblem::LengthQ);
  places[1].owned = places[2].owned = OwnedRows(
      problem, kv_batch, kv_rows, packed_kv ? args.cu_seqlens_kv : nullptr, &HostProblem::LengthKv);
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    if (!term.gradient) continue;
    const BiasGradient& gradient = args.d_bias[n];
    // The reference has [batch, heads, rows, keys]: heads stand where rows do elsewhere.
    places.push_back({absl::StrCat("dbias", n),
                      bytes(gradient.data),
                      ElementType::kFp32,
                      {.batch = gradient.stride_batch,
                       .seq = gradient.stride_head,
                       .head = gradient.stride_q,
                       .dim = gradient.stride_kv},
                      term.batch,
                      term.heads,
                      term.seqlen_q,
                      term.seqlen_kv,
                      nullptr,
                      static_cast<int>(n)});
  }
  const Strides dense = {.batch = 0, .seq = spec.heads_q, .head = 1, .dim = 0};
  if (spec.alibi_gradient) {
    const int64_t batches = args.alibi_stride_batch != 0 ? args.batch : 1;
    places.push_back({"dalibi", bytes(args.d_alibi_slopes), ElementType::kFp32, dense, 1, batches,
                      spec.heads_q, 1, &Result::dalibi});
  }
  if (spec.sinks_gradient) {
    places.push_back({"dsinks", bytes(args.d_sinks), ElementType::kFp32, dense, 1, 1, spec.heads_q,
                      1, &Result::dsinks});
  }
  return places;
}

// Calls visit(n, address) for the elements of a gradient that belong to a sequence, n counting all
// in the reference's order.
template <typename Visit>
void ForEachElement(const Place& place, const Visit& visit) {
  const int bytes = spec::ElementBytes(place.type);
  size_t n = 0;
  for (int64_t b = 0; b < place.batch; ++b) {
    for (int64_t s = 0; s < place.rows; ++s) {
      if (!place.owned.empty() && !place.owned[b * place.rows + s]) {
        n += place.heads * place.dim;
        continue;
      }
      for (int64_t h = 0; h < place.heads; ++h) {
        for (int64_t d = 0; d < place.dim; ++d) {
          const Strides& strides = place.strides;
          visit(n++, place.data + (b * strides.batch + s * strides.seq + h * strides.head +
                                   d * strides.dim) *
                                      bytes);
        }
      }
    }
  }
}

// What fp32 leaves of dP - D where it cancels: both are sums over dim_v of products of unit
// variance, which a row that sees one key, or a term that broadcasts along the keys, takes from
// each other. Of one element of a gradient, which adds up `count` such differences.
double Cancelled(const AttentionSpec& spec, double count) {
  constexpr double kOfOneProduct = 1e-6;
  return kOfOneProduct *
         std::sqrt(static_cast<double>(std::max(spec.dim_qk, spec.dim_v)) * std::max(count, 1.0));
}

double Size(const std::vector<double>& values) {
  return std::max(1.0, static_cast<double>(values.size()));
}

}  // namespace

bool GradientAccuracy::holds() const {
  return std::all_of(gradients.begin(), gradients.end(),
                     [](const GradientError& error) { return error.holds(); });
}

std::string GradientAccuracy::ToString() const {
  std::string text;
  for (const GradientError& error : gradients) {
    absl::StrAppendFormat(&text, "%s%s %.1e (bar %.1e)", text.empty() ? "" : ", ", error.name,
                          error.relative, error.relative_bar);
    if (error.mismatches > 0) {
      absl::StrAppendFormat(&text, " with %d wrong values up to %.1e", error.mismatches,
                            error.worst_mismatch);
    }
  }
  return text;
}

double ReferenceBackwardFlops(const HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  return 5.0 * static_cast<double>(spec.heads_q) * static_cast<double>(args.batch) *
         static_cast<double>(args.seqlen_q) * static_cast<double>(args.seqlen_kv) *
         static_cast<double>(spec.dim_qk + spec.dim_v);
}

absl::StatusOr<GradientAccuracy> CheckGradients(const HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  TILEWRIGHT_ASSIGN_OR_RETURN(const reference::BackwardResult exact,
                              reference::Backward(spec, problem.args(), problem.args().d_o));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const reference::BackwardResult plain,
      reference::StraightforwardBackward(spec, problem.args(), problem.args().d_o));
  GradientAccuracy accuracy;
  const double pairs = static_cast<double>(problem.args().batch * spec.heads_q) *
                       static_cast<double>(problem.args().seqlen_q) *
                       static_cast<double>(problem.args().seqlen_kv);
  for (const Place& place : PlacesOf(problem)) {
    const std::vector<double>& wanted = place.Of(exact);
    const std::vector<double>& straightforward = place.Of(plain);
    GradientError error;
    error.name = place.name;
    double squared = 0, plain_squared = 0, norm = 0;
    const auto row = static_cast<size_t>(place.dim);
    const double cancelled = Cancelled(spec, place.whole_rows ? 1 : pairs / Size(wanted));
    std::vector<bool> is_zero(wanted.size() / row, true);
    for (size_t n = 0; n < wanted.size(); ++n) {
      if (wanted[n] != 0 || straightforward[n] != 0) is_zero[n / row] = false;
    }
    ForEachElement(place, [&](size_t n, const std::byte* at) {
      const double value = reference::ToDouble(place.type, at);
      if (!std::isfinite(value) || (is_zero[n / row] && std::abs(value) > cancelled)) {
        ++error.mismatches;
        error.worst_mismatch = std::isnan(value) ? std::numeric_limits<double>::infinity()
                                                 : std::max(error.worst_mismatch, std::abs(value));
        return;
      }
      squared += (value - wanted[n]) * (value - wanted[n]);
      plain_squared += (straightforward[n] - wanted[n]) * (straightforward[n] - wanted[n]);
      norm += wanted[n] * wanted[n];
    });
    const double unit = norm > 0 ? std::sqrt(norm) : 1;
    // Sums in fp32 of what was never rounded may err a little more than the straightforward ones.
    double least = spec.type == ElementType::kFp32 ? 5e-6 : 0;
    if (place.type == ElementType::kFp32 && spec.type != ElementType::kFp32) {
      // Each is a sum that the rounding of O goes into. Among a few values the straightforward
      // computation may by luck be much nearer than that: they may err by two roundings.
      constexpr size_t kFewValues = 256;
      const double roundings = spec.type == ElementType::kFp16 ? 0x1p-10 : 0x1p-7;
      least = wanted.size() < kFewValues ? roundings : 1e-4;
    }
    error.relative = std::sqrt(squared) / unit;
    error.relative_bar = std::max(1.5 * std::sqrt(plain_squared) / unit, least);
    // A gradient that is nothing but what cancels has no other bar.
    const double noise = cancelled * std::sqrt(Size(wanted));
    if (std::sqrt(norm) <= noise) error.relative_bar = std::max(error.relative_bar, noise / unit);
    accuracy.gradients.push_back(std::move(error));
  }
  return accuracy;
}

absl::Status ComputeGradientsOnHost(HostProblem& problem) {
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const reference::BackwardResult result,
      reference::Backward(problem.spec(), problem.args(), problem.args().d_o));
  for (const Place& place : PlacesOf(problem)) {
    const std::vector<double>& values = place.Of(result);
    ForEachElement(
        place, [&](size_t n, std::byte* at) { reference::FromDouble(place.type, values[n], at); });
  }
  return absl::OkStatus();
}

}  // namespace tilewright::cli

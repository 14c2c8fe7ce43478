#include "cli/accuracy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

// Distance between neighbours of the output type at `magnitude`.
double Ulp(ElementType type, double magnitude) {
  int mantissa_bits = 23;
  int min_exponent = -126;
  if (type == ElementType::kFp16) {
    mantissa_bits = 10;
    min_exponent = -14;
  } else if (type == ElementType::kBf16) {
    mantissa_bits = 7;
  }
  int exponent = min_exponent;
  if (magnitude > 0) exponent = std::max(min_exponent, std::ilogb(magnitude));
  return std::ldexp(1.0, exponent - mantissa_bits);
}

bool SameKind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

// Errors of a set of values against their reference.
struct Errors {
  double squared = 0;
  double reference_squared = 0;
  double max_abs = 0;
  double max_reference = 0;
  int64_t count = 0;

  void Add(double value, double reference) {
    const double error = std::abs(value - reference);
    squared += error * error;
    reference_squared += reference * reference;
    max_abs = std::max(max_abs, error);
    max_reference = std::max(max_reference, std::abs(reference));
    ++count;
  }
  // Absolute where the reference is zero.
  double Relative() const {
    return reference_squared > 0 ? std::sqrt(squared / reference_squared) : std::sqrt(squared);
  }
};

bool IsFp8(ElementType type) {
  return type == ElementType::kFp8E4m3 || type == ElementType::kFp8E5m2;
}

// The bars of `accuracy`, from the errors of the straightforward computation.
void SetOutputBars(const AttentionSpec& spec, const Errors& straightforward, Accuracy& accuracy) {
  const ElementType type = spec::OutType(spec);
  const double ulp = Ulp(type, straightforward.max_reference);
  if (type == ElementType::kFp32) {
    // TF32 keeps 10 bits of each factor.
    accuracy.o_relative_bar = spec.allow_tf32 ? 2e-3 : 5e-6;
    accuracy.o_max_abs_bar = std::numeric_limits<double>::infinity();
    return;
  }
  // Among a few values the straightforward computation may by luck be nearer than one rounding; no
  // result can be asked to be.
  constexpr int64_t kFewValues = 256;
  double relative = straightforward.Relative();
  if (straightforward.count < kFewValues) {
    relative = std::max(relative, std::ldexp(1.0, type == ElementType::kFp16 ? -11 : -8));
  }
  accuracy.o_relative_bar = 1.5 * relative;
  accuracy.o_max_abs_bar = 1.5 * straightforward.max_abs + ulp;
}

double LseBar(const AttentionSpec& spec, double lse) {
  if (IsFp8(spec.type) || spec.allow_tf32) return 2e-3;
  return std::abs(lse) <= 100 ? 5e-5 : 1e-6 * std::abs(lse);
}

}  // namespace

double OutputAt(const HostProblem& problem, const reference::Row& row, int64_t d) {
  const AttentionArgs& args = problem.args();
  const Strides& strides = args.o.strides;
  int64_t offset = row.i * strides.seq + row.h * strides.head + d * strides.dim;
  if (problem.spec().varlen && args.cu_seqlens_q != nullptr) {
    offset += args.cu_seqlens_q[row.b] * strides.seq;
  } else {
    offset += row.b * strides.batch;
  }
  const ElementType type = spec::OutType(problem.spec());
  return reference::ToDouble(
      type, static_cast<const std::byte*>(args.o.data) + offset * spec::ElementBytes(type));
}

double LseAt(const HostProblem& problem, const reference::Row& row) {
  const AttentionArgs& args = problem.args();
  int64_t offset = row.i + row.h * args.lse_stride_head;
  if (problem.spec().varlen && args.cu_seqlens_q != nullptr) {
    offset += args.cu_seqlens_q[row.b];
  } else {
    offset += row.b * args.lse_stride_batch;
  }
  return args.lse[offset];
}

absl::StatusOr<Accuracy> CheckAccuracy(const HostProblem& problem,
                                       absl::Span<const reference::Row> rows,
                                       const reference::Options& options) {
  const AttentionSpec& spec = problem.spec();
  TILEWRIGHT_ASSIGN_OR_RETURN(reference::ForwardResult exact,
                              reference::Forward(spec, problem.args(), rows, options));
  Errors straightforward;
  if (spec::OutType(spec) != ElementType::kFp32) {
    TILEWRIGHT_ASSIGN_OR_RETURN(
        reference::ForwardResult plain,
        reference::StraightforwardForward(spec, problem.args(), rows, options));
    for (size_t n = 0; n < exact.o.size(); ++n) {
      if (std::isfinite(exact.o[n]) && std::isfinite(plain.o[n])) {
        straightforward.Add(plain.o[n], exact.o[n]);
      }
    }
  } else {
    for (double value : exact.o) {
      if (std::isfinite(value)) straightforward.Add(value, value);
    }
  }

  Accuracy accuracy;
  accuracy.rows = static_cast<int64_t>(rows.size());
  SetOutputBars(spec, straightforward, accuracy);
  const auto mismatch = [&](const reference::Row& row, std::string_view what, double value,
                            double expected) {
    if (accuracy.mismatches++ > 0) return;
    accuracy.first_mismatch =
        absl::StrFormat("%s of (b %d, h %d, i %d) is %g, the reference has %g", what, row.b, row.h,
                        row.i, value, expected);
  };
  Errors errors;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      const double expected = exact.o[r * spec.dim_v + d];
      const double value = OutputAt(problem, rows[r], d);
      if (!SameKind(value, expected)) {
        mismatch(rows[r], absl::StrCat("o[", d, "]"), value, expected);
      } else if (std::isfinite(expected)) {
        errors.Add(value, expected);
      }
    }
  }
  accuracy.o_relative = errors.Relative();
  accuracy.o_max_abs = errors.max_abs;
  if (spec.lse) {
    accuracy.has_lse = true;
    for (size_t r = 0; r < rows.size(); ++r) {
      const double value = LseAt(problem, rows[r]);
      if (!SameKind(value, exact.lse[r])) {
        mismatch(rows[r], "lse", value, exact.lse[r]);
      } else if (std::isfinite(value)) {
        accuracy.lse_error = std::max(accuracy.lse_error,
                                      std::abs(value - exact.lse[r]) / LseBar(spec, exact.lse[r]));
      }
    }
  }
  return accuracy;
}

std::string Accuracy::ToString() const {
  std::string text =
      absl::StrFormat("error %.1e (bar %.1e), max abs %.1e", o_relative, o_relative_bar, o_max_abs);
  if (std::isfinite(o_max_abs_bar)) absl::StrAppendFormat(&text, " (bar %.1e)", o_max_abs_bar);
  if (has_lse) absl::StrAppendFormat(&text, ", lse at %.2f of its bar", lse_error);
  absl::StrAppend(&text, ", ", rows, " rows");
  if (mismatches > 0) {
    absl::StrAppend(&text, "; ", mismatches, " values of another kind, first: ", first_mismatch);
  }
  return text;
}

}  // namespace tilewright::cli

// Early return on errors.
#ifndef TILEWRIGHT_BASE_STATUS_MACROS_H_
#define TILEWRIGHT_BASE_STATUS_MACROS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tilewright {

// `status` with `context` put before its message ("while preparing <spec>: ..."), code and payloads
// kept.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(
      status.code(),
      absl::StrCat(absl::string_view(context.data(), context.size()), ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace tilewright

#define TILEWRIGHT_CONCAT_INNER_(a, b) a##b
#define TILEWRIGHT_CONCAT_(a, b) TILEWRIGHT_CONCAT_INNER_(a, b)

// Returns the status of `expr` unless it is OK.
#define TILEWRIGHT_RETURN_IF_ERROR(expr)                    \
  do {                                                      \
    if (absl::Status tw_status = (expr); !tw_status.ok()) { \
      return tw_status;                                     \
    }                                                       \
  } while (false)

// Assigns the value of the StatusOr `expr` to `lhs`, or returns its status.
#define TILEWRIGHT_ASSIGN_OR_RETURN(lhs, expr) \
  TILEWRIGHT_ASSIGN_OR_RETURN_IMPL_(TILEWRIGHT_CONCAT_(tw_status_or_, __LINE__), lhs, expr)
#define TILEWRIGHT_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                      \
  if (!var.ok()) return std::move(var).status();          \
  lhs = *std::move(var)

#endif  // TILEWRIGHT_BASE_STATUS_MACROS_H_

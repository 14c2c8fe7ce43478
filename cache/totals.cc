#include "cache/totals.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tilewright::cache {
namespace {

bool IsName(absl::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (c != '_' && (c < 'a' || c > 'z')) return false;
  }
  return true;
}

}  // namespace

void Accumulate(const Totals& more, Totals* sum) {
  for (const auto& [name, value] : more) (*sum)[name] += value;
}

std::string SerializeTotals(const Totals& totals) {
  std::string text;
  // 17 digits: what was added up must not lose counts by being written.
  for (const auto& [name, value] : totals) absl::StrAppendFormat(&text, "%s %.17g\n", name, value);
  return text;
}

std::optional<Totals> ParseTotals(std::string_view text) {
  Totals totals;
  if (text.empty()) return totals;
  if (text.back() != '\n') return std::nullopt;
  text.remove_suffix(1);
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    double value = 0;
    if (!IsName(parts.first) || !absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) ||
        value < 0 || !totals.emplace(parts.first, value).second) {
      return std::nullopt;
    }
  }
  return totals;
}

}  // namespace tilewright::cache

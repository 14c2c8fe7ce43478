#include "base/labelled_hash.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace tilewright {
namespace {

bool IsLabelCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool IsLabel(std::string_view label) {
  return !label.empty() && std::all_of(label.begin(), label.end(), IsLabelCharacter);
}

absl::Status NotAManifest(size_t offset, absl::string_view rule) {
  return absl::DataLossError(absl::StrCat("manifest, byte ", offset, ": ", rule));
}

// A decimal number without sign or leading zeros, so that a manifest has one spelling only.
bool ParseLength(std::string_view text, size_t* length) {
  constexpr size_t kMaxDigits = 18;  // cannot overflow 64 bits
  if (text.empty() || text.size() > kMaxDigits || (text.size() > 1 && text[0] == '0')) return false;
  uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  *length = value;
  return true;
}

}  // namespace

LabelledHash& LabelledHash::Add(std::string_view label, std::string_view bytes) {
  TILEWRIGHT_CHECK(IsLabel(label));
  absl::StrAppend(&manifest_, AbslView(label), " ", bytes.size(), "\n", AbslView(bytes), "\n");
  return *this;
}

absl::StatusOr<ManifestFields> ParseManifest(std::string_view manifest) {
  ManifestFields fields;
  size_t at = 0;
  while (at < manifest.size()) {
    const size_t space = manifest.find(' ', at);
    if (space == std::string_view::npos || !IsLabel(manifest.substr(at, space - at))) {
      return NotAManifest(at, "a label of [a-z0-9_.] and a space are expected");
    }
    const size_t line_end = manifest.find('\n', space);
    size_t length = 0;
    if (line_end == std::string_view::npos ||
        !ParseLength(manifest.substr(space + 1, line_end - space - 1), &length)) {
      return NotAManifest(space + 1, "a decimal length and a line feed are expected");
    }
    const size_t begin = line_end + 1;
    if (length >= manifest.size() - begin || manifest[begin + length] != '\n') {
      return NotAManifest(begin, absl::StrCat(length, " bytes and a line feed are expected"));
    }
    fields.emplace_back(manifest.substr(at, space - at), manifest.substr(begin, length));
    at = begin + length + 1;
  }
  return fields;
}

std::vector<std::string> DifferingFields(const ManifestFields& a, const ManifestFields& b) {
  // A label may occur more than once (headers, options); what counts is the sequence of its values.
  std::map<std::string_view,
           std::pair<std::vector<std::string_view>, std::vector<std::string_view>>>
      values;
  std::vector<std::string_view> order;
  const auto collect = [&](const ManifestFields& fields, bool second) {
    for (const auto& [label, bytes] : fields) {
      const auto [it, inserted] = values.try_emplace(label);
      if (inserted) order.push_back(label);
      (second ? it->second.second : it->second.first).push_back(bytes);
    }
  };
  collect(a, false);
  collect(b, true);
  std::vector<std::string> differing;
  for (std::string_view label : order) {
    const auto& [left, right] = values[label];
    if (left != right) differing.emplace_back(label);
  }
  return differing;
}

}  // namespace tilewright

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "spec/canonical.h"
#include "tilewright/runtime.h"

namespace tilewright {
namespace {

absl::StatusOr<std::string> ReadSnippet(std::string_view path) {
  std::ifstream file{std::string(path), std::ios::binary};
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    return absl::NotFoundError(absl::StrCat("cannot read the snippet file ", AbslView(path)));
  }
  return text;
}

}  // namespace

absl::StatusOr<AttentionSpec> ParseSpec(std::string_view text) {
  return spec::ParseSpec(text, ReadSnippet);
}

std::string SpecText(const AttentionSpec& spec) { return spec::ToText(spec::Canonicalise(spec)); }

}  // namespace tilewright

#include "cli/spec_arguments.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

constexpr absl::string_view kExample = "for example: fwd bf16 b=2 h=32/8 s=4096 d=128 causal";

bool BeginsSpec(absl::string_view argument) {
  argument = absl::StripLeadingAsciiWhitespace(argument);
  const absl::string_view word = argument.substr(0, argument.find_first_of(" \t"));
  return word == "fwd" || word == "bwd" || spec::IsCacheAppendText(StdView(argument));
}

// Splits NAME=REST of an option.
absl::StatusOr<std::pair<std::string, std::string>> SplitAssignment(absl::string_view option,
                                                                    absl::string_view text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.first.empty() || parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is \"", text, "\"; it must be NAME=VALUE"));
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitSpecs(absl::Span<const std::string> arguments) {
  std::vector<std::string> specs;
  for (const std::string& argument : arguments) {
    if (BeginsSpec(argument)) {
      specs.push_back(argument);
    } else if (specs.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a spec begins with fwd, bwd or append, not with \"", argument, "\"; ", kExample));
    } else {
      absl::StrAppend(&specs.back(), " ", argument);
    }
  }
  return specs;
}

absl::StatusOr<std::string> JoinSpec(absl::Span<const std::string> arguments) {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::vector<std::string> specs, SplitSpecs(arguments));
  if (specs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("this command takes one spec, not ", specs.size(), "; ", kExample));
  }
  return specs.front();
}

absl::StatusOr<std::string> ReadTextFile(std::string_view path) {
  std::ifstream file{std::string(path)};
  if (!file) return absl::NotFoundError(absl::StrCat(AbslView(path), ": cannot open"));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<std::vector<std::string>> ReadSpecFile(const std::string& path) {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  std::vector<std::string> specs;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty() && !absl::StartsWith(line, "#")) specs.emplace_back(line);
  }
  return specs;
}

absl::StatusOr<std::vector<AttentionSpec>> ReadSpecs(absl::Span<const std::string> arguments,
                                                     const std::string& shapes) {
  std::vector<std::string> texts;
  if (!arguments.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(texts, SplitSpecs(arguments));
  }
  if (!shapes.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<std::string> more, ReadSpecFile(shapes));
    texts.insert(texts.end(), more.begin(), more.end());
  }
  if (texts.empty()) return absl::InvalidArgumentError("no spec; give some, or --shapes");
  std::vector<AttentionSpec> specs;
  for (const std::string& text : texts) {
    TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec spec, ReadSpec(text));
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<SnippetInputs> ReadSnippetInputs(absl::Span<const std::string> arrays,
                                                absl::Span<const std::string> scalars) {
  SnippetInputs inputs;
  for (const std::string& text : arrays) {
    TILEWRIGHT_ASSIGN_OR_RETURN(auto assignment, SplitAssignment("--array", text));
    TILEWRIGHT_ASSIGN_OR_RETURN(Array array, ReadArray(assignment.second));
    if (!ToElementType(array.type).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--array ", assignment.first, ": ", array.Describe(),
                       "; a snippet's array may be of any type but int64"));
    }
    inputs.arrays.emplace(assignment.first, std::move(array));
  }
  for (const std::string& text : scalars) {
    TILEWRIGHT_ASSIGN_OR_RETURN(auto assignment, SplitAssignment("--scalar", text));
    int64_t integer = 0;
    double number = 0;
    if (absl::SimpleAtoi(assignment.second, &integer)) {
      inputs.scalars[assignment.first] = {ScalarType::kInt64, static_cast<double>(integer)};
    } else if (absl::SimpleAtod(assignment.second, &number)) {
      inputs.scalars[assignment.first] = {ScalarType::kFloat, number};
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--scalar ", assignment.first, " is \"",
                                                     assignment.second, "\"; it must be a number"));
    }
  }
  return inputs;
}

absl::StatusOr<AttentionSpec> ReadSpec(const std::string& text, const SnippetInputs& inputs) {
  if (spec::IsCacheAppendText(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec \"", text, "\": this command takes attention, fwd or bwd; append specs are taken by ",
        "compile, emit and explain"));
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec spec, spec::ParseSpec(text, ReadTextFile));
  for (const auto& [name, array] : inputs.arrays) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const ElementType type, ToElementType(array.type));
    const auto declared = std::find_if(
        spec.snippet_arrays.begin(), spec.snippet_arrays.end(),
        [&name = name](const SnippetArray& candidate) { return candidate.name == name; });
    if (declared == spec.snippet_arrays.end()) {
      spec.snippet_arrays.push_back({name, type});
    } else if (declared->type != type) {
      return absl::InvalidArgumentError(
          absl::StrCat("--array ", name, ": ", array.Describe(), "; the spec declares it ",
                       AbslView(spec::ElementTypeName(declared->type))));
    }
  }
  for (const auto& [name, scalar] : inputs.scalars) {
    const bool declared = std::any_of(
        spec.snippet_scalars.begin(), spec.snippet_scalars.end(),
        [&name = name](const SnippetScalar& candidate) { return candidate.name == name; });
    if (!declared) spec.snippet_scalars.push_back({name, scalar.first});
  }
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  return spec::Canonicalise(spec);
}

}  // namespace tilewright::cli

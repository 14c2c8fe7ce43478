// Specs on a command line.
#ifndef TILEWRIGHT_CLI_SPEC_ARGUMENTS_H_
#define TILEWRIGHT_CLI_SPEC_ARGUMENTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/array_files.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

// Arguments joined into spec texts: a new one begins with each argument whose first word is "fwd",
// "bwd" or "append" (spec/cache_append.h), so that specs may be quoted or not. InvalidArgument when
// the first argument is none of them.
absl::StatusOr<std::vector<std::string>> SplitSpecs(absl::Span<const std::string> arguments);

// As SplitSpecs, for commands that take exactly one.
absl::StatusOr<std::string> JoinSpec(absl::Span<const std::string> arguments);

// The text of a snippet file. NotFound names it.
absl::StatusOr<std::string> ReadTextFile(std::string_view path);

// One spec a line of a file; empty lines and lines that begin with '#' are skipped.
absl::StatusOr<std::vector<std::string>> ReadSpecFile(const std::string& path);

// The specs of a command line and of a file (none where `shapes` is empty), canonical.
// InvalidArgument where there is no spec at all, or one that does not parse.
absl::StatusOr<std::vector<AttentionSpec>> ReadSpecs(absl::Span<const std::string> arguments,
                                                     const std::string& shapes);

// The arrays and scalars of --array NAME=FILE and --scalar NAME=VALUE.
struct SnippetInputs {
  std::map<std::string, Array> arrays;
  // A value with a point, an exponent, inf or nan is a float; any other an int64.
  std::map<std::string, std::pair<ScalarType, double>> scalars;
};
absl::StatusOr<SnippetInputs> ReadSnippetInputs(absl::Span<const std::string> arrays,
                                                absl::Span<const std::string> scalars);

// Parses `text` (snippet files are read), declares the inputs that the text does not, and puts the
// result into canonical form. InvalidArgument where an input's type is not the declared one.
absl::StatusOr<AttentionSpec> ReadSpec(const std::string& text, const SnippetInputs& inputs = {});

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_SPEC_ARGUMENTS_H_

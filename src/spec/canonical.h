// Equal problems become equal specs, and specs have one text form: what the program reads, and
// logs, goldens, tuning records and errors print.
//
//   spec   = operation type { word }
//   fwd bf16 b=2 h=32/8 s=4096/4096 d=128/128 causal lse
//
// Words may come in any order and are printed in one; the table in canonical.cc lists them. h=, s=,
// d= take QUERY/KEY-VALUE (one number: both).
#ifndef TILEWRIGHT_SPEC_CANONICAL_H_
#define TILEWRIGHT_SPEC_CANONICAL_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tilewright/attention.h"

namespace tilewright::spec {

// The canonical form of a valid spec: defaults that were spelled out and fields without effect are
// dropped (kv_type equal to type, scale equal to the default, dense strides of a layout, alignment
// without a diagonal, ...). A mask that is causal and nothing else is `causal`; causal with a left
// side is the window (left, 0).
AttentionSpec Canonicalise(const AttentionSpec& spec);

// The words of a spec, canonical or not. Floats print in the shortest form that reads back equal;
// snippets as score=@FILE_NAME (blanks and % in the name as %XX), whose file ParseSpec reads back.
std::string ToText(const AttentionSpec& spec);

// Reads the file of score=@FILE and mask=@FILE.
using SnippetReader = std::function<absl::StatusOr<std::string>(std::string_view path)>;

// InvalidArgument names the word, and for an unknown word the nearest known one. The result is
// validated, not canonicalised: ParseSpec(ToText(spec)) == spec for every valid spec.
absl::StatusOr<AttentionSpec> ParseSpec(std::string_view text,
                                        const SnippetReader& read_snippet = nullptr);

// The key of every word after the element type, in the order in which ToText prints them: "b", "h",
// ..., "causal", ... For documentation.
std::vector<std::string_view> SpecWords();

// Names as in the text form: "bf16", "e4m3", "bool".
std::string_view ElementTypeName(ElementType type);
absl::StatusOr<ElementType> ParseElementType(std::string_view name);

// Hash of every field, for maps keyed by canonical specs.
struct SpecHash {
  size_t operator()(const AttentionSpec& spec) const;
};

}  // namespace tilewright::spec

#endif  // TILEWRIGHT_SPEC_CANONICAL_H_

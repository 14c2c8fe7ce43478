// Is a CacheAppendSpec well formed, which others is it equal to, how is it called.
#ifndef TILEWRIGHT_SPEC_CACHE_APPEND_H_
#define TILEWRIGHT_SPEC_CACHE_APPEND_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tilewright/cache_append.h"

namespace tilewright::spec {

// InvalidArgument names the field, its value and the rule.
absl::Status Validate(const CacheAppendSpec& spec);
// `spec` is valid. A pointer that must not be null, a size or stride that does not fit.
absl::Status ValidateArgs(const CacheAppendSpec& spec, const CacheAppendArgs& args);

// Equal problems become equal specs; rotary_dim is then what is rotated.
CacheAppendSpec Canonicalise(const CacheAppendSpec& spec);

// "append bf16 h=32/8 d=128/128 cache=e4m3 scale=token paged=16 rotary=half_split:0,128:10000"
// rotary=KIND:BEGIN,COLUMNS:BASE, or :TYPE of the tables in place of the base.
std::string ToText(const CacheAppendSpec& spec);

// Whether a text's first word is that of these specs, "append".
bool IsCacheAppendText(std::string_view text);

// The other way: words in any order, h= and d= with one number for both, rotary= without what is as
// by default. InvalidArgument names the word. The result is validated, not canonicalised.
absl::StatusOr<CacheAppendSpec> ParseCacheAppend(std::string_view text);

size_t HashOf(const CacheAppendSpec& spec);

ElementType CacheType(const CacheAppendSpec& spec);
// Of a rotary embedding, pairs of columns.
int64_t RotaryPairs(const CacheAppendSpec& spec);

// New tokens that may exist: batch * seqlen, or the packed rows.
int64_t TokensOf(const CacheAppendArgs& args);

}  // namespace tilewright::spec

#endif  // TILEWRIGHT_SPEC_CACHE_APPEND_H_

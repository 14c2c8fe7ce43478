// The caller's score and mask rules as policy headers.
#ifndef TILEWRIGHT_EMIT_USER_POLICY_H_
#define TILEWRIGHT_EMIT_USER_POLICY_H_

#include <string_view>

#include "artifact/kernel_source.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

inline constexpr std::string_view kUserScoreHeader = "user/score_mod.cuh";
inline constexpr std::string_view kUserMaskHeader = "user/mask_mod.cuh";

// user/score_mod.cuh, which defines the score policy ScoreUser, from a spec with a score snippet.
// The snippet stands behind a #line that names its own file, so that errors point into the caller's
// text.
artifact::SourceFile UserScorePolicy(const AttentionSpec& spec);

// user/mask_mod.cuh, which defines the mask policy MaskUser, from a spec with a mask snippet.
artifact::SourceFile UserMaskPolicy(const AttentionSpec& spec);

// Whether `text` has the word `return` outside of comments and literals: it is then a function
// body, otherwise an expression.
bool IsFunctionBody(std::string_view text);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_USER_POLICY_H_

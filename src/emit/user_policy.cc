#include "emit/user_policy.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "emit/device_types.h"

namespace tilewright::emit {
namespace {

// The names of arrays and scalars are the caller's: anything without `__` (spec::Validate). So the
// function's own parameters have `__`, and types are qualified where such a name may hide them.
constexpr char kArguments[] =
    "const Problem& problem__, i64 i__, i64 j__,\n"
    "      const Params& params__";

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Where the comment or literal that begins at `at` ends; `at` when none does.
size_t SkipNonCode(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.substr(0, 2) == "//") return std::min(text.find('\n', at), text.size());
  if (rest.substr(0, 2) == "/*") {
    const size_t end = text.find("*/", at + 2);
    return end == std::string_view::npos ? text.size() : end + 2;
  }
  if (rest[0] != '"' && rest[0] != '\'') return at;
  size_t end = at + 1;
  while (end < text.size() && text[end] != rest[0]) end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

// A type's name that no local can hide.
std::string Qualified(std::string_view type) {
  const bool builtin = type == "float" || type == "signed char";
  return absl::StrCat(builtin ? "" : "::tilewright::", Piece(type));
}

// What a snippet for one pair of row and key has in scope beside what all have, and one for a tile.
constexpr char kPairNames[] = "    [[maybe_unused]] const i64 i = i__, j = j__;\n";
constexpr char kTileNames[] =
    "    [[maybe_unused]] const i64 i_begin = i_begin__, i_end = i_end__;\n"
    "    [[maybe_unused]] const i64 j_begin = j_begin__, j_end = j_end__;\n"
    "    [[maybe_unused]] constexpr int none = kNone, some = kSome, all = kAll;\n";

// Opens two scopes with the names that the snippet may use; none must be used. In the inner one
// the caller's names may hide the others.
std::string OpenScopes(const AttentionSpec& spec, std::string_view names = kPairNames) {
  std::string text =
      " {\n"
      "    using int32_t [[maybe_unused]] = i32;\n"
      "    using uint32_t [[maybe_unused]] = u32;\n"
      "    using int64_t [[maybe_unused]] = i64;\n"
      "    using uint64_t [[maybe_unused]] = u64;\n"
      "    [[maybe_unused]] const i64 b = problem__.b, h = problem__.h;\n"
      "    [[maybe_unused]] const i64 seqlen_q = problem__.seqlen_q;\n"
      "    [[maybe_unused]] const i64 seqlen_kv = problem__.seqlen_kv;\n";
  absl::StrAppend(&text, Piece(names), "    {\n");
  for (const SnippetArray& array : spec.snippet_arrays) {
    absl::StrAppend(&text, "      [[maybe_unused]] const ", Qualified(SnippetTypeName(array.type)),
                    "* const ", array.name, " = params__.user_", array.name, ";\n");
  }
  for (const SnippetScalar& scalar : spec.snippet_scalars) {
    absl::StrAppend(&text, "      [[maybe_unused]] const ", Qualified(SnippetTypeName(scalar.type)),
                    " ", scalar.name, " = params__.user_", scalar.name, ";\n");
  }
  return text;
}

// A file name as it may stand in a #line.
std::string LineFileName(const Snippet& snippet, std::string_view default_name) {
  if (snippet.file_name.empty()) return std::string(default_name);
  std::string name = snippet.file_name;
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return absl::StrReplaceAll(name, {{"\\", "\\\\"}, {"\"", "\\\""}});
}

// Appends the snippet, returning `type`, and closes the scopes.
void AppendSnippet(const Snippet& snippet, std::string_view default_name, std::string_view type,
                   std::string_view header_name, std::string* text) {
  const bool body = IsFunctionBody(snippet.text);
  absl::StrAppend(
      text, body ? "      {\n" : absl::StrCat("      return static_cast<", Piece(type), ">(\n"));
  absl::StrAppend(text, "#line 1 \"", LineFileName(snippet, default_name), "\"\n", snippet.text,
                  "\n");
  // Back to this file's own lines; the #line names the one after itself.
  const auto lines = std::count(text->begin(), text->end(), '\n') + 2;
  absl::StrAppend(text, "#line ", lines, " \"", Piece(header_name), "\"\n",
                  body ? "      }\n" : "      );\n", "    }\n  }\n");
}

// The members of MaskUser that the rule of tiles answers.
void AppendTileRule(const AttentionSpec& spec, std::string* text) {
  constexpr char kTile[] =
      "const Problem& problem__, i64 i_begin__, i64 i_end__, i64 j_begin__, i64 j_end__,\n"
      "      const Params& params__";
  constexpr char kForward[] = "(problem__, i_begin__, i_end__, j_begin__, j_end__, params__)";
  absl::StrAppend(text,
                  "  enum { kNone, kSome, kAll };\n"
                  "  static constexpr bool kKnowsFull = true;\n"
                  "  template <class Params>\n"
                  "  TILEWRIGHT_HOST_DEVICE static bool Skip(\n      ",
                  kTile, ") {\n    return TileRule", kForward,
                  " == kNone;\n  }\n"
                  "  template <class Params>\n"
                  "  TILEWRIGHT_HOST_DEVICE static bool Full(\n      ",
                  kTile, ") {\n    return TileRule", kForward,
                  " == kAll;\n  }\n"
                  "  template <class Params>\n"
                  "  TILEWRIGHT_HOST_DEVICE static int TileRule(\n      ",
                  kTile, ")", OpenScopes(spec, kTileNames));
  AppendSnippet(spec.mask_tile_snippet, "mask_tile_snippet", "int", kUserMaskHeader, text);
}

}  // namespace

bool IsFunctionBody(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (const size_t end = SkipNonCode(text, at); end != at) {
      at = end;
    } else if (IsWord(text[at])) {
      const size_t begin = at;
      while (at < text.size() && IsWord(text[at])) ++at;
      if (text.substr(begin, at - begin) == "return") return true;
    } else {
      ++at;
    }
  }
  return false;
}

artifact::SourceFile UserScorePolicy(const AttentionSpec& spec) {
  std::string text = absl::StrCat(
      "// The caller's score rule.\n"
      "#ifndef TILEWRIGHT_USER_SCORE_MOD_CUH_\n"
      "#define TILEWRIGHT_USER_SCORE_MOD_CUH_\n\n"
      "#include \"core/accumulate.cuh\"\n"
      "#include \"core/convert.cuh\"\n"
      "#include \"policy/score_chain.cuh\"\n\n"
      "namespace tilewright {\n\n"
      "struct ScoreUser {\n"
      "  static constexpr bool kHasSlopeOne = false;\n"
      "  static constexpr bool kHasOwnGradient = ",
      spec.score_gradient_snippet.empty() ? "false" : "true",
      ";\n\n"
      "  template <class Scalar, class Params>\n"
      "  TILEWRIGHT_HOST_DEVICE static Scalar Apply(\n"
      "      [[maybe_unused]] Scalar score, ",
      kArguments, ")", OpenScopes(spec));
  AppendSnippet(spec.score_snippet, "score_snippet", "Scalar", kUserScoreHeader, &text);
  if (!spec.score_gradient_snippet.empty()) {
    absl::StrAppend(
        &text,
        "  template <class Params>\n"
        "  TILEWRIGHT_HOST_DEVICE static float Gradient(\n"
        "      [[maybe_unused]] const float score, [[maybe_unused]] const float d_score,\n"
        "      [[maybe_unused]] const bool adds__, ",
        kArguments, ")", OpenScopes(spec));
    for (const SnippetArray& array : spec.snippet_arrays) {
      if (!array.gradient) continue;
      absl::StrAppend(&text, "      [[maybe_unused]] float* const d_", array.name,
                      " = params__.d_user_", array.name, ";\n");
    }
    absl::StrAppend(&text,
                    "      [[maybe_unused]] const auto Accumulate = [adds__](float* at__, float "
                    "value__) {\n"
                    "        if (adds__) ::tilewright::Accumulate(at__, value__);\n"
                    "      };\n");
    AppendSnippet(spec.score_gradient_snippet, "score_gradient_snippet", "float", kUserScoreHeader,
                  &text);
  }
  absl::StrAppend(&text,
                  "  template <class Params>\n"
                  "  using Head = ElementwiseScoreHead<ScoreUser, Params>;\n"
                  "};\n\n}  // namespace tilewright\n\n"
                  "#endif  // TILEWRIGHT_USER_SCORE_MOD_CUH_\n");
  return {.name = std::string(kUserScoreHeader), .text = std::move(text)};
}

artifact::SourceFile UserMaskPolicy(const AttentionSpec& spec) {
  std::string text = absl::StrCat(
      "// The caller's mask rule.\n"
      "#ifndef TILEWRIGHT_USER_MASK_MOD_CUH_\n"
      "#define TILEWRIGHT_USER_MASK_MOD_CUH_\n\n"
      "#include \"core/convert.cuh\"\n"
      "#include \"policy/mask_chain.cuh\"\n\n"
      "namespace tilewright {\n\n"
      "struct MaskUser : MaskElementwise {\n"
      "  template <class Params>\n"
      "  TILEWRIGHT_HOST_DEVICE static bool Keep(\n"
      "      ",
      kArguments, ")", OpenScopes(spec));
  AppendSnippet(spec.mask_snippet, "mask_snippet", "bool", kUserMaskHeader, &text);
  if (!spec.mask_tile_snippet.empty()) AppendTileRule(spec, &text);
  absl::StrAppend(&text,
                  "  template <class Params>\n"
                  "  using Head = ElementwiseMaskHead<MaskUser, Params>;\n"
                  "};\n\n}  // namespace tilewright\n\n"
                  "#endif  // TILEWRIGHT_USER_MASK_MOD_CUH_\n");
  return {.name = std::string(kUserMaskHeader), .text = std::move(text)};
}

}  // namespace tilewright::emit

#include "spec/canonical.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/validate.h"

namespace tilewright::spec {
namespace {

// Abseil of this generation has its own string_view where the standard one is not used.
std::string Str(std::string_view text) { return std::string(text); }

// ---- names
// ----------------------------------------------------------------------------------------------------------

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<Operation> kOperations[] = {{"fwd", Operation::kForward},
                                            {"bwd", Operation::kBackward}};
constexpr Named<ElementType> kElementTypes[] = {
    {"fp16", ElementType::kFp16},    {"bf16", ElementType::kBf16},    {"fp32", ElementType::kFp32},
    {"e4m3", ElementType::kFp8E4m3}, {"e5m2", ElementType::kFp8E5m2}, {"int8", ElementType::kInt8},
    {"bool", ElementType::kBool},    {"int32", ElementType::kInt32}};
constexpr Named<Layout> kLayouts[] = {{"bshd", Layout::kBshd},
                                      {"bhsd", Layout::kBhsd},
                                      {"sbhd", Layout::kSbhd},
                                      {"thd", Layout::kThd}};
constexpr Named<MaskAlign> kAligns[] = {{"bottom_right", MaskAlign::kBottomRight},
                                        {"top_left", MaskAlign::kTopLeft}};
constexpr Named<ScaleKind> kScaleKinds[] = {{"tensor", ScaleKind::kPerTensor},
                                            {"head", ScaleKind::kPerHead},
                                            {"token", ScaleKind::kPerToken}};
constexpr Named<BatchMap> kBatchMaps[] = {{"mod", BatchMap::kMod}, {"div", BatchMap::kDiv}};
constexpr Named<ScalarType> kScalarTypes[] = {{"float", ScalarType::kFloat},
                                              {"int64", ScalarType::kInt64}};
constexpr Named<LseBase> kLseBases[] = {{"e", LseBase::kE}, {"2", LseBase::kTwo}};
constexpr Named<EmptyLse> kEmptyLses[] = {{"-inf", EmptyLse::kMinusInf},
                                          {"+inf", EmptyLse::kPlusInf}};

template <typename T, size_t N>
std::string NameOf(const Named<T> (&table)[N], T value) {
  for (const Named<T>& entry : table) {
    if (entry.value == value) return Str(entry.name);
  }
  return absl::StrCat(static_cast<int>(value));
}

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

absl::Status UnknownName(std::string_view kind, std::string_view name,
                         const std::vector<std::string_view>& known) {
  std::string_view nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (std::string_view candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown ", Str(kind), " \"", Str(name),
                                                 "\"; the nearest known one is \"", Str(nearest),
                                                 "\""));
}

template <typename T, size_t N>
absl::StatusOr<T> ValueOf(const Named<T> (&table)[N], std::string_view kind,
                          std::string_view name) {
  std::vector<std::string_view> known;
  for (const Named<T>& entry : table) {
    if (entry.name == name) return entry.value;
    known.push_back(entry.name);
  }
  return UnknownName(kind, name, known);
}

constexpr std::string_view kDefaultScoreFile = "score_snippet";
constexpr std::string_view kDefaultScoreGradientFile = "score_gradient_snippet";
constexpr std::string_view kDefaultMaskFile = "mask_snippet";
constexpr std::string_view kDefaultMaskTileFile = "mask_tile_snippet";

// ---- printing
// -------------------------------------------------------------------------------------------------------

// File names are part of a word: what would end or garble it becomes %XX.
std::string EscapeFileName(std::string_view name) {
  std::string out;
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f || c == '%') {
      char hex[4];
      std::snprintf(hex, sizeof hex, "%%%02X", byte);
      out += hex;
    } else {
      out += c;
    }
  }
  return out;
}

absl::StatusOr<std::string> UnescapeFileName(std::string_view text) {
  std::string out;
  for (size_t n = 0; n < text.size(); ++n) {
    if (text[n] != '%') {
      out += text[n];
      continue;
    }
    unsigned byte = 0;
    const char* begin = text.data() + n + 1;
    const char* end = text.data() + std::min(text.size(), n + 3);
    const auto parsed = std::from_chars(begin, end, byte, 16);
    if (parsed.ec != std::errc() || parsed.ptr != begin + 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("file name \"", Str(text), "\": % must be followed by two hex digits"));
    }
    out += static_cast<char>(byte);
    n += 2;
  }
  return out;
}

std::string BiasText(const AttentionSpec& spec, const BiasTerm& term) {
  std::string word = absl::StrCat(
      term.type == ElementType::kBool ? "mask=" : "bias=", NameOf(kElementTypes, term.type), ":",
      term.batch, ",", term.heads, ",", term.seqlen_q, ",", term.seqlen_kv);
  const bool has_map = term.batch != 1 && term.batch != spec.batch;
  if (has_map || term.batch_map != BatchMap::kMod) {
    absl::StrAppend(&word, ":", NameOf(kBatchMaps, term.batch_map));
  }
  if (term.gradient) word += ":grad";
  return word;
}

std::string SnippetWord(std::string_view key, const Snippet& snippet,
                        std::string_view default_name) {
  return absl::StrCat(
      Str(key), "=@",
      snippet.file_name.empty() ? Str(default_name) : EscapeFileName(snippet.file_name));
}

// ---- parsing
// --------------------------------------------------------------------------------------------------------

template <typename T>
absl::StatusOr<T> ParseNumber(std::string_view text, std::string_view what) {
  T value{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Str(text), "\" is not ", Str(what)));
  }
  return value;
}

absl::StatusOr<std::vector<int64_t>> ParseIntegers(std::string_view text, char separator,
                                                   size_t min_count, size_t max_count) {
  std::vector<int64_t> values;
  for (absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), separator)) {
    TILEWRIGHT_ASSIGN_OR_RETURN(
        const int64_t value,
        ParseNumber<int64_t>(std::string_view(part.data(), part.size()), "an integer of 64 bits"));
    values.push_back(value);
  }
  if (values.size() < min_count || values.size() > max_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "takes ", min_count, max_count == min_count ? "" : absl::StrCat(" or ", max_count),
        " integers", " separated by '", std::string(1, separator), "', not ", values.size()));
  }
  return values;
}

struct Parser {
  AttentionSpec spec;
  const SnippetReader* read_snippet = nullptr;

  absl::Status Pair(std::string_view value, int64_t* first, int64_t* second) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers,
                                ParseIntegers(value, '/', 1, 2));
    *first = numbers[0];
    *second = numbers.back();
    return absl::OkStatus();
  }

  absl::Status StridesWord(std::string_view value) {
    const std::vector<std::string> tensors =
        absl::StrSplit(absl::string_view(value.data(), value.size()), ';');
    if (tensors.size() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "takes four tensors q;k;v;o, each batch,seq,head,dim, not ", tensors.size()));
    }
    std::array<Strides, 4> strides;
    for (int n = 0; n < 4; ++n) {
      TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<int64_t> s,
                                  ParseIntegers(tensors[n], ',', 4, 4));
      strides[n] = {.batch = s[0], .seq = s[1], .head = s[2], .dim = s[3]};
    }
    spec.strides = strides;
    return absl::OkStatus();
  }

  // TYPE:b,h,q,k[:mod|:div][:grad]
  absl::Status BiasWord(std::string_view value) {
    std::vector<std::string> parts =
        absl::StrSplit(absl::string_view(value.data(), value.size()), ':');
    BiasTerm term;
    if (parts.back() == "grad") {
      term.gradient = true;
      parts.pop_back();
    }
    if (parts.size() != 2 && parts.size() != 3) {
      return absl::InvalidArgumentError("takes TYPE:batch,heads,queries,keys[:mod|:div][:grad]");
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(term.type, ParseElementType(parts[0]));
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<int64_t> extents,
                                ParseIntegers(parts[1], ',', 4, 4));
    term.batch = extents[0];
    term.heads = extents[1];
    term.seqlen_q = extents[2];
    term.seqlen_kv = extents[3];
    if (parts.size() == 3) {
      TILEWRIGHT_ASSIGN_OR_RETURN(term.batch_map, ValueOf(kBatchMaps, "batch map", parts[2]));
    }
    spec.bias.push_back(term);
    return absl::OkStatus();
  }

  absl::Status SnippetFile(std::string_view value, std::string_view default_name,
                           Snippet* snippet) {
    TILEWRIGHT_ASSIGN_OR_RETURN(std::string path, UnescapeFileName(value.substr(1)));
    if (path.empty()) return absl::InvalidArgumentError("takes @FILE");
    if (read_snippet == nullptr || !*read_snippet) {
      return absl::InvalidArgumentError("files of snippets cannot be read here");
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(snippet->text, (*read_snippet)(path));
    if (snippet->text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("file \"", path, "\" is empty"));
    }
    if (path != default_name) snippet->file_name = std::move(path);
    return absl::OkStatus();
  }

  absl::Status ScoreWord(std::string_view value) {
    if (value.empty() || value[0] != '@') return absl::InvalidArgumentError("takes @FILE");
    return SnippetFile(value, kDefaultScoreFile, &spec.score_snippet);
  }

  absl::Status ScoreGradientWord(std::string_view value) {
    if (value.empty() || value[0] != '@') return absl::InvalidArgumentError("takes @FILE");
    return SnippetFile(value, kDefaultScoreGradientFile, &spec.score_gradient_snippet);
  }

  // NAME:TYPE[:grad]
  absl::Status ArrayWord(std::string_view value) {
    constexpr std::string_view kGradient = ":grad";
    const bool gradient = value.size() > kGradient.size() &&
                          value.substr(value.size() - kGradient.size()) == kGradient;
    if (gradient) value.remove_suffix(kGradient.size());
    TILEWRIGHT_RETURN_IF_ERROR(
        NamedWord(value, kElementTypes, "element type", &spec.snippet_arrays));
    spec.snippet_arrays.back().gradient = gradient;
    return absl::OkStatus();
  }

  absl::Status MaskTileWord(std::string_view value) {
    if (value.empty() || value[0] != '@') return absl::InvalidArgumentError("takes @FILE");
    return SnippetFile(value, kDefaultMaskTileFile, &spec.mask_tile_snippet);
  }

  absl::Status MaskWord(std::string_view value) {
    if (!value.empty() && value[0] == '@') {
      return SnippetFile(value, kDefaultMaskFile, &spec.mask_snippet);
    }
    TILEWRIGHT_RETURN_IF_ERROR(BiasWord(value));
    if (spec.bias.back().type != ElementType::kBool) {
      return absl::InvalidArgumentError(
          "takes bool:batch,heads,queries,keys or @FILE (additive terms are bias=...)");
    }
    return absl::OkStatus();
  }

  template <typename Entry, typename T, size_t N>
  absl::Status NamedWord(std::string_view value, const Named<T> (&types)[N], std::string_view kind,
                         std::vector<Entry>* entries) {
    const size_t colon = value.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
      return absl::InvalidArgumentError("takes NAME:TYPE");
    }
    Entry entry;
    entry.name = Str(value.substr(0, colon));
    TILEWRIGHT_ASSIGN_OR_RETURN(entry.type, ValueOf(types, kind, value.substr(colon + 1)));
    entries->push_back(std::move(entry));
    return absl::OkStatus();
  }

  absl::Status FloatWord(std::string_view value, float* out) {
    TILEWRIGHT_ASSIGN_OR_RETURN(*out, ParseNumber<float>(value, "a number that fits a float"));
    return absl::OkStatus();
  }

  absl::Status IntegerWord(std::string_view value, int64_t* out) {
    TILEWRIGHT_ASSIGN_OR_RETURN(*out, ParseNumber<int64_t>(value, "an integer of 64 bits"));
    return absl::OkStatus();
  }

  template <typename T, size_t N, typename Field>
  absl::Status EnumWord(std::string_view value, const Named<T> (&table)[N], std::string_view kind,
                        Field* out) {
    TILEWRIGHT_ASSIGN_OR_RETURN(*out, ValueOf(table, kind, value));
    return absl::OkStatus();
  }
};

enum class WordValue { kNone, kOptional, kRequired };

// One row a word: how it is read. Printing is in ToText, in the order of this table.
struct Word {
  std::string_view key;
  WordValue value;
  bool repeatable;
  absl::Status (*read)(Parser&, std::string_view value);
};

const std::vector<Word>& Words() {
  using std::string_view;
  constexpr auto kNone = WordValue::kNone;
  constexpr auto kRequired = WordValue::kRequired;
  static const auto& words = *new std::vector<Word>{
      {"b", kRequired, false,
       [](Parser& p, string_view v) { return p.IntegerWord(v, &p.spec.batch); }},
      {"h", kRequired, false,
       [](Parser& p, string_view v) { return p.Pair(v, &p.spec.heads_q, &p.spec.heads_kv); }},
      {"s", kRequired, false,
       [](Parser& p, string_view v) { return p.Pair(v, &p.spec.seqlen_q, &p.spec.seqlen_kv); }},
      {"d", kRequired, false,
       [](Parser& p, string_view v) { return p.Pair(v, &p.spec.dim_qk, &p.spec.dim_v); }},
      {"layout", kRequired, false,
       [](Parser& p, string_view v) { return p.EnumWord(v, kLayouts, "layout", &p.spec.layout); }},
      {"strides", kRequired, false, [](Parser& p, string_view v) { return p.StridesWord(v); }},
      {"strided_innermost", kNone, false,
       [](Parser& p, string_view) {
         p.spec.strided_innermost = true;
         return absl::OkStatus();
       }},
      {"kv", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kElementTypes, "element type", &p.spec.kv_type);
       }},
      {"out", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kElementTypes, "element type", &p.spec.out_type);
       }},
      {"causal", WordValue::kOptional, false,
       [](Parser& p, string_view v) {
         p.spec.causal = true;
         return v.empty() ? absl::OkStatus() : p.EnumWord(v, kAligns, "alignment", &p.spec.align);
       }},
      {"align", kRequired, false,
       [](Parser& p, string_view v) { return p.EnumWord(v, kAligns, "alignment", &p.spec.align); }},
      {"window", kRequired, false,
       [](Parser& p, string_view v) -> absl::Status {
         TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<int64_t> sides, ParseIntegers(v, ',', 2, 2));
         p.spec.window_left = sides[0];
         p.spec.window_right = sides[1];
         return absl::OkStatus();
       }},
      {"block_mask", kRequired, false,
       [](Parser& p, string_view v) -> absl::Status {
         TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<int64_t> block, ParseIntegers(v, ',', 2, 2));
         p.spec.block_mask_q = block[0];
         p.spec.block_mask_kv = block[1];
         return absl::OkStatus();
       }},
      {"scale", kRequired, false,
       [](Parser& p, string_view v) { return p.FloatWord(v, &p.spec.scale.emplace()); }},
      {"softcap", kRequired, false,
       [](Parser& p, string_view v) { return p.FloatWord(v, &p.spec.softcap); }},
      {"softcap_before_bias", kNone, false,
       [](Parser& p, string_view) {
         p.spec.softcap_before_bias = true;
         return absl::OkStatus();
       }},
      {"alibi", kNone, false,
       [](Parser& p, string_view) {
         p.spec.alibi = true;
         return absl::OkStatus();
       }},
      {"alibi_grad", kNone, false,
       [](Parser& p, string_view) {
         p.spec.alibi_gradient = true;
         return absl::OkStatus();
       }},
      {"bias", kRequired, true, [](Parser& p, string_view v) { return p.BiasWord(v); }},
      {"mask", kRequired, true, [](Parser& p, string_view v) { return p.MaskWord(v); }},
      {"sinks", kNone, false,
       [](Parser& p, string_view) {
         p.spec.sinks = true;
         return absl::OkStatus();
       }},
      {"sinks_grad", kNone, false,
       [](Parser& p, string_view) {
         p.spec.sinks_gradient = true;
         return absl::OkStatus();
       }},
      {"dropout", kRequired, false,
       [](Parser& p, string_view v) { return p.FloatWord(v, &p.spec.dropout); }},
      {"q_scale", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kScaleKinds, "kind of scale", &p.spec.q_scale);
       }},
      {"kv_scale", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kScaleKinds, "kind of scale", &p.spec.kv_scale);
       }},
      {"score", kRequired, false, [](Parser& p, string_view v) { return p.ScoreWord(v); }},
      {"score_grad", kRequired, false,
       [](Parser& p, string_view v) { return p.ScoreGradientWord(v); }},
      {"mask_tile", kRequired, false, [](Parser& p, string_view v) { return p.MaskTileWord(v); }},
      {"array", kRequired, true, [](Parser& p, string_view v) { return p.ArrayWord(v); }},
      {"scalar", kRequired, true,
       [](Parser& p, string_view v) {
         return p.NamedWord(v, kScalarTypes, "scalar type", &p.spec.snippet_scalars);
       }},
      {"varlen", kNone, false,
       [](Parser& p, string_view) {
         p.spec.varlen = true;
         return absl::OkStatus();
       }},
      {"paged", kRequired, false,
       [](Parser& p, string_view v) { return p.IntegerWord(v, &p.spec.page_size); }},
      {"left_padding", kNone, false,
       [](Parser& p, string_view) {
         p.spec.left_padding = true;
         return absl::OkStatus();
       }},
      {"cache_batch_idx", kNone, false,
       [](Parser& p, string_view) {
         p.spec.cache_batch_idx = true;
         return absl::OkStatus();
       }},
      {"lse", kNone, false,
       [](Parser& p, string_view) {
         p.spec.lse = true;
         return absl::OkStatus();
       }},
      {"lse_base", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kLseBases, "base of the LSE", &p.spec.lse_base);
       }},
      {"empty_lse", kRequired, false,
       [](Parser& p, string_view v) {
         return p.EnumWord(v, kEmptyLses, "LSE of empty rows", &p.spec.empty_lse);
       }},
      {"allow_tf32", kNone, false,
       [](Parser& p, string_view) {
         p.spec.allow_tf32 = true;
         return absl::OkStatus();
       }},
      {"deterministic", kNone, false,
       [](Parser& p, string_view) {
         p.spec.deterministic = true;
         return absl::OkStatus();
       }},
      {"batch_invariant", kNone, false,
       [](Parser& p, string_view) {
         p.spec.batch_invariant = true;
         return absl::OkStatus();
       }},
      {"exact", kNone, false,
       [](Parser& p, string_view) {
         p.spec.exact = true;
         return absl::OkStatus();
       }},
  };
  return words;
}

absl::Status ReadWord(Parser& parser, std::string_view text, std::vector<std::string_view>& seen) {
  const size_t equals = text.find('=');
  const bool has_value = equals != std::string_view::npos;
  const std::string_view key = text.substr(0, equals);
  const std::string_view value = has_value ? text.substr(equals + 1) : std::string_view();
  const auto word =
      std::find_if(Words().begin(), Words().end(), [key](const Word& w) { return w.key == key; });
  if (word == Words().end()) {
    std::vector<std::string_view> known;
    for (const Word& w : Words()) known.push_back(w.key);
    return UnknownName("word", key, known);
  }
  if (word->value == WordValue::kNone && has_value) {
    return absl::InvalidArgumentError("takes no value");
  }
  if ((word->value == WordValue::kRequired && !has_value) || (has_value && value.empty())) {
    return absl::InvalidArgumentError("needs a value");
  }
  // mask= is both: any number of bool terms, and one snippet.
  const bool second_mask_file =
      key == "mask" && value[0] == '@' && !parser.spec.mask_snippet.empty();
  if (second_mask_file ||
      (!word->repeatable && std::find(seen.begin(), seen.end(), key) != seen.end())) {
    return absl::InvalidArgumentError("is given twice");
  }
  seen.push_back(key);
  return word->read(parser, value);
}

// ---- hashing
// --------------------------------------------------------------------------------------------------------

struct HashedSpec {
  const AttentionSpec& spec;

  template <typename H>
  friend H AbslHashValue(H h, const HashedSpec& hashed) {
    const AttentionSpec& s = hashed.spec;
    h = H::combine(
        std::move(h), s.operation, s.type, s.kv_type, s.out_type, s.batch, s.heads_q, s.heads_kv,
        s.seqlen_q, s.seqlen_kv, s.dim_qk, s.dim_v, s.layout, s.strided_innermost, s.causal,
        s.align, s.window_left, s.window_right, s.block_mask_q, s.block_mask_kv, s.scale, s.softcap,
        s.softcap_before_bias, s.alibi, s.alibi_gradient, s.sinks, s.sinks_gradient, s.dropout,
        s.q_scale, s.kv_scale, s.varlen, s.page_size, s.left_padding, s.cache_batch_idx, s.lse,
        s.lse_base, s.empty_lse, s.allow_tf32, s.deterministic, s.batch_invariant, s.exact);
    h = H::combine(std::move(h), s.strides.has_value());
    if (s.strides.has_value()) {
      for (const Strides& t : *s.strides) {
        h = H::combine(std::move(h), t.batch, t.seq, t.head, t.dim);
      }
    }
    for (const BiasTerm& t : s.bias) {
      h = H::combine(std::move(h), t.type, t.batch, t.heads, t.seqlen_q, t.seqlen_kv, t.batch_map,
                     t.gradient);
    }
    for (const SnippetArray& a : s.snippet_arrays) {
      h = H::combine(std::move(h), a.name, a.type, a.gradient);
    }
    for (const SnippetScalar& a : s.snippet_scalars) h = H::combine(std::move(h), a.name, a.type);
    return H::combine(std::move(h), s.bias.size(), s.snippet_arrays.size(),
                      s.snippet_scalars.size(), s.score_snippet.text, s.score_snippet.file_name,
                      s.score_gradient_snippet.text, s.score_gradient_snippet.file_name,
                      s.mask_snippet.text, s.mask_snippet.file_name, s.mask_tile_snippet.text,
                      s.mask_tile_snippet.file_name);
  }
};

}  // namespace

std::vector<std::string_view> SpecWords() {
  std::vector<std::string_view> keys;
  for (const Word& word : Words()) keys.push_back(word.key);
  return keys;
}

std::string_view ElementTypeName(ElementType type) {
  for (const auto& entry : kElementTypes) {
    if (entry.value == type) return entry.name;
  }
  return "unknown";
}

absl::StatusOr<ElementType> ParseElementType(std::string_view name) {
  return ValueOf(kElementTypes, "element type", name);
}

AttentionSpec Canonicalise(const AttentionSpec& spec) {
  AttentionSpec out = spec;
  if (out.kv_type == out.type) out.kv_type.reset();
  if (out.out_type == out.type) out.out_type.reset();

  // What no length reaches is no bound: callers say "all" by the largest number of some type.
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max() / 2;
  if (out.window_left >= kLongest) out.window_left = -1;
  if (out.window_right >= kLongest) out.window_right = -1;
  // Causal and window are one mask with two spellings: a lone causal stays `causal`, everything
  // else is a window.
  out.window_right = EffectiveWindowRight(out);
  out.causal = out.window_left == -1 && out.window_right == 0;
  if (out.causal) out.window_right = -1;
  const bool masked = out.causal || out.window_left != -1 || out.window_right != -1;
  const bool one_diagonal = out.exact && out.seqlen_q == out.seqlen_kv;
  if ((!masked && !out.alibi) || one_diagonal) out.align = MaskAlign::kBottomRight;

  if (out.scale.has_value()) {
    AttentionSpec without = out;
    without.scale.reset();
    if (*out.scale == EffectiveScale(without)) out.scale.reset();
  }
  // -0 equals 0 and must not print otherwise.
  if (out.scale == 0.0f) out.scale = 0.0f;
  if (out.softcap == 0) out.softcap = 0;
  if (out.dropout == 0) out.dropout = 0;
  const bool has_bias = out.alibi || std::any_of(out.bias.begin(), out.bias.end(), [](auto& term) {
                          return term.type != ElementType::kBool;
                        });
  if (out.softcap == 0 || !has_bias) out.softcap_before_bias = false;
  for (BiasTerm& term : out.bias) {
    if (term.batch == 1 || term.batch == out.batch) term.batch_map = BatchMap::kMod;
  }

  if (out.strides.has_value()) {
    // Explicit strides that some layout describes become that layout. Packing is no matter of
    // strides: thd stays thd and nothing else becomes it.
    const std::array<Strides, 4> strides = *out.strides;
    const auto describes = [&](Layout layout) {
      AttentionSpec dense = out;
      dense.strides.reset();
      dense.layout = layout;
      return EffectiveStrides(dense) == strides;
    };
    if (describes(out.layout)) {
      out.strides.reset();
    } else if (out.layout != Layout::kThd) {
      out.layout = Layout::kBshd;
      for (Layout layout : {Layout::kBshd, Layout::kBhsd, Layout::kSbhd}) {
        if (describes(layout)) {
          out.layout = layout;
          out.strides.reset();
          break;
        }
      }
    }
  }

  if (out.score_snippet.empty() || out.score_snippet.file_name == kDefaultScoreFile) {
    out.score_snippet.file_name.clear();
  }
  if (out.operation == Operation::kForward) {
    // There is nothing that a forward pass could do with these.
    out.score_gradient_snippet = {};
    out.alibi_gradient = out.sinks_gradient = false;
    for (BiasTerm& term : out.bias) term.gradient = false;
    for (SnippetArray& array : out.snippet_arrays) array.gradient = false;
  }
  if (out.score_gradient_snippet.empty() ||
      out.score_gradient_snippet.file_name == kDefaultScoreGradientFile) {
    out.score_gradient_snippet.file_name.clear();
  }
  if (out.mask_snippet.empty() || out.mask_snippet.file_name == kDefaultMaskFile) {
    out.mask_snippet.file_name.clear();
  }
  if (out.mask_tile_snippet.empty() || out.mask_tile_snippet.file_name == kDefaultMaskTileFile) {
    out.mask_tile_snippet.file_name.clear();
  }
  if (out.score_snippet.empty() && out.mask_snippet.empty()) {
    out.snippet_arrays.clear();
    out.snippet_scalars.clear();
  }
  if (out.operation == Operation::kBackward) {
    out.lse = false;
  } else if (!out.lse) {
    out.lse_base = LseBase::kE;
    out.empty_lse = EmptyLse::kMinusInf;
  }
  if (out.type != ElementType::kFp32) out.allow_tf32 = false;
  if (out.operation == Operation::kForward) out.deterministic = false;  // it always is
  return out;
}

std::string ToText(const AttentionSpec& spec) {
  std::vector<std::string> words = {
      NameOf(kOperations, spec.operation),
      NameOf(kElementTypes, spec.type),
      absl::StrCat("b=", spec.batch),
      absl::StrCat("h=", spec.heads_q, "/", spec.heads_kv),
      absl::StrCat("s=", spec.seqlen_q, "/", spec.seqlen_kv),
      absl::StrCat("d=", spec.dim_qk, "/", spec.dim_v),
  };
  const auto add = [&words](const auto&... pieces) { words.push_back(absl::StrCat(pieces...)); };
  const auto add_if = [&words](bool condition, const char* word) {
    if (condition) words.emplace_back(word);
  };
  if (spec.layout != Layout::kBshd) add("layout=", NameOf(kLayouts, spec.layout));
  if (spec.strides.has_value()) {
    add("strides=", absl::StrJoin(*spec.strides, ";", [](std::string* out, const Strides& s) {
          absl::StrAppend(out, s.batch, ",", s.seq, ",", s.head, ",", s.dim);
        }));
  }
  add_if(spec.strided_innermost, "strided_innermost");
  if (spec.kv_type.has_value()) add("kv=", NameOf(kElementTypes, *spec.kv_type));
  if (spec.out_type.has_value()) add("out=", NameOf(kElementTypes, *spec.out_type));
  const bool top_left = spec.align == MaskAlign::kTopLeft;
  add_if(spec.causal, top_left ? "causal=top_left" : "causal");
  add_if(!spec.causal && top_left, "align=top_left");
  if (spec.window_left != -1 || spec.window_right != -1) {
    add("window=", spec.window_left, ",", spec.window_right);
  }
  if (spec.block_mask_q != 0 || spec.block_mask_kv != 0) {
    add("block_mask=", spec.block_mask_q, ",", spec.block_mask_kv);
  }
  if (spec.scale.has_value()) add("scale=", ShortestText(*spec.scale));
  if (spec.softcap != 0) add("softcap=", ShortestText(spec.softcap));
  add_if(spec.softcap_before_bias, "softcap_before_bias");
  add_if(spec.alibi, "alibi");
  add_if(spec.alibi_gradient, "alibi_grad");
  for (const BiasTerm& term : spec.bias) words.push_back(BiasText(spec, term));
  add_if(spec.sinks, "sinks");
  add_if(spec.sinks_gradient, "sinks_grad");
  if (spec.dropout != 0) add("dropout=", ShortestText(spec.dropout));
  if (spec.q_scale != ScaleKind::kNone) add("q_scale=", NameOf(kScaleKinds, spec.q_scale));
  if (spec.kv_scale != ScaleKind::kNone) add("kv_scale=", NameOf(kScaleKinds, spec.kv_scale));
  if (!spec.score_snippet.empty()) {
    words.push_back(SnippetWord("score", spec.score_snippet, kDefaultScoreFile));
  }
  if (!spec.score_gradient_snippet.empty()) {
    words.push_back(
        SnippetWord("score_grad", spec.score_gradient_snippet, kDefaultScoreGradientFile));
  }
  if (!spec.mask_snippet.empty()) {
    words.push_back(SnippetWord("mask", spec.mask_snippet, kDefaultMaskFile));
  }
  if (!spec.mask_tile_snippet.empty()) {
    words.push_back(SnippetWord("mask_tile", spec.mask_tile_snippet, kDefaultMaskTileFile));
  }
  for (const SnippetArray& array : spec.snippet_arrays) {
    add("array=", array.name, ":", NameOf(kElementTypes, array.type),
        array.gradient ? ":grad" : "");
  }
  for (const SnippetScalar& scalar : spec.snippet_scalars) {
    add("scalar=", scalar.name, ":", NameOf(kScalarTypes, scalar.type));
  }
  add_if(spec.varlen, "varlen");
  if (spec.page_size != 0) add("paged=", spec.page_size);
  add_if(spec.left_padding, "left_padding");
  add_if(spec.cache_batch_idx, "cache_batch_idx");
  add_if(spec.lse, "lse");
  if (spec.lse_base != LseBase::kE) add("lse_base=", NameOf(kLseBases, spec.lse_base));
  if (spec.empty_lse != EmptyLse::kMinusInf) {
    add("empty_lse=", NameOf(kEmptyLses, spec.empty_lse));
  }
  add_if(spec.allow_tf32, "allow_tf32");
  add_if(spec.deterministic, "deterministic");
  add_if(spec.batch_invariant, "batch_invariant");
  add_if(spec.exact, "exact");
  return absl::StrJoin(words, " ");
}

absl::StatusOr<AttentionSpec> ParseSpec(std::string_view text, const SnippetReader& read_snippet) {
  const std::vector<std::string> words = absl::StrSplit(
      absl::string_view(text.data(), text.size()), absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  if (words.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec \"", Str(text),
                     "\": must begin with an operation and an element type: \"fwd bf16\""));
  }
  Parser parser;
  parser.read_snippet = &read_snippet;
  TILEWRIGHT_ASSIGN_OR_RETURN(parser.spec.operation, ValueOf(kOperations, "operation", words[0]));
  TILEWRIGHT_ASSIGN_OR_RETURN(parser.spec.type, ParseElementType(words[1]));
  std::vector<std::string_view> seen;
  for (size_t n = 2; n < words.size(); ++n) {
    TILEWRIGHT_RETURN_IF_ERROR(
        Annotate(ReadWord(parser, words[n], seen), absl::StrCat("word \"", words[n], "\"")));
  }
  TILEWRIGHT_RETURN_IF_ERROR(Validate(parser.spec));
  return std::move(parser.spec);
}

size_t SpecHash::operator()(const AttentionSpec& spec) const {
  return absl::Hash<HashedSpec>{}(HashedSpec{spec});
}

}  // namespace tilewright::spec

#include "spec/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/canonical.h"

namespace tilewright {

Strides DenseStrides(Layout layout, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim) {
  switch (layout) {
    case Layout::kBshd:
      return {.batch = seqlen * heads * dim, .seq = heads * dim, .head = dim, .dim = 1};
    case Layout::kBhsd:
      return {.batch = heads * seqlen * dim, .seq = dim, .head = seqlen * dim, .dim = 1};
    case Layout::kSbhd:
      return {.batch = heads * dim, .seq = batch * heads * dim, .head = dim, .dim = 1};
    case Layout::kThd:
      return {.batch = 0, .seq = heads * dim, .head = dim, .dim = 1};
  }
  return {};
}

namespace spec {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// ---- messages
// -------------------------------------------------------------------------------------------------------
// Not inlined: the checks around them run on every call.

[[gnu::cold, gnu::noinline]] absl::Status Bad(std::string_view field, const std::string& value,
                                              const std::string& rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field), " = ", value, ": must be ", rule));
}

[[gnu::cold, gnu::noinline]] absl::Status Bad(std::string_view field, int64_t value,
                                              const std::string& rule) {
  return Bad(field, absl::StrCat(value), rule);
}

[[gnu::cold, gnu::noinline]] absl::Status BadFloat(std::string_view field, float value,
                                                   const std::string& rule) {
  return Bad(field, ShortestText(value), rule);
}

[[gnu::cold, gnu::noinline]] absl::Status BadType(std::string_view field, ElementType value,
                                                  const std::string& rule) {
  return Bad(field, std::string(ElementTypeName(value)), rule);
}

[[gnu::cold, gnu::noinline]] absl::Status BadPointer(std::string_view field, const void* pointer,
                                                     int alignment) {
  if (pointer == nullptr) return Bad(field, "null", "set: the spec uses it");
  return Bad(field, absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(pointer))),
             absl::StrCat("a multiple of ", alignment, " bytes"));
}

// ---- overflow
// -------------------------------------------------------------------------------------------------------

struct Step {
  int64_t extent;
  int64_t stride;
};

// Whether the last element that the steps reach, in bytes, fits 63 bits. Extents are >= 1 and
// strides >= 0; four products of 63-bit numbers fit the 128 bits of the sum.
inline bool AddressFits(std::initializer_list<Step> steps, int element_bytes) {
  unsigned __int128 last = 0;
  for (const Step& step : steps) {
    last += static_cast<unsigned __int128>(step.extent - 1) *
            static_cast<unsigned __int128>(step.stride);
  }
  return last < static_cast<unsigned __int128>(kMaxInt64 / element_bytes);
}

bool ProductFits(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(product, std::max<int64_t>(factor, 1), &product)) return false;
  }
  return true;
}

constexpr char kAddressRule[] = "such that every byte offset fits 63 bits";

// ---- spec: types
// ----------------------------------------------------------------------------------------------------

bool Is16Bit(ElementType type) { return type == ElementType::kFp16 || type == ElementType::kBf16; }
bool IsFp8(ElementType type) {
  return type == ElementType::kFp8E4m3 || type == ElementType::kFp8E5m2;
}
bool IsFloat(ElementType type) { return Is16Bit(type) || type == ElementType::kFp32; }

template <typename Enum>
bool InRange(Enum value, Enum last) {
  return static_cast<int>(value) >= 0 && static_cast<int>(value) <= static_cast<int>(last);
}

// Values that no enumerator names reach us through the C ABI and through casts.
absl::Status ValidateEnums(const AttentionSpec& spec) {
  const struct {
    std::string_view field;
    bool ok;
    int value;
  } enums[] = {
      {"operation", InRange(spec.operation, Operation::kBackward),
       static_cast<int>(spec.operation)},
      {"layout", InRange(spec.layout, Layout::kThd), static_cast<int>(spec.layout)},
      {"align", InRange(spec.align, MaskAlign::kTopLeft), static_cast<int>(spec.align)},
      {"q_scale", InRange(spec.q_scale, ScaleKind::kPerToken), static_cast<int>(spec.q_scale)},
      {"kv_scale", InRange(spec.kv_scale, ScaleKind::kPerToken), static_cast<int>(spec.kv_scale)},
      {"lse_base", InRange(spec.lse_base, LseBase::kTwo), static_cast<int>(spec.lse_base)},
      {"empty_lse", InRange(spec.empty_lse, EmptyLse::kPlusInf), static_cast<int>(spec.empty_lse)},
  };
  for (const auto& e : enums) {
    if (!e.ok) return Bad(e.field, e.value, "one of its enumerators");
  }
  return absl::OkStatus();
}

absl::Status ValidateTypes(const AttentionSpec& spec) {
  const ElementType kv = KvType(spec);
  const ElementType out = OutType(spec);
  if (!IsFloat(spec.type) && !IsFp8(spec.type)) {
    return BadType("type", spec.type, "fp16, bf16, fp32, e4m3 or e5m2");
  }
  if (IsFp8(spec.type)) {
    if (!IsFp8(kv)) return BadType("kv_type", kv, "e4m3 or e5m2 when type is fp8");
    if (!Is16Bit(out)) return BadType("out_type", out, "set to fp16 or bf16 when type is fp8");
  } else {
    const bool eight_bit = IsFp8(kv) || kv == ElementType::kInt8;
    if (kv != spec.type && !(eight_bit && Is16Bit(spec.type))) {
      return BadType("kv_type", kv,
                     Is16Bit(spec.type)
                         ? absl::StrCat(std::string(ElementTypeName(spec.type)),
                                        " (as type), e4m3, e5m2 or int8")
                         : "fp32, as type: 8-bit keys and values need 16-bit queries");
    }
    if (!IsFloat(out)) return BadType("out_type", out, "fp16, bf16 or fp32");
  }
  if (spec.q_scale != ScaleKind::kNone && !IsFp8(spec.type)) {
    return BadType("q_scale is set and type", spec.type, "e4m3 or e5m2");
  }
  if (spec.q_scale == ScaleKind::kPerToken) {
    return Bad("q_scale", "token", "per tensor or per head");
  }
  if (spec.kv_scale != ScaleKind::kNone && ElementBytes(kv) != 1) {
    return BadType("kv_scale is set and kv_type", kv, "e4m3, e5m2 or int8");
  }
  return absl::OkStatus();
}

// ---- spec: sizes
// ----------------------------------------------------------------------------------------------------

absl::Status ValidateSizes(const AttentionSpec& spec) {
  const struct {
    std::string_view field;
    int64_t value;
  } sizes[] = {{"batch", spec.batch},         {"heads_q", spec.heads_q},
               {"heads_kv", spec.heads_kv},   {"seqlen_q", spec.seqlen_q},
               {"seqlen_kv", spec.seqlen_kv}, {"page_size", spec.page_size}};
  for (const auto& size : sizes) {
    if (size.value < 0) return Bad(size.field, size.value, ">= 0");
  }
  if (spec.dim_qk < 1) return Bad("dim_qk", spec.dim_qk, ">= 1");
  if (spec.dim_v < 1) return Bad("dim_v", spec.dim_v, ">= 1");
  if ((spec.heads_q == 0) != (spec.heads_kv == 0)) {
    return Bad("heads_kv", spec.heads_kv,
               absl::StrCat("0 exactly when heads_q (", spec.heads_q, ") is 0"));
  }
  if (spec.heads_kv != 0 && spec.heads_q % spec.heads_kv != 0) {
    return Bad("heads_q", spec.heads_q, absl::StrCat("a multiple of heads_kv = ", spec.heads_kv));
  }
  // Dimensions are also ints in the kernels.
  if (spec.dim_qk > kMaxInt32) return Bad("dim_qk", spec.dim_qk, "below 2^31");
  if (spec.dim_v > kMaxInt32) return Bad("dim_v", spec.dim_v, "below 2^31");
  if (spec.heads_q > kMaxInt32) return Bad("heads_q", spec.heads_q, "below 2^31");
  if (spec.page_size > kMaxInt32) return Bad("page_size", spec.page_size, "below 2^31");
  const int64_t dim = std::max(spec.dim_qk, spec.dim_v);
  constexpr int64_t kWidest = 4;
  if (!ProductFits({spec.batch, spec.heads_q, spec.seqlen_q, dim, kWidest})) {
    return Bad("seqlen_q", spec.seqlen_q,
               absl::StrCat(kAddressRule, " (batch = ", spec.batch, ", heads_q = ", spec.heads_q,
                            ", dim = ", dim, ")"));
  }
  if (!ProductFits({spec.batch, spec.heads_kv, spec.seqlen_kv, dim, kWidest})) {
    return Bad("seqlen_kv", spec.seqlen_kv,
               absl::StrCat(kAddressRule, " (batch = ", spec.batch, ", heads_kv = ", spec.heads_kv,
                            ", dim = ", dim, ")"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLayout(const AttentionSpec& spec) {
  if (spec.layout == Layout::kThd && !spec.varlen) {
    return Bad("layout", "thd", "another one unless varlen is set: it packs sequences of a batch");
  }
  if (spec.left_padding && !spec.varlen) {
    return Bad("left_padding", "true", "false unless varlen is set: sequences differ by it");
  }
  if (spec.cache_batch_idx && spec.operation == Operation::kBackward) {
    return Bad("cache_batch_idx", "true", "false in a backward pass: slots may be shared");
  }
  if (spec.exact && spec.varlen) {
    return Bad("exact", "true", "false with varlen: the lengths come from the device");
  }
  if (!spec.strides.has_value()) return absl::OkStatus();
  const std::string_view names[] = {"strides.q", "strides.k", "strides.v", "strides.o"};
  for (int i = 0; i < 4; ++i) {
    const Strides& s = (*spec.strides)[i];
    const std::string field(names[i]);
    const bool is_kv = i == 1 || i == 2;
    const int64_t dim = i < 2 ? spec.dim_qk : spec.dim_v;
    if (s.batch < 0) return Bad(field + ".batch", s.batch, ">= 0");
    if (s.seq < 0) return Bad(field + ".seq", s.seq, ">= 0");
    if (s.head < 0) return Bad(field + ".head", s.head, ">= 0");
    if (s.dim < 0) return Bad(field + ".dim", s.dim, ">= 0");
    if (s.dim != 1 && !spec.strided_innermost && dim > 1) {
      return Bad(field + ".dim", s.dim, "1 unless strided_innermost is set");
    }
    const int64_t seqlen = is_kv ? spec.seqlen_kv : spec.seqlen_q;
    const int64_t heads = is_kv ? spec.heads_kv : spec.heads_q;
    const ElementType type = is_kv ? KvType(spec) : i == 0 ? spec.type : OutType(spec);
    if (!AddressFits({{std::max<int64_t>(spec.batch, 1), s.batch},
                      {std::max<int64_t>(seqlen, 1), s.seq},
                      {std::max<int64_t>(heads, 1), s.head},
                      {dim, s.dim}},
                     ElementBytes(type))) {
      return Bad(field, absl::StrCat(s.batch, ",", s.seq, ",", s.head, ",", s.dim), kAddressRule);
    }
  }
  return absl::OkStatus();
}

// ---- spec: scores and masks
// -----------------------------------------------------------------------------------------

absl::Status ValidateMasks(const AttentionSpec& spec) {
  if (spec.window_left < -1) return Bad("window_left", spec.window_left, ">= -1 (-1: unbounded)");
  if (spec.window_right < -1) {
    return Bad("window_right", spec.window_right, ">= -1 (-1: unbounded)");
  }
  if (spec.block_mask_q < 0) return Bad("block_mask_q", spec.block_mask_q, ">= 0");
  if (spec.block_mask_kv < 0) return Bad("block_mask_kv", spec.block_mask_kv, ">= 0");
  if ((spec.block_mask_q == 0) != (spec.block_mask_kv == 0)) {
    return Bad("block_mask_kv", spec.block_mask_kv,
               absl::StrCat("0 exactly when block_mask_q (", spec.block_mask_q, ") is 0"));
  }
  return absl::OkStatus();
}

absl::Status ValidateBias(const AttentionSpec& spec) {
  if (spec.bias.size() > 4) {
    return Bad("bias.size", static_cast<int64_t>(spec.bias.size()), "at most 4");
  }
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    const std::string field = absl::StrCat("bias[", n, "]");
    if (!IsFloat(term.type) && term.type != ElementType::kBool) {
      return BadType(field + ".type", term.type, "fp16, bf16, fp32 or bool");
    }
    if (term.gradient && term.type == ElementType::kBool) {
      return BadType(field + ".gradient is set and " + field + ".type", term.type,
                     "an additive one: fp16, bf16 or fp32");
    }
    if (!InRange(term.batch_map, BatchMap::kDiv)) {
      return Bad(field + ".batch_map", static_cast<int>(term.batch_map), "one of its enumerators");
    }
    const bool batch_ok = term.batch == 1 || term.batch == spec.batch ||
                          (term.batch > 0 && spec.batch % term.batch == 0);
    if (!batch_ok) {
      return Bad(field + ".batch", term.batch,
                 absl::StrCat("1 or a divisor of batch = ", spec.batch));
    }
    if (term.heads != 1 && term.heads != spec.heads_q) {
      return Bad(field + ".heads", term.heads, absl::StrCat("1 or heads_q = ", spec.heads_q));
    }
    if (term.seqlen_q != 1 && term.seqlen_q != spec.seqlen_q) {
      return Bad(field + ".seqlen_q", term.seqlen_q,
                 absl::StrCat("1 or seqlen_q = ", spec.seqlen_q));
    }
    if (term.seqlen_kv != 1 && term.seqlen_kv != spec.seqlen_kv) {
      return Bad(field + ".seqlen_kv", term.seqlen_kv,
                 absl::StrCat("1 or seqlen_kv = ", spec.seqlen_kv));
    }
    if (!ProductFits(
            {term.batch, term.heads, term.seqlen_q, term.seqlen_kv, ElementBytes(term.type)})) {
      return Bad(field,
                 absl::StrCat(term.batch, ",", term.heads, ",", term.seqlen_q, ",", term.seqlen_kv),
                 kAddressRule);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateScores(const AttentionSpec& spec) {
  if (spec.scale.has_value() && !std::isfinite(*spec.scale)) {
    return BadFloat("scale", *spec.scale, "finite");
  }
  if (!std::isfinite(spec.softcap) || spec.softcap < 0) {
    return BadFloat("softcap", spec.softcap, "finite and >= 0 (0: off)");
  }
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    return BadFloat("dropout", spec.dropout, "in [0, 1)");
  }
  return ValidateBias(spec);
}

// ---- spec: snippets
// -------------------------------------------------------------------------------------------------

bool IsIdentifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Names that a snippet cannot be given: those already in its scope, and words of C++ and CUDA.
bool IsTaken(std::string_view name) {
  static constexpr std::string_view kTaken[] = {
      "score",       "d_score",
      "Accumulate",  "b",
      "h",           "i",
      "j",           "seqlen_q",
      "seqlen_kv",   "Scalar",
      "alignas",     "alignof",
      "and",         "and_eq",
      "asm",         "auto",
      "bitand",      "bitor",
      "bool",        "break",
      "case",        "catch",
      "char",        "char16_t",
      "char32_t",    "char8_t",
      "class",       "co_await",
      "co_return",   "co_yield",
      "compl",       "concept",
      "const",       "const_cast",
      "consteval",   "constexpr",
      "constinit",   "continue",
      "decltype",    "default",
      "delete",      "do",
      "double",      "dynamic_cast",
      "else",        "enum",
      "explicit",    "export",
      "extern",      "false",
      "float",       "for",
      "friend",      "goto",
      "if",          "inline",
      "int",         "long",
      "mutable",     "namespace",
      "new",         "noexcept",
      "not",         "not_eq",
      "nullptr",     "operator",
      "or",          "or_eq",
      "private",     "protected",
      "public",      "register",
      "requires",    "reinterpret_cast",
      "return",      "short",
      "signed",      "sizeof",
      "static",      "static_assert",
      "static_cast", "struct",
      "switch",      "template",
      "this",        "thread_local",
      "throw",       "true",
      "try",         "typedef",
      "typeid",      "typename",
      "union",       "unsigned",
      "using",       "virtual",
      "void",        "volatile",
      "wchar_t",     "while",
      "xor",         "xor_eq",
      "threadIdx",   "blockIdx",
      "blockDim",    "gridDim",
      "warpSize",    "tilewright",
  };
  return std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken) ||
         name.find("__") != std::string_view::npos;
}

absl::Status ValidateGradients(const AttentionSpec& spec) {
  if (spec.operation == Operation::kForward) return absl::OkStatus();  // they say nothing there
  if (spec.alibi_gradient && !spec.alibi) {
    return Bad("alibi_gradient", "true", "false without alibi");
  }
  if (spec.sinks_gradient && !spec.sinks) {
    return Bad("sinks_gradient", "true", "false without sinks");
  }
  if (!spec.score_gradient_snippet.empty() && spec.score_snippet.empty()) {
    return Bad("score_gradient_snippet", "\"...\"", "empty without a score_snippet");
  }
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    if (!spec.snippet_arrays[n].gradient) continue;
    const std::string field = absl::StrCat("snippet_arrays[", n, "].gradient");
    if (spec.score_gradient_snippet.empty()) {
      return Bad(field, "true", "false without a score_gradient_snippet, which adds to it");
    }
    if (spec.deterministic) {
      return Bad(field, "true", "false when deterministic: the order of the sums is not fixed");
    }
    const std::string name = absl::StrCat("d_", spec.snippet_arrays[n].name);
    for (const SnippetArray& other : spec.snippet_arrays) {
      if (other.name == name) {
        return Bad(field, "true", absl::StrCat("false while another array is named ", name));
      }
    }
    for (const SnippetScalar& other : spec.snippet_scalars) {
      if (other.name == name) {
        return Bad(field, "true", absl::StrCat("false while a scalar is named ", name));
      }
    }
  }
  return absl::OkStatus();
}

// The compiler's input ends at such bytes, which no text has (0xff is none of UTF-8).
absl::Status ValidateText(const char* field, const Snippet& snippet) {
  const size_t at = snippet.text.find_first_of(std::string_view("\0\xff", 2));
  if (at == std::string::npos) return absl::OkStatus();
  const auto lines = std::count(snippet.text.begin(), snippet.text.begin() + at, '\n');
  return Bad(field,
             absl::StrCat("a byte ", snippet.text[at] == 0 ? "0" : "0xff", " in line ", lines + 1),
             "text");
}

absl::Status ValidateSnippets(const AttentionSpec& spec) {
  TILEWRIGHT_RETURN_IF_ERROR(ValidateText("score_snippet", spec.score_snippet));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateText("score_gradient_snippet", spec.score_gradient_snippet));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateText("mask_snippet", spec.mask_snippet));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateText("mask_tile_snippet", spec.mask_tile_snippet));
  if (!spec.mask_tile_snippet.empty() && spec.mask_snippet.empty()) {
    return Bad("mask_tile_snippet", "\"...\"", "empty without a mask_snippet");
  }
  if (spec.snippet_arrays.size() > 8) {
    return Bad("snippet_arrays.size", static_cast<int64_t>(spec.snippet_arrays.size()),
               "at most 8");
  }
  if (spec.snippet_scalars.size() > 8) {
    return Bad("snippet_scalars.size", static_cast<int64_t>(spec.snippet_scalars.size()),
               "at most 8");
  }
  std::vector<std::string_view> names;
  const auto check_name = [&names](const std::string& field,
                                   const std::string& name) -> absl::Status {
    const std::string quoted = absl::StrCat("\"", name, "\"");
    if (!IsIdentifier(name)) return Bad(field, quoted, "a C++ identifier");
    if (IsTaken(name)) {
      return Bad(field, quoted, "a name that neither C++ nor the scope of a snippet has already");
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return Bad(field, quoted, "unique among the arrays and scalars of the spec");
    }
    names.push_back(name);
    return absl::OkStatus();
  };
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    const std::string field = absl::StrCat("snippet_arrays[", n, "]");
    TILEWRIGHT_RETURN_IF_ERROR(check_name(field + ".name", spec.snippet_arrays[n].name));
    if (!InRange(spec.snippet_arrays[n].type, ElementType::kInt32)) {
      return Bad(field + ".type", static_cast<int>(spec.snippet_arrays[n].type),
                 "one of its enumerators");
    }
  }
  for (size_t n = 0; n < spec.snippet_scalars.size(); ++n) {
    const std::string field = absl::StrCat("snippet_scalars[", n, "]");
    TILEWRIGHT_RETURN_IF_ERROR(check_name(field + ".name", spec.snippet_scalars[n].name));
    if (!InRange(spec.snippet_scalars[n].type, ScalarType::kInt64)) {
      return Bad(field + ".type", static_cast<int>(spec.snippet_scalars[n].type),
                 "one of its enumerators");
    }
  }
  return absl::OkStatus();
}

// ---- args
// -----------------------------------------------------------------------------------------------------------

inline bool PointerOk(const void* pointer, int alignment) {
  return pointer != nullptr && (reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) == 0;
}

[[gnu::cold, gnu::noinline]] absl::Status BadTensor(std::string_view name, const void* data,
                                                    const Strides& s, int element_bytes,
                                                    bool strided_innermost, int64_t dim) {
  const std::string field(name);
  if (!PointerOk(data, element_bytes)) return BadPointer(field + ".data", data, element_bytes);
  if (s.batch < 0) return Bad(field + ".strides.batch", s.batch, ">= 0");
  if (s.seq < 0) return Bad(field + ".strides.seq", s.seq, ">= 0");
  if (s.head < 0) return Bad(field + ".strides.head", s.head, ">= 0");
  if (s.dim < 0) return Bad(field + ".strides.dim", s.dim, ">= 0");
  if (s.dim != 1 && dim > 1 && !strided_innermost) {
    return Bad(field + ".strides.dim", s.dim, "1 unless the spec has strided_innermost");
  }
  return Bad(field + ".strides", absl::StrCat(s.batch, ",", s.seq, ",", s.head, ",", s.dim),
             kAddressRule);
}

// `batches` is 1 for packed tensors, whose batch stride is not used.
inline absl::Status CheckTensor(std::string_view name, const void* data, const Strides& s,
                                int64_t batches, int64_t rows, int64_t heads, int64_t dim,
                                int element_bytes, bool strided_innermost) {
  // A negative stride has its sign bit set, and so has the OR.
  if (PointerOk(data, element_bytes) && (s.batch | s.seq | s.head | s.dim) >= 0 &&
      (s.dim == 1 || dim == 1 || strided_innermost) &&
      AddressFits({{batches, s.batch}, {rows, s.seq}, {heads, s.head}, {dim, s.dim}},
                  element_bytes)) {
    return absl::OkStatus();
  }
  return BadTensor(name, data, s, element_bytes, strided_innermost, dim);
}

// Rows of an output that share memory would be written by several threads at once.
absl::Status CheckOutputStrides(std::string_view name, const Strides& s, int64_t batches,
                                int64_t rows, int64_t heads, int64_t dim) {
  const bool shared = (s.batch == 0 && batches > 1) || (s.seq == 0 && rows > 1) ||
                      (s.head == 0 && heads > 1) || (s.dim == 0 && dim > 1);
  if (!shared) return absl::OkStatus();
  const char* axis = s.batch == 0 && batches > 1 ? "batch"
                     : s.seq == 0 && rows > 1    ? "seq"
                     : s.head == 0 && heads > 1  ? "head"
                                                 : "dim";
  return Bad(absl::StrCat(std::string(name), ".strides.", axis), 0, "> 0: it is written");
}

absl::Status CheckSizes(const AttentionSpec& spec, const AttentionArgs& args) {
  if ((args.batch | args.seqlen_q | args.seqlen_kv) < 0) {
    if (args.batch < 0) return Bad("batch", args.batch, ">= 0");
    if (args.seqlen_q < 0) return Bad("seqlen_q", args.seqlen_q, ">= 0");
    return Bad("seqlen_kv", args.seqlen_kv, ">= 0");
  }
  if (spec.exact) {
    if (args.batch != spec.batch) {
      return Bad("batch", args.batch, absl::StrCat(spec.batch, ": the spec is exact"));
    }
    if (args.seqlen_q != spec.seqlen_q) {
      return Bad("seqlen_q", args.seqlen_q, absl::StrCat(spec.seqlen_q, ": the spec is exact"));
    }
    if (args.seqlen_kv != spec.seqlen_kv) {
      return Bad("seqlen_kv", args.seqlen_kv, absl::StrCat(spec.seqlen_kv, ": the spec is exact"));
    }
  }
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    // A batch extent equal to the spec's follows the call; a smaller one is a fixed table.
    const int64_t extent = spec.bias[n].batch;
    if (extent > 1 && extent != spec.batch && args.batch % extent != 0) {
      return Bad("batch", args.batch, absl::StrCat("a multiple of bias[", n, "].batch = ", extent));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const AttentionSpec& spec, const AttentionArgs& args) {
  if (args.cu_seqlens_q == nullptr && args.cu_seqlens_kv == nullptr && args.seqused_q == nullptr &&
      args.seqused_kv == nullptr && !spec.left_padding) {
    return Bad("cu_seqlens_q", "null",
               "set, or cu_seqlens_kv, seqused_q or seqused_kv: the spec is varlen");
  }
  if (spec.layout == Layout::kThd && args.cu_seqlens_q == nullptr) {
    return Bad("cu_seqlens_q", "null", "set: the layout of the spec is thd");
  }
  const struct {
    std::string_view field;
    const int32_t* pointer;
  } lengths[] = {{"cu_seqlens_q", args.cu_seqlens_q},
                 {"cu_seqlens_kv", args.cu_seqlens_kv},
                 {"seqused_q", args.seqused_q},
                 {"seqused_kv", args.seqused_kv}};
  for (const auto& length : lengths) {
    if (length.pointer != nullptr && !PointerOk(length.pointer, 4)) {
      return BadPointer(length.field, length.pointer, 4);
    }
  }
  if (args.cu_seqlens_q != nullptr) {
    if (args.total_q < 0 || args.total_q > kMaxInt32) {
      return Bad("total_q", args.total_q, "in [0, 2^31): it is an entry of cu_seqlens_q");
    }
    if (static_cast<unsigned __int128>(args.total_q) >
        static_cast<unsigned __int128>(args.batch) *
            static_cast<unsigned __int128>(args.seqlen_q)) {
      return Bad("seqlen_q", args.seqlen_q,
                 absl::StrCat("at least the longest sequence, so batch * seqlen_q at least "
                              "total_q = ",
                              args.total_q));
    }
  }
  if (args.cu_seqlens_kv != nullptr && (args.total_kv < 0 || args.total_kv > kMaxInt32)) {
    return Bad("total_kv", args.total_kv, "in [0, 2^31)");
  }
  return absl::OkStatus();
}

absl::Status CheckBias(const AttentionSpec& spec, const AttentionArgs& args) {
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    const BiasTensor& bias = args.bias[n];
    const int bytes = ElementBytes(term.type);
    // Extents of 1 have no stride.
    const int64_t batch_stride = term.batch == 1 ? 0 : bias.stride_batch;
    const int64_t head_stride = term.heads == 1 ? 0 : bias.stride_head;
    const int64_t q_stride = term.seqlen_q == 1 ? 0 : bias.stride_q;
    const int64_t kv_stride = term.seqlen_kv == 1 ? 0 : bias.stride_kv;
    const int64_t batches = term.batch == spec.batch ? args.batch : term.batch;
    if (PointerOk(bias.data, bytes) && (batch_stride | head_stride | q_stride | kv_stride) >= 0 &&
        AddressFits({{std::max<int64_t>(batches, 1), batch_stride},
                     {term.heads, head_stride},
                     {args.seqlen_q, q_stride},
                     {args.seqlen_kv, kv_stride}},
                    bytes)) {
      continue;
    }
    const std::string field = absl::StrCat("bias[", n, "]");
    if (!PointerOk(bias.data, bytes)) return BadPointer(field + ".data", bias.data, bytes);
    if (batch_stride < 0) return Bad(field + ".stride_batch", batch_stride, ">= 0");
    if (head_stride < 0) return Bad(field + ".stride_head", head_stride, ">= 0");
    if (q_stride < 0) return Bad(field + ".stride_q", q_stride, ">= 0");
    if (kv_stride < 0) return Bad(field + ".stride_kv", kv_stride, ">= 0");
    return Bad(field + ".strides",
               absl::StrCat(batch_stride, ",", head_stride, ",", q_stride, ",", kv_stride),
               kAddressRule);
  }
  return absl::OkStatus();
}

// Arrays of up to three strided dimensions: ALiBi slopes, the block mask, scales.
absl::Status CheckArray(std::string_view field, const void* data, int element_bytes,
                        std::initializer_list<Step> steps) {
  if (!PointerOk(data, element_bytes)) return BadPointer(field, data, element_bytes);
  int64_t signs = 0;
  for (const Step& step : steps) signs |= step.stride;
  if (signs >= 0 && AddressFits(steps, element_bytes)) return absl::OkStatus();
  std::string strides;
  for (const Step& step : steps) {
    absl::StrAppend(&strides, strides.empty() ? "" : ",", step.stride);
  }
  return Bad(absl::StrCat("strides of ", std::string(field)), strides,
             signs < 0 ? ">= 0" : kAddressRule);
}

absl::Status CheckScales(const AttentionSpec& spec, const AttentionArgs& args, int64_t kv_batches,
                         int64_t kv_rows) {
  if (spec.q_scale != ScaleKind::kNone) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckArray("q_scale", args.q_scale, 4, {}));
  }
  if (spec.kv_scale == ScaleKind::kNone) return absl::OkStatus();
  const bool per_token = spec.kv_scale == ScaleKind::kPerToken;
  const struct {
    std::string_view field;
    const float* data;
    const std::array<int64_t, 3>& strides;
  } scales[] = {{"k_scale", args.k_scale, args.k_scale_strides},
                {"v_scale", args.v_scale, args.v_scale_strides}};
  for (const auto& scale : scales) {
    if (per_token) {
      TILEWRIGHT_RETURN_IF_ERROR(CheckArray(scale.field, scale.data, 4,
                                            {{kv_batches, scale.strides[0]},
                                             {spec.heads_kv, scale.strides[1]},
                                             {kv_rows, scale.strides[2]}}));
    } else {
      TILEWRIGHT_RETURN_IF_ERROR(CheckArray(scale.field, scale.data, 4, {}));
    }
  }
  return absl::OkStatus();
}

// Everything that is neither Q, K, V nor O and that few specs use.
absl::Status CheckFeatures(const AttentionSpec& spec, const AttentionArgs& args, bool has_keys) {
  if (spec.alibi && has_keys) {
    TILEWRIGHT_RETURN_IF_ERROR(
        CheckArray("alibi_slopes", args.alibi_slopes, 4,
                   {{args.batch, args.alibi_stride_batch}, {spec.heads_q, 1}}));
  }
  if (spec.sinks && !PointerOk(args.sinks, 4)) return BadPointer("sinks", args.sinks, 4);
  if (has_keys) TILEWRIGHT_RETURN_IF_ERROR(CheckBias(spec, args));
  if (spec.block_mask_q > 0 && has_keys) {
    const auto& s = args.block_mask_strides;
    const int64_t blocks = (args.seqlen_q - 1) / spec.block_mask_q + 1;
    TILEWRIGHT_RETURN_IF_ERROR(
        CheckArray("block_mask", args.block_mask, 1,
                   {{args.batch, s[0]}, {spec.heads_q, s[1]}, {blocks, s[2]}}));
  }
  if (spec.dropout > 0) {
    if (args.dropout_seed_ptr != nullptr && !PointerOk(args.dropout_seed_ptr, 8)) {
      return BadPointer("dropout_seed_ptr", args.dropout_seed_ptr, 8);
    }
    if (args.dropout_offset_ptr != nullptr && !PointerOk(args.dropout_offset_ptr, 8)) {
      return BadPointer("dropout_offset_ptr", args.dropout_offset_ptr, 8);
    }
  }
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    const int bytes = ElementBytes(spec.snippet_arrays[n].type);
    if (!PointerOk(args.snippet_arrays[n], bytes)) {
      return BadPointer(absl::StrCat("snippet_arrays[", n, "]"), args.snippet_arrays[n], bytes);
    }
  }
  return absl::OkStatus();
}

// Backward: the outputs beside dQ, dK and dV.
absl::Status CheckFeatureGradients(const AttentionSpec& spec, const AttentionArgs& args) {
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    if (!term.gradient) continue;
    const BiasGradient& gradient = args.d_bias[n];
    const int64_t batches =
        term.batch == spec.batch ? std::max<int64_t>(args.batch, 1) : term.batch;
    const struct {
      const char* axis;
      int64_t extent;
      int64_t stride;
    } axes[] = {
        {"stride_batch", term.batch == 1 ? 1 : batches, gradient.stride_batch},
        {"stride_head", term.heads, gradient.stride_head},
        {"stride_q", term.seqlen_q == 1 ? 1 : args.seqlen_q, gradient.stride_q},
        {"stride_kv", term.seqlen_kv == 1 ? 1 : args.seqlen_kv, gradient.stride_kv},
    };
    if (std::any_of(std::begin(axes), std::end(axes),
                    [](auto& axis) { return axis.extent == 0; })) {
      continue;  // no element: any pointer and strides will do
    }
    const std::string field = absl::StrCat("d_bias[", n, "]");
    if (!PointerOk(gradient.data, 4)) return BadPointer(field + ".data", gradient.data, 4);
    unsigned __int128 last = 0;
    for (const auto& axis : axes) {
      if (axis.extent <= 1) continue;
      if (axis.stride <= 0) {
        return Bad(absl::StrCat(field, ".", axis.axis), axis.stride, "> 0: it is written");
      }
      last += static_cast<unsigned __int128>(axis.extent - 1) *
              static_cast<unsigned __int128>(axis.stride);
    }
    if (last >= static_cast<unsigned __int128>(kMaxInt64 / 4)) {
      return Bad(field + ".strides",
                 absl::StrCat(gradient.stride_batch, ",", gradient.stride_head, ",",
                              gradient.stride_q, ",", gradient.stride_kv),
                 kAddressRule);
    }
  }
  if (spec.alibi_gradient && !PointerOk(args.d_alibi_slopes, 4)) {
    return BadPointer("d_alibi_slopes", args.d_alibi_slopes, 4);
  }
  if (spec.sinks_gradient && !PointerOk(args.d_sinks, 4)) {
    return BadPointer("d_sinks", args.d_sinks, 4);
  }
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    if (spec.snippet_arrays[n].gradient && !PointerOk(args.d_snippet_arrays[n], 4)) {
      return BadPointer(absl::StrCat("d_snippet_arrays[", n, "]"), args.d_snippet_arrays[n], 4);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLse(const AttentionSpec& spec, const AttentionArgs& args, int64_t batches,
                      int64_t rows) {
  if (!PointerOk(args.lse, 4)) return BadPointer("lse", args.lse, 4);
  if (args.lse_stride_batch < 0) return Bad("lse_stride_batch", args.lse_stride_batch, ">= 0");
  if (args.lse_stride_head < 0) return Bad("lse_stride_head", args.lse_stride_head, ">= 0");
  if (!AddressFits(
          {{batches, args.lse_stride_batch}, {spec.heads_q, args.lse_stride_head}, {rows, 1}}, 4)) {
    return Bad("lse strides", absl::StrCat(args.lse_stride_batch, ",", args.lse_stride_head),
               kAddressRule);
  }
  return absl::OkStatus();
}

}  // namespace

int ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kFp32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFp16:
    case ElementType::kBf16:
      return 2;
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2:
    case ElementType::kInt8:
    case ElementType::kBool:
      return 1;
  }
  return 1;
}

ElementType KvType(const AttentionSpec& spec) { return spec.kv_type.value_or(spec.type); }

ElementType OutType(const AttentionSpec& spec) { return spec.out_type.value_or(spec.type); }

float EffectiveScale(const AttentionSpec& spec) {
  if (spec.scale.has_value()) return *spec.scale;
  return static_cast<float>(1 / std::sqrt(static_cast<double>(spec.dim_qk)));
}

int64_t GroupSize(const AttentionSpec& spec) {
  return spec.heads_kv == 0 ? 1 : spec.heads_q / spec.heads_kv;
}

int64_t EffectiveWindowRight(const AttentionSpec& spec) {
  return spec.causal ? 0 : spec.window_right;
}

KeyBounds KeysInWindow(const AttentionSpec& spec, int64_t seqlen_q, int64_t seqlen_kv) {
  const int64_t reach = seqlen_q + seqlen_kv;  // no distance is larger
  const int64_t right = EffectiveWindowRight(spec);
  const int64_t diagonal = spec.align == MaskAlign::kTopLeft ? 0 : seqlen_kv - seqlen_q;
  KeyBounds keys = {0, seqlen_kv};
  if (spec.window_left >= 0) {
    keys.begin = std::clamp<int64_t>(diagonal - std::min(spec.window_left, reach), 0, seqlen_kv);
  }
  if (right >= 0) {
    keys.end = std::clamp<int64_t>(diagonal + seqlen_q + std::min(right, reach), 0, seqlen_kv);
  }
  return keys;
}

std::array<Strides, 4> EffectiveStrides(const AttentionSpec& spec) {
  if (spec.strides.has_value()) return *spec.strides;
  // Pages hold the tokens of one sequence, so there is no packed or sequence-first form of them.
  const bool paged = spec.page_size > 0;
  const Layout kv_layout = paged && spec.layout != Layout::kBhsd ? Layout::kBshd : spec.layout;
  const int64_t kv_rows = paged ? spec.page_size : spec.seqlen_kv;
  return {DenseStrides(spec.layout, spec.batch, spec.seqlen_q, spec.heads_q, spec.dim_qk),
          DenseStrides(kv_layout, spec.batch, kv_rows, spec.heads_kv, spec.dim_qk),
          DenseStrides(kv_layout, spec.batch, kv_rows, spec.heads_kv, spec.dim_v),
          DenseStrides(spec.layout, spec.batch, spec.seqlen_q, spec.heads_q, spec.dim_v)};
}

absl::Status Validate(const AttentionSpec& spec) {
  TILEWRIGHT_RETURN_IF_ERROR(ValidateEnums(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateTypes(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateSizes(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateLayout(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateMasks(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateScores(spec));
  TILEWRIGHT_RETURN_IF_ERROR(ValidateGradients(spec));
  return ValidateSnippets(spec);
}

absl::Status ValidateArgs(const AttentionSpec& spec, const AttentionArgs& args) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckSizes(spec, args));
  if (spec.varlen) TILEWRIGHT_RETURN_IF_ERROR(CheckLengths(spec, args));

  // Packed tensors have one batch of total rows.
  const bool packed_q = spec.varlen && args.cu_seqlens_q != nullptr;
  const int64_t q_batches = packed_q ? 1 : args.batch;
  const int64_t q_rows = packed_q ? args.total_q : args.seqlen_q;
  if (args.batch == 0 || q_rows == 0 || args.seqlen_q == 0 || spec.heads_q == 0) {
    return absl::OkStatus();  // nothing will be launched
  }
  const bool strided = spec.strided_innermost;
  TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("q", args.q.data, args.q.strides, q_batches, q_rows,
                                         spec.heads_q, spec.dim_qk, ElementBytes(spec.type),
                                         strided));
  TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("o", args.o.data, args.o.strides, q_batches, q_rows,
                                         spec.heads_q, spec.dim_v, ElementBytes(OutType(spec)),
                                         strided));
  const bool backward = spec.operation == Operation::kBackward;
  if (backward) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("d_o", args.d_o.data, args.d_o.strides, q_batches,
                                           q_rows, spec.heads_q, spec.dim_v,
                                           ElementBytes(OutType(spec)), strided));
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("d_q", args.d_q.data, args.d_q.strides, q_batches,
                                           q_rows, spec.heads_q, spec.dim_qk,
                                           ElementBytes(spec.type), strided));
    TILEWRIGHT_RETURN_IF_ERROR(
        CheckOutputStrides("d_q", args.d_q.strides, q_batches, q_rows, spec.heads_q, spec.dim_qk));
  } else {
    TILEWRIGHT_RETURN_IF_ERROR(
        CheckOutputStrides("o", args.o.strides, q_batches, q_rows, spec.heads_q, spec.dim_v));
  }
  if (spec.lse || backward) TILEWRIGHT_RETURN_IF_ERROR(CheckLse(spec, args, q_batches, q_rows));

  // Numbers of pages and slots are int32 values of the device: any may come.
  const bool paged = spec.page_size > 0;
  const bool packed_kv = spec.varlen && !paged && args.cu_seqlens_kv != nullptr;
  const int64_t kv_batches = paged || spec.cache_batch_idx ? kMaxInt32 : packed_kv ? 1 : args.batch;
  const int64_t kv_rows = paged ? spec.page_size : packed_kv ? args.total_kv : args.seqlen_kv;
  const bool has_keys = args.seqlen_kv > 0 && kv_rows > 0;
  if (spec.left_padding && !PointerOk(args.left_padding, 4)) {
    return BadPointer("left_padding", args.left_padding, 4);
  }
  if (spec.cache_batch_idx) {
    if (!PointerOk(args.cache_batch_idx, 4)) {
      return BadPointer("cache_batch_idx", args.cache_batch_idx, 4);
    }
    if (packed_kv) {
      return Bad("cu_seqlens_kv", "set",
                 "null with cache_batch_idx: packed sequences lie in no slot");
    }
  }
  if (has_keys) {
    const int kv_bytes = ElementBytes(KvType(spec));
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("k", args.k.data, args.k.strides, kv_batches, kv_rows,
                                           spec.heads_kv, spec.dim_qk, kv_bytes, strided));
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("v", args.v.data, args.v.strides, kv_batches, kv_rows,
                                           spec.heads_kv, spec.dim_v, kv_bytes, strided));
    if (paged) {
      const int64_t pages = (args.seqlen_kv - 1) / spec.page_size + 1;
      TILEWRIGHT_RETURN_IF_ERROR(CheckArray("page_table", args.page_table, 4,
                                            {{args.batch, args.page_table_stride}, {pages, 1}}));
    }
    TILEWRIGHT_RETURN_IF_ERROR(CheckScales(spec, args, kv_batches, kv_rows));
  }
  TILEWRIGHT_RETURN_IF_ERROR(CheckFeatures(spec, args, has_keys));
  if (backward) {
    if (has_keys) {
      const int kv_bytes = ElementBytes(KvType(spec));
      const struct {
        std::string_view name;
        const MutableTensor& tensor;
        int64_t dim;
      } outputs[] = {{"d_k", args.d_k, spec.dim_qk}, {"d_v", args.d_v, spec.dim_v}};
      for (const auto& output : outputs) {
        TILEWRIGHT_RETURN_IF_ERROR(CheckTensor(output.name, output.tensor.data,
                                               output.tensor.strides, kv_batches, kv_rows,
                                               spec.heads_kv, output.dim, kv_bytes, strided));
        TILEWRIGHT_RETURN_IF_ERROR(CheckOutputStrides(
            output.name, output.tensor.strides, kv_batches, kv_rows, spec.heads_kv, output.dim));
      }
    }
    TILEWRIGHT_RETURN_IF_ERROR(CheckFeatureGradients(spec, args));
  }
  if (args.workspace != nullptr && !PointerOk(args.workspace, 256)) {
    return BadPointer("workspace", args.workspace, 256);
  }
  return absl::OkStatus();
}

}  // namespace spec
}  // namespace tilewright

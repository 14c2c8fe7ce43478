#include "spec/cache_append.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::spec {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// Frequencies that fit a kernel's parameters.
constexpr int64_t kMostPairs = 448;

[[gnu::cold, gnu::noinline]] absl::Status Bad(std::string_view field, const std::string& value,
                                              std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field), " = ", value, ": must be ", std::string(rule)));
}
[[gnu::cold, gnu::noinline]] absl::Status Bad(std::string_view field, int64_t value,
                                              std::string_view rule) {
  return Bad(field, absl::StrCat(value), rule);
}

bool IsFloat(ElementType type) {
  return type == ElementType::kFp32 || type == ElementType::kFp16 || type == ElementType::kBf16;
}
std::string Name(ElementType type) { return std::string(ElementTypeName(type)); }

absl::Status ValidateRotary(const CacheAppendSpec& spec) {
  if (spec.rotary == Rotary::kNone) {
    if (spec.heads_q != 0) return Bad("heads_q", spec.heads_q, "0 without a rotary embedding");
    return absl::OkStatus();
  }
  if (spec.rotary != Rotary::kHalfSplit && spec.rotary != Rotary::kInterleaved) {
    return Bad("rotary", static_cast<int>(spec.rotary), "one of its enumerators");
  }
  if (spec.rotary_begin < 0 || spec.rotary_begin % 2 != 0 || spec.rotary_begin >= spec.dim_qk) {
    return Bad("rotary_begin", spec.rotary_begin,
               absl::StrCat("even, >= 0 and below dim_qk = ", spec.dim_qk));
  }
  const int64_t columns = 2 * RotaryPairs(spec);
  if (spec.rotary_dim < 0 || spec.rotary_dim % 2 != 0 || columns == 0 ||
      columns > spec.dim_qk - spec.rotary_begin) {
    return Bad("rotary_dim", spec.rotary_dim,
               absl::StrCat("even, >= 0 and at most dim_qk - rotary_begin = ",
                            spec.dim_qk - spec.rotary_begin));
  }
  if (spec.rotary_dim == 0 && (spec.dim_qk - spec.rotary_begin) % 2 != 0) {
    return Bad(
        "rotary_dim", spec.rotary_dim,
        absl::StrCat("set: dim_qk - rotary_begin = ", spec.dim_qk - spec.rotary_begin, " is odd"));
  }
  if (spec.rotary_table.has_value()) {
    if (!IsFloat(*spec.rotary_table)) {
      return Bad("rotary_table", Name(*spec.rotary_table), "fp32, fp16 or bf16");
    }
    return absl::OkStatus();
  }
  if (!std::isfinite(spec.rotary_base) || spec.rotary_base < 1) {
    return Bad("rotary_base", absl::StrCat(spec.rotary_base), "finite and >= 1");
  }
  if (columns > 2 * kMostPairs) {
    return Bad("rotary_dim", columns,
               absl::StrCat("at most ", 2 * kMostPairs, " without a rotary_table"));
  }
  return absl::OkStatus();
}

struct Steps {
  int64_t extent;
  int64_t stride;
};

// As AddressFits of validate.cc.
bool Fits(std::initializer_list<Steps> steps, int element_bytes) {
  unsigned __int128 last = 0;
  for (const Steps& step : steps) {
    last += static_cast<unsigned __int128>(step.extent - 1) *
            static_cast<unsigned __int128>(step.stride);
  }
  return last < static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max() / element_bytes);
}

absl::Status CheckPointer(std::string_view field, const void* pointer, int alignment) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address != 0 && address % static_cast<uintptr_t>(alignment) == 0) return absl::OkStatus();
  return Bad(field, absl::StrCat("0x", absl::Hex(address)),
             absl::StrCat("a multiple of ", alignment, " and not null"));
}

// Also one that may be null.
absl::Status CheckOptional(std::string_view field, const void* pointer, int alignment) {
  return pointer == nullptr ? absl::OkStatus() : CheckPointer(field, pointer, alignment);
}

struct Extents {
  int64_t batches;
  int64_t rows;
  int64_t heads;
  ElementType type;
  bool written;
};

absl::Status CheckTensor(std::string_view field, const void* data, const Strides& s,
                         const Extents& extents) {
  const int bytes = ElementBytes(extents.type);
  const std::string name(field);
  TILEWRIGHT_RETURN_IF_ERROR(CheckPointer(name + ".data", data, bytes));
  const struct {
    const char* axis;
    int64_t extent;
    int64_t stride;
  } axes[] = {{".strides.batch", extents.batches, s.batch},
              {".strides.seq", extents.rows, s.seq},
              {".strides.head", extents.heads, s.head}};
  for (const auto& axis : axes) {
    if (axis.stride < 0) return Bad(name + axis.axis, axis.stride, ">= 0");
    if (extents.written && axis.stride == 0 && axis.extent > 1) {
      return Bad(name + axis.axis, 0, "> 0: it is written");
    }
  }
  if (s.dim != 1) return Bad(name + ".strides.dim", s.dim, "1");
  if (!Fits({{extents.batches, s.batch}, {extents.rows, s.seq}, {extents.heads, s.head}}, bytes)) {
    return Bad(name + ".strides", absl::StrCat(s.batch, ",", s.seq, ",", s.head),
               "such that every byte offset fits 63 bits");
  }
  return absl::OkStatus();
}

absl::Status CheckScale(const CacheAppendSpec& spec, std::string_view field, const float* data,
                        const std::array<int64_t, 3>& strides, int64_t blocks, int64_t rows) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckPointer(field, data, 4));
  if (spec.cache_scale != ScaleKind::kPerToken) return absl::OkStatus();
  const int64_t extents[] = {blocks, spec.heads_kv, rows};
  for (int axis = 0; axis < 3; ++axis) {
    if (strides[axis] < 0 || (strides[axis] == 0 && extents[axis] > 1)) {
      return Bad(absl::StrCat(std::string(field), "_strides[", axis, "]"), strides[axis],
                 "> 0: it is written");
    }
  }
  if (!Fits({{blocks, strides[0]}, {spec.heads_kv, strides[1]}, {rows, strides[2]}}, 4)) {
    return Bad(absl::StrCat(std::string(field), "_strides"),
               absl::StrCat(strides[0], ",", strides[1], ",", strides[2]),
               "such that every byte offset fits 63 bits");
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const CacheAppendSpec& spec, const CacheAppendArgs& args) {
  const struct {
    const char* field;
    int64_t value;
    int64_t most;
  } sizes[] = {{"batch", args.batch, kMaxInt32},
               {"seqlen", args.seqlen, kMaxInt32},
               {"total", args.cu_seqlens == nullptr ? 0 : args.total, kMaxInt32},
               {"capacity", args.capacity, kMaxInt32},
               {"page_table_stride", spec.page_size == 0 ? 0 : args.page_table_stride,
                std::numeric_limits<int64_t>::max() / 8},
               {"rotary_stride", args.rotary_stride, std::numeric_limits<int32_t>::max()}};
  for (const auto& size : sizes) {
    if (size.value < 0 || size.value > size.most) {
      return Bad(size.field, size.value, absl::StrCat(">= 0 and at most ", size.most));
    }
  }
  if (args.cu_seqlens == nullptr && args.seqlen != 0 && args.batch > kMaxInt32 / args.seqlen) {
    return Bad("batch", args.batch, "such that batch * seqlen is below 2^31");
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const CacheAppendArgs& args) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("cu_seqlens", args.cu_seqlens, 4));
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("seqused", args.seqused, 4));
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("positions", args.positions, 4));
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("cache_batch_idx", args.cache_batch_idx, 4));
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("seqused_kv", args.seqused_kv, 4));
  TILEWRIGHT_RETURN_IF_ERROR(CheckOptional("new_seqused_kv", args.new_seqused_kv, 4));
  if (args.new_seqused_kv != nullptr && args.new_seqused_kv == args.seqused_kv) {
    return CheckPointer("ticket", args.ticket, 4);
  }
  return absl::OkStatus();
}

// ---- text

constexpr absl::string_view kOperation = "append";
constexpr absl::string_view kScaleWords[] = {"", "tensor", "head", "token"};
constexpr absl::string_view kRotaryWords[] = {"", "half_split", "interleaved"};

std::vector<absl::string_view> WordsOf(std::string_view text) {
  return absl::StrSplit(AbslView(text), absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
}

// "A/B", or "A" for both.
bool ReadPair(absl::string_view text, int64_t* first, int64_t* second) {
  const std::vector<absl::string_view> numbers = absl::StrSplit(text, '/');
  return numbers.size() <= 2 && absl::SimpleAtoi(numbers[0], first) &&
         absl::SimpleAtoi(numbers.back(), second);
}

// The index of one of a table's words behind the first, which stands for none.
template <typename Enum, size_t N>
bool ReadName(absl::string_view text, const absl::string_view (&words)[N], Enum* value) {
  for (size_t n = 1; n < N; ++n) {
    if (words[n] == text) {
      *value = static_cast<Enum>(n);
      return true;
    }
  }
  return false;
}

bool ReadType(absl::string_view text, std::optional<ElementType>* type) {
  const absl::StatusOr<ElementType> read = ParseElementType(StdView(text));
  if (read.ok()) *type = *read;
  return read.ok();
}

// "half_split", "half_split:0,64", "half_split:0,64:500000" or "half_split:0,64:fp32".
bool ReadRotary(absl::string_view text, CacheAppendSpec* spec) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() > 3 || !ReadName(parts[0], kRotaryWords, &spec->rotary)) return false;
  if (parts.size() > 1) {
    const std::vector<absl::string_view> columns = absl::StrSplit(parts[1], ',');
    if (columns.size() != 2 || !absl::SimpleAtoi(columns[0], &spec->rotary_begin) ||
        !absl::SimpleAtoi(columns[1], &spec->rotary_dim)) {
      return false;
    }
  }
  return parts.size() < 3 || ReadType(parts[2], &spec->rotary_table) ||
         absl::SimpleAtod(parts[2], &spec->rotary_base);
}

bool ReadWord(absl::string_view word, CacheAppendSpec* spec) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto& [key, value] = parts;
  if (key == "h") return ReadPair(value, &spec->heads_q, &spec->heads_kv);
  if (key == "d") return ReadPair(value, &spec->dim_qk, &spec->dim_v);
  if (key == "cache") return ReadType(value, &spec->cache_type);
  if (key == "scale") return ReadName(value, kScaleWords, &spec->cache_scale);
  if (key == "paged") return absl::SimpleAtoi(value, &spec->page_size);
  if (key == "rotary") return ReadRotary(value, spec);
  return false;
}

}  // namespace

ElementType CacheType(const CacheAppendSpec& spec) { return spec.cache_type.value_or(spec.type); }

int64_t RotaryPairs(const CacheAppendSpec& spec) {
  if (spec.rotary == Rotary::kNone) return 0;
  return (spec.rotary_dim != 0 ? spec.rotary_dim : spec.dim_qk - spec.rotary_begin) / 2;
}

int64_t TokensOf(const CacheAppendArgs& args) {
  if (args.batch == 0) return 0;
  return args.cu_seqlens != nullptr ? args.total : args.batch * args.seqlen;
}

absl::Status Validate(const CacheAppendSpec& spec) {
  if (!IsFloat(spec.type)) return Bad("type", Name(spec.type), "fp16, bf16 or fp32");
  const ElementType cache = CacheType(spec);
  const bool eight_bit = cache == ElementType::kFp8E4m3 || cache == ElementType::kFp8E5m2 ||
                         cache == ElementType::kInt8;
  if (cache != spec.type && !eight_bit) {
    return Bad("cache_type", Name(cache),
               absl::StrCat(Name(spec.type), " (as type), e4m3, e5m2 or int8"));
  }
  if (static_cast<int>(spec.cache_scale) < 0 || spec.cache_scale > ScaleKind::kPerToken) {
    return Bad("cache_scale", static_cast<int>(spec.cache_scale), "one of its enumerators");
  }
  if (spec.cache_scale != ScaleKind::kNone && !eight_bit) {
    return Bad("cache_scale is set and cache_type", Name(cache), "e4m3, e5m2 or int8");
  }
  const struct {
    const char* field;
    int64_t value;
    int64_t least;
    int64_t most;
  } sizes[] = {{"heads_q", spec.heads_q, 0, 65536},
               {"heads_kv", spec.heads_kv, 0, 65536},
               {"dim_qk", spec.dim_qk, 1, 4096},
               {"dim_v", spec.dim_v, 0, 4096},
               {"page_size", spec.page_size, 0, kMaxInt32}};
  for (const auto& size : sizes) {
    if (size.value < size.least || size.value > size.most) {
      return Bad(size.field, size.value,
                 absl::StrCat(">= ", size.least, " and at most ", size.most));
    }
  }
  return ValidateRotary(spec);
}

CacheAppendSpec Canonicalise(const CacheAppendSpec& spec) {
  CacheAppendSpec out = spec;
  if (out.cache_type == out.type) out.cache_type.reset();
  out.rotary_dim = 2 * RotaryPairs(spec);
  if (out.rotary == Rotary::kNone) {
    out.rotary_begin = 0;
    out.rotary_table.reset();
  }
  if (out.rotary == Rotary::kNone || out.rotary_table.has_value()) {
    out.rotary_base = CacheAppendSpec().rotary_base;
  }
  return out;
}

std::string ToText(const CacheAppendSpec& spec) {
  std::string text = absl::StrCat("append ", Name(spec.type), " h=", spec.heads_q, "/",
                                  spec.heads_kv, " d=", spec.dim_qk, "/", spec.dim_v);
  if (spec.cache_type.has_value()) absl::StrAppend(&text, " cache=", Name(*spec.cache_type));
  if (spec.cache_scale != ScaleKind::kNone) {
    absl::StrAppend(&text, " scale=", kScaleWords[static_cast<int>(spec.cache_scale)]);
  }
  if (spec.page_size != 0) absl::StrAppend(&text, " paged=", spec.page_size);
  if (spec.rotary != Rotary::kNone) {
    absl::StrAppend(&text, " rotary=", kRotaryWords[static_cast<int>(spec.rotary)], ":",
                    spec.rotary_begin, ",", 2 * RotaryPairs(spec), ":");
    if (spec.rotary_table.has_value()) {
      absl::StrAppend(&text, Name(*spec.rotary_table));
    } else {
      absl::StrAppend(&text, ShortestText(spec.rotary_base));
    }
  }
  return text;
}

bool IsCacheAppendText(std::string_view text) {
  const std::vector<absl::string_view> words = WordsOf(text);
  return !words.empty() && words[0] == kOperation;
}

absl::StatusOr<CacheAppendSpec> ParseCacheAppend(std::string_view text) {
  const std::vector<absl::string_view> words = WordsOf(text);
  if (words.size() < 2 || words[0] != kOperation) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec \"", AbslView(text), "\": must begin with \"append\" and a type"));
  }
  CacheAppendSpec spec;
  TILEWRIGHT_ASSIGN_OR_RETURN(spec.type, ParseElementType(StdView(words[1])));
  std::vector<absl::string_view> seen;
  for (size_t n = 2; n < words.size(); ++n) {
    if (!ReadWord(words[n], &spec)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "word \"", words[n],
          "\": must be one of h=Q/KV, d=QK/V, cache=TYPE, scale=tensor|head|token, paged=N, "
          "rotary=half_split|interleaved[:BEGIN,COLUMNS[:BASE or TYPE]]"));
    }
    const absl::string_view key = words[n].substr(0, words[n].find('='));
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return absl::InvalidArgumentError(absl::StrCat("word \"", words[n], "\": is given twice"));
    }
    seen.push_back(key);
  }
  TILEWRIGHT_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

size_t HashOf(const CacheAppendSpec& spec) {
  return absl::HashOf(spec.type, spec.cache_type, spec.cache_scale, spec.heads_q, spec.heads_kv,
                      spec.dim_qk, spec.dim_v, spec.page_size, spec.rotary, spec.rotary_begin,
                      spec.rotary_dim, spec.rotary_base, spec.rotary_table);
}

absl::Status ValidateArgs(const CacheAppendSpec& spec, const CacheAppendArgs& args) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckSizes(spec, args));
  TILEWRIGHT_RETURN_IF_ERROR(CheckLengths(args));
  if (TokensOf(args) == 0) return absl::OkStatus();
  const bool packed = args.cu_seqlens != nullptr;
  const int64_t batches = packed ? 1 : args.batch, rows = packed ? args.total : args.seqlen;
  if (spec.heads_q > 0) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("q", args.q.data, args.q.strides,
                                           {batches, rows, spec.heads_q, spec.type, false}));
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("q_out", args.q_out.data, args.q_out.strides,
                                           {batches, rows, spec.heads_q, spec.type, true}));
  }
  if (spec.rotary_table.has_value()) {
    const int bytes = ElementBytes(*spec.rotary_table);
    TILEWRIGHT_RETURN_IF_ERROR(CheckPointer("cos", args.cos, bytes));
    TILEWRIGHT_RETURN_IF_ERROR(CheckPointer("sin", args.sin, bytes));
  }
  if (spec.heads_kv == 0) return absl::OkStatus();
  // Numbers of pages and slots are values of the device: any may come.
  const bool paged = spec.page_size > 0;
  const bool any_block = paged || args.cache_batch_idx != nullptr;
  const int64_t blocks = any_block ? kMaxInt32 : args.batch;
  const int64_t block_rows = paged ? spec.page_size : std::max<int64_t>(args.capacity, 1);
  const ElementType cache = CacheType(spec);
  const Extents fresh = {batches, rows, spec.heads_kv, spec.type, false};
  const Extents kept = {blocks, block_rows, spec.heads_kv, cache, true};
  TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("k", args.k.data, args.k.strides, fresh));
  TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("k_cache", args.k_cache.data, args.k_cache.strides, kept));
  if (spec.dim_v > 0) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckTensor("v", args.v.data, args.v.strides, fresh));
    TILEWRIGHT_RETURN_IF_ERROR(
        CheckTensor("v_cache", args.v_cache.data, args.v_cache.strides, kept));
  }
  if (paged) TILEWRIGHT_RETURN_IF_ERROR(CheckPointer("page_table", args.page_table, 4));
  if (spec.cache_scale == ScaleKind::kNone) return absl::OkStatus();
  TILEWRIGHT_RETURN_IF_ERROR(
      CheckScale(spec, "k_scale", args.k_scale, args.k_scale_strides, blocks, block_rows));
  if (spec.dim_v == 0) return absl::OkStatus();
  return CheckScale(spec, "v_scale", args.v_scale, args.v_scale_strides, blocks, block_rows);
}

}  // namespace tilewright::spec

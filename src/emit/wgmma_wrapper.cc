#include "emit/wgmma_wrapper.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/family_planner.h"

namespace tilewright::emit {
namespace {

// A step of K takes 32 bytes of a row that runs along K; descriptors count 16 bytes.
constexpr int kStepBytes = 32;
constexpr int kStepK = 16;         // of 16-bit elements
constexpr int kPanelColumns = 64;  // likewise
constexpr int kPanelRowBytes = 128;
constexpr int kUnit = 16;

// "%<first>, ..., %<first + count - 1>"
std::string Operands(int first, int count) {
  std::string text;
  for (int n = 0; n < count; ++n) absl::StrAppend(&text, n == 0 ? "%" : ", %", first + n);
  return text;
}

// "<constraint>(<array>[0]), ..."
std::string Bindings(const char* constraint, const char* array, int count) {
  std::string text;
  for (int n = 0; n < count; ++n) {
    absl::StrAppend(&text,
                    n == 0       ? ""
                    : n % 6 == 0 ? ",\n          "
                                 : ", ",
                    "\"", constraint, "\"(", array, "[", n, "])");
  }
  return text;
}

// The type of both factors.
struct Factor {
  const char* name;
  int bytes;
};

Factor FactorOf(ElementType type) {
  if (type == ElementType::kFp8E4m3) return {"e4m3", 1};
  return {type == ElementType::kFp16 ? "f16" : "bf16", 2};
}

std::string Shape(int n, const Factor& type) {
  return absl::StrCat("m64n", n, "k", kStepBytes / type.bytes);
}

std::string Mnemonic(int n, const Factor& type) {
  return absl::StrCat("wgmma.mma_async.sync.aligned.", Shape(n, type), ".f32.", type.name, ".",
                      type.name);
}

std::string Line(const std::string& assembly) {
  return absl::StrCat("        \"", assembly, "\\n\"\n");
}

// A step along the columns of a tile of rows of panels, in the first panel that has all of it.
// `overlap`: bytes of a panel's row that the next one repeats.
int64_t OffsetAlongColumns(int step, int64_t panel_rows, int64_t overlap) {
  const int64_t byte = int64_t{step} * kStepBytes, panel_step = kPanelRowBytes - overlap;
  const int64_t beyond = std::max<int64_t>(byte + kStepBytes - kPanelRowBytes, 0);
  const int64_t panel = (beyond + panel_step - 1) / panel_step;
  return (panel * panel_rows * kPanelRowBytes + byte - panel * panel_step) / kUnit;
}

// A step along the rows of such a tile.
int64_t OffsetAlongRows(int step) { return int64_t{step} * kStepK * kPanelRowBytes / kUnit; }

// One factor of a product.
struct Operand {
  const char* name;
  enum Place { kRegisters, kAlongColumns, kAlongRows } place;  // which way K goes in shared memory
  int64_t panel_rows = 0;  // of a tile in shared memory; where K goes along rows and n is no
                           // more than one instruction takes it is not looked at
  int64_t overlap = 0;     // bytes of a panel's row that the next one repeats

  int64_t Offset(int step) const {
    return place == kAlongColumns ? OffsetAlongColumns(step, panel_rows, overlap)
                                  : OffsetAlongRows(step);
  }
  int transposed() const { return place == kAlongRows ? 1 : 0; }
};

struct Product {
  const char* name;
  std::string comment;
  int n;
  int steps;
  Operand a;
  Operand b;
  enum Sum { kReplaces, kAdds, kAddsOnRequest } sum;  // what becomes of what d held
  int kept = 0;  // first steps whose part of `a` is in registers, with the rest in shared memory
};

// Columns of d that one instruction computes.
struct Columns {
  int first;
  int count;
};

// More than an instruction takes are cut where a panel ends.
std::vector<Columns> PiecesOf(const Product& product) {
  constexpr int kMostColumns = 256;
  const int pieces = (product.n + kMostColumns - 1) / kMostColumns;
  const int panels = (product.n + kPanelColumns - 1) / kPanelColumns;
  const int columns = (panels + pieces - 1) / pieces * kPanelColumns;
  std::vector<Columns> out;
  for (int first = 0; first < product.n; first += columns) {
    out.push_back({first, std::min(columns, product.n - first)});
  }
  return out;
}

// Where column `first` of d, the first of a panel, begins in an operand along rows.
int64_t OffsetOfColumns(const Operand& b, int first) {
  return first / kPanelColumns * b.panel_rows * kPanelRowBytes / kUnit;
}

// One function: all steps of a product in one block of assembly.
std::string ProductFunction(const Product& product, const Factor& type) {
  const int registers = product.n / 2, steps = product.steps;
  const int kept = product.a.place == Operand::kRegisters ? steps : product.kept;
  const bool has_words = kept > 0, has_tile = kept < steps;
  const int a_words = 4 * kept;
  const int a_tile = registers + a_words;
  const int b_operand = a_tile + (has_tile ? 1 : 0);
  const bool on_request = product.sum == Product::kAddsOnRequest;
  const std::string set_first = product.sum == Product::kAdds ? ""
                                : on_request
                                    ? absl::StrCat("setp.ne.b64 first, %", b_operand + 1, ", 0; ")
                                    : "setp.ne.b32 first, 0, 0; ";
  std::string body = Line(absl::StrCat("{.reg .b64 ", has_tile ? "a, " : "", "b; .reg .pred ",
                                       set_first.empty() ? "" : "first, ", "more;")) +
                     Line(absl::StrCat(set_first, "setp.ne.b32 more, 1, 0;"));
  const std::vector<Columns> pieces = PiecesOf(product);
  for (int step = 0; step < steps; ++step) {
    const bool from_registers = step < kept;
    const std::string a_text =
        from_registers ? ""
                       : absl::StrCat("add.s64 a, %", a_tile, ", ", product.a.Offset(step), "; ");
    const std::string a_operand =
        from_registers ? absl::StrCat("{", Operands(registers + 4 * step, 4), "}") : "a";
    for (const Columns& piece : pieces) {
      absl::StrAppend(
          &body,
          Line(absl::StrCat(piece.first == 0 ? a_text : "", "add.s64 b, %", b_operand, ", ",
                            product.b.Offset(step) + OffsetOfColumns(product.b, piece.first), ";")),
          Line(absl::StrCat(
              Mnemonic(piece.count, type), " {", Operands(piece.first / 2, piece.count / 2), "}, ",
              a_operand, ", b, ", step == 0 && !set_first.empty() ? "first" : "more", ", 1, 1",
              type.bytes == 1 || from_registers ? "" : absl::StrCat(", ", product.a.transposed()),
              type.bytes == 1 ? "" : absl::StrCat(", ", product.b.transposed()), ";")));
    }
  }
  const bool both = has_words && has_tile;
  const std::string words = absl::StrCat(product.a.name, both ? "_kept" : "");
  const std::string a_parameter =
      absl::StrCat(has_words ? absl::StrCat("const u32 (&", words, ")[", a_words, "]") : "",
                   both ? ", " : "", has_tile ? absl::StrCat("u64 ", product.a.name) : "");
  const std::string a_binding =
      absl::StrCat(has_words ? Bindings("r", words.c_str(), a_words) : "", both ? ", " : "",
                   has_tile ? absl::StrCat("\"l\"(", product.a.name, ")") : "");
  return absl::StrCat("  // ", product.comment, ": ", steps, " steps of ", Shape(product.n, type),
                      product.sum == Product::kReplaces ? "; what d held is ignored"
                      : on_request                      ? "; without `adds` what d held is ignored"
                                                        : "",
                      ".\n", "  static __device__ __forceinline__ void ", product.name,
                      "(float (&d)[", registers, "], ", a_parameter, ", u64 ", product.b.name,
                      on_request ? ", u64 adds" : "", ") {\n    asm volatile(\n", body, Line("}"),
                      "        : ", Bindings("+f", "d", registers), "\n        : ", a_binding,
                      ", \"l\"(", product.b.name, on_request ? "), \"l\"(adds" : "",
                      ")\n        : \"memory\");\n  }\n");
}

int StepsOf(int64_t dim, const Factor& type = {"bf16", 2}) {
  return static_cast<int>(plan::CeilDiv(dim * type.bytes, kStepBytes));
}

std::vector<Product> ForwardProducts(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const int sharers = plan.column_warps;
  const int keys = plan.block_n / std::max(plan.key_warps, 1);
  const Factor type = FactorOf(spec.type);
  const plan::StoredDims dims = plan::StoredDimsOf(plan.narrow_rows, spec.dim_qk, spec.dim_v);
  // Eight columns of ones behind V. Warpgroups that share rows have whole panels each.
  const bool ones_behind_v = plan.ones && type.bytes == 2;
  const int v_columns =
      sharers == 1 ? static_cast<int>(dims.v) + (ones_behind_v ? 8 : 0)
                   : static_cast<int>(plan::CeilDiv(spec.dim_v, int64_t{sharers} * kPanelColumns)) *
                         kPanelColumns;
  std::vector<Product> products = {
      {.name = "Scores",
       .comment = "d = q k^T",
       .n = keys / sharers,
       .steps = StepsOf(dims.qk, type),
       .a = plan.q_in_registers ? Operand{"q", Operand::kRegisters}
                                : Operand{"q", Operand::kAlongColumns, plan.block_m},
       .b = {"k", Operand::kAlongColumns, plan.block_n},
       .sum = Product::kReplaces},
      {.name = "Values",
       .comment = "d += p v",
       .n = v_columns,
       .steps = StepsOf(keys, type),
       .a = sharers == 1 ? Operand{"p", Operand::kRegisters}
                         : Operand{"p", Operand::kAlongColumns, plan.block_m},
       // Of 8 bits V has been transposed.
       .b = type.bytes == 1 ? Operand{"v", Operand::kAlongColumns, spec.dim_v}
                            : Operand{"v", Operand::kAlongRows, plan.block_n},
       .sum = Product::kAdds}};
  if (plan.ones && !ones_behind_v) {
    // Sums of e4m3 are made anew for each block: long ones would lose places, for products of this
    // type are added up with some 14 bits.
    products.push_back({.name = "Sums",
                        .comment = "d = p ones",
                        .n = 8,
                        .steps = StepsOf(keys, type),
                        .a = {"p", Operand::kRegisters},
                        .b = {"ones", Operand::kAlongColumns},
                        .sum = Product::kReplaces});
  }
  return products;
}

// Of attn_decode_sm90 where warpgroups share O's columns; three parts of K.
std::vector<Product> WideDecodeProducts(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const int own_columns = static_cast<int>(spec.dim_v) / 2;
  const auto scores = [&](const char* name, const char* comment, int64_t columns,
                          bool accumulates) {
    return Product{.name = name,
                   .comment = comment,
                   .n = plan.block_n,
                   .steps = StepsOf(columns),
                   .a = {"q", Operand::kAlongColumns, kPanelColumns},
                   .b = {"k", Operand::kAlongColumns, plan.block_n},
                   .sum = accumulates ? Product::kAdds : Product::kReplaces};
  };
  const auto values = [&](const char* name, Operand::Place place) {
    return Product{.name = name,
                   .comment = "d += p v",
                   .n = own_columns,
                   .steps = StepsOf(plan.block_n),
                   .a = {"p", place, kPanelColumns},
                   .b = {"v", Operand::kAlongRows, plan.block_n},
                   .sum = Product::kAdds};
  };
  return {scores("ScoresOfFirst", "d = q k^T", own_columns, false),
          scores("ScoresOfNext", "d += q k^T", own_columns, true),
          scores("ScoresOfRest", "d += q k^T", spec.dim_qk - spec.dim_v, true),
          values("ValuesOfOwn", Operand::kRegisters),
          values("ValuesOfOther", Operand::kAlongColumns)};
}

std::vector<Product> BackwardProducts(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  // Warpgroups share dQ by rows or, with one panel of these, by columns: panels of K, of which the
  // second one begins where its warpgroup's columns do.
  const int dq_columns = plan::BwdSm90DqColumns(plan, spec.dim_qk);
  const int64_t overlap = plan.block_m > kPanelColumns ? 0 : 2 * (kPanelColumns - dq_columns);
  const plan::BwdKeptSteps kept = plan::BwdSm90KeptSteps(plan, spec.dim_qk, spec.dim_v);
  return {{.name = "Scores",
           .comment = "d = k q^T",
           .n = plan.block_m,
           .steps = StepsOf(spec.dim_qk),
           .a = {"k", Operand::kAlongColumns, plan.block_n, overlap},
           .b = {"q", Operand::kAlongColumns, plan.block_m},
           .sum = Product::kReplaces,
           .kept = kept.k},
          {.name = "WeightGradients",
           .comment = "d = v d_o^T",
           .n = plan.block_m,
           .steps = StepsOf(spec.dim_v),
           .a = {"v", Operand::kAlongColumns, plan.block_n},
           .b = {"d_o", Operand::kAlongColumns, plan.block_m},
           .sum = Product::kReplaces,
           .kept = kept.v},
          {.name = "Dv",
           .comment = "d += p d_o",
           .n = static_cast<int>(spec.dim_v),
           .steps = StepsOf(plan.block_m),
           .a = {"p", Operand::kRegisters},
           .b = {"d_o", Operand::kAlongRows},
           .sum = Product::kAddsOnRequest},
          {.name = "Dk",
           .comment = "d += ds q",
           .n = static_cast<int>(spec.dim_qk),
           .steps = StepsOf(plan.block_m),
           .a = {"ds", Operand::kRegisters},
           .b = {"q", Operand::kAlongRows},
           .sum = Product::kAddsOnRequest},
          {.name = "Dq",
           .comment = "d = ds^T k",
           .n = dq_columns,
           .steps = StepsOf(plan.block_n),
           .a = {"ds", Operand::kAlongRows},
           .b = {"k", Operand::kAlongRows},
           // A pair of blocks makes it of the keys of both.
           .sum = plan.cluster > 1 ? Product::kAddsOnRequest : Product::kReplaces}};
}

std::vector<Product> ProductsOf(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  if (spec.operation != Operation::kForward) return BackwardProducts(spec, plan);
  if (plan.family == plan::Family::kDecodeSm90 && plan.column_warps > 1)
    return WideDecodeProducts(spec, plan);
  return ForwardProducts(spec, plan);
}

}  // namespace

artifact::SourceFile WgmmaHeader(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const Factor type = FactorOf(spec.type);
  std::string functions;
  for (const Product& product : ProductsOf(spec, plan)) {
    absl::StrAppend(&functions, ProductFunction(product, type));
  }
  artifact::SourceFile file;
  file.name = std::string(kWgmmaHeader);
  file.text = absl::StrCat(
      "// Emitted by tilewright for tiles of ", plan.block_m, " rows and ", plan.block_n,
      " keys.\n#ifndef TILEWRIGHT_GENERATED_WGMMA_CUH_\n#define TILEWRIGHT_GENERATED_WGMMA_CUH_\n\n"
      "#include \"core/types.cuh\"\n\nnamespace tilewright {\n\nstruct AttentionWgmma {\n",
      functions,
      "};\n\n}  // namespace tilewright\n\n#endif  // TILEWRIGHT_GENERATED_WGMMA_CUH_\n");
  return file;
}

}  // namespace tilewright::emit

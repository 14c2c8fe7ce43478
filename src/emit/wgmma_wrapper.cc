#include "emit/wgmma_wrapper.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tilewright::emit {
namespace {

// Steps of K of a 16-bit product, and what they advance a descriptor by (in units of 16 bytes).
constexpr int kStepK = 16;
constexpr int kPanelColumns = 64;
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

std::string Mnemonic(int n, const char* type) {
  return absl::StrCat("wgmma.mma_async.sync.aligned.m64n", n, "k16.f32.", type, ".", type);
}

std::string Line(const std::string& assembly) {
  return absl::StrCat("        \"", assembly, "\\n\"\n");
}

// A step along the columns of a tile of rows of panels.
int64_t OffsetAlongColumns(int step, int64_t panel_rows) {
  const int column = step * kStepK;
  return (column / kPanelColumns * panel_rows * kPanelRowBytes + column % kPanelColumns * 2) /
         kUnit;
}

std::string ScoresFunction(int n, int steps, int64_t q_rows, const char* type) {
  const int registers = n / 2;
  std::string body = Line("{.reg .b64 a, b; .reg .pred first, more;") +
                     Line("setp.ne.b32 first, 0, 0; setp.ne.b32 more, 1, 0;");
  for (int step = 0; step < steps; ++step) {
    absl::StrAppend(
        &body,
        Line(absl::StrCat("add.s64 a, %", registers, ", ", OffsetAlongColumns(step, q_rows),
                          "; add.s64 b, %", registers + 1, ", ", OffsetAlongColumns(step, n), ";")),
        Line(absl::StrCat(Mnemonic(n, type), " {", Operands(0, registers), "}, a, b, ",
                          step == 0 ? "first" : "more", ", 1, 1, 0, 0;")));
  }
  return absl::StrCat("  // d = q k^T: ", steps, " steps of m64n", n,
                      "k16; what d held is ignored.\n",
                      "  static __device__ __forceinline__ void Scores(float (&d)[", registers,
                      "], u64 q, u64 k) {\n    asm volatile(\n", body, Line("}"), "        : ",
                      Bindings("+f", "d", registers),
                      "\n        : \"l\"(q), \"l\"(k)\n        : \"memory\");\n  }\n");
}

std::string ValuesFunction(int n, int block_n, const char* type) {
  const int registers = n / 2;
  const int steps = block_n / kStepK;
  std::string body = Line("{.reg .b64 b; .reg .pred more;") + Line("setp.ne.b32 more, 1, 0;");
  for (int step = 0; step < steps; ++step) {
    absl::StrAppend(&body,
                    Line(absl::StrCat("add.s64 b, %", registers + 4 * steps, ", ",
                                      step * kStepK * kPanelRowBytes / kUnit, ";")),
                    Line(absl::StrCat(Mnemonic(n, type), " {", Operands(0, registers), "}, {",
                                      Operands(registers + 4 * step, 4), "}, b, more, 1, 1, 1;")));
  }
  return absl::StrCat("  // d += p v: ", steps, " steps of m64n", n, "k16.\n",
                      "  static __device__ __forceinline__ void Values(float (&d)[", registers,
                      "], const u32 (&p)[", 4 * steps, "], u64 v) {\n    asm volatile(\n", body,
                      Line("}"), "        : ", Bindings("+f", "d", registers),
                      "\n        : ", Bindings("r", "p", 4 * steps),
                      ", \"l\"(v)\n        : \"memory\");\n  }\n");
}

}  // namespace

artifact::SourceFile WgmmaHeader(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const char* type = spec.type == ElementType::kFp16 ? "f16" : "bf16";
  const int steps = static_cast<int>((spec.dim_qk + kStepK - 1) / kStepK);
  // Eight columns of ones behind V.
  const int v_columns = static_cast<int>(spec.dim_v) + (plan.ones ? 8 : 0);
  artifact::SourceFile file;
  file.name = std::string(kWgmmaHeader);
  file.text = absl::StrCat(
      "// Emitted by tilewright for tiles of ", plan.block_m, " rows and ", plan.block_n,
      " keys.\n#ifndef TILEWRIGHT_GENERATED_WGMMA_CUH_\n#define TILEWRIGHT_GENERATED_WGMMA_CUH_\n\n"
      "#include \"core/types.cuh\"\n\nnamespace tilewright {\n\nstruct AttentionWgmma {\n",
      ScoresFunction(plan.block_n, steps, plan.block_m, type),
      ValuesFunction(v_columns, plan.block_n, type),
      "};\n\n}  // namespace tilewright\n\n#endif  // TILEWRIGHT_GENERATED_WGMMA_CUH_\n");
  return file;
}

}  // namespace tilewright::emit

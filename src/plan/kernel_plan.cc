#include "plan/kernel_plan.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tilewright::plan {
namespace {

constexpr Family kAllFamilies[] = {Family::kDecodeSm90, Family::kDecode,    Family::kDecodeWide,
                                   Family::kFwdSmall,   Family::kFwdSm90,   Family::kFwdSm80,
                                   Family::kFwdSimple,  Family::kCombine,   Family::kBwdSm90,
                                   Family::kBwdSm80,    Family::kBwdSimple, Family::kBwdPrep,
                                   Family::kBwdFinish,  Family::kBwdTerms,  Family::kCacheAppend};

// A word of the text form: its prefix and the field behind it, read as a number.
struct Word {
  absl::string_view prefix;
  int KernelPlan::*field;
};
constexpr Word kWords[] = {
    {"kw", &KernelPlan::key_warps},     {"qw", &KernelPlan::dq_row_warps},
    {"w", &KernelPlan::warps},          {"r", &KernelPlan::rows_per_warp},
    {"p", &KernelPlan::panel},          {"slots=", &KernelPlan::slots},
    {"ss", &KernelPlan::shared_stages}, {"st", &KernelPlan::staged_terms},
    {"s", &KernelPlan::stages},         {"ch", &KernelPlan::chunk},
    {"c", &KernelPlan::consumers},      {"kt", &KernelPlan::kept_terms},
    {"kk", &KernelPlan::kept_keys},     {"k", &KernelPlan::step},
    {"tf", &KernelPlan::tf32_terms},    {"t", &KernelPlan::tile_rows},
    {"b", &KernelPlan::blocks},         {"x", &KernelPlan::cluster},
    {"g", &KernelPlan::max_grid},       {"v", &KernelPlan::column_warps},
};

// A word that stands for a field that is true.
struct Flag {
  absl::string_view word;
  bool KernelPlan::*field;
};
constexpr Flag kFlags[] = {
    {"peeled", &KernelPlan::peeled},
    {"narrow", &KernelPlan::narrow_rows},
    {"split", &KernelPlan::split},
    {"opt", &KernelPlan::optimistic},
    {"ones", &KernelPlan::ones},
    {"pp", &KernelPlan::ping_pong},
    {"q_regs", &KernelPlan::q_in_registers},
    {"own_o", &KernelPlan::own_o},
    {"over_v", &KernelPlan::over_v},
    {"turing", &KernelPlan::turing},
    {"packed", &KernelPlan::packed_terms},
};

// False when `word` is none of the plan's words.
bool ReadWord(absl::string_view word, KernelPlan& plan) {
  for (const Flag& flag : kFlags) {
    if (word == flag.word) return plan.*flag.field = true;
  }
  if (absl::ConsumePrefix(&word, "smem=")) return absl::SimpleAtoi(word, &plan.smem_bytes);
  if (absl::ConsumePrefix(&word, "m")) {
    const std::vector<absl::string_view> sizes = absl::StrSplit(word, 'n');
    return sizes.size() == 2 && absl::SimpleAtoi(sizes[0], &plan.block_m) &&
           absl::SimpleAtoi(sizes[1], &plan.block_n);
  }
  for (const Word& known : kWords) {
    if (absl::ConsumePrefix(&word, known.prefix)) {
      return absl::SimpleAtoi(word, &(plan.*known.field));
    }
  }
  return false;
}

constexpr char kBetweenKernels[] = " + ";

// As much of one kernel's text as can be read.
KernelPlan ReadKernel(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  KernelPlan plan;
  if (words.size() < 2) return plan;
  const auto family = ParseFamily({words[0].data(), words[0].size()});
  if (family.ok()) plan.family = family->value_or(plan.family);
  plan.target = std::string(words[1]);
  for (size_t n = 2; n < words.size(); ++n) {
    if (!ReadWord(words[n], plan)) break;
  }
  return plan;
}

}  // namespace

std::string_view FamilyName(Family family) {
  switch (family) {
    case Family::kDecodeSm90:
      return "attn_decode_sm90";
    case Family::kDecode:
      return "attn_decode";
    case Family::kDecodeWide:
      return "attn_decode_wide";
    case Family::kFwdSmall:
      return "attn_fwd_small";
    case Family::kFwdSm90:
      return "attn_fwd_sm90";
    case Family::kFwdSm80:
      return "attn_fwd_sm80";
    case Family::kFwdSimple:
      return "attn_fwd_simple";
    case Family::kCombine:
      return "attn_combine";
    case Family::kBwdSm90:
      return "attn_bwd_sm90";
    case Family::kBwdSm80:
      return "attn_bwd_sm80";
    case Family::kBwdSimple:
      return "attn_bwd_simple";
    case Family::kBwdPrep:
      return "attn_bwd_prep";
    case Family::kBwdFinish:
      return "attn_bwd_finish";
    case Family::kBwdTerms:
      return "attn_bwd_terms";
    case Family::kCacheAppend:
      return "cache_append";
  }
  return "unknown";
}

bool IsCompanion(Family family) {
  return family == Family::kCombine || family == Family::kBwdPrep || family == Family::kBwdFinish ||
         family == Family::kBwdTerms;
}

absl::StatusOr<std::optional<Family>> ParseFamily(std::string_view name) {
  if (name.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (Family family : kAllFamilies) {
    if (FamilyName(family) == name) return family;
    names.emplace_back(FamilyName(family));
  }
  return absl::InvalidArgumentError(absl::StrCat("family = ", std::string(name),
                                                 ": must be one of ", absl::StrJoin(names, ", ")));
}

std::vector<KernelPlan> KernelPlan::Kernels() const {
  std::vector<KernelPlan> kernels = before;
  kernels.push_back(*this);
  kernels.back().before.clear();
  kernels.back().after.clear();
  kernels.insert(kernels.end(), after.begin(), after.end());
  return kernels;
}

std::string KernelPlan::ToString() const {
  if (!before.empty() || !after.empty()) {
    return absl::StrJoin(Kernels(), kBetweenKernels,
                         [](std::string* text, const KernelPlan& kernel) {
                           absl::StrAppend(text, kernel.ToString());
                         });
  }
  std::string text = absl::StrCat(std::string(FamilyName(family)), " ", target, " m", block_m, "n",
                                  block_n, " w", warps, " r", rows_per_warp);
  if (panel != 0) absl::StrAppend(&text, " p", panel);
  if (stages != 0) absl::StrAppend(&text, " s", stages);
  if (key_warps != 0) absl::StrAppend(&text, " kw", key_warps);
  if (dq_row_warps != 0) absl::StrAppend(&text, " qw", dq_row_warps);
  if (consumers != 0) absl::StrAppend(&text, " c", consumers);
  if (blocks != 0) absl::StrAppend(&text, " b", blocks);
  if (cluster != 0) absl::StrAppend(&text, " x", cluster);
  if (max_grid != 0) absl::StrAppend(&text, " g", max_grid);
  if (step != 0) absl::StrAppend(&text, " k", step);
  if (staged_terms != 0) absl::StrAppend(&text, " st", staged_terms);
  if (kept_terms != 0) absl::StrAppend(&text, " kt", kept_terms, " kk", kept_keys);
  if (shared_stages != 0) absl::StrAppend(&text, " ss", shared_stages);
  if (chunk != 0) absl::StrAppend(&text, " ch", chunk);
  if (tile_rows != 0) absl::StrAppend(&text, " t", tile_rows);
  if (column_warps > 1) absl::StrAppend(&text, " v", column_warps);
  if (tf32_terms != 0) absl::StrAppend(&text, " tf", tf32_terms);
  for (const Flag& flag : kFlags) {
    if (this->*flag.field) absl::StrAppend(&text, " ", flag.word);
  }
  if (slots != 0) absl::StrAppend(&text, " slots=", slots);
  absl::StrAppend(&text, " smem=", smem_bytes);
  return text;
}

absl::StatusOr<KernelPlan> ParsePlan(std::string_view text) {
  const std::string whole(text);
  // The companions before the kernel that the plan is about, it, and those after it.
  std::vector<KernelPlan> before, after;
  std::optional<KernelPlan> main;
  for (absl::string_view kernel_text : absl::StrSplit(whole, kBetweenKernels)) {
    KernelPlan kernel = ReadKernel(kernel_text);
    if (!IsCompanion(kernel.family)) {
      main = std::move(kernel);
    } else {
      (main.has_value() ? after : before).push_back(std::move(kernel));
    }
  }
  if (main.has_value()) {
    main->before = std::move(before);
    main->after = std::move(after);
    if (main->ToString() == whole) return *std::move(main);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plan = \"", whole,
                   "\": must be a plan as `explain` prints it, such as \"attn_fwd_simple sm_90a "
                   "m32n32 w4 r8 p128 smem=33280\""));
}

}  // namespace tilewright::plan

// Compiles emitted kernels by NVRTC for every architecture that the matrix names: each must compile
// without a warning, not spill, and stay within tests/resource_budget.csv. Needs no GPU.
//
//   compile_matrix_test            every head dim on the main targets, every feature on some
//   compile_matrix_test --slow     every feature with every head dim on every target
//   compile_matrix_test --update   rewrites the budget, a row for each kernel of the short matrix
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/status_macros.h"
#include "compile/nvrtc_compiler.h"
#include "emit/emit_cache_append.h"
#include "emit/emit_kernel.h"
#include "emit/template_bundle.h"
#include "plan/cache_append_planner.h"
#include "plan/planner.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright {
namespace {

using testing::HasSubstr;
using testing::Not;

bool g_slow = false;
bool g_update = false;

// A register more or less is the compiler's mood, and its version's.
constexpr int kRegisterSlack = 8;

constexpr std::string_view kMainTargets[] = {"sm_75", "sm_80", "sm_90a", "sm_120a"};

// Of attn_fwd_sm80: every power of two, and dims that fill no chunk, no step or no pair of tiles.
constexpr std::string_view kSm80Dims[] = {"1",   "32",  "36",  "40",     "64",  "72",
                                          "80",  "96",  "112", "128",    "160", "192/128",
                                          "256", "320", "512", "576/512"};
constexpr std::string_view kSm80Targets[] = {"sm_75",  "sm_80",   "sm_86",  "sm_89",
                                             "sm_90a", "sm_100a", "sm_120a"};

// Of attn_fwd_sm90: each of its lists of tiles, and dims that fill no panel.
constexpr std::string_view kSm90Dims[] = {"8",   "40",  "64",      "72",  "96",
                                          "112", "128", "192/128", "160", "256"};

constexpr std::string_view kDims[] = {"1",   "3",   "33",  "36",      "64",  "72",
                                      "128", "261", "512", "576/512", "1024"};

// What follows "fwd ", with d= and s= left out.
constexpr std::string_view kFeatures[] = {
    "bf16 h=8",
    "fp16 h=8/1 causal lse",
    "fp32 h=8/2 window=127,0 align=top_left",
    "bf16 h=8/2 softcap=30 alibi sinks causal",
    "fp16 h=8 bias=fp16:1,8,512,512 bias=fp32:2,1,512,512 bias=bool:2,1,1,512 softcap=5 "
    "softcap_before_bias",
    "bf16 h=8 dropout=0.1 lse lse_base=2 empty_lse=+inf",
    "bf16 h=8/1 varlen causal lse",
    "bf16 h=8/1 varlen paged=16 kv=e4m3 kv_scale=token",
    "fp16 h=8/1 paged=64 kv=int8 kv_scale=head lse",
    "e4m3 h=8 out=bf16 q_scale=head kv_scale=tensor",
    "e5m2 h=8 out=fp16 kv=e5m2 q_scale=tensor",
    "bf16 h=8 block_mask=128,128 causal",
    "bf16 h=8 strided_innermost out=fp32",
    "bf16 h=8 exact causal",
    "bf16 h=8 score=@score mask=@mask array=table:bf16 array=ids:int32 array=codes:int8 "
    "array=flags:bool scalar=gain:float scalar=period:int64",
    "bf16 h=8/1 window=511,0 softcap=20 alibi bias=bf16:1,8,512,512 sinks dropout=0.2 varlen "
    "paged=32 lse",
};

constexpr std::string_view kScoreText =
    "const int64_t distance = i - j;\n"
    "if (flags[h]) return score * gain + table[distance % period] + codes[h];\n"
    "return tanhf(score) * ids[b];\n";
constexpr std::string_view kMaskText = "ids[i] == ids[j] || j < seqlen_kv - seqlen_q";

// Problems that are cut into parts.
constexpr std::string_view kSplitSpecs[] = {
    "fwd bf16 b=1 h=1 s=64/8192 d=128 causal lse",
    "fwd fp16 b=1 h=2 s=1/8192 d=72/33 varlen sinks",
    "fwd bf16 b=1 h=2 s=256/8192 d=256 window=4095,0 softcap=20",
};

// Of a backward, with s= and d= left out.
constexpr std::string_view kBwdFeatures[] = {
    "bf16 h=8",
    "fp16 h=8/1 causal",
    "bf16 h=8 causal deterministic",
    "bf16 h=8/2 window=127,0 softcap=30 alibi alibi_grad sinks sinks_grad",
    "fp16 h=8 bias=fp16:1,8,512,512:grad bias=bool:2,1,1,512 varlen",
    "bf16 h=8 dropout=0.1 bias=bf16:1,8,512,512:grad softcap=5 softcap_before_bias deterministic",
    "bf16 h=8 block_mask=128,128",
    "bf16 h=8 score=@score mask=@mask array=table:bf16 array=ids:int32 array=codes:int8 "
    "array=flags:bool scalar=gain:float scalar=period:int64",
};
constexpr std::string_view kBwdDims[] = {"8", "33", "64", "72", "96", "128", "192/128", "256"};

struct Case {
  plan::Family family;  // a companion's: that kernel of the plan
  std::string spec;
  std::string target;
  std::string name() const {
    return absl::StrCat(std::string(plan::FamilyName(family)), ",", target, ",", spec);
  }
};

std::string SpecText(std::string_view feature, std::string_view dims,
                     const char* operation = "fwd ") {
  const size_t space = feature.find(' ');
  return absl::StrCat(operation, std::string(feature.substr(0, space)),
                      " b=2 s=512 d=", std::string(dims), std::string(feature.substr(space)));
}

// What attn_fwd_sm80 leaves to the simple family.
bool ServedBySm80(std::string_view feature, std::string_view dims, std::string_view target) {
  for (const char* word : {"e4m3", "e5m2", "int8", "strided_innermost"}) {
    if (feature.find(word) != std::string_view::npos) return false;
  }
  const bool wide = dims == "320" || dims == "512" || dims == "576/512";
  if (feature.substr(0, 4) == "fp32") {
    const bool fits =
        dims != "256" || target == "sm_80" || target == "sm_90a" || target == "sm_100a";
    return !wide && fits && target != "sm_75";
  }
  return target != "sm_75" || (feature.substr(0, 4) == "fp16" && !wide);
}

void AddSm80Cases(std::vector<Case>& cases) {
  const auto add = [&](std::string_view feature, std::string_view dims, std::string_view target) {
    cases.push_back({plan::Family::kFwdSm80, SpecText(feature, dims), std::string(target)});
  };
  for (std::string_view target : kSm80Targets) {
    const bool main = target == "sm_90a";
    const std::string_view plain = target == "sm_75" ? kFeatures[1] : kFeatures[0];
    for (std::string_view dims : kSm80Dims) {
      const bool common_dims = dims == "64" || dims == "72" || dims == "256" || dims == "512";
      if (!g_slow && !main && !common_dims) continue;
      for (std::string_view feature : kFeatures) {
        if (!ServedBySm80(feature, dims, target)) continue;
        const bool common = feature == kFeatures[0] || feature == kFeatures[1];
        const bool is_float =
            feature.substr(0, 4) == "fp32" && (dims == "64" || (main && dims == "256"));
        if (g_slow || (main && (dims == "128" || common)) || is_float || feature == plain) {
          add(feature, dims, target);
        }
      }
    }
  }
  // Sums of an LSE beside output that two warps share, which large problems have.
  for (std::string_view target : {"sm_80", "sm_90a", "sm_100a"}) {
    for (std::string_view dims : {"168", "192", "224", "256"}) {
      const bool common_dims = dims == "192" || dims == "256";
      if (!g_slow && target != "sm_90a" && !common_dims) continue;
      cases.push_back(
          {plan::Family::kFwdSm80,
           absl::StrCat("fwd bf16 b=2 s=4096 d=", std::string(dims), " h=8 causal lse"),
           std::string(target)});
    }
  }
  // ALiBi and softcap alone beside 32 rows a warp, which large problems have.
  for (std::string_view spec :
       {"fwd bf16 b=8 s=2048 d=128 h=16 causal alibi",
        "fwd bf16 b=8 s=2048 d=128 h=16 varlen window=1023,0 alibi softcap=30 sinks lse",
        "fwd bf16 b=8 s=2048 d=96 h=16 causal softcap=30"}) {
    cases.push_back({plan::Family::kFwdSm80, std::string(spec), "sm_90a"});
  }
}

// What attn_fwd_sm90 leaves to others.
bool ServedBySm90(std::string_view feature) {
  const bool long_with_dropout = feature.find("dropout=0.2") != std::string_view::npos;
  return ServedBySm80(feature, "64", "sm_90a") && feature.find("fp32") == std::string_view::npos &&
         !long_with_dropout;
}

void AddSm90Cases(std::vector<Case>& cases) {
  for (std::string_view dims : kSm90Dims) {
    for (std::string_view feature : kFeatures) {
      const bool common = feature == kFeatures[0] || feature == kFeatures[1];
      if (ServedBySm90(feature) && (g_slow || common || dims == "128")) {
        cases.push_back({plan::Family::kFwdSm90, SpecText(feature, dims), "sm_90a"});
      }
    }
  }
  for (std::string_view dims : {"64", "128"}) {
    cases.push_back({plan::Family::kFwdSm90,
                     SpecText("bf16 h=8/1 varlen paged=16 causal lse", dims), "sm_90a"});
  }
  // What stands beside the scores takes registers, most of all together.
  for (std::string_view dims : {"64", "96", "128", "256"}) {
    for (std::string_view feature :
         {"bf16 h=8/4 varlen causal softcap=50 lse", "bf16 h=8/4 varlen causal lse",
          "bf16 h=8/4 causal alibi", "bf16 h=8/4 window=1023,0 alibi lse"}) {
      cases.push_back({plan::Family::kFwdSm90, SpecText(feature, dims), "sm_90a"});
    }
  }
  // Rows that are no multiples of 16 bytes, in one panel and in several.
  for (std::string_view dims : {"33", "36", "60", "100", "250/130"}) {
    for (std::string_view feature :
         {"bf16 h=8", "fp16 h=16/8 causal lse", "bf16 h=8 varlen paged=16 softcap=30 lse"}) {
      cases.push_back({plan::Family::kFwdSm90, SpecText(feature, dims), "sm_90a"});
    }
  }
  // Elements of a bias in registers beside a term in shared memory and the sums of an LSE.
  for (std::string_view spec :
       {"fwd bf16 b=2 s=4096 d=64 h=8 causal bias=bf16:1,8,4096,4096 bias=bf16:1,1,1,4096 lse",
        "fwd bf16 b=2 s=4096 d=64 h=8 causal bias=bf16:1,8,4096,4096 bias=bf16:1,1,1,4096 sinks "
        "lse"}) {
    cases.push_back({plan::Family::kFwdSm90, std::string(spec), "sm_90a"});
  }
  for (std::string_view dims : {"320", "320/256", "512", "576/512"}) {
    for (std::string_view feature : {kFeatures[0], kFeatures[1]}) {
      cases.push_back({plan::Family::kFwdSm90, SpecText(feature, dims), "sm_90a"});
    }
  }
  for (std::string_view dims : {"64", "128", "256"}) {
    cases.push_back({plan::Family::kFwdSm90,
                     SpecText("e4m3 h=8 out=bf16 q_scale=head kv_scale=tensor", dims), "sm_90a"});
    cases.push_back(
        {plan::Family::kFwdSm90, SpecText("e4m3 h=8/1 out=fp16 causal lse", dims), "sm_90a"});
  }
}

// Of attn_decode_sm90: whole rows, rows shared by warpgroups in one block and in two, and few rows.
constexpr std::string_view kDecodeSm90Specs[] = {
    "fwd bf16 b=32 h=71/1 s=1/32768 d=64",
    "fwd bf16 b=32 h=128/1 s=1/32768 d=128",
    "fwd fp16 b=8 h=64/1 s=4/4096 d=128 varlen paged=16 causal softcap=30 sinks lse",
    "fwd bf16 b=8 h=40/1 s=2/4096 d=192/128 window=1023,0",
    "fwd bf16 b=8 h=64/1 s=1/4096 d=64 varlen paged=16 softcap=30 sinks lse",
    "fwd bf16 b=8 h=64/1 s=1/4096 d=256 varlen paged=64",
    "fwd bf16 b=32 h=128/1 s=1/32768 d=576/512",
    "fwd bf16 b=32 h=128/1 s=2/4096 d=576/512 varlen paged=64 causal lse",
    "fwd fp16 b=32 h=64/1 s=1/4096 d=576/512 varlen paged=16 batch_invariant softcap=30 sinks",
    "fwd bf16 b=32 h=16/1 s=1/4096 d=576/512 varlen paged=64",
    "fwd fp16 b=32 h=5/1 s=3/4096 d=320/256 varlen paged=16 causal softcap=30 sinks lse",
};

// Of attn_fwd_small: with terms to keep and without, policies, and the widest heads.
constexpr std::string_view kSmallSpecs[] = {
    "fwd bf16 b=4096 h=4 s=49 d=32",
    "fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:1,4,49,49 bias=fp16:64,1,49,49",
    "fwd bf16 b=4096 h=4 s=49 d=32 bias=bf16:1,4,49,49 mask=bool:64,1,49,49",
    "fwd bf16 b=384 h=4 s=384 d=32 bias=bf16:1,4,384,384 mask=bool:384,1,1,384",
    "fwd fp16 b=64 h=8 s=256 d=64 bias=fp16:1,8,256,256 lse",
    "fwd bf16 b=4096 h=8/2 s=25 d=64 causal alibi softcap=30 sinks lse",
    "fwd fp16 b=4096 h=8 s=16/60 d=128 varlen layout=thd dropout=0.1",
    "fwd bf16 b=4096 h=2 s=64 d=33/10 lse",
};

void AddDecodeSm90Cases(std::vector<Case>& cases) {
  for (std::string_view spec : kDecodeSm90Specs) {
    cases.push_back({plan::Family::kDecodeSm90, std::string(spec), "sm_90a"});
  }
}

void AddSmallCases(std::vector<Case>& cases) {
  for (std::string_view target : {"sm_80", "sm_86", "sm_90a", "sm_120a"}) {
    for (std::string_view spec : kSmallSpecs) {
      if (!g_slow && target != "sm_90a" && spec != kSmallSpecs[0] && spec != kSmallSpecs[1])
        continue;
      cases.push_back({plan::Family::kFwdSmall, std::string(spec), std::string(target)});
    }
  }
}

void AddSplitCases(std::vector<Case>& cases) {
  for (std::string_view target : {"sm_80", "sm_90a"}) {
    for (std::string_view spec : kSplitSpecs) {
      for (const plan::Family family : {plan::Family::kFwdSm80, plan::Family::kCombine}) {
        cases.push_back({family, std::string(spec), std::string(target)});
      }
      // attn_fwd_sm90 takes head dims that are multiples of 8.
      if (target == "sm_90a" && spec.find("72/33") == std::string_view::npos) {
        cases.push_back({plan::Family::kFwdSm90, std::string(spec), std::string(target)});
      }
    }
  }
}

// Of attn_decode: head dims, groups that fill one to four tiles of rows and several warps, stored
// bytes, pages within and across steps, policies.
constexpr std::string_view kDecodeSpecs[] = {
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128",
    "fwd bf16 b=16 h=8 s=1/8192 d=64 causal lse",
    "fwd fp16 b=16 h=32/8 s=1/8192 d=72",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=192/128",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=256",
    "fwd bf16 b=16 h=128/8 s=1/8192 d=128",
    "fwd bf16 b=16 h=192/8 s=1/8192 d=128",
    "fwd bf16 b=16 h=71/1 s=1/8192 d=64",
    "fwd bf16 b=16 h=128/1 s=1/8192 d=128",
    "fwd bf16 b=16 h=32/8 s=4/8192 d=128 causal lse varlen paged=16 sinks",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 varlen paged=1",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 varlen window=4095,0 left_padding cache_batch_idx",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 varlen causal left_padding lse",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 softcap=30 alibi",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 kv=e4m3 kv_scale=tensor",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 varlen paged=16 kv=e4m3 kv_scale=token",
    "fwd fp16 b=16 h=32/8 s=1/8192 d=128 kv=int8 kv_scale=head lse",
    "fwd bf16 b=16 h=32/8 s=1/8192 d=128 varlen batch_invariant",
    "fwd bf16 b=1 h=32/8 s=1/300 d=128 lse",
    "fwd bf16 b=1 h=1 s=64/8192 d=128 causal lse",
};
constexpr std::string_view kDecodeWideSpecs[] = {
    "fwd bf16 b=32 h=8/1 s=1/4096 d=576/512",
    "fwd bf16 b=32 h=16/1 s=1/4096 d=576/512 varlen paged=64 causal lse",
    "fwd bf16 b=32 h=32/8 s=1/4096 d=320/256",
};

void AddDecodeCases(std::vector<Case>& cases) {
  for (std::string_view target : {"sm_80", "sm_90a"}) {
    for (std::string_view spec : kDecodeSpecs) {
      if (!g_slow && target == "sm_80" && spec != kDecodeSpecs[0]) continue;
      cases.push_back({plan::Family::kDecode, std::string(spec), std::string(target)});
    }
  }
  for (std::string_view spec : kDecodeWideSpecs) {
    cases.push_back({plan::Family::kDecodeWide, std::string(spec), "sm_90a"});
  }
}

// Every feature at one dim, every dim with the plain features, every target with one of each.
void AddBwdCases(std::vector<Case>& cases) {
  const auto add = [&](plan::Family family, std::string_view feature, std::string_view dims,
                       std::string_view target) {
    cases.push_back({family, SpecText(feature, dims, "bwd "), std::string(target)});
  };
  for (std::string_view feature : kBwdFeatures) {
    add(plan::Family::kBwdSm80, feature, "64", "sm_90a");
    add(plan::Family::kBwdSimple, feature, "64", "sm_90a");
  }
  for (std::string_view dims : kBwdDims) {
    add(plan::Family::kBwdSm80, kBwdFeatures[1], dims, "sm_90a");
    add(plan::Family::kBwdSm80, kBwdFeatures[0], dims, "sm_86");
  }
  add(plan::Family::kBwdSm80, kBwdFeatures[3], "128", "sm_90a");
  for (std::string_view dims : {"8", "40", "64", "72", "96", "128", "192/128", "256"}) {
    add(plan::Family::kBwdSm90, kBwdFeatures[1], dims, "sm_90a");
  }
  add(plan::Family::kBwdSm90, kBwdFeatures[0], "128", "sm_90a");
  for (std::string_view dims : {"64", "128"}) {
    add(plan::Family::kBwdSm90, kBwdFeatures[2], dims, "sm_90a");
  }
  add(plan::Family::kBwdSm90, "bf16 h=8/2 window=127,0 sinks sinks_grad", "64", "sm_90a");
  for (std::string_view target : {"sm_80", "sm_120a"}) {
    add(plan::Family::kBwdSm80, kBwdFeatures[2], "128", target);
  }
  for (std::string_view dims : {"1", "576/512"}) {
    add(plan::Family::kBwdSimple, kBwdFeatures[1], dims, "sm_75");
  }
  for (const plan::Family family :
       {plan::Family::kBwdPrep, plan::Family::kBwdFinish, plan::Family::kBwdTerms}) {
    add(family, kBwdFeatures[5], "72", "sm_90a");
  }
}

std::vector<Case> Matrix() {
  std::vector<Case> cases;
  AddSm80Cases(cases);
  AddSm90Cases(cases);
  AddBwdCases(cases);
  AddDecodeSm90Cases(cases);
  AddSmallCases(cases);
  AddSplitCases(cases);
  AddDecodeCases(cases);
  const auto add = [&](std::string_view feature, std::string_view dims, std::string_view target) {
    cases.push_back({plan::Family::kFwdSimple, SpecText(feature, dims), std::string(target)});
  };
  if (g_slow) {
    for (const arch::ArchTraits& traits : arch::AllArchTraits()) {
      for (std::string_view feature : kFeatures) {
        for (std::string_view dims : kDims) add(feature, dims, traits.target);
      }
    }
    return cases;
  }
  // The feature with most policies tells more about a dim than the plain one.
  for (std::string_view target : kMainTargets) {
    for (std::string_view dims : kDims) add(kFeatures[1], dims, target);
  }
  for (size_t n = 0; n < std::size(kFeatures); ++n) {
    add(kFeatures[n], "128", "sm_90a");
    add(kFeatures[n], "36", kMainTargets[n % std::size(kMainTargets)]);
  }
  return cases;
}

std::string ReadSnippet(std::string_view path) {
  return std::string(path == "score" ? kScoreText : kMaskText);
}

const compile::NvrtcCompiler& Compiler() {
  static const auto& compiler = *new compile::NvrtcCompiler({});
  return compiler;
}

struct Compiled {
  artifact::KernelBinary binary;
  int64_t smem_bytes = 0;  // dynamic
};

absl::StatusOr<Compiled> CompileSpec(const AttentionSpec& spec, std::string_view target,
                                     plan::Family family = plan::Family::kFwdSimple) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  // The families of these tests whose plans have companions.
  const bool backward = spec.operation == Operation::kBackward;
  const plan::Family of_companion = backward ? plan::Family::kBwdSm80 : plan::Family::kFwdSm80;
  const plan::Family main = plan::IsCompanion(family) ? of_companion : family;
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const plan::Decision decision,
      plan::Best({.spec = spec, .traits = traits, .board = board, .family = main}));
  const std::vector<plan::KernelPlan> kernels = decision.plan.Kernels();
  const auto kernel = std::find_if(kernels.begin(), kernels.end(),
                                   [&](const auto& each) { return each.family == family; });
  if (kernel == kernels.end()) return absl::NotFoundError(decision.plan.ToString());
  TILEWRIGHT_ASSIGN_OR_RETURN(const artifact::KernelSource source, emit::EmitKernel(spec, *kernel));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      artifact::KernelBinary binary,
      Compiler().Compile({.source = source,
                          .bundle = emit::EmbeddedTemplates().files,
                          .target = kernel->target,
                          .options = compile::CompileOptions(kernel->target, false)}));
  return Compiled{.binary = std::move(binary), .smem_bytes = kernel->smem_bytes};
}

absl::StatusOr<Compiled> CompileCase(const Case& c) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, spec::ParseSpec(c.spec, ReadSnippet));
  return CompileSpec(spec::Canonicalise(spec), c.target, c.family);
}

// Of cache_append: each has a kind of rotary embedding, of scales and of chunks that others lack.
std::vector<CacheAppendSpec> AppendSpecs() {
  return {{.heads_q = 32, .heads_kv = 8, .page_size = 16, .rotary = Rotary::kHalfSplit},
          {.type = ElementType::kFp16,
           .cache_type = ElementType::kInt8,
           .cache_scale = ScaleKind::kPerToken,
           .heads_q = 8,
           .heads_kv = 8,
           .dim_qk = 80,
           .dim_v = 80,
           .rotary = Rotary::kInterleaved,
           .rotary_table = ElementType::kFp16},
          {.type = ElementType::kFp32,
           .cache_type = ElementType::kFp8E4m3,
           .cache_scale = ScaleKind::kPerHead,
           .heads_kv = 1,
           .dim_qk = 576,
           .dim_v = 0,
           .rotary = Rotary::kInterleaved,
           .rotary_begin = 512}};
}

// NVRTC compiles in parallel.
std::vector<absl::StatusOr<Compiled>> CompileAll(const std::vector<Case>& cases) {
  constexpr int kThreads = 2;
  std::vector<absl::StatusOr<Compiled>> results(cases.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (size_t n = next++; n < cases.size(); n = next++) results[n] = CompileCase(cases[n]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

struct Budget {
  int registers = 0;
  int64_t smem_bytes = 0;  // dynamic and static
};

// A header line, then "registers,smem_bytes,family,target,spec"; specs have commas.
using Budgets = std::map<std::string, Budget>;  // by Case::name()

std::string BudgetPath() {
  return absl::StrCat(TILEWRIGHT_SOURCE_DIR, "/tests/resource_budget.csv");
}

Budgets ReadBudgets() {
  Budgets budgets;
  std::ifstream stream(BudgetPath());
  std::string line;
  std::getline(stream, line);
  while (std::getline(stream, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, absl::MaxSplits(',', 2));
    if (cells.size() != 3) {
      ADD_FAILURE() << BudgetPath() << ": not a row: " << line;
      continue;
    }
    Budget& budget = budgets[cells[2]];
    std::from_chars(cells[0].data(), cells[0].data() + cells[0].size(), budget.registers);
    std::from_chars(cells[1].data(), cells[1].data() + cells[1].size(), budget.smem_bytes);
  }
  return budgets;
}

void WriteBudgets(const Budgets& budgets) {
  std::ofstream stream(BudgetPath());
  stream << "registers,smem_bytes,family,target,spec\n";
  for (const auto& [name, budget] : budgets) {
    stream << budget.registers << "," << budget.smem_bytes << "," << name << "\n";
  }
}

class CompileMatrixTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto identity = Compiler().Identity(); !identity.ok()) {
      GTEST_SKIP() << "no NVRTC: " << identity.status().message();
    }
  }
};

TEST_F(CompileMatrixTest, EveryKernelCompilesWithoutSpillsInItsBudget) {
  const std::vector<Case> cases = Matrix();
  const std::vector<absl::StatusOr<Compiled>> results = CompileAll(cases);
  Budgets budgets = g_update ? Budgets{} : ReadBudgets();
  int unavailable = 0;
  for (size_t n = 0; n < cases.size(); ++n) {
    SCOPED_TRACE(cases[n].name());
    const absl::StatusOr<Compiled>& result = results[n];
    if (absl::IsUnavailable(result.status())) {  // an NVRTC that does not know the target
      ++unavailable;
      continue;
    }
    ASSERT_TRUE(result.ok()) << result.status();
    const artifact::ResourceUsage& usage = result->binary.usage;
    EXPECT_EQ(usage.spill_store_bytes, 0);
    EXPECT_EQ(usage.spill_load_bytes, 0);
    EXPECT_EQ(usage.stack_bytes, 0);
    EXPECT_GT(usage.registers, 0);
    EXPECT_THAT(result->binary.log, Not(HasSubstr("warning")));
    EXPECT_FALSE(result->binary.cubin.empty());
    const int64_t smem_bytes = result->smem_bytes + usage.static_smem_bytes;
    if (g_update) {
      budgets[cases[n].name()] = {usage.registers, smem_bytes};
      continue;
    }
    const auto budget = budgets.find(cases[n].name());
    if (g_slow && budget == budgets.end()) continue;
    ASSERT_NE(budget, budgets.end()) << "no row in " << BudgetPath() << ": run with --update";
    EXPECT_LE(usage.registers, budget->second.registers + kRegisterSlack);
    EXPECT_LE(smem_bytes, budget->second.smem_bytes);
  }
  EXPECT_LT(unavailable, static_cast<int>(cases.size()));
  if (g_update) WriteBudgets(budgets);
}

// ---- errors in snippets -----------------------------------------------------------------------

absl::Status ErrorOf(const std::string& score, const std::string& mask) {
  AttentionSpec spec;
  if (!score.empty()) spec.score_snippet = {.text = score, .file_name = "my_score.cuh"};
  if (!mask.empty()) spec.mask_snippet = {.text = mask, .file_name = ""};
  spec.snippet_arrays = {{"table", ElementType::kFp32}};
  return CompileSpec(spec, "sm_90a").status();
}

TEST_F(CompileMatrixTest, CacheAppendNeitherSpillsNorWarns) {
  for (const CacheAppendSpec& given : AppendSpecs()) {
    const CacheAppendSpec spec = spec::Canonicalise(given);
    for (const std::string_view target : kMainTargets) {
      SCOPED_TRACE(absl::StrCat(spec::ToText(spec), " for ", std::string(target)));
      const auto plan = plan::PlanCacheAppend(spec, std::string(target), /*num_sms=*/100);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto binary =
          Compiler().Compile({.source = emit::EmitCacheAppend(spec, *plan),
                              .bundle = emit::EmbeddedTemplates().files,
                              .target = plan->target,
                              .options = compile::CompileOptions(plan->target, false)});
      ASSERT_TRUE(binary.ok()) << binary.status();
      EXPECT_EQ(binary->usage.spill_store_bytes + binary->usage.spill_load_bytes, 0);
      EXPECT_THAT(binary->log, Not(HasSubstr("warning")));
    }
  }
}

TEST_F(CompileMatrixTest, ErrorsPointIntoTheSnippet) {
  const absl::Status expression = ErrorOf("score +\n  slope * 2", "");
  EXPECT_EQ(expression.code(), absl::StatusCode::kInvalidArgument) << expression;
  EXPECT_THAT(std::string(expression.message()), HasSubstr("my_score.cuh(2): error"));
  EXPECT_THAT(std::string(expression.message()), HasSubstr("\"slope\""));

  const absl::Status body = ErrorOf("", "// A rule.\n\nif (i > j) return tru;\nreturn false;");
  EXPECT_EQ(body.code(), absl::StatusCode::kInvalidArgument) << body;
  EXPECT_THAT(std::string(body.message()), HasSubstr("mask_snippet(3): error"));

  // Found only where the snippet's function is instantiated.
  const absl::Status late = ErrorOf("score + table[score]", "");
  EXPECT_EQ(late.code(), absl::StatusCode::kInvalidArgument) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("my_score.cuh(1): error"));
}

TEST_F(CompileMatrixTest, AnUnfinishedSnippetIsTheCallersError) {
  const absl::Status status = ErrorOf("score * (2", "");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(CompileMatrixTest, SnippetsMayHideTheNamesAroundThem) {
  AttentionSpec spec;
  spec.score_snippet.text = "const int i = 1; return score + i + Problem[0] + i64;";
  spec.snippet_arrays = {{"Problem", ElementType::kBf16}, {"int64_t", ElementType::kInt32}};
  spec.snippet_scalars = {{"i64", ScalarType::kInt64}, {"Bf16", ScalarType::kFloat}};
  const absl::StatusOr<Compiled> result = CompileSpec(spec, "sm_90a");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->binary.log, Not(HasSubstr("warning")));
}

}  // namespace
}  // namespace tilewright

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int n = 1; n < argc; ++n) {
    if (std::string_view(argv[n]) == "--slow") tilewright::g_slow = true;
    if (std::string_view(argv[n]) == "--update") tilewright::g_update = true;
  }
  return RUN_ALL_TESTS();
}

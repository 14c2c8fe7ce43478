#include "emit/emit_kernel.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "emit/code_spec.h"
#include "emit/config_writer.h"
#include "emit/device_types.h"
#include "emit/param_layout.h"
#include "emit/user_policy.h"
#include "emit/wgmma_wrapper.h"
#include "plan/family_planner.h"
#include "plan/launch_shape.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::emit {
namespace {

using plan::Family;
using plan::KernelPlan;

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

// ---- names ----------------------------------------------------------------------------------

std::string SpecName(const AttentionSpec& spec) {
  std::vector<std::string> words;
  const auto add = [&words](const auto&... pieces) { words.push_back(absl::StrCat(pieces...)); };
  const auto type_name = [](ElementType type) { return Piece(spec::ElementTypeName(type)); };
  const bool top_left = spec.align == MaskAlign::kTopLeft;
  add(type_name(spec.type));
  if (spec::KvType(spec) != spec.type) add("kv", type_name(spec::KvType(spec)));
  if (spec::OutType(spec) != spec.type) add("out", type_name(spec::OutType(spec)));
  if (spec.dim_qk == spec.dim_v) {
    add("d", spec.dim_qk);
  } else {
    add("d", spec.dim_qk, "v", spec.dim_v);
  }
  if (spec::GroupSize(spec) != 1) add("gqa", spec::GroupSize(spec));
  if (DiagonalMaskOf(spec) == DiagonalMask::kCausal) add("causal", top_left ? "tl" : "");
  if (DiagonalMaskOf(spec) == DiagonalMask::kWindow) add("window", top_left ? "tl" : "");
  if (spec.block_mask_q != 0) add("blockmask", spec.block_mask_q, "x", spec.block_mask_kv);
  if (spec::EffectiveScale(spec) <= 0) add("unfolded");
  if (spec.deterministic) add("deterministic");
  if (spec.softcap != 0) add(spec.softcap_before_bias ? "softcapfirst" : "softcap");
  if (spec.alibi) add("alibi", top_left ? "tl" : "", spec.alibi_gradient ? "grad" : "");
  for (const BiasTerm& term : spec.bias) {
    add("bias", type_name(term.type), term.gradient ? "grad" : "");
  }
  if (spec.sinks) add("sinks", spec.sinks_gradient ? "grad" : "");
  if (spec.dropout != 0) add("dropout");
  if (spec.q_scale != ScaleKind::kNone) add("qscale");
  if (spec.kv_scale != ScaleKind::kNone) add("kvscale");
  if (!spec.score_snippet.empty()) {
    add("score", spec.score_gradient_snippet.empty() ? "" : "grad");
  }
  if (!spec.mask_snippet.empty()) add("mask");
  if (spec.varlen) add("varlen");
  if (spec.page_size != 0) add("paged", spec.page_size);
  if (spec.left_padding) add("leftpadding");
  if (spec.cache_batch_idx) add("slots");
  if (spec.strided_innermost) add("strided");
  if (spec.lse || spec.lse_base != LseBase::kE || spec.empty_lse != EmptyLse::kMinusInf) {
    add("lse", spec.lse_base == LseBase::kTwo ? "2" : "",
        spec.empty_lse == EmptyLse::kPlusInf ? "inf" : "");
  }
  if (spec.exact) add("b", spec.batch, "s", spec.seqlen_q, "x", spec.seqlen_kv);
  return absl::StrJoin(words, "_");
}

std::string PlanName(const KernelPlan& plan) {
  switch (plan.family) {
    case Family::kDecodeSm90:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "s", plan.stages, "x", plan.cluster,
                          plan.column_warps > 1 ? "shared" : "",
                          plan.chunk != 0 ? absl::StrCat("c", plan.chunk) : "");
    case Family::kDecode:
    case Family::kDecodeWide:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "w", plan.warps, "k", plan.step,
                          "s", plan.stages,
                          plan.shared_stages != 0 ? absl::StrCat("or", plan.shared_stages) : "",
                          plan.cluster > 1 ? absl::StrCat("x", plan.cluster) : "",
                          plan.chunk != 0 ? absl::StrCat("c", plan.chunk) : "");
    case Family::kFwdSmall:
      return absl::StrCat(
          "m", plan.block_m, "n", plan.block_n, "w", plan.warps, "k", plan.step, "s", plan.stages,
          plan.kept_terms != 0 ? absl::StrCat("kt", plan.kept_terms, "k", plan.kept_keys) : "",
          plan.packed_terms ? "packed" : "", plan.narrow_rows ? "narrow" : "");
    case Family::kFwdSm90:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "s", plan.stages, "x", plan.cluster,
                          plan.blocks > 1 ? absl::StrCat("b", plan.blocks) : "",
                          plan.staged_terms != 0 ? absl::StrCat("st", plan.staged_terms) : "",
                          plan.optimistic ? "opt" : "", plan.ones ? "ones" : "",
                          plan.ping_pong ? "pp" : "", plan.q_in_registers ? "q" : "",
                          plan.own_o ? "o" : "", plan.over_v ? "v" : "",
                          plan.column_warps > 1 ? "shared" : "", plan.narrow_rows ? "narrow" : "",
                          plan.split ? "split" : "");
    case Family::kFwdSm80:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "w", plan.warps, "s", plan.stages,
                          plan.column_warps > 1 ? absl::StrCat("v", plan.column_warps) : "",
                          plan.tf32_terms != 0 ? absl::StrCat("tf", plan.tf32_terms) : "",
                          plan.turing ? "turing" : "", plan.peeled ? "peeled" : "",
                          plan.narrow_rows ? "narrow" : "", plan.split ? "split" : "");
    case Family::kFwdSimple:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "w", plan.warps, "r",
                          plan.rows_per_warp, "p", plan.panel);
    case Family::kCombine:
      return absl::StrCat("m", plan.block_m, "w", plan.warps, plan.split ? "" : "merge",
                          plan.tile_rows == 0 ? ""
                                              : absl::StrCat("t", plan.tile_rows, "n", plan.block_n,
                                                             "k", plan.step, "c", plan.chunk));
    case Family::kBwdPrep:
    case Family::kBwdFinish:
      return absl::StrCat("m", plan.block_m, "w", plan.warps);
    case Family::kBwdSimple:
    case Family::kBwdTerms:
      return absl::StrCat("m", plan.block_m, "w", plan.warps, "p", plan.panel);
    case Family::kBwdSm90:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "s", plan.stages,
                          plan.cluster > 1 ? absl::StrCat("x", plan.cluster) : "");
    case Family::kBwdSm80:
      return absl::StrCat("m", plan.block_m, "n", plan.block_n, "w", plan.warps, "k",
                          plan.key_warps, "q", plan.dq_row_warps, "s", plan.stages);
    case Family::kCacheAppend:
      break;
  }
  return "";
}

std::string EntryName(const AttentionSpec& spec, const KernelPlan& plan) {
  return absl::StrCat(Piece(plan::FamilyName(plan.family)), "__", SpecName(spec), "__",
                      PlanName(plan));
}

// ---- struct Params --------------------------------------------------------------------------

struct Member {
  std::string declaration;
  std::string name;
};

// Bias terms are one array, declared by the first of them.
Member MemberOf(const ParamSlot& slot, const AttentionSpec& spec, const KernelPlan& plan) {
  switch (slot.kind) {
    case ParamSlotKind::kCore:
      return {"abi::AttnFwdParams core", "core"};
    case ParamSlotKind::kGradients:
      return {"abi::AttnBwdParams gradients", "gradients"};
    case ParamSlotKind::kBiasGradient: {
      int count = 0, place = 0;
      for (size_t n = 0; n < spec.bias.size(); ++n) {
        if (static_cast<int>(n) == slot.index) place = count;
        if (spec.bias[n].gradient) ++count;
      }
      return {place == 0 ? absl::StrCat("abi::BiasGradientArgs bias_gradients[", count, "]") : "",
              absl::StrCat("bias_gradients[", place, "]")};
    }
    case ParamSlotKind::kAlibiGradient:
      return {"abi::BiasGradientArgs alibi_gradient", "alibi_gradient"};
    case ParamSlotKind::kSinksGradient:
      return {"abi::SinkGradientArgs sinks_gradient", "sinks_gradient"};
    case ParamSlotKind::kUserArrayGradient: {
      const std::string name = absl::StrCat("d_user_", spec.snippet_arrays[slot.index].name);
      return {absl::StrCat("float* ", name), name};
    }
    case ParamSlotKind::kWindow:
      return {"abi::WindowArgs window", "window"};
    case ParamSlotKind::kVarlen:
      return {"abi::VarlenArgs varlen", "varlen"};
    case ParamSlotKind::kPageTable:
      return {"abi::PageTableArgs page_table", "page_table"};
    case ParamSlotKind::kLeftPadding:
      return {"abi::LeftPaddingArgs left_padding", "left_padding"};
    case ParamSlotKind::kCacheSlots:
      return {"abi::CacheSlotArgs cache_slots", "cache_slots"};
    case ParamSlotKind::kAlibi:
      return {"abi::AlibiArgs alibi", "alibi"};
    case ParamSlotKind::kBias:
      return {slot.index == 0 ? absl::StrCat("abi::BiasArgs bias[", spec.bias.size(), "]") : "",
              absl::StrCat("bias[", slot.index, "]")};
    case ParamSlotKind::kSoftcap:
      return {"abi::SoftcapArgs softcap", "softcap"};
    case ParamSlotKind::kSinks:
      return {"abi::SinkArgs sinks", "sinks"};
    case ParamSlotKind::kBlockMask:
      return {"abi::BlockMaskArgs block_mask", "block_mask"};
    case ParamSlotKind::kQScale:
      return {"abi::ScaleArgs q_scale", "q_scale"};
    case ParamSlotKind::kKScale:
      return {"abi::ScaleArgs k_scale", "k_scale"};
    case ParamSlotKind::kVScale:
      return {"abi::ScaleArgs v_scale", "v_scale"};
    case ParamSlotKind::kDropout:
      return {"abi::DropoutArgs dropout", "dropout"};
    case ParamSlotKind::kBiasMap:
      return {
          slot.index == 0 ? absl::StrCat("abi::TensorMap bias_maps[", plan.staged_terms, "]") : "",
          absl::StrCat("bias_maps[", slot.index, "]")};
    case ParamSlotKind::kFwdSm90:
      return {"abi::FwdSm90Args sm90", "sm90"};
    case ParamSlotKind::kBwdSm90:
      return {"abi::BwdSm90Args sm90", "sm90"};
    case ParamSlotKind::kDecodeSm90:
      return {"abi::DecodeSm90Args decode_sm90", "decode_sm90"};
    case ParamSlotKind::kUserArray: {
      const SnippetArray& array = spec.snippet_arrays[slot.index];
      return {absl::StrCat("const ", Piece(SnippetTypeName(array.type)), "* user_", array.name),
              absl::StrCat("user_", array.name)};
    }
    case ParamSlotKind::kUserScalar: {
      // Every scalar takes 8 bytes.
      const SnippetScalar& scalar = spec.snippet_scalars[slot.index];
      return {
          absl::StrCat("alignas(8) ", Piece(SnippetTypeName(scalar.type)), " user_", scalar.name),
          absl::StrCat("user_", scalar.name)};
    }
    case ParamSlotKind::kParts:
      return {"abi::PartsArgs parts", "parts"};
  }
  return {};
}

std::string ParamsText(const AttentionSpec& spec, const KernelPlan& plan) {
  const ParamLayout layout = MakeParamLayout(spec, plan);
  std::string members, asserts;
  for (const ParamSlot& slot : layout.slots) {
    const Member member = MemberOf(slot, spec, plan);
    if (!member.declaration.empty()) absl::StrAppend(&members, "  ", member.declaration, ";\n");
    absl::StrAppend(&asserts, "static_assert(TILEWRIGHT_OFFSETOF(Params, ", member.name,
                    ") == ", slot.offset, ");\n");
  }
  return absl::StrCat("struct Params {\n", members, "};\n",
                      "// The host fills these bytes: src/emit/param_layout.cc.\n", asserts,
                      "static_assert(sizeof(Params) == ", layout.size, ");\n");
}

// ---- struct Config --------------------------------------------------------------------------

// A policy's type and the header that defines it.
class Policies {
 public:
  explicit Policies(const AttentionSpec& spec) : spec_(spec) {
    align_ = spec.align == MaskAlign::kTopLeft ? "Align::kTopLeft" : "Align::kBottomRight";
    if (spec.softcap_before_bias) AddSoftcap();
    AddBiases();
    if (!spec.softcap_before_bias) AddSoftcap();
    if (!spec.score_snippet.empty()) {
      scores_.push_back("ScoreUser");
      includes_.insert(std::string(kUserScoreHeader));
    }
    if (scores_.empty() && spec::EffectiveScale(spec) <= 0) {
      scores_.push_back("ScoreUnfolded");
      includes_.insert("policy/score_unfolded.cuh");
    }
    AddMasks();
  }

  // Every header that the Config of `spec` needs beside its family's.
  const std::set<std::string>& includes() const { return includes_; }

  void Write(ConfigWriter& config) const {
    const auto choose = [](bool condition, std::string_view yes, std::string_view no) {
      return condition ? yes : no;
    };
    config.Using("Lengths", LengthsType())
        .Using("KvRows", KvRowsType())
        .Using("ScaleOfQ", choose(spec_.q_scale != ScaleKind::kNone, "ScaleQ", "ScaleNone"))
        .Using("ScaleOfKv", choose(spec_.kv_scale != ScaleKind::kNone, "ScaleKv", "ScaleNone"))
        .Chain("Score", "ScoreChain", scores_)
        .Chain("Mask", "MaskChain", masks_)
        .Using("Sink", choose(spec_.sinks, "SinkPerHead", "SinkNone"))
        .Using("Dropout", choose(spec_.dropout != 0, "DropoutPhilox", "DropoutNone"))
        .Using("Lse", LseType());
  }

  // What a backward family asks besides.
  void WriteGradients(ConfigWriter& config) const {
    const auto biases = std::count_if(spec_.bias.begin(), spec_.bias.end(),
                                      [](const BiasTerm& term) { return term.gradient; });
    config.Section("gradients")
        .Int("kBiasGradients", static_cast<int64_t>(biases))
        .Using("AlibiGradient", spec_.alibi_gradient ? absl::StrCat("AlibiGradientOf<", align_, ">")
                                                     : "AlibiGradientNone")
        .Bool("kSinksGradient", spec_.sinks_gradient)
        .Bool("kHasScoreGradient", !spec_.score_gradient_snippet.empty())
        .Bool("kDeterministic", spec_.deterministic);
  }

  // The bias terms of the set `kept`, with the masks that are no bias terms, and the set of the
  // other masks.
  void WriteKeptTerms(int kept, ConfigWriter& config) const {
    std::vector<std::string> scores, masks = masks_;
    int others = 0;
    for (size_t n = 0; n < spec_.bias.size(); ++n) {
      const bool is_kept = (kept >> n & 1) != 0;
      if (spec_.bias[n].type != ElementType::kBool) {
        if (is_kept) scores.push_back(BiasPolicy(n));
      } else if (!is_kept) {
        others |= 1 << n;
        masks.erase(std::find(masks.begin(), masks.end(), BiasPolicy(n)));
      }
    }
    config.Chain("KeptScore", "ScoreChain", scores)
        .Chain("KeptMask", "MaskChain", masks)
        .Int("kOtherMasks", others);
  }

  // What attn_combine needs of them.
  void WriteForRows(bool with_mask, ConfigWriter& config) const {
    config.Using("Lengths", LengthsType());
    if (with_mask) config.Chain("Mask", "MaskChain", masks_);
    config.Using("Sink", spec_.sinks ? "SinkPerHead" : "SinkNone").Using("Lse", LseType());
  }

  // The convention of parts that come from the caller.
  std::string PartLseType() const {
    return absl::StrCat("LsePartStored<", spec_.lse_base == LseBase::kTwo ? "true" : "false", ", ",
                        spec_.empty_lse == EmptyLse::kPlusInf ? "true" : "false", ">");
  }

 private:
  void AddSoftcap() {
    if (spec_.softcap == 0) return;
    scores_.push_back("ScoreSoftcap");
    includes_.insert("policy/score_softcap.cuh");
  }

  void AddBiases() {
    for (size_t n = 0; n < spec_.bias.size(); ++n) {
      includes_.insert("policy/bias_terms.cuh");
      if (spec_.bias[n].type == ElementType::kBool) continue;  // AddMasks
      scores_.push_back(BiasPolicy(n));
    }
    if (spec_.alibi) {
      scores_.push_back(absl::StrCat("ScoreAlibi<", align_, ">"));
      includes_.insert("policy/score_alibi.cuh");
    }
  }

  std::string BiasPolicy(size_t n) const {
    if (spec_.bias[n].type == ElementType::kBool) return absl::StrCat("MaskBias<", n, ">");
    return absl::StrCat("ScoreBias<", n, ", ", Piece(DeviceTypeName(spec_.bias[n].type)), ">");
  }

  std::string LengthsType() const {
    const std::string base = spec_.varlen ? "LengthsVarlen" : "LengthsUniform";
    return spec_.cache_batch_idx ? absl::StrCat("LengthsOfSlots<", base, ">") : base;
  }

  std::string KvRowsType() const {
    if (spec_.page_size == 0) return "KvRowsDense";
    return absl::StrCat("KvRowsPaged<", spec_.page_size, spec_.cache_batch_idx ? ", true>" : ">");
  }

  // Cheap rules first: the chain stops at the first that excludes a key.
  void AddMasks() {
    if (const DiagonalMask diagonal = DiagonalMaskOf(spec_); diagonal != DiagonalMask::kNone) {
      masks_.push_back(absl::StrCat(
          diagonal == DiagonalMask::kCausal ? "MaskCausal<" : "MaskWindow<", align_, ">"));
      includes_.insert("policy/mask_window.cuh");
    }
    if (spec_.left_padding) {
      masks_.push_back("MaskLeftPadding");
      includes_.insert("policy/mask_left_padding.cuh");
    }
    if (spec_.block_mask_q != 0) {
      masks_.push_back(
          absl::StrCat("MaskBlock<", spec_.block_mask_q, ", ", spec_.block_mask_kv, ">"));
      includes_.insert("policy/mask_block.cuh");
    }
    for (size_t n = 0; n < spec_.bias.size(); ++n) {
      if (spec_.bias[n].type == ElementType::kBool) masks_.push_back(BiasPolicy(n));
    }
    if (!spec_.mask_snippet.empty()) {
      masks_.push_back("MaskUser");
      includes_.insert(std::string(kUserMaskHeader));
    }
  }

  std::string LseType() const {
    if (!spec_.lse && spec_.operation == Operation::kForward) return "LseNone";
    return absl::StrCat("LseStored<", spec_.lse_base == LseBase::kTwo ? "true" : "false", ", ",
                        spec_.empty_lse == EmptyLse::kPlusInf ? "true" : "false", ">");
  }

  const AttentionSpec& spec_;
  std::string align_;
  std::vector<std::string> scores_;
  std::vector<std::string> masks_;
  std::set<std::string> includes_;
};

// What setmaxnreg leaves a thread of the loading and of a computing warpgroup. They draw on what
// the block was launched with: 65536 / threads, rounded down to a multiple of 8. 0: as launched.
struct RegisterSplit {
  int loader;
  int consumer;
};
RegisterSplit RegistersOf(const AttentionSpec& spec, const KernelPlan& plan) {
  constexpr int kRegisters = 65536, kStep = 8;
  // Looks pages up, or transposes four pieces at a time.
  const bool transposes = spec.type == ElementType::kFp8E4m3;
  if (spec.page_size != 0 || (transposes && plan.consumers == 2)) return {56, 224};
  const int blocks = std::max(plan.blocks, 1);
  if (plan.consumers == 1 && blocks == 1) return {0, 0};
  const int launched = kRegisters / (plan.threads() * blocks) / kStep * kStep;
  // Who asks for boxes of bias terms knows where each of them lies.
  const int loader = blocks > 3                           ? 24
                     : plan.consumers == 2 && blocks == 1 ? 40
                     : plan.staged_terms > 0              ? 56
                                                          : 32;
  const int consumers = plan.consumers;
  return {loader, (launched * (consumers + 1) - loader) / consumers / kStep * kStep};
}

// Adjacent keys of a row that one lane holds (mma/score_tile.cuh). More of them where a key has
// something of its own in memory, or random numbers in fours; in their natural order otherwise.
int RunKeys(const AttentionSpec& spec, const KernelPlan& plan) {
  if (spec.bias.empty() && spec.dropout == 0 && spec.page_size == 0 && spec.block_mask_q == 0) {
    return 2;
  }
  const int warp_keys =
      plan.family == Family::kFwdSmall ? plan.step : plan.block_n / plan.column_warps;
  return warp_keys % 32 == 0 ? 8 : warp_keys % 16 == 0 ? 4 : 2;
}

void WritePlan(const AttentionSpec& spec, const KernelPlan& plan, ConfigWriter& config) {
  config.Int("kWarps", plan.warps)
      .Int("kRowsPerWarp", plan.rows_per_warp)
      .Int("kBlockM", plan.block_m)
      .Int("kBlockN", plan.block_n);
  switch (plan.family) {
    case Family::kDecodeSm90:
      config.Int("kStepKeys", plan.step)
          .Int("kStages", plan.stages)
          .Int("kCluster", plan::BlocksOfShare(plan))
          .Int("kClusterShares", plan.cluster / plan::BlocksOfShare(plan))
          .Int("kChunk", plan.chunk);
      if (plan.consumers == 0) break;  // no warpgroups
      if (plan.column_warps == 1) {
        config.Int("kConsumers", plan.consumers).Int("kTeams", std::max(plan.key_warps, 1));
      }
      // The walk over pieces and pages spills with fewer, and with what merging needs of them.
      config.Int("kLoaderRegisters", plan.column_warps > 1 ? 88 : 72)
          .Int("kConsumerRegisters", plan.column_warps > 1 ? 208
                                     : plan.consumers > 2  ? 96
                                                           : 216)
          .Using("Wgmma", "AttentionWgmma");
      break;
    case Family::kDecodeWide:
      config.Int("kStepKeys", plan.step)
          .Int("kStages", plan.stages)
          .Int("kSharedStages", plan.shared_stages)
          .Int("kChunk", plan.chunk)
          .Int("kPageRows", std::max<int64_t>(spec.page_size, 1))
          .Bool("kScalePerToken", false);
      break;
    case Family::kDecode:
      config.Int("kTeams", plan.block_n / plan.step)
          .Int("kRowWarps", plan.block_m / plan.rows_per_warp)
          .Int("kRowTiles", plan.rows_per_warp / 8)
          .Int("kStepKeys", plan.step)
          .Int("kStages", plan.stages)
          .Int("kChunk", plan.chunk)
          .Int("kPageRows", std::max<int64_t>(spec.page_size, 1))
          .Bool("kScalePerToken", spec.kv_scale == ScaleKind::kPerToken);
      if (plan.cluster > 1) config.Int("kCluster", plan.cluster);
      break;
    case Family::kFwdSm90: {
      const RegisterSplit split = RegistersOf(spec, plan);
      config.Int("kStages", plan.stages)
          .Int("kConsumers", plan.consumers)
          .Int("kSharers", plan.column_warps)
          .Int("kCluster", plan.cluster)
          .Int("kStagedTerms", plan.staged_terms)
          .Bool("kScoresMayHide", !spec.bias.empty() || !spec.score_snippet.empty())
          .Bool("kOptimistic", plan.optimistic)
          .Bool("kOnes", plan.ones)
          .Bool("kPingPong", plan.ping_pong)
          .Bool("kQInRegisters", plan.q_in_registers)
          .Bool("kNarrowRows", plan.narrow_rows)
          .Bool("kOwnO", plan.own_o)
          .Bool("kOverV", plan.over_v)
          .Bool("kSplit", plan.split)
          .Int("kLoaderRegisters", split.loader)
          .Int("kConsumerRegisters", split.consumer)
          .Using("Wgmma", "AttentionWgmma");
      break;
    }
    case Family::kFwdSmall:
      // Kept terms lie in shared memory as lanes have them, so that no lane asks for runs of keys.
      config.Int("kTeams", plan.warps * plan.rows_per_warp / plan.block_m)
          .Int("kStepKeys", plan.step)
          .Int("kStages", plan.stages)
          .Int("kKeptTerms", plan.kept_terms)
          .Int("kTermKeys", plan.kept_keys)
          .Bool("kPackedTerms", plan.packed_terms)
          .Bool("kNarrowRows", plan.narrow_rows)
          .Int("kRunKeys", plan.kept_terms != 0 ? 2 : RunKeys(spec, plan));
      break;
    case Family::kFwdSm80:
      config.Int("kColumnWarps", plan.column_warps)
          .Int("kTf32Terms", plan.tf32_terms)
          .Bool("kTuring", plan.turing)
          .Int("kStages", plan.stages)
          .Bool("kPeeled", plan.peeled)
          .Bool("kSplit", plan.split)
          .Bool("kNarrowRows", plan.narrow_rows)
          .Int("kRunKeys", RunKeys(spec, plan));
      break;
    case Family::kFwdSimple:
      config.Int("kPanel", plan.panel);
      break;
    case Family::kBwdSm90: {
      const plan::BwdKeptSteps kept = plan::BwdSm90KeptSteps(plan, spec.dim_qk, spec.dim_v);
      // The computing threads take all that ptxas may give one.
      config.Int("kStages", plan.stages)
          .Int("kLoaderRegisters", 24)
          .Int("kConsumerRegisters", 240)
          .Int("kKeptK", kept.k)
          .Int("kKeptV", kept.v)
          .Int("kDqColumns", plan::BwdSm90DqColumns(plan, spec.dim_qk))
          .Int("kCluster", std::max(plan.cluster, 1))
          .Using("Wgmma", "AttentionWgmma");
      break;
    }
    case Family::kBwdSm80:
      config.Int("kKeyWarps", plan.key_warps)
          .Int("kDqRowWarps", plan.dq_row_warps)
          .Int("kStages", plan.stages);
      break;
    case Family::kBwdSimple:
    case Family::kBwdTerms:
      config.Int("kPanel", plan.panel).Bool("kWritesTensors", plan.family == Family::kBwdSimple);
      break;
    case Family::kCombine:
    case Family::kBwdPrep:
    case Family::kBwdFinish:
    case Family::kCacheAppend:
      break;
  }
}

std::string ConfigText(const AttentionSpec& spec, const KernelPlan& plan,
                       const Policies& policies) {
  ConfigWriter config;
  if (plan.family == Family::kCombine) {
    config.Section("spec")
        .Using("PartElement", DeviceTypeName(spec::KvType(spec)))
        .Using("OutElement", DeviceTypeName(spec::OutType(spec)))
        .Int("kHeadDimV", spec.dim_v)
        .Section("plan")
        .Int("kWarps", plan.warps)
        .Int("kBlockM", plan.block_m)
        .Int("kTileRows", plan.tile_rows);
    if (plan.tile_rows != 0) {
      config.Int("kTileKeys", plan.block_n)
          .Int("kTileStep", plan.step)
          .Int("kChunk", plan.chunk)
          .Int("kGroup", spec::GroupSize(spec))
          .Int64("kBatch", spec.exact ? spec.batch : 0)
          .Int64("kSeqlenQ", spec.exact ? spec.seqlen_q : 0)
          .Int64("kSeqlenKv", spec.exact ? spec.seqlen_kv : 0);
    }
    config.Section("policies");
    policies.WriteForRows(plan.tile_rows != 0, config);
    config.Using("PartLse", plan.split ? "LsePartNatural" : policies.PartLseType());
    return config.Finish("Config");
  }
  config.Section("spec")
      .Using("Element", DeviceTypeName(spec.type))
      .Using("KvElement", DeviceTypeName(spec::KvType(spec)))
      .Using("OutElement", DeviceTypeName(spec::OutType(spec)))
      .Int("kHeadDimQk", spec.dim_qk)
      .Int("kHeadDimV", spec.dim_v)
      .Int("kGroup", spec::GroupSize(spec))
      .Bool("kStridedInnermost", spec.strided_innermost)
      .Section(spec.exact ? "sizes, baked in" : "sizes; 0: from params")
      .Int64("kBatch", spec.exact ? spec.batch : 0)
      .Int64("kSeqlenQ", spec.exact ? spec.seqlen_q : 0)
      .Int64("kSeqlenKv", spec.exact ? spec.seqlen_kv : 0)
      .Section("plan");
  WritePlan(spec, plan, config);
  if (plan.family == Family::kBwdPrep) {
    config.Int("kDqSumsOfTile", plan::DqSumsOfTile(plan.block_m, spec.dim_qk));
  }
  config.Section("policies");
  policies.Write(config);
  if (plan.kept_terms != 0) policies.WriteKeptTerms(plan.kept_terms, config);
  if (spec.operation == Operation::kBackward) policies.WriteGradients(config);
  return config.Finish("Config");
}

// ---- the translation unit -------------------------------------------------------------------

struct FamilyText {
  std::string_view header;
  std::string_view scope;  // namespace with SharedStorage<Config> and Run<Config>(params)
};

// Of attn_bwd_sm90: whether the warpgroups have the same keys, as wide heads need, and not 64 each.
bool SharesKeys(const KernelPlan& plan) { return plan.block_n < 64 * plan.consumers; }

FamilyText TextOf(const KernelPlan& plan) {
  switch (plan.family) {
    case Family::kDecodeSm90:
      if (plan.consumers == 0) return {"family/attn_decode_sm90_few.cuh", "decode_sm90_few"};
      return plan.column_warps > 1
                 ? FamilyText{"family/attn_decode_sm90_wide.cuh", "decode_sm90_wide"}
                 : FamilyText{"family/attn_decode_sm90.cuh", "decode_sm90"};
    case Family::kDecodeWide:
      return {.header = "family/attn_decode_wide.cuh", .scope = "decode_wide"};
    case Family::kDecode:
      return {.header = "family/attn_decode.cuh", .scope = "decode"};
    case Family::kFwdSmall:
      return {.header = "family/attn_fwd_small.cuh", .scope = "fwd_small"};
    case Family::kFwdSm90:
      return {.header = "family/attn_fwd_sm90.cuh", .scope = "fwd_sm90"};
    case Family::kFwdSm80:
      return {.header = "family/attn_fwd_sm80.cuh", .scope = "fwd_sm80"};
    case Family::kFwdSimple:
      return {.header = "family/attn_fwd_simple.cuh", .scope = "fwd_simple"};
    case Family::kBwdSm90:
      return {
          .header = SharesKeys(plan) ? "family/attn_bwd_sm90_wide.cuh" : "family/attn_bwd_sm90.cuh",
          .scope = "bwd_sm90"};
    case Family::kBwdSm80:
      return {.header = "family/attn_bwd_sm80.cuh", .scope = "bwd_sm80"};
    case Family::kBwdSimple:
    case Family::kBwdTerms:
      return {.header = "family/attn_bwd_simple.cuh", .scope = "bwd_simple"};
    case Family::kBwdPrep:
      return {.header = "family/attn_bwd_prep.cuh", .scope = "bwd_prep"};
    case Family::kBwdFinish:
      return {.header = "family/attn_bwd_finish.cuh", .scope = "bwd_finish"};
    case Family::kCombine:
      return {.header = "family/attn_combine.cuh", .scope = "combine"};
    case Family::kCacheAppend:
      break;  // EmitCacheAppend
  }
  return {};
}

// As it may stand in a comment of one line, between single quotes.
std::string CommentText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return text;
}

std::string HeaderComment(const AttentionSpec& spec, const KernelPlan& plan) {
  return absl::StrCat("// Emitted by tilewright. Sizes in the line below are placeholders",
                      spec.exact ? ", but batch and lengths" : "",
                      ".\n// recreate: tilewright emit '", CommentText(spec::ToText(spec)),
                      "' --plan '", CommentText(plan.ToString()), "'\n");
}

}  // namespace

absl::StatusOr<artifact::KernelSource> EmitKernel(const AttentionSpec& full_spec,
                                                  const KernelPlan& full_plan) {
  // Nothing below sees the run-time sizes.
  const AttentionSpec spec = CodeSpec(SpecOfKernel(full_spec, full_plan));
  KernelPlan plan = full_plan;
  plan.before.clear();
  plan.after.clear();
  plan.slots = 0;
  if (plan.family == Family::kFwdSmall) plan.max_grid = 0;
  const FamilyText family = TextOf(plan);
  const Policies policies(spec);

  artifact::KernelSource source;
  source.entry_name = EntryName(spec, plan);
  source.unit_name = source.entry_name + ".cu";
  if (!spec.score_snippet.empty()) source.generated_headers.push_back(UserScorePolicy(spec));
  if (!spec.mask_snippet.empty()) source.generated_headers.push_back(UserMaskPolicy(spec));

  const bool has_wgmma = plan.family == Family::kFwdSm90 || plan.family == Family::kBwdSm90 ||
                         (plan.family == Family::kDecodeSm90 && plan.consumers != 0);
  if (has_wgmma) source.generated_headers.push_back(WgmmaHeader(spec, plan));

  std::string includes = absl::StrCat("#include \"", Piece(family.header), "\"\n");
  for (const std::string& header : policies.includes()) {
    absl::StrAppend(&includes, "#include \"", header, "\"\n");
  }
  if (has_wgmma) {
    absl::StrAppend(&includes, "#include \"", Piece(kWgmmaHeader), "\"\n");
  }
  const std::string cluster =
      plan.cluster > 1 ? absl::StrCat("__cluster_dims__(", plan.cluster, ", 1, 1) ") : "";
  source.text = absl::StrCat(
      HeaderComment(spec, plan), includes, "\nnamespace tilewright {\n\n", ParamsText(spec, plan),
      "\n", ConfigText(spec, plan, policies), "static_assert(sizeof(", Piece(family.scope),
      "::SharedStorage<Config>) == ", plan.smem_bytes,
      ",\n              \"plan and kernel disagree on shared memory\");\n\n"
      "}  // namespace tilewright\n\n"
      // At least so many blocks per SM: without it ptxas spills to make room for more.
      "extern \"C\" __global__ void ",
      cluster, "__launch_bounds__(", plan.threads(), ", ", std::max(plan.blocks, 1), ")\n",
      source.entry_name,
      "(const __grid_constant__ tilewright::Params params) {\n  tilewright::", Piece(family.scope),
      "::Run<tilewright::Config>(params);\n}\n");
  return source;
}

std::string_view TemplateFileOf(const KernelPlan& plan) { return TextOf(plan).header; }

}  // namespace tilewright::emit

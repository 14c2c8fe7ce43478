#include "zoo.h"

#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

using nlohmann::json;

absl::Status NoRule(const json& entry, const std::string& field) {
  return absl::InvalidArgumentError(absl::StrCat(entry.value("name", "?"), ": ", field, " = ",
                                                 entry[field].dump(), " has no rule in zoo.cc"));
}

int64_t IntOr(const json& value, int64_t otherwise) {
  return value.is_null() ? otherwise : value.get<int64_t>();
}

// ---- what no spec expresses
// -----------------------------------------------------------------------------------------

const std::map<std::string, std::string>& Out() {
  static const auto& out = *new std::map<std::string, std::string>{
      {"af2-ipa-12heads", "needs the probabilities themselves for a second sum, over pair values"},
      {"unimol-64heads-d8", "returns the scores themselves, as the bias of the next layer"},
  };
  return out;
}

// ---- masks and scores beyond the fields
// -----------------------------------------------------------------------------

// Rules written as snippets, by entry.
struct SnippetRule {
  bool causal;  // of the spec, beside the snippet
  std::string mask;
  std::vector<SnippetArray> arrays;
};

const std::map<std::string, SnippetRule>& MaskRules() {
  using enum ElementType;
  static const auto& rules = *new std::map<std::string, SnippetRule>{
      // Image blocks attend within themselves; image[i] numbers the block of token i, -1 for text.
      {"gemma3-4b-vision-prefill",
       {false, "j <= i || (image[i] >= 0 && image[i] == image[j])", {{"image", kInt32}}}},
      {"longformer-base-4096",
       {false,
        "(j >= i - 256 && j <= i + 256) || is_global[i] != 0 || is_global[j] != 0",
        {{"is_global", kInt32}}}},
      {"medusa-tree-verify-64",
       {false,
        "const int64_t first = seqlen_kv - seqlen_q;\n"
        "return j < first || tree[i * seqlen_q + (j - first)] != 0;",
        {{"tree", kInt32}}}},
      // The first half of the sequence is noised, the second clean.
      {"block-diffusion-2n",
       {false,
        "const int64_t half = seqlen_q / 2;\n"
        "const bool q_noised = i < half, k_noised = j < half;\n"
        "const int64_t qb = (q_noised ? i : i - half) / 16, kb = (k_noised ? j : j - half) / 16;\n"
        "if (q_noised) return k_noised ? qb == kb : kb < qb;\n"
        "return !k_noised && kb <= qb;",
        {}}},
      // first[i]: the first of the 64 latents of the last image before token i.
      {"flamingo-cross-media",
       {false,
        "j >= first[b * seqlen_q + i] && j < first[b * seqlen_q + i] + 64",
        {{"first", kInt32}}}},
      {"omnigen-32x96-mixed-mask",
       {false, "j <= i || (image[i] != 0 && image[j] != 0)", {{"image", kInt32}}}},
      // 80 x 80 around the query in steps of 16, clamped at the borders of 256 x 256.
      {"natten2d-flux4k-256x256",
       {false,
        "const int64_t qy = i / 256 / 16 * 16 + 8, qx = i % 256 / 16 * 16 + 8;\n"
        "const int64_t y = qy < 40 ? 0 : qy > 216 ? 176 : qy - 40;\n"
        "const int64_t x = qx < 40 ? 0 : qx > 216 ? 176 : qx - 40;\n"
        "return j / 256 >= y && j / 256 < y + 80 && j % 256 >= x && j % 256 < x + 80;",
        {}}},
      // The last 12 frames and the chunk itself; keys are 12 earlier frames, then the chunk.
      {"gemma4-audio-chunk12-softcap", {false, "j <= i + 12 && j > i", {}}},
  };
  return rules;
}

// Bias that is looked up rather than laid out [batch, heads, queries, keys].
absl::StatusOr<bool> SetLookedUpBias(const json& entry, const std::string& kind,
                                     AttentionSpec* spec) {
  const json& shapes = entry["bias_shape"];
  const auto array = [spec](const char* name) {
    spec->snippet_arrays.push_back({name, ElementType::kFp32});
  };
  // Index of row (b, h, i) of an array [batch, heads, queries, n].
  const std::string row = absl::Substitute("((b * $0 + h) * seqlen_q + i)", spec->heads_q);
  if (kind == "decomposed_rel_pos") {
    // One term for the row of the key in its image, one for the column.
    const int64_t width = shapes[1][3].get<int64_t>();
    array("rel_h");
    array("rel_w");
    spec->score_snippet.text =
        absl::Substitute("score + rel_h[$0 * $1 + j / $2] + rel_w[$0 * $2 + j % $2]", row,
                         shapes[0][3].get<int64_t>(), width);
  } else if (kind == "transformer_xl_rel" && shapes[0][3] != spec->seqlen_kv) {
    // A term for each distance, 2 * seqlen - 1 of them.
    array("rel");
    spec->score_snippet.text = absl::Substitute("score + rel[$0 * $1 + j - i + seqlen_q - 1]", row,
                                                shapes[0][3].get<int64_t>());
  } else if (kind == "shaw_relative_key") {
    array("rel");
    spec->score_snippet.text = absl::Substitute(
        "const int64_t distance = j - i < -64 ? -64 : j - i > 8 ? 8 : j - i;\n"
        "return score + rel[$0 * $1 + distance + 64];",
        row, shapes[0][3].get<int64_t>());
  } else if (kind == "pair_repeat16") {
    // Added before the soft cap, which a snippet would come after: so the snippet caps too.
    array("pair");
    spec->score_snippet.text = absl::Substitute(
        "return $0f * tanhf((score + pair[(h * $1 + i / 16) * $1 + j / 16]) / $0f);",
        absl::StrCat(spec->softcap, ".0"), shapes[0][3].get<int64_t>());
    spec->softcap = 0;
  } else if (kind == "binary_id") {
    spec->snippet_arrays = {
        {"u", ElementType::kFp32}, {"id", ElementType::kInt32}, {"sample", ElementType::kInt32}};
    spec->score_snippet.text =
        "score + u[2 * h + (id[b * seqlen_q + i] == id[b * seqlen_q + j] ? 0 : 1)]";
    spec->mask_snippet.text = "sample[b * seqlen_q + i] == sample[b * seqlen_q + j]";
  } else {
    return false;
  }
  return true;
}

absl::Status SetBias(const json& entry, AttentionSpec* spec) {
  if (entry["bias"].is_null()) return absl::OkStatus();
  const std::string kind = entry["bias"];
  if (kind == "alibi") {
    spec->alibi = true;
    return absl::OkStatus();
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const bool looked_up, SetLookedUpBias(entry, kind, spec));
  if (looked_up) return absl::OkStatus();
  int term = 0;
  for (const json& shape : entry["bias_shape"]) {
    if (shape.size() != 4) return NoRule(entry, "bias_shape");
    const bool masks =
        kind == "key_mask" || kind == "bool_mask" || (kind == "pair+key_mask" && term == 1);
    spec->bias.push_back({.type = masks ? ElementType::kBool : spec->type,
                          .batch = shape[0],
                          .heads = shape[1],
                          .seqlen_q = shape[2],
                          .seqlen_kv = shape[3]});
    ++term;
  }
  return absl::OkStatus();
}

absl::Status SetMask(const json& entry, AttentionSpec* spec) {
  spec->causal = entry["causal"];
  if (entry["causal_align"] == "top_left") spec->align = MaskAlign::kTopLeft;
  spec->window_left = IntOr(entry["window_left"], -1);
  spec->window_right = IntOr(entry["window_right"], -1);
  const std::string kind = entry["mask_kind"];
  if (kind == "block") {
    spec->block_mask_q = spec->block_mask_kv = 64;
  } else if (kind == "custom" && entry["bias"] != "bool_mask") {
    const auto rule = MaskRules().find(entry["name"]);
    if (rule == MaskRules().end()) return NoRule(entry, "mask_kind");
    spec->causal = rule->second.causal;
    spec->window_left = spec->window_right = -1;
    spec->mask_snippet.text = rule->second.mask;
    spec->snippet_arrays = rule->second.arrays;
  } else if (kind != "dense" && kind != "causal" && kind != "window" && kind != "broadcast" &&
             kind != "custom") {
    return NoRule(entry, "mask_kind");
  }
  return absl::OkStatus();
}

// ---- memory
// ---------------------------------------------------------------------------------------------------------

// Views of larger arrays, where the entry says how they lie.
void SetStrides(const json& entry, AttentionSpec* spec) {
  const std::string layout = entry["layout"];
  const std::string name = entry["name"];
  const int64_t hq = spec->heads_q, hkv = spec->heads_kv, d = spec->dim_qk;
  std::array<Strides, 4> strides = spec::EffectiveStrides(*spec);
  const auto set_row = [&](int tensor, int64_t row) {
    strides[tensor].seq = row;
    strides[tensor].batch = row * (tensor == 1 || tensor == 2 ? spec->seqlen_kv : spec->seqlen_q);
  };
  if (absl::StartsWith(layout, "packed qkv") || absl::StartsWith(layout, "packed [B,S,")) {
    for (int tensor = 0; tensor < 3; ++tensor) set_row(tensor, (hq + 2 * hkv) * d);
    if (spec->dim_v != d) {  // q, k and v of a head side by side
      for (int tensor = 0; tensor < 3; ++tensor) {
        set_row(tensor, hq * (2 * d + spec->dim_v));
        strides[tensor].head = 2 * d + spec->dim_v;
      }
    }
  } else if (absl::StartsWith(layout, "GPT-NeoX packing")) {
    for (int tensor = 0; tensor < 3; ++tensor) {
      set_row(tensor, hq * 3 * d);
      strides[tensor].head = 3 * d;
    }
  } else if (layout == "K/V batch stride 0") {
    strides[1].batch = strides[2].batch = 0;
  } else if (absl::StartsWith(layout, "TRANSPOSED view") ||
             absl::StartsWith(layout, "transposed MSA") ||
             absl::StartsWith(layout, "the same tensor transposed") ||
             absl::StartsWith(layout, "time and batch axes swapped") ||
             absl::StartsWith(layout, "strided along rows") ||
             absl::StartsWith(layout, "[(b h w), f, c]")) {
    spec->layout = Layout::kSbhd;
    return;
  } else {
    return;
  }
  spec->strides = strides;
}

absl::Status SetLengths(const json& entry, AttentionSpec* spec) {
  spec->varlen = entry["varlen"];
  spec->page_size = IntOr(entry["paged"], 0);
  const std::string layout = entry["layout"];
  if (absl::StartsWith(layout, "packed varlen")) spec->layout = Layout::kThd;
  if (!spec->varlen) return absl::OkStatus();
  for (const char* field : {"seqlens", "seqlens_kv"}) {
    const json& lengths = entry[field];
    if (!lengths.is_array() || static_cast<int64_t>(lengths.size()) != spec->batch) {
      return NoRule(entry, field);
    }
  }
  return absl::OkStatus();
}

// What serving adds; entries without it lack the fields.
absl::Status SetCache(const json& entry, AttentionSpec* spec) {
  spec->left_padding = entry.value("left_padding", false);
  spec->cache_batch_idx = entry.value("cache_batch_idx", false);
  const std::string type = entry.value("kv_dtype", "");
  if (type.empty()) return absl::OkStatus();
  TILEWRIGHT_ASSIGN_OR_RETURN(spec->kv_type, spec::ParseElementType(type));
  const std::map<std::string, ScaleKind> kinds = {{"tensor", ScaleKind::kPerTensor},
                                                  {"head", ScaleKind::kPerHead},
                                                  {"token", ScaleKind::kPerToken}};
  const auto kind = kinds.find(entry.value("kv_scale", ""));
  if (kind == kinds.end()) return NoRule(entry, "kv_scale");
  spec->kv_scale = kind->second;
  return absl::OkStatus();
}

absl::StatusOr<ZooEntry> Convert(const json& entry) {
  ZooEntry out;
  out.name = entry["name"];
  if (const auto reason = Out().find(out.name); reason != Out().end()) {
    out.out = reason->second;
    return out;
  }
  AttentionSpec& spec = out.spec;
  TILEWRIGHT_ASSIGN_OR_RETURN(spec.type, spec::ParseElementType(entry["dtype"].get<std::string>()));
  spec.batch = entry["batch"];
  spec.heads_q = entry["heads_q"];
  spec.heads_kv = entry["heads_kv"];
  spec.seqlen_q = entry["seqlen_q"];
  spec.seqlen_kv = entry["seqlen_kv"];
  spec.dim_qk = entry["dim_qk"];
  spec.dim_v = entry["dim_v"];
  if (!entry["softcap"].is_null()) spec.softcap = entry["softcap"];
  if (!entry["scale"].is_null()) spec.scale = entry["scale"].get<float>();
  spec.sinks = entry["sinks"];
  spec.lse = entry["training"];  // the backward needs it
  TILEWRIGHT_RETURN_IF_ERROR(SetLengths(entry, &spec));
  TILEWRIGHT_RETURN_IF_ERROR(SetCache(entry, &spec));
  TILEWRIGHT_RETURN_IF_ERROR(SetMask(entry, &spec));
  TILEWRIGHT_RETURN_IF_ERROR(SetBias(entry, &spec));
  SetStrides(entry, &spec);
  if (out.name == "swinv2-win24-576") {
    out.remodel = "the scale of each head is multiplied into Q";
  } else if (spec.snippet_arrays.size() == 1 && spec.snippet_arrays[0].name == "rel") {
    out.remodel = "the products of Q with the relative embeddings are computed before";
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<ZooEntry>> ReadZoo(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<ZooEntry> entries;
  for (std::string line; std::getline(file, line);) {
    const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", entries.size() + 1, ": not a JSON object"));
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(ZooEntry entry, Convert(parsed));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace tilewright

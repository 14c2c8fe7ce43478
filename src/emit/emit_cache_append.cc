#include "emit/emit_cache_append.h"

#include <string>
#include <string_view>

#include "abi/cache_append_params.h"
#include "absl/strings/str_cat.h"
#include "emit/config_writer.h"
#include "emit/device_types.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright::emit {
namespace {

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

int64_t Frequencies(const CacheAppendSpec& spec) {
  return spec.rotary_table.has_value() ? 0 : spec::RotaryPairs(spec);
}

std::string EntryName(const CacheAppendSpec& spec, const plan::KernelPlan& plan) {
  const auto name = [](ElementType type) { return Piece(spec::ElementTypeName(type)); };
  std::string text = absl::StrCat("cache_append__", name(spec.type));
  if (spec.cache_type.has_value()) absl::StrAppend(&text, "_cache", name(*spec.cache_type));
  if (spec.cache_scale != ScaleKind::kNone) {
    absl::StrAppend(&text, spec.cache_scale == ScaleKind::kPerToken ? "_tokenscale" : "_scale");
  }
  absl::StrAppend(&text, "_h", spec.heads_q, "x", spec.heads_kv, "_d", spec.dim_qk, "v",
                  spec.dim_v);
  if (spec.page_size != 0) absl::StrAppend(&text, "_paged", spec.page_size);
  if (spec.rotary != Rotary::kNone) {
    absl::StrAppend(&text, spec.rotary == Rotary::kHalfSplit ? "_half" : "_interleaved",
                    spec.rotary_begin, "x", spec.rotary_dim);
  }
  if (spec.rotary_table.has_value()) absl::StrAppend(&text, "_table", name(*spec.rotary_table));
  return absl::StrCat(text, "__m", plan.block_m, "w", plan.warps);
}

}  // namespace

int CacheAppendParamBytes(const CacheAppendSpec& spec) {
  return static_cast<int>(sizeof(abi::CacheAppendParams) + 8 * Frequencies(spec));
}

artifact::KernelSource EmitCacheAppend(const CacheAppendSpec& spec, const plan::KernelPlan& plan) {
  ConfigWriter config;
  config.Section("spec")
      .Using("Element", DeviceTypeName(spec.type))
      .Using("CacheElement", DeviceTypeName(spec::CacheType(spec)))
      .Int("kHeadsQ", spec.heads_q)
      .Int("kHeadsKv", spec.heads_kv)
      .Int("kDimQk", spec.dim_qk)
      .Int("kDimV", spec.dim_v)
      .Int64("kPageRows", spec.page_size)
      .Bool("kScaled", spec.cache_scale != ScaleKind::kNone)
      .Bool("kScalePerToken", spec.cache_scale == ScaleKind::kPerToken)
      .Section("rotary embedding")
      .Bool("kHalfSplit", spec.rotary == Rotary::kHalfSplit)
      .Bool("kInterleaved", spec.rotary == Rotary::kInterleaved)
      .Int("kRotaryBegin", spec.rotary_begin)
      .Int("kRotaryDim", spec.rotary_dim)
      .Bool("kRotaryTable", spec.rotary_table.has_value())
      .Using("TableElement", DeviceTypeName(spec.rotary_table.value_or(ElementType::kFp32)))
      .Section("plan")
      .Int("kTokens", plan.block_m)
      .Int("kWarps", plan.warps);
  const int64_t frequencies = Frequencies(spec);
  artifact::KernelSource source;
  source.entry_name = EntryName(spec, plan);
  source.unit_name = source.entry_name + ".cu";
  source.text = absl::StrCat(
      "// Emitted by tilewright for '", spec::ToText(spec), "', but for its rotary base.\n",
      "#include \"family/cache_append.cuh\"\n\nnamespace tilewright {\n\n"
      "struct Params {\n  abi::CacheAppendParams core;\n",
      frequencies == 0 ? "" : absl::StrCat("  u64 frequencies[", frequencies, "];\n"),
      "};\n// The host fills these bytes: src/runtime/cache_append.cc.\n"
      "static_assert(sizeof(Params) == ",
      CacheAppendParamBytes(spec), ");\n\n", config.Finish("Config"),
      "static_assert(sizeof(cache_append::SharedStorage<Config>) == ", plan.smem_bytes,
      ",\n              \"plan and kernel disagree on shared memory\");\n\n"
      "}  // namespace tilewright\n\n"
      "extern \"C\" __global__ void __launch_bounds__(",
      plan.threads(), ", ", plan.blocks, ")\n", source.entry_name,
      "(const __grid_constant__ tilewright::Params params) {\n"
      "  tilewright::cache_append::Run<tilewright::Config>(params);\n}\n");
  return source;
}

}  // namespace tilewright::emit

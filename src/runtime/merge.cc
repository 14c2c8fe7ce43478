#include "runtime/merge.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "abi/policy_args.h"
#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "runtime/pack_args.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

bool IsFloat(ElementType type) {
  return type == ElementType::kFp32 || type == ElementType::kFp16 || type == ElementType::kBf16;
}

absl::Status BadField(const char* field, int64_t value, const char* rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", rule));
}

}  // namespace

absl::StatusOr<AttentionSpec> AttentionOfMerge(const MergeSpec& merge) {
  for (const auto& [field, type] :
       {std::pair("part_type", merge.part_type), std::pair("out_type", merge.out_type)}) {
    if (!IsFloat(type)) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " = ", std::string(spec::ElementTypeName(type)), ": must be fp32, fp16 or bf16"));
    }
  }
  if (merge.heads < 0) return BadField("heads", merge.heads, ">= 0");
  if (merge.dim_v < 1) return BadField("dim_v", merge.dim_v, ">= 1");
  AttentionSpec spec;
  spec.type = merge.out_type;
  spec.kv_type = merge.part_type;
  spec.heads_q = spec.heads_kv = merge.heads;
  spec.dim_qk = spec.dim_v = merge.dim_v;
  spec.lse = merge.lse;
  spec.lse_base = merge.lse_base;
  spec.empty_lse = merge.empty_lse;
  return spec;
}

plan::Decision PlanMerge(const AttentionSpec& attention, const std::string& target) {
  plan::Decision decision;
  decision.plan = plan::PlanCombine(target, attention.dim_v, /*warps_per_row=*/1);
  decision.plan.split = false;  // the parts are in the caller's convention
  decision.candidates = {decision.plan};
  decision.why = "attn_combine: a warp merges all parts of a row";
  return decision;
}

AttentionArgs AttentionArgsOfMerge(const MergeArgs& args) {
  AttentionArgs sizes;
  sizes.batch = args.batch;
  sizes.seqlen_q = args.seqlen_q;
  sizes.o = args.o;
  sizes.lse = args.lse;
  sizes.lse_stride_batch = args.lse_out_stride_batch;
  sizes.lse_stride_head = args.lse_out_stride_head;
  return sizes;
}

absl::Status ValidateMergeArgs(const AttentionSpec& attention, const MergeArgs& args) {
  const struct {
    const char* field;
    int64_t value;
  } sizes[] = {{"parts", args.parts},
               {"batch", args.batch},
               {"seqlen_q", args.seqlen_q},
               {"o_stride_part", args.o_stride_part},
               {"o_parts.strides.batch", args.o_parts.strides.batch},
               {"o_parts.strides.seq", args.o_parts.strides.seq},
               {"o_parts.strides.head", args.o_parts.strides.head},
               {"lse_stride_part", args.lse_stride_part},
               {"lse_stride_batch", args.lse_stride_batch},
               {"lse_stride_head", args.lse_stride_head},
               {"o.strides.batch", args.o.strides.batch},
               {"o.strides.seq", args.o.strides.seq},
               {"o.strides.head", args.o.strides.head},
               {"lse_out_stride_batch", args.lse_out_stride_batch},
               {"lse_out_stride_head", args.lse_out_stride_head}};
  for (const auto& size : sizes) {
    if (size.value < 0) return BadField(size.field, size.value, ">= 0");
  }
  if (args.o_parts.strides.dim != 1) {
    return BadField("o_parts.strides.dim", args.o_parts.strides.dim, "1");
  }
  if (args.o.strides.dim != 1) return BadField("o.strides.dim", args.o.strides.dim, "1");
  if (args.batch == 0 || args.seqlen_q == 0 || attention.heads_q == 0) return absl::OkStatus();
  const struct {
    const char* field;
    const void* pointer;
    bool needed;
    int alignment;
  } pointers[] = {
      {"o_parts", args.o_parts.data, args.parts > 0, spec::ElementBytes(spec::KvType(attention))},
      {"lse_parts", args.lse_parts, args.parts > 0, 4},
      {"o", args.o.data, true, spec::ElementBytes(attention.type)},
      {"lse", args.lse, attention.lse, 4},
  };
  for (const auto& each : pointers) {
    if (!each.needed) continue;
    const auto address = reinterpret_cast<uintptr_t>(each.pointer);
    if (address == 0 || address % each.alignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat(each.field, " = ", absl::Hex(address),
                                                     ": must be a multiple of ", each.alignment,
                                                     " and not null"));
    }
  }
  return absl::OkStatus();
}

void PackMergeArgs(const AttentionSpec& attention, const emit::ParamLayout& layout,
                   const MergeArgs& args, std::byte* params) {
  PackArgs(attention, layout, AttentionArgsOfMerge(args), params);
  abi::PartsArgs parts = {};
  parts.o = const_cast<void*>(args.o_parts.data);
  parts.lse = const_cast<float*>(args.lse_parts);
  parts.o_stride_part = args.o_stride_part;
  parts.o_stride_batch = args.o_parts.strides.batch;
  parts.o_stride_seq = args.o_parts.strides.seq;
  parts.o_stride_head = args.o_parts.strides.head;
  parts.lse_stride_part = args.lse_stride_part;
  parts.lse_stride_batch = args.lse_stride_batch;
  parts.lse_stride_head = args.lse_stride_head;
  parts.parts = args.parts;
  for (const emit::ParamSlot& slot : layout.slots) {
    if (slot.kind == emit::ParamSlotKind::kParts) {
      std::memcpy(params + slot.offset, &parts, sizeof(parts));
    }
  }
}

}  // namespace tilewright

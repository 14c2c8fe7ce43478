// Specs and plans for the tests of emission.
#ifndef TILEWRIGHT_TESTS_EMIT_EMIT_CASES_H_
#define TILEWRIGHT_TESTS_EMIT_EMIT_CASES_H_

#include <gtest/gtest.h>

#include <string_view>

#include "emit/emit_kernel.h"
#include "plan/kernel_plan.h"
#include "spec/canonical.h"

namespace tilewright::emit {

// The canonical spec of a text; snippet files hold `snippet`.
inline AttentionSpec SpecOf(std::string_view text, std::string_view snippet = "") {
  absl::StatusOr<AttentionSpec> spec =
      spec::ParseSpec(text, [&](std::string_view) { return std::string(snippet); });
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec::Canonicalise(spec.value_or(AttentionSpec{}));
}

inline plan::KernelPlan AnyPlan() {
  return {.family = plan::Family::kFwdSimple,
          .target = "sm_90a",
          .block_m = 32,
          .block_n = 32,
          .warps = 4,
          .rows_per_warp = 8,
          .panel = 128,
          .smem_bytes = 33280};
}

inline artifact::KernelSource Emit(const AttentionSpec& spec,
                                   const plan::KernelPlan& plan = AnyPlan()) {
  absl::StatusOr<artifact::KernelSource> source = EmitKernel(spec, plan);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.value_or(artifact::KernelSource{});
}

// One spec with every slot of the parameters.
inline constexpr std::string_view kEverySlot =
    "fwd e4m3 b=2 h=8/2 s=64/128 d=64/64 kv=e4m3 out=bf16 window=63,0 softcap=30 alibi "
    "bias=fp16:1,8,64,128 bias=bool:2,1,1,128 sinks dropout=0.25 q_scale=head kv_scale=token "
    "block_mask=64,64 varlen paged=16 left_padding cache_batch_idx lse score=@score.txt "
    "mask=@mask.txt array=table:fp32 "
    "array=codes:int8 scalar=gain:float scalar=period:int64";

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_TESTS_EMIT_EMIT_CASES_H_

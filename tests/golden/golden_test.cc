// Emitted translation units, kept as files and reviewed like code. After a change that is meant,
//   golden_test --update
// rewrites them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "emit/emit_cache_append.h"
#include "emit/emit_kernel.h"
#include "plan/cache_append_planner.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"

namespace tilewright::emit {
namespace {

bool g_update = false;

struct Golden {
  std::string_view file;
  std::string_view spec;
  std::string_view score = "";
  std::string_view mask = "";
  std::string_view score_gradient = "";
  std::string_view plan = "";  // empty: one of attn_fwd_simple
};

constexpr Golden kGoldens[] = {
    {"plain_bf16_d128", "fwd bf16 b=2 h=8 s=1024 d=128"},
    {"causal_gqa_lse_fp16_d64", "fwd fp16 b=2 h=32/8 s=1024 d=64 causal lse"},
    {"fp32_d36_window_top_left", "fwd fp32 b=2 h=8 s=100/90 d=36 window=63,0 align=top_left"},
    {"mla_paged_varlen_d576v512", "fwd bf16 b=32 h=128/1 s=1/8192 d=576/512 paged=64 varlen lse"},
    {"fp8_kv_per_token",
     "fwd bf16 b=8 h=8/2 s=1/4096 d=128 kv=e4m3 kv_scale=token paged=16 varlen"},
    {"fp8_all", "fwd e4m3 b=2 h=8 s=1024 d=128 out=bf16 q_scale=head kv_scale=head"},
    {"int8_kv_strided", "fwd fp16 b=2 h=8 s=128 d=64 kv=int8 kv_scale=tensor strided_innermost"},
    {"bias_mask_swin",
     "fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:1,4,49,49 bias=fp16:64,1,49,49:mod "
     "bias=bool:1,1,1,49"},
    {"alibi_softcap_sinks", "fwd bf16 b=2 h=8 s=1024 d=128 alibi softcap=30 sinks causal"},
    {"softcap_before_bias",
     "fwd bf16 b=2 h=8 s=64 d=64 softcap=30 bias=bf16:1,8,64,64 "
     "softcap_before_bias lse lse_base=2 empty_lse=+inf"},
    {"block_mask_dropout", "fwd bf16 b=2 h=8 s=1024 d=64 block_mask=128,128 dropout=0.1"},
    {"exact", "fwd bf16 b=2 h=8 s=77/1024 d=64 exact"},
    {"snippets",
     "fwd bf16 b=2 h=8 s=256 d=64 score=@distance.cuh mask=@documents.cuh array=ids:int32 "
     "array=table:bf16 scalar=gain:float scalar=period:int64",
     "score + gain * table[(i - j) % period]\n",
     "// One document only.\nreturn ids[b * seqlen_kv + i] == ids[b * seqlen_kv + j];\n"},
    {.file = "sm80_causal_bf16_d128",
     .spec = "fwd bf16 b=2 h=16 s=4096 d=128 causal",
     .plan = "attn_fwd_sm80 sm_90a m128n64 w4 r32 s2 peeled smem=104448"},
    {.file = "sm80_negative_scale_varlen",
     .spec = "fwd fp16 b=4 h=8/2 s=512 d=72 scale=-0.5 varlen lse",
     .plan = "attn_fwd_sm80 sm_80 m64n64 w4 r16 s1 smem=31744"},
    {.file = "sm80_left_padding_slots",
     .spec = "fwd bf16 b=4 h=8/2 s=64/512 d=64 causal varlen paged=64 left_padding cache_batch_idx",
     .plan = "attn_fwd_sm80 sm_80 m64n64 w4 r16 s1 smem=27648"},
    {.file = "small_kept_terms",
     .spec = "fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:1,4,49,49 bias=fp16:64,1,49,49:mod",
     .plan = "attn_fwd_small sm_90a m64n64 w6 r32 s2 b2 g256 k32 kt3 kk64 smem=110160"},
    {.file = "small_kept_pair_bias",
     .spec = "fwd bf16 b=384 h=4 s=384 d=32 bias=bf16:1,4,384,384 mask=bool:384,1,1,384",
     .plan = "attn_fwd_small sm_90a m128n64 w12 r32 s2 g132 k32 kt1 kk384 packed "
             "smem=222800"},
    {.file = "sm90_causal_lse_bf16_d128",
     .spec = "fwd bf16 b=2 h=16/4 s=4096 d=128 causal lse",
     .plan = "attn_fwd_sm90 sm_90a m128n128 w12 r16 s2 c2 x1 g132 opt q_regs own_o smem=197632"},
    {.file = "sm90_cluster_ones_fp16_d64",
     .spec = "fwd fp16 b=2 h=16 s=4096 d=64 window=63,0 alibi",
     .plan = "attn_fwd_sm90 sm_90a m192n96 w16 r16 s2 c3 x2 ones pp own_o smem=123904"},
    {.file = "sm90_narrow_rows_d36_d33",
     .spec = "fwd bf16 b=4 h=8 s=1000 d=36/33",
     .plan = "attn_fwd_sm90 sm_90a m256n80 w20 r16 s3 c4 x1 g132 narrow opt ones own_o "
             "smem=128000"},
    {.file = "decode_paged_fp8_per_token",
     .spec = "fwd bf16 b=8 h=8/2 s=1/4096 d=128 kv=e4m3 kv_scale=token paged=16 varlen",
     .plan = "attn_decode sm_90a m16n128 w4 r16 s2 k32 split slots=264 smem=78080 + "
             "attn_combine sm_90a m1n128 w4 r0 t16 split smem=2064"},
    {.file = "decode_wide_latent_invariant",
     .spec = "fwd bf16 b=32 h=128/1 s=1/8192 d=576/512 paged=64 varlen lse batch_invariant",
     .plan = "attn_decode_wide sm_90a m32n32 w8 r16 s2 k32 ss4 ch16 split slots=132 smem=190480 + "
             "attn_combine sm_90a m1n32 w4 r0 ch16 t32 split smem=8208"},
    {.file = "decode_sm90_latent_paged",
     .spec = "fwd bf16 b=32 h=128/1 s=1/8192 d=576/512 paged=64 varlen lse",
     .plan = "attn_decode_sm90 sm_90a m128n64 w12 r16 s2 c2 x2 k64 v2 split slots=66 smem=224256"},
    {.file = "sm80_split_sinks",
     .spec = "fwd bf16 b=1 h=2 s=64/8192 d=64 sinks lse",
     .plan = "attn_fwd_sm80 sm_90a m64n64 w4 r16 s2 split slots=396 smem=46080 + "
             "attn_combine sm_90a m4n0 w4 r0 split smem=4"},
    {.file = "bwd_sm90_causal",
     .spec = "bwd bf16 b=2 h=16/4 s=4096 d=128 causal",
     .plan = "attn_bwd_prep sm_90a m64n0 w4 r0 smem=4 + "
             "attn_bwd_sm90 sm_90a m64n128 w12 r0 s2 c2 g132 smem=231424 + "
             "attn_bwd_finish sm_90a m64n0 w4 r0 smem=4"},
    {.file = "bwd_sm80_causal",
     .spec = "bwd bf16 b=2 h=16/4 s=4096 d=128 causal",
     .plan = "attn_bwd_prep sm_90a m64n0 w4 r0 smem=4 + "
             "attn_bwd_sm80 sm_90a m64n128 w8 r0 s2 kw4 qw2 smem=196112 + "
             "attn_bwd_finish sm_90a m64n0 w4 r0 smem=4"},
    {.file = "bwd_simple_gradients",
     .spec = "bwd fp32 b=2 h=4 s=64 d=36 bias=fp32:1,4,64,64:grad alibi alibi_grad sinks "
             "sinks_grad score=@distance.cuh score_grad=@gradient.cuh array=table:fp32:grad",
     .score = "score + table[h]\n",
     .score_gradient = "Accumulate(d_table + h, d_score);\nreturn d_score;\n",
     .plan = "attn_bwd_prep sm_90a m0n0 w4 r0 smem=4 + "
             "attn_bwd_simple sm_90a m16n32 w4 r4 p64 smem=13312"},
};

plan::KernelPlan PlanFor(const AttentionSpec& spec) {
  const auto round_up_4 = [](int64_t n) { return (n + 3) / 4 * 4; };
  const int64_t panel = std::min<int64_t>(128, round_up_4(std::max(spec.dim_qk, spec.dim_v)));
  return {.family = plan::Family::kFwdSimple,
          .target = "sm_90a",
          .block_m = 16,
          .block_n = 32,
          .warps = 4,
          .rows_per_warp = 4,
          .panel = static_cast<int>(panel),
          .smem_bytes = 4 * (16 * round_up_4(spec.dim_qk) + 32 * (panel + 4))};
}

std::string EmitGolden(const Golden& golden) {
  const auto reader = [&](std::string_view path) {
    return std::string(path == "distance.cuh"   ? golden.score
                       : path == "gradient.cuh" ? golden.score_gradient
                                                : golden.mask);
  };
  const absl::StatusOr<AttentionSpec> parsed = spec::ParseSpec(golden.spec, reader);
  if (!parsed.ok()) return parsed.status().ToString();
  const AttentionSpec spec = spec::Canonicalise(*parsed);
  plan::KernelPlan plan = PlanFor(spec);
  if (!golden.plan.empty()) {
    const absl::StatusOr<plan::KernelPlan> given = plan::ParsePlan(golden.plan);
    if (!given.ok()) return given.status().ToString();
    plan = *given;
  }
  std::string text;
  for (const plan::KernelPlan& kernel : plan.Kernels()) {
    const absl::StatusOr<artifact::KernelSource> source = EmitKernel(spec, kernel);
    if (!source.ok()) return source.status().ToString();
    absl::StrAppend(&text, text.empty() ? "" : "\n// ==== the next kernel\n", source->text);
    for (const artifact::SourceFile& header : source->generated_headers) {
      absl::StrAppend(&text, "\n// ==== ", header.name, "\n", header.text);
    }
  }
  return text;
}

std::filesystem::path Directory() {
  return std::filesystem::path(TILEWRIGHT_SOURCE_DIR) / "tests" / "golden";
}

class GoldenTest : public testing::TestWithParam<Golden> {};

constexpr char kAppendGolden[] = "cache_append_paged_e4m3_token";

void CheckFile(std::string_view name, const std::string& emitted) {
  const std::filesystem::path path = Directory() / absl::StrCat(std::string(name), ".cu");
  if (g_update) {
    std::ofstream(path, std::ios::binary) << emitted;
    return;
  }
  std::ifstream stream(path, std::ios::binary);
  ASSERT_TRUE(stream.is_open()) << path << " is missing: run golden_test --update";
  const std::string expected(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(emitted, expected) << "if the change is meant: golden_test --update";
}

TEST_P(GoldenTest, EmittedTextIsTheFiles) { CheckFile(GetParam().file, EmitGolden(GetParam())); }

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(kGoldens),
                         [](const auto& info) { return std::string(info.param.file); });

// Of cache_append, whose spec has no words to read.
TEST(GoldenAppendTest, EmittedTextIsTheFiles) {
  const CacheAppendSpec spec = spec::Canonicalise({.cache_type = ElementType::kFp8E4m3,
                                                   .cache_scale = ScaleKind::kPerToken,
                                                   .heads_q = 32,
                                                   .heads_kv = 8,
                                                   .page_size = 16,
                                                   .rotary = Rotary::kHalfSplit});
  const auto plan = plan::PlanCacheAppend(spec, "sm_90a", /*num_sms=*/132);
  ASSERT_TRUE(plan.ok()) << plan.status();
  CheckFile(kAppendGolden, EmitCacheAppend(spec, *plan).text);
}

TEST(GoldenFilesTest, EveryFileHasItsSpec) {
  std::set<std::string> known = {absl::StrCat(kAppendGolden, ".cu")};
  for (const Golden& golden : kGoldens) known.insert(absl::StrCat(std::string(golden.file), ".cu"));
  for (const auto& entry : std::filesystem::directory_iterator(Directory())) {
    if (entry.path().extension() != ".cu") continue;
    EXPECT_EQ(known.count(entry.path().filename().string()), 1u) << entry.path();
  }
}

}  // namespace
}  // namespace tilewright::emit

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tilewright::emit::g_update = argc > 1 && std::string_view(argv[1]) == "--update";
  return RUN_ALL_TESTS();
}

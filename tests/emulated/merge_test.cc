// Merging parts (tilewright/merge.h) on the CPU: attn_combine as it is emitted for PrepareMerge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "runtime/merge.h"
#include "runtime/pack_args.h"
#include "tests/emulated/emulated_kernel.h"
#include "tests/reference/host_case.h"

namespace tilewright {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Parts [part][batch][seq][head][dim] and [part][batch][head][seq], dense.
struct Parts {
  int64_t parts, batch, seqlen, heads, dim;
  std::vector<float> o, lse;

  Parts(int64_t parts, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim)
      : parts(parts),
        batch(batch),
        seqlen(seqlen),
        heads(heads),
        dim(dim),
        o(parts * rows() * dim),
        lse(parts * rows()) {}
  int64_t rows() const { return batch * seqlen * heads; }
  float& O(int64_t p, int64_t b, int64_t i, int64_t h, int64_t d) {
    return o[(((p * batch + b) * seqlen + i) * heads + h) * dim + d];
  }
  float& Lse(int64_t p, int64_t b, int64_t h, int64_t i) {
    return lse[((p * batch + b) * heads + h) * seqlen + i];
  }
};

struct Merged {
  std::vector<float> o, lse;  // as the parts, of one
};

// Every part's O is stored in spec.part_type, the result read back from spec.out_type.
Merged Merge(const Parts& parts, MergeSpec spec) {
  spec.heads = parts.heads;
  spec.dim_v = parts.dim;
  const AttentionSpec attention = AttentionOfMerge(spec).value();
  const plan::KernelPlan plan = PlanMerge(attention, "sm_90a").plan;
  const auto source = emit::EmitKernel(attention, plan);
  EXPECT_TRUE(source.ok()) << source.status();
  const emulated::Kernel kernel(*source);
  EXPECT_EQ(kernel.error(), "");

  reference::Array stored(spec.part_type, static_cast<int64_t>(parts.o.size()));
  for (size_t n = 0; n < parts.o.size(); ++n) stored.Set(static_cast<int64_t>(n), parts.o[n]);
  reference::Array out(spec.out_type, parts.rows() * parts.dim);
  Merged merged = {{}, std::vector<float>(parts.rows(), 12345.f)};
  const Strides strides = {.batch = parts.seqlen * parts.heads * parts.dim,
                           .seq = parts.heads * parts.dim,
                           .head = parts.dim};
  const MergeArgs args = {.parts = parts.parts,
                          .batch = parts.batch,
                          .seqlen_q = parts.seqlen,
                          .o_parts = {stored.data(), strides},
                          .o_stride_part = parts.rows() * parts.dim,
                          .lse_parts = parts.lse.data(),
                          .lse_stride_part = parts.rows(),
                          .lse_stride_batch = parts.heads * parts.seqlen,
                          .lse_stride_head = parts.seqlen,
                          .o = {out.data(), strides},
                          .lse = merged.lse.data()};
  EXPECT_TRUE(ValidateMergeArgs(attention, args).ok()) << ValidateMergeArgs(attention, args);
  const emit::ParamLayout layout = emit::MakeParamLayout(attention, plan);
  alignas(16) std::byte params[kMaxParamBytes];
  PackMergeArgs(attention, layout, args, params);
  plan::CallPlan call;
  call.parts = 2;
  const plan::LaunchShape shape =
      plan::ComputeLaunchShape(plan, attention, AttentionArgsOfMerge(args), call);
  std::vector<cuda_on_host::MemoryRange> memory = {
      {out.data(), static_cast<size_t>(out.bytes()), true, "o"},
      {merged.lse.data(), merged.lse.size() * sizeof(float), true, "lse"}};
  if (parts.parts > 0) {
    memory.push_back({stored.data(), static_cast<size_t>(stored.bytes()), false, "o_parts"});
    memory.push_back({parts.lse.data(), parts.lse.size() * sizeof(float), false, "lse_parts"});
  }
  EXPECT_THAT(kernel.Launch(params, layout.size, shape.grid, static_cast<int>(shape.block),
                            /*cluster=*/1, shape.smem_bytes, memory),
              testing::IsEmpty());
  for (int64_t n = 0; n < parts.rows() * parts.dim; ++n) {
    merged.o.push_back(static_cast<float>(out.Get(n)));
  }
  return merged;
}

TEST(MergeTest, IsTheSoftmaxOverAllKeys) {
  Parts parts(40, 2, 3, 2, 37);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (float& value : parts.o) value = normal(random);
  for (float& value : parts.lse) value = 3 * normal(random);
  const Merged merged = Merge(parts, {.out_type = ElementType::kFp32});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        double total = 0;
        for (int64_t p = 0; p < 40; ++p) total += std::exp(double{parts.Lse(p, b, h, i)});
        EXPECT_NEAR(merged.lse[(b * 2 + h) * 3 + i], std::log(total), 5e-5);
        for (int64_t d = 0; d < 37; ++d) {
          double sum = 0;
          for (int64_t p = 0; p < 40; ++p) {
            sum += std::exp(double{parts.Lse(p, b, h, i)}) * parts.O(p, b, i, h, d);
          }
          EXPECT_NEAR(merged.o[((b * 3 + i) * 2 + h) * 37 + d], sum / total, 1e-5);
        }
      }
    }
  }
}

// Scores 0, 0, ln 3, ln 3 and values 0, 0, 1, 1 give 6/8, for every way to cut the keys in two.
TEST(MergeTest, WeighsPartsByTheirSums) {
  const double scores[] = {0, 0, std::log(3), std::log(3)};
  const double values[] = {0, 0, 1, 1};
  for (int cut = 0; cut <= 4; ++cut) {
    Parts parts(2, 1, 1, 1, 8);
    for (int p = 0; p < 2; ++p) {
      double sum = 0, weighted = 0;
      for (int j = p == 0 ? 0 : cut; j < (p == 0 ? cut : 4); ++j) {
        sum += std::exp(scores[j]);
        weighted += std::exp(scores[j]) * values[j];
      }
      parts.Lse(p, 0, 0, 0) = static_cast<float>(std::log(sum));
      for (int d = 0; d < 8; ++d) {
        parts.O(p, 0, 0, 0, d) = sum == 0 ? NAN : static_cast<float>(weighted / sum);
      }
    }
    const Merged merged = Merge(parts, {.out_type = ElementType::kFp32});
    EXPECT_NEAR(merged.o[3], 0.75, 1e-6) << "cut at " << cut;
    EXPECT_NEAR(merged.lse[0], std::log(8.0), 1e-6);
  }
}

TEST(MergeTest, EmptyPartsAreNeverRead) {
  Parts parts(3, 1, 2, 1, 8);
  for (float& value : parts.o) value = NAN;
  for (float& value : parts.lse) value = -kInfinity;
  // Row 1 has a part with keys.
  parts.Lse(2, 0, 0, 1) = 1.5f;
  for (int d = 0; d < 8; ++d) parts.O(2, 0, 1, 0, d) = static_cast<float>(d);
  const Merged merged = Merge(parts, {});
  EXPECT_EQ(merged.lse[0], -kInfinity);
  EXPECT_EQ(merged.o[5], 0);
  EXPECT_NEAR(merged.lse[1], 1.5, 1e-6);
  EXPECT_EQ(merged.o[8 + 5], 5);
}

TEST(MergeTest, Case23TwoEmptyStatesMergeToAnEmptyOne) {
  Parts parts(2, 1, 3, 1, 64);
  for (float& value : parts.lse) value = -kInfinity;
  for (const float of_part : {0.f, NAN}) {
    for (float& value : parts.o) value = of_part;
    const Merged merged = Merge(parts, {.out_type = ElementType::kFp32});
    EXPECT_THAT(merged.o, testing::Each(0.f));
    EXPECT_THAT(merged.lse, testing::Each(-kInfinity));
  }
}

TEST(MergeTest, NoPartsAreAnEmptyRow) {
  const Merged merged = Merge(Parts(0, 1, 1, 1, 8), {.empty_lse = EmptyLse::kPlusInf});
  EXPECT_EQ(merged.lse[0], kInfinity);
  EXPECT_EQ(merged.o[0], 0);
}

TEST(MergeTest, SpeaksOtherConventions) {
  Parts parts(3, 1, 1, 1, 8);
  for (int d = 0; d < 8; ++d) {
    parts.O(0, 0, 0, 0, d) = 1;
    parts.O(1, 0, 0, 0, d) = 4;
    parts.O(2, 0, 0, 0, d) = NAN;
  }
  // Sums 2 and 1, and a row without keys.
  parts.lse = {1, 0, kInfinity};
  const Merged merged = Merge(parts, {.part_type = ElementType::kBf16,
                                      .out_type = ElementType::kFp16,
                                      .lse_base = LseBase::kTwo,
                                      .empty_lse = EmptyLse::kPlusInf});
  EXPECT_EQ(merged.o[7], 2);
  EXPECT_NEAR(merged.lse[0], std::log2(3.0), 1e-6);
}

TEST(MergeTest, ErrorsNameTheField) {
  EXPECT_THAT(std::string(AttentionOfMerge({.part_type = ElementType::kInt8}).status().message()),
              testing::HasSubstr("part_type = int8"));
  EXPECT_THAT(std::string(AttentionOfMerge({.dim_v = 0}).status().message()),
              testing::HasSubstr("dim_v = 0"));
  const AttentionSpec attention = AttentionOfMerge({}).value();
  MergeArgs args;
  args.parts = -1;
  args.batch = args.seqlen_q = 1;
  EXPECT_THAT(std::string(ValidateMergeArgs(attention, args).message()),
              testing::HasSubstr("parts = -1"));
  args.parts = 1;
  EXPECT_THAT(std::string(ValidateMergeArgs(attention, args).message()),
              testing::HasSubstr("o_parts = 0"));
}

}  // namespace
}  // namespace tilewright

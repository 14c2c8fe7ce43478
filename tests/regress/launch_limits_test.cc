// Sizes at which other libraries refused, divided by zero or overflowed before a kernel ran, by
// their number in the list of cases: here they pass validation and give a grid that every device
// accepts. (tests/gpu runs them.)
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

struct Sizes {
  const char* name;
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_kv, dim;
  ElementType type = ElementType::kBf16;
};

AttentionSpec SpecOf(const Sizes& sizes) {
  AttentionSpec spec;
  spec.type = sizes.type;
  spec.batch = sizes.batch;
  spec.heads_q = sizes.heads_q;
  spec.heads_kv = sizes.heads_kv;
  spec.seqlen_q = sizes.seqlen_q;
  spec.seqlen_kv = sizes.seqlen_kv;
  spec.dim_qk = spec.dim_v = sizes.dim;
  return spec;
}

// Dense arguments at addresses that are never touched.
AttentionArgs ArgsOf(const AttentionSpec& spec) {
  const auto at = [](uintptr_t index) {
    return reinterpret_cast<void*>(uintptr_t{0x7f0000000000} + (index << 40));
  };
  const auto strides = spec::EffectiveStrides(spec);
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  args.q = {at(0), strides[0]};
  args.k = {at(1), strides[1]};
  args.v = {at(2), strides[2]};
  args.o = {at(3), strides[3]};
  return args;
}

class LaunchLimitsTest : public ::testing::TestWithParam<Sizes> {};

TEST_P(LaunchLimitsTest, PassesValidationAndFitsAGrid) {
  const AttentionSpec spec = spec::Canonicalise(SpecOf(GetParam()));
  const absl::Status valid = spec::Validate(spec);
  ASSERT_TRUE(valid.ok()) << valid;
  const AttentionArgs args = ArgsOf(spec);
  const absl::Status args_valid = spec::ValidateArgs(spec, args);
  ASSERT_TRUE(args_valid.ok()) << args_valid;
  for (const arch::ArchTraits& traits : arch::AllArchTraits()) {
    SCOPED_TRACE(traits.target);
    const auto board = arch::DefaultBoardProfile(traits.target);
    ASSERT_TRUE(board.ok()) << board.status();
    const auto decision = plan::Best({spec, traits, *board});
    ASSERT_TRUE(decision.ok()) << decision.status();
    const plan::LaunchShape shape = plan::ComputeLaunchShape(decision->plan, spec, args);
    const bool empty = spec.batch * spec.heads_q * spec.seqlen_q == 0;
    EXPECT_EQ(shape.grid == 0, empty);
    EXPECT_LE(shape.grid, 0x7fffffffu);
    EXPECT_GT(shape.block, 0u);
    EXPECT_LE(shape.block, 1024u);
    EXPECT_LE(static_cast<int64_t>(shape.smem_bytes), traits.smem_per_block_optin);
  }
}

constexpr Sizes kSizes[] = {
    {"Case01Bshd", 1600, 729, 729, 16, 16, 72},
    {"Case01Bhsd", 1600, 16, 16, 729, 729, 72},
    {"Case05Dim8", 2, 4, 4, 256, 256, 8},
    {"Case05Dim16", 2, 4, 4, 1024, 1024, 16},
    {"Case06NoKeys", 2, 4, 4, 256, 0, 192},
    {"Case07NoQueries", 2, 4, 4, 0, 256, 64},
    {"Case07NoBatch", 0, 4, 4, 256, 256, 64},
    {"Case14Dim32", 2, 8, 8, 128, 256, 32},
    {"Case17Batch", 65536, 16, 16, 8, 8, 80},
    {"Case18Heads", 1, 65536, 65536, 10, 10, 16, ElementType::kFp32},
    {"Case19Length", 1, 1, 1, 100352, 100352, 64},
    {"Case20Dim512", 2, 4, 4, 40, 97, 512},
    // Beyond the report: more tiles than a grid has blocks.
    {"MoreTilesThanBlocks", int64_t{1} << 20, 1 << 12, 1 << 12, 1, 1, 8},
    {"BeyondThirtyTwoBitRows", int64_t{1} << 33, 1, 1, 1, 1, 1},
};

INSTANTIATE_TEST_SUITE_P(Cases, LaunchLimitsTest, ::testing::ValuesIn(kSizes),
                         [](const ::testing::TestParamInfo<Sizes>& info) {
                           return std::string(info.param.name);
                         });

// Case 13 (flashinfer 4299) and case 32 (llama.cpp 20375): head dims that others refuse or serve
// from another path get a plan like any.
TEST(LaunchLimitsTest, EveryHeadDimHasAPlan) {
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  for (int64_t dim = 1; dim <= 1024; ++dim) {
    const AttentionSpec spec =
        spec::Canonicalise(SpecOf({"", 1, 8, 8, 128, 256, dim, ElementType::kFp32}));
    const auto decision = plan::Best({spec, *traits, *board});
    ASSERT_TRUE(decision.ok()) << dim << ": " << decision.status();
    EXPECT_LE(decision->plan.smem_bytes, traits->smem_per_block_optin) << dim;
  }
}

}  // namespace
}  // namespace tilewright

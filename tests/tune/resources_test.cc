#include "tune/resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tilewright::tune {
namespace {

using ::testing::HasSubstr;

arch::ArchTraits Traits() { return *arch::FindArchTraits("sm_90a"); }

plan::KernelPlan PlanOf(int warps, int64_t smem_bytes) {
  plan::KernelPlan plan;
  plan.warps = warps;
  plan.smem_bytes = smem_bytes;
  return plan;
}

TEST(ResourcesTest, ABlockFitsUpToTheLastByteAndThread) {
  const arch::ArchTraits traits = Traits();
  EXPECT_EQ(WhyNoBlockFits(PlanOf(32, traits.smem_per_block_optin), traits), "");
  EXPECT_THAT(WhyNoBlockFits(PlanOf(32, traits.smem_per_block_optin + 1), traits),
              HasSubstr("232449 bytes of shared memory: a block has at most 232448"));
  EXPECT_THAT(WhyNoBlockFits(PlanOf(33, 0), traits), HasSubstr("1056 threads"));
  EXPECT_THAT(WhyNoBlockFits(PlanOf(0, 0), traits), HasSubstr("0 threads"));
}

// 65536 registers of a multiprocessor are 168 for each of 12 warps and 128 for each of 16, in steps
// of 8.
TEST(ResourcesTest, RegistersAreCountedInStepsOfEight) {
  const arch::ArchTraits traits = Traits();
  EXPECT_EQ(WhyRejected({.registers = 168}, PlanOf(12, 0), traits), "");
  EXPECT_THAT(WhyRejected({.registers = 169}, PlanOf(12, 0), traits),
              HasSubstr("67584 registers a block: an SM has 65536"));
  EXPECT_EQ(WhyRejected({.registers = 121}, PlanOf(16, 0), traits), "");
  EXPECT_EQ(WhyRejected({.registers = 128}, PlanOf(16, 0), traits), "");
  EXPECT_NE(WhyRejected({.registers = 129}, PlanOf(16, 0), traits), "");
}

TEST(ResourcesTest, SpillsAndSerialisedProductsAreRejectedAndHarmlessNotesAreNot) {
  const arch::ArchTraits traits = Traits();
  const auto with_log = [&](const std::string& log) {
    return WhyRejected({.registers = 100, .log = log}, PlanOf(4, 0), traits);
  };
  EXPECT_THAT(WhyRejected({.registers = 100, .spill_bytes = 4}, PlanOf(4, 0), traits),
              HasSubstr("spills 4 bytes"));
  EXPECT_EQ(with_log("ptxas info : (C7517) Potential Performance Loss: wait was put in\n"), "");
  EXPECT_EQ(with_log("ptxas info : (C7519) arrive was put in"), "");
  EXPECT_THAT(with_log("ptxas info : (C7519) arrive was put in\n"
                       "ptxas info : (C7510) wgmma.mma_async instructions are serialized"),
              HasSubstr("ptxas notes C7510"));
  EXPECT_EQ(with_log("ends in C75"), "");
}

}  // namespace
}  // namespace tilewright::tune

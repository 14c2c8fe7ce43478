#include "reference/philox.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/reference.h"

namespace tilewright::reference {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that the authors publish with Random123.
TEST(PhiloxTest, KnownAnswersOfTenRounds) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, CounterAndKeyAreMadeOfOffsetHeadRowKeyAndSeed) {
  const uint64_t seed = 0x299f31d0a4093822;
  const uint64_t offset = 0x0000000500000007;
  const DropoutRule rule(0.5f, seed, offset, /*heads_q=*/6);
  EXPECT_EQ(rule.Words(/*b=*/3, /*h=*/2, /*i=*/11, /*quad=*/4),
            Philox4x32({7, 3 * 6 + 2, 11, 4}, {0xa4093822, 0x299f31d0 + 5}));
}

TEST(PhiloxTest, KeyWordWrapsAround) {
  const DropoutRule rule(0.5f, 0xffffffff00000000, uint64_t{2} << 32, 1);
  EXPECT_EQ(rule.Words(0, 0, 0, 0), Philox4x32({0, 0, 0, 0}, {0, 1}));
}

TEST(PhiloxTest, ThresholdIsTheProbabilityInUnitsOfTheWord) {
  const DropoutRule quarter(0.25f, 0, 0, 1);
  EXPECT_FALSE(quarter.Keeps(0x3fffffff));
  EXPECT_TRUE(quarter.Keeps(0x40000000));
  EXPECT_DOUBLE_EQ(quarter.keep_scale(), 4.0 / 3.0);
  EXPECT_FALSE(DropoutRule(0.0f, 0, 0, 1).enabled());
  const DropoutRule almost_all(std::nextafter(1.0f, 0.0f), 0, 0, 1);
  EXPECT_FALSE(almost_all.Keeps(0xfffffeff));
  EXPECT_TRUE(almost_all.Keeps(0xffffff00));
}

TEST(PhiloxTest, DropoutKeepsReadsTheWordOfItsKey) {
  const Words words = Philox4x32({9, 1 * 4 + 3, 5, 2}, {1234, 0});
  for (int j = 8; j < 12; ++j) {
    EXPECT_EQ(DropoutKeeps(0.5f, 1234, 9, 4, 1, 3, 5, j), words[j % 4] >= 0x80000000) << j;
  }
}

TEST(PhiloxTest, TheShareOfDroppedWeightsIsTheProbability) {
  int dropped = 0;
  constexpr int kCount = 20000;
  for (int n = 0; n < kCount; ++n) {
    dropped += !DropoutKeeps(0.3f, 77, 0, 2, n % 3, n % 2, n / 100, n % 100);
  }
  // Five standard deviations.
  EXPECT_NEAR(dropped, 0.3 * kCount, 5 * std::sqrt(0.3 * 0.7 * kCount));
}

}  // namespace
}  // namespace tilewright::reference

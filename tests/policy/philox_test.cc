#include "core/philox.cuh"

#include <gtest/gtest.h>

#include <array>

#include "policy/dropout.cuh"
#include "policy_params.h"
#include "reference/reference.h"

namespace tilewright {
namespace {

void ExpectPhilox(PhiloxCounter counter, u32 key_low, u32 key_high, std::array<u32, 4> expected) {
  const PhiloxCounter random = Philox4x32(counter, key_low, key_high);
  for (int n = 0; n < 4; ++n) EXPECT_EQ(random.word[n], expected[n]) << "word " << n;
}

// The known answers that the authors of Random123 publish with it (philox4x32-10).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  ExpectPhilox({{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  ExpectPhilox({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff,
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  ExpectPhilox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(PhiloxTest, DropoutKeepsWhatTheReferenceKeeps) {
  constexpr float kP = 0.3f;
  constexpr i64 kHeads = 3;
  constexpr u64 kSeed = 0x123456789abcdef0u, kOffset = 0xfedcba9876543210u;
  PolicyParams params;
  params.core.heads_q = kHeads;
  params.dropout = {.seed = kSeed,
                    .offset = kOffset,
                    .seed_ptr = nullptr,
                    .offset_ptr = nullptr,
                    .threshold = static_cast<u32>(static_cast<double>(kP) * 4294967296.0 + 0.5),
                    .keep_scale = 2};
  Problem problem = DenseProblem(9, 17);
  int kept = 0, total = 0;
  for (problem.b = 0; problem.b < 2; ++problem.b) {
    for (problem.h = 0; problem.h < kHeads; ++problem.h) {
      for (i64 i = 0; i < 9; ++i) {
        for (i64 j = 0; j < 17; ++j) {
          const bool expected =
              reference::DropoutKeeps(kP, kSeed, kOffset, kHeads, problem.b, problem.h, i, j);
          ASSERT_EQ(DropoutPhilox::Factor(problem, i, j, params), expected ? 2.f : 0.f);
          kept += expected;
          ++total;
        }
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(kept) / total, 0.7, 0.06);
}

TEST(PhiloxTest, DropoutReadsSeedAndOffsetThroughPointers) {
  const u64 seed = 99, offset = 1234567890123u;
  PolicyParams by_value, by_pointer;
  by_value.core.heads_q = by_pointer.core.heads_q = 1;
  by_value.dropout = {seed, offset, nullptr, nullptr, 1u << 31, 2};
  by_pointer.dropout = {0, 0, &seed, &offset, 1u << 31, 2};
  const Problem problem = DenseProblem(4, 64);
  for (i64 j = 0; j < 64; ++j) {
    EXPECT_EQ(DropoutPhilox::Factor(problem, 2, j, by_pointer),
              DropoutPhilox::Factor(problem, 2, j, by_value));
  }
}

}  // namespace
}  // namespace tilewright

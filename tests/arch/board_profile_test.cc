#include "arch/board_profile.h"

#include <string>

#include "arch/arch_traits.h"
#include "gtest/gtest.h"

namespace tilewright::arch {
namespace {

TEST(BoardProfileTest, EveryTargetHasOne) {
  for (const ArchTraits& row : AllArchTraits()) {
    SCOPED_TRACE(std::string(row.target));
    const absl::StatusOr<BoardProfile> board = DefaultBoardProfile(row.target);
    ASSERT_TRUE(board.ok()) << board.status();
    EXPECT_FALSE(board->name.empty());
    EXPECT_GE(board->num_sms, 16);
    EXPECT_GE(board->l2_bytes, int64_t{4} << 20);
    EXPECT_GE(board->memory_bytes, int64_t{16} << 30);
    EXPECT_GT(board->sm_clock_khz, 1000000);
    // Bytes per second, two transfers a cycle: between a Tesla T4 and the newest HBM.
    const double bandwidth = 2e3 * board->memory_clock_khz * board->memory_bus_bits / 8;
    EXPECT_GT(bandwidth, 150e9);
    EXPECT_LT(bandwidth, 10e12);
  }
}

TEST(BoardProfileTest, HopperIsAnH200) {
  for (const char* target : {"sm_90a", "sm_90"}) {
    const BoardProfile board = DefaultBoardProfile(target).value();
    EXPECT_EQ(board.name, "NVIDIA H200");
    EXPECT_EQ(board.num_sms, 132);
  }
}

TEST(BoardProfileTest, RefusesUnknownTargets) {
  EXPECT_EQ(DefaultBoardProfile("sm_42").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tilewright::arch

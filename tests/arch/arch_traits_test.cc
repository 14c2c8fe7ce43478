#include "arch/arch_traits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tilewright::arch {
namespace {

using ::testing::HasSubstr;

TEST(ArchTraitsTest, RowsAscendAndNameTheirSm) {
  int previous = 0;
  for (const ArchTraits& row : AllArchTraits()) {
    EXPECT_GT(row.sm, previous);
    previous = row.sm;
    const std::string plain = absl::StrCat("sm_", row.sm);
    EXPECT_TRUE(row.target == plain || row.target == plain + "a") << row.target;
  }
}

TEST(ArchTraitsTest, RowsAreConsistent) {
  for (const ArchTraits& row : AllArchTraits()) {
    SCOPED_TRACE(std::string(row.target));
    EXPECT_EQ(row.smem_per_block_optin, row.smem_per_sm - row.smem_reserved_per_block);
    EXPECT_EQ(row.smem_reserved_per_block, row.sm >= 80 ? 1024 : 0);
    EXPECT_EQ(row.regs_per_sm, 65536);
    EXPECT_EQ(row.max_regs_per_thread, 255);
    EXPECT_EQ(row.has_cp_async, row.sm >= 80);
    EXPECT_EQ(row.has_bf16_mma, row.mma == MmaKind::kM16n8k16);
    EXPECT_EQ(row.has_tma, row.sm >= 90);
    EXPECT_EQ(row.has_wgmma, row.sm == 90);  // went with Hopper
    EXPECT_FALSE(row.has_wgmma && row.has_tcgen05);
    // Instructions of one SM only need its "a" target.
    const bool specific = row.has_wgmma || row.has_setmaxnreg || row.has_tcgen05;
    EXPECT_EQ(row.target.back() == 'a', specific);
    EXPECT_GE(row.min_nvrtc, 10000);
    EXPECT_LE(row.min_nvrtc, 13000);
  }
}

TEST(ArchTraitsTest, KnowsTheFiguresOfTheGuide) {
  const struct {
    const char* target;
    int smem_per_block;
    int warps;
    int blocks;
  } figures[] = {
      {"sm_75", 65536, 32, 16},    {"sm_80", 166912, 64, 32},   {"sm_86", 101376, 48, 16},
      {"sm_87", 166912, 48, 16},   {"sm_89", 101376, 48, 24},   {"sm_90a", 232448, 64, 32},
      {"sm_100a", 232448, 64, 32}, {"sm_103a", 232448, 64, 32}, {"sm_110a", 232448, 48, 24},
      {"sm_120a", 101376, 48, 24}, {"sm_121a", 101376, 48, 24},
  };
  EXPECT_EQ(AllArchTraits().size(), std::size(figures));
  for (const auto& f : figures) {
    const ArchTraits row = FindArchTraits(f.target).value();
    EXPECT_EQ(row.smem_per_block_optin, f.smem_per_block) << f.target;
    EXPECT_EQ(row.max_warps_per_sm, f.warps) << f.target;
    EXPECT_EQ(row.max_blocks_per_sm, f.blocks) << f.target;
  }
}

TEST(ArchTraitsTest, FindsTargetsWithAndWithoutTheSuffix) {
  EXPECT_EQ(FindArchTraits("sm_90a")->target, "sm_90a");
  EXPECT_EQ(FindArchTraits("sm_90")->target, "sm_90a");
  EXPECT_EQ(FindArchTraits("sm_80")->target, "sm_80");
  for (const char* unknown : {"sm_70", "sm_80a", "90a", "", "compute_90"}) {
    const absl::Status status = FindArchTraits(unknown).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << unknown;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("target \"", unknown, "\"")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("sm_75, sm_80"));
  }
}

TEST(ArchTraitsTest, ServesDevices) {
  EXPECT_EQ(ArchTraitsForDevice(7, 5)->target, "sm_75");
  EXPECT_EQ(ArchTraitsForDevice(9, 0)->target, "sm_90a");
  EXPECT_EQ(ArchTraitsForDevice(12, 1)->target, "sm_121a");
  // Cubins of one major version load on later minor ones ...
  EXPECT_EQ(ArchTraitsForDevice(8, 8)->target, "sm_87");
  // ... but not those that are specific to an SM, and never on an earlier one.
  for (auto [major, minor] :
       {std::pair(12, 2), std::pair(10, 1), std::pair(7, 2), std::pair(6, 1), std::pair(13, 0)}) {
    const absl::Status status = ArchTraitsForDevice(major, minor).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("compute capability ", major, ".", minor)));
  }
}

}  // namespace
}  // namespace tilewright::arch

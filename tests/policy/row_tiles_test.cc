// Masks seen from the side of the keys, by brute force over small problems.
#include "policy/row_tiles.cuh"

#include <gtest/gtest.h>

#include "policy/mask_chain.cuh"
#include "policy/mask_window.cuh"
#include "policy_params.h"

namespace tilewright {
namespace {

constexpr i64 kLengths[] = {1, 2, 5, 8, 13};
constexpr i64 kBlocks[] = {1, 3, 4, 8};

template <class Mask>
void CheckTileOfKeys(const Problem& problem, i64 kv_begin, i64 kv_end, i64 block_m,
                     const PolicyParams& params) {
  const RowTiles needed = RowTilesOfKeys<Mask>(problem, kv_begin, kv_end, block_m, params);
  const RowTiles full =
      FullRowTilesOfKeys<Mask>(problem, kv_begin, kv_end, block_m, needed, params);
  for (i64 m = 0; m < CeilDiv(problem.seqlen_q, block_m); ++m) {
    const RowRange rows = RowsOfTile(problem, m, block_m);
    bool any = false, all = rows.end - rows.begin == block_m;
    for (i64 i = rows.begin; i < rows.end; ++i) {
      for (i64 j = kv_begin; j < kv_end; ++j) {
        const bool keep = Mask::Keep(problem, i, j, params);
        any |= keep;
        all &= keep;
      }
    }
    ASSERT_FALSE(any && (m < needed.begin || m >= needed.end)) << "tile " << m << " is needed";
    ASSERT_EQ(m >= full.begin && m < full.end, all) << "tile " << m;
  }
}

template <class Mask>
void CheckKeyRows(const Problem& problem, const PolicyParams& params) {
  for (i64 j = 0; j < problem.seqlen_kv + 3; ++j) {
    const RowInterval rows = Mask::KeyRows(problem, j, params);
    for (i64 i = 0; i < problem.seqlen_q; ++i) {
      ASSERT_EQ(i >= rows.begin && i < rows.end, Mask::Keep(problem, i, j, params))
          << "row " << i << " key " << j;
    }
  }
}

template <class Mask>
void CheckAll(const PolicyParams& params) {
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      const Problem problem = DenseProblem(seqlen_q, seqlen_kv);
      CheckKeyRows<Mask>(problem, params);
      for (i64 block_m : kBlocks) {
        for (i64 block_n : kBlocks) {
          for (i64 kv_begin = 0; kv_begin < seqlen_kv; kv_begin += block_n) {
            SCOPED_TRACE(testing::Message()
                         << "seqlens " << seqlen_q << "/" << seqlen_kv << " keys from " << kv_begin
                         << " tile " << block_m << "x" << block_n);
            CheckTileOfKeys<Mask>(problem, kv_begin, Min(kv_begin + block_n, seqlen_kv), block_m,
                                  params);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(RowTilesTest, FullAttention) { CheckAll<MaskChain<>>({}); }

TEST(RowTilesTest, CausalMasksOfBothAlignments) {
  CheckAll<MaskChain<MaskCausal<Align::kBottomRight>>>({});
  CheckAll<MaskChain<MaskCausal<Align::kTopLeft>>>({});
}

TEST(RowTilesTest, WindowsOfBothAlignments) {
  for (i64 left : {-1, 0, 2, 7}) {
    for (i64 right : {-1, 0, 3}) {
      PolicyParams params;
      params.window = {left, right};
      CheckAll<MaskChain<MaskWindow<Align::kBottomRight>>>(params);
      CheckAll<MaskChain<MaskWindow<Align::kTopLeft>>>(params);
    }
  }
}

TEST(RowTilesTest, RulesByElementNeedEveryTileAndKnowNoFullOne) {
  struct Odd : MaskElementwise {
    static bool Keep(const Problem&, i64 i, i64 j, const PolicyParams&) { return (i + j) % 2 == 1; }
  };
  const Problem problem = DenseProblem(13, 13);
  const RowTiles needed = RowTilesOfKeys<MaskChain<Odd>>(problem, 4, 8, 4, PolicyParams());
  EXPECT_EQ(needed.begin, 0);
  EXPECT_EQ(needed.end, 4);
  const RowTiles full =
      FullRowTilesOfKeys<MaskChain<Odd>>(problem, 4, 8, 4, needed, PolicyParams());
  EXPECT_EQ(full.begin, full.end);
}

}  // namespace
}  // namespace tilewright

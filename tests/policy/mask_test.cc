// Brute force over small problems: the two halves of every mask, block range and element test,
// agree with the definition and with each other.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "policy/bias_terms.cuh"
#include "policy/mask_block.cuh"
#include "policy/mask_chain.cuh"
#include "policy/mask_left_padding.cuh"
#include "policy/mask_window.cuh"
#include "policy_params.h"

namespace tilewright {
namespace {

constexpr i64 kLengths[] = {1, 2, 3, 5, 8, 13};
constexpr i64 kBlocks[] = {1, 3, 4, 8};

using Definition = std::function<bool(i64 i, i64 j)>;

// What each tile of a mask must satisfy. `tight`: besides being correct, the range leaves out every
// block at its ends that no row needs, and the full range has every complete block that all rows
// see.
template <class Mask>
void CheckTile(const Problem& problem, i64 q_begin, i64 q_end, i64 block_n,
               const PolicyParams& params, const Definition& definition, bool tight) {
  const i64 n = problem.seqlen_kv;
  const BlockRange range = Mask::NBlocks(problem, q_begin, q_end, block_n, params);
  ASSERT_LE(0, range.begin);
  ASSERT_LE(range.begin, range.end);
  ASSERT_LE(range.end, CeilDiv(n, block_n));
  ASSERT_LE(range.full_begin, range.full_end);
  ASSERT_TRUE(range.full_begin == range.full_end ||
              (range.begin <= range.full_begin && range.full_end <= range.end));
  for (i64 block = 0; block < CeilDiv(n, block_n); ++block) {
    const i64 kv_begin = block * block_n, kv_end = Min(kv_begin + block_n, n);
    bool any = false, all = kv_begin + block_n <= n;
    for (i64 i = q_begin; i < q_end; ++i) {
      for (i64 j = kv_begin; j < kv_end; ++j) {
        const bool keep = definition(i, j);
        ASSERT_EQ(Mask::Keep(problem, i, j, params), keep) << "row " << i << " key " << j;
        any |= keep;
        all &= keep;
      }
    }
    const bool inside = range.begin <= block && block < range.end;
    const bool full = range.full_begin <= block && block < range.full_end;
    const bool skipped = Mask::Skip(problem, q_begin, q_end, kv_begin, kv_end, params);
    ASSERT_FALSE(any && !inside) << "block " << block << " is needed";
    ASSERT_FALSE(any && skipped) << "block " << block << " is needed";
    ASSERT_FALSE(full && !all) << "block " << block << " is not full";
    if (tight) {
      ASSERT_EQ(inside, any) << "block " << block;
      ASSERT_EQ(full, all) << "block " << block;
    }
  }
}

template <class Mask>
void CheckAllTiles(const Problem& problem, const PolicyParams& params, const Definition& definition,
                   bool tight) {
  for (i64 block_m : kBlocks) {
    for (i64 block_n : kBlocks) {
      for (i64 q_begin = 0; q_begin < problem.seqlen_q; q_begin += block_m) {
        SCOPED_TRACE(testing::Message()
                     << "seqlens " << problem.seqlen_q << "/" << problem.seqlen_kv << " rows from "
                     << q_begin << " tile " << block_m << "x" << block_n);
        ASSERT_NO_FATAL_FAILURE(CheckTile<Mask>(problem, q_begin,
                                                Min(q_begin + block_m, problem.seqlen_q), block_n,
                                                params, definition, tight));
      }
    }
  }
}

template <Align kAlign>
void CheckWindows() {
  constexpr i64 kSides[] = {-1, 0, 1, 4, 100, INT64_MAX};
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      const Problem problem = DenseProblem(seqlen_q, seqlen_kv);
      const i64 off = kAlign == Align::kBottomRight ? seqlen_kv - seqlen_q : 0;
      ASSERT_NO_FATAL_FAILURE((CheckAllTiles<MaskChain<MaskCausal<kAlign>>>(
          problem, {}, [=](i64 i, i64 j) { return j <= i + off; }, true)));
      for (i64 left : kSides) {
        for (i64 right : kSides) {
          SCOPED_TRACE(testing::Message() << "window " << left << "," << right);
          PolicyParams params;
          params.window = {left, right};
          const auto inside = [=](i64 i, i64 j) {
            const bool left_ok = left == -1 || i + off - j <= left;
            const bool right_ok = right == -1 || j - (i + off) <= right;
            return left_ok && right_ok;
          };
          ASSERT_NO_FATAL_FAILURE(
              (CheckAllTiles<MaskChain<MaskWindow<kAlign>>>(problem, params, inside, true)));
        }
      }
    }
  }
}

TEST(MaskTest, LeftPadding) {
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      for (i32 padding : {0, 1, 4, 7, 20}) {
        SCOPED_TRACE(testing::Message() << "padding " << padding);
        const Problem problem = DenseProblem(seqlen_q, seqlen_kv);
        const i64 off = seqlen_kv - seqlen_q;
        PolicyParams params;
        params.left_padding = {&padding};
        ASSERT_NO_FATAL_FAILURE((CheckAllTiles<MaskChain<MaskLeftPadding>>(
            problem, params, [=](i64, i64 j) { return j >= padding; }, true)));
        // Together with a diagonal a block may be needed by neither of its rows.
        ASSERT_NO_FATAL_FAILURE(
            (CheckAllTiles<MaskChain<MaskCausal<Align::kBottomRight>, MaskLeftPadding>>(
                problem, params, [=](i64 i, i64 j) { return j >= padding && j <= i + off; },
                false)));
        for (i64 j = 0; j < seqlen_kv; ++j) {
          const RowInterval rows = MaskLeftPadding::KeyRows(problem, j, params);
          EXPECT_EQ(rows.begin, 0);
          EXPECT_EQ(rows.end, j >= padding ? seqlen_q : 0);
        }
      }
    }
  }
}

TEST(MaskTest, LengthAloneKeepsEveryKey) {
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      CheckAllTiles<MaskChain<>>(
          DenseProblem(seqlen_q, seqlen_kv), {}, [](i64, i64) { return true; }, true);
    }
  }
}

TEST(MaskTest, NoKeysGiveNoBlocks) {
  const BlockRange range =
      MaskChain<MaskCausal<Align::kTopLeft>>::NBlocks(DenseProblem(5, 0), 0, 5, 4, PolicyParams{});
  EXPECT_EQ(range.begin, range.end);
  EXPECT_EQ(range.full_begin, range.full_end);
}

TEST(MaskTest, KeysBeyondTheLengthAreNotKept) {
  EXPECT_TRUE(MaskChain<>::Keep(DenseProblem(5, 8), 0, 7, PolicyParams{}));
  EXPECT_FALSE(MaskChain<>::Keep(DenseProblem(5, 8), 0, 8, PolicyParams{}));
}

TEST(MaskWindowTest, AgreesWithTheDefinitionBottomRight) { CheckWindows<Align::kBottomRight>(); }

TEST(MaskWindowTest, AgreesWithTheDefinitionTopLeft) { CheckWindows<Align::kTopLeft>(); }

TEST(MaskWindowTest, LongSequencesDoNotOverflow) {
  const Problem problem = DenseProblem(i64{1} << 40, i64{1} << 41);
  PolicyParams params;
  params.window = {INT64_MAX, INT64_MAX};
  using Mask = MaskChain<MaskWindow<Align::kBottomRight>>;
  const i64 last = problem.seqlen_q - 64;
  const BlockRange range = Mask::NBlocks(problem, last, last + 64, 128, params);
  EXPECT_EQ(range.begin, 0);
  EXPECT_EQ(range.end, (i64{1} << 41) / 128);
  EXPECT_EQ(range.full_end, range.end);
  EXPECT_TRUE(Mask::Keep(problem, last, 0, params));
}

// A random [seqlen_q, seqlen_kv] table of bytes, some of them neither 0 nor 1.
std::vector<u8> RandomTable(i64 count, std::mt19937& random) {
  std::vector<u8> table(count);
  for (u8& byte : table) byte = random() % 3 == 0 ? 0 : 1 + random() % 255;
  return table;
}

TEST(MaskBiasTest, NonzeroBytesKeep) {
  std::mt19937 random(1);
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      const std::vector<u8> table = RandomTable(seqlen_q * seqlen_kv, random);
      PolicyParams params;
      params.bias[1] = {.data = table.data(),
                        .stride_batch = 0,
                        .stride_head = 0,
                        .stride_q = seqlen_kv,
                        .stride_kv = 1,
                        .batch_div = 1,
                        .batch_mod = 1};
      CheckAllTiles<MaskChain<MaskBias<1>>>(
          DenseProblem(seqlen_q, seqlen_kv), params,
          [&](i64 i, i64 j) { return table[i * seqlen_kv + j] != 0; }, false);
    }
  }
}

TEST(MaskBlockTest, BlocksOfTheMaskCoverTheirKeys) {
  constexpr i64 kQ = 4, kKv = 3;
  std::mt19937 random(2);
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      const i64 rows = CeilDiv(seqlen_q, kQ), columns = CeilDiv(seqlen_kv, kKv);
      const std::vector<u8> table = RandomTable(rows * columns, random);
      PolicyParams params;
      params.block_mask = {table.data(), 0, 0, columns};
      CheckAllTiles<MaskChain<MaskBlock<kQ, kKv>>>(
          DenseProblem(seqlen_q, seqlen_kv), params,
          [&](i64 i, i64 j) { return table[i / kQ * columns + j / kKv] != 0; }, false);
    }
  }
}

TEST(MaskBlockTest, SkipsExactlyTheTilesThatNoBlockTouches) {
  const std::vector<u8> table = {0, 0, 1, 0, 0, 0};  // 2 x 3 blocks of 4 x 4
  PolicyParams params;
  params.block_mask = {table.data(), 0, 0, 3};
  const Problem problem = DenseProblem(8, 12);
  using Mask = MaskBlock<4, 4>;
  EXPECT_TRUE(Mask::Skip(problem, 0, 8, 0, 8, params));
  EXPECT_FALSE(Mask::Skip(problem, 0, 8, 0, 9, params));
  EXPECT_FALSE(Mask::Skip(problem, 3, 8, 8, 12, params));
  EXPECT_TRUE(Mask::Skip(problem, 4, 8, 8, 12, params));
}

TEST(MaskBlockTest, UsesTheStridesOfBatchAndHead) {
  const std::vector<u8> table = {0, 0, 0, 0, 0, 1};  // [3 batches][2 heads][1][1]
  PolicyParams params;
  params.block_mask = {table.data(), 2, 1, 1};
  Problem problem = DenseProblem(4, 4);
  EXPECT_FALSE((MaskBlock<4, 4>::Keep(problem, 0, 0, params)));
  problem.b = 2;
  problem.h = 1;
  EXPECT_TRUE((MaskBlock<4, 4>::Keep(problem, 0, 0, params)));
}

TEST(MaskChainTest, KeepsWhatAllOfItsMasksKeep) {
  constexpr i64 kQ = 4, kKv = 4;
  std::mt19937 random(3);
  for (i64 seqlen_q : kLengths) {
    for (i64 seqlen_kv : kLengths) {
      const i64 columns = CeilDiv(seqlen_kv, kKv), off = seqlen_kv - seqlen_q;
      const std::vector<u8> bytes = RandomTable(seqlen_q * seqlen_kv, random);
      const std::vector<u8> blocks = RandomTable(CeilDiv(seqlen_q, kQ) * columns, random);
      PolicyParams params;
      params.window = {3, 0};
      params.block_mask = {blocks.data(), 0, 0, columns};
      params.bias[0] = {.data = bytes.data(),
                        .stride_batch = 0,
                        .stride_head = 0,
                        .stride_q = seqlen_kv,
                        .stride_kv = 1,
                        .batch_div = 1,
                        .batch_mod = 1};
      CheckAllTiles<MaskChain<MaskWindow<Align::kBottomRight>, MaskBlock<kQ, kKv>, MaskBias<0>>>(
          DenseProblem(seqlen_q, seqlen_kv), params,
          [&](i64 i, i64 j) {
            return i + off - 3 <= j && j <= i + off && blocks[i / kQ * columns + j / kKv] != 0 &&
                   bytes[i * seqlen_kv + j] != 0;
          },
          false);
    }
  }
}

// Chain::Head's rows keep of every existing key what Keep keeps inside of the row's interval, and a
// tile that Full calls full is kept whole.
template <class Chain, class Runs>
void CheckHead(const Problem& problem, const PolicyParams& params) {
  const typename Chain::template Head<PolicyParams> head(problem, params);
  for (i64 i = 0; i < problem.seqlen_q; ++i) {
    for (i64 j = 0; j < problem.seqlen_kv; j += Runs::kKeys) {
      const LaneKeys keys = {i, j, static_cast<int>(problem.seqlen_kv - j)};
      const KeyInterval interval = Chain::RowKeys(problem, i, params);
      const u32 kept = head.template KeepInAllRows<Runs>({0, j, keys.existing}) &
                       head.template Keep<Runs>(keys) & Runs::Below(interval.end - j) &
                       ~Runs::Below(interval.begin - j);
      for (int n = 0; n < Runs::kCount; ++n) {
        const i64 key = j + Runs::Offset(n);
        const bool expected = key < problem.seqlen_kv && Chain::Keep(problem, i, key, params);
        ASSERT_EQ((kept >> n & 1) != 0, expected) << "row " << i << " key " << key;
      }
    }
  }
  for (i64 begin = 0; begin < problem.seqlen_kv; begin += 8) {
    const i64 end = Min(begin + 8, problem.seqlen_kv);
    if (!Chain::Full(problem, 0, problem.seqlen_q, begin, end, params)) continue;
    for (i64 i = 0; i < problem.seqlen_q; ++i) {
      for (i64 j = begin; j < end; ++j) ASSERT_TRUE(Chain::Keep(problem, i, j, params));
    }
  }
}

TEST(MaskHeadTest, RowsAgreeWithKeep) {
  constexpr i64 kRows = 7, kKeys = 72;
  std::mt19937 random(3);
  std::vector<u8> table(kRows * kKeys), blocks(2 * 9);
  for (u8& byte : table) byte = random() % 3 == 0 ? 0 : static_cast<u8>(random() | 1);
  for (u8& byte : blocks) byte = random() % 4 != 0;
  PolicyParams params;
  params.window = {20, 5};
  params.block_mask = {.mask = blocks.data(), .stride_batch = 0, .stride_head = 0, .stride_q = 9};
  for (const i64 stride_q : {i64{0}, kKeys}) {  // of the first term: shared by all rows, or not
    params.bias[0] = {table.data(), 0, 0, stride_q, 1, 1, 1};
    params.bias[1] = {table.data() + 1, 0, 0, kKeys, 1, 1, 1};
    const Problem problem = DenseProblem(kRows - 1, kKeys - 1);
    using Chain =
        MaskChain<MaskWindow<Align::kBottomRight>, MaskBlock<4, 8>, MaskBias<0>, MaskBias<1>>;
    CheckHead<Chain, KeyRuns<4, 2, 8>>(problem, params);
    CheckHead<Chain, KeyRuns<2, 4, 16>>(problem, params);
    CheckHead<Chain, KeyRuns<2, 8, 32>>(problem, params);
    CheckHead<MaskChain<MaskBlock<4, 8>>, KeyRuns<2, 8, 32>>(problem, params);
    CheckHead<MaskChain<MaskCausal<Align::kTopLeft>>, KeyRuns<2, 8, 32>>(problem, params);
  }
}

}  // namespace
}  // namespace tilewright

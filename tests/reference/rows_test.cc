#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "host_case.h"
#include "reference/reference.h"

namespace tilewright::reference {
namespace {

AttentionSpec RowsSpec(int64_t batch, int64_t heads, int64_t seqlen_q) {
  AttentionSpec spec = SmallSpec(seqlen_q, 1, 1, 1);
  spec.batch = batch;
  spec.heads_q = spec.heads_kv = heads;
  return spec;
}

using Key = std::tuple<int64_t, int64_t, int64_t>;

std::set<Key> AsSet(const std::vector<Row>& rows) {
  std::set<Key> keys;
  for (const Row& row : rows) keys.emplace(row.b, row.h, row.i);
  EXPECT_EQ(keys.size(), rows.size()) << "a row came twice";
  return keys;
}

TEST(RowsTest, AllRowsCountsEachSequenceByItsLength) {
  AttentionSpec spec = RowsSpec(3, 2, 4);
  EXPECT_EQ(AllRows(spec, HostCase(spec).args).size(), 3u * 2 * 4);
  spec.varlen = true;
  const HostCase packed(spec, 1, {2, 0, 1});
  EXPECT_THAT(AllRows(spec, packed.args),
              testing::ElementsAre(Row{0, 0, 0}, Row{0, 0, 1}, Row{0, 1, 0}, Row{0, 1, 1},
                                   Row{2, 0, 0}, Row{2, 1, 0}));
}

TEST(RowsTest, FewRowsAreTakenWhole) {
  const AttentionSpec spec = RowsSpec(2, 3, 5);
  const HostCase problem(spec);
  EXPECT_EQ(SampleRows(spec, problem.args, 30, 1), AllRows(spec, problem.args));
}

TEST(RowsTest, SamplesExistAreFewEnoughAndCoverHeadsBatchesAndEnds) {
  const AttentionSpec spec = RowsSpec(8, 16, 300);
  AttentionArgs args;
  args.batch = 8;
  args.seqlen_q = 300;
  const std::vector<Row> rows = SampleRows(spec, args, 512, 7);
  AsSet(rows);
  EXPECT_LE(rows.size(), 512u);
  EXPECT_GE(rows.size(), 400u);
  std::set<int64_t> batches, heads, tile_edges;
  std::set<std::pair<int64_t, int64_t>> pairs, firsts, lasts;
  for (const Row& row : rows) {
    ASSERT_GE(row.i, 0);
    ASSERT_LT(row.i, 300);
    batches.insert(row.b);
    heads.insert(row.h);
    pairs.emplace(row.b, row.h);
    if (row.i == 0) firsts.emplace(row.b, row.h);
    if (row.i == 299) lasts.emplace(row.b, row.h);
    if (row.i % 64 == 0 || row.i % 64 == 63) tile_edges.insert(row.i);
  }
  EXPECT_EQ(batches.size(), 8u);
  EXPECT_GE(heads.size(), 12u);
  EXPECT_EQ(firsts, pairs);
  EXPECT_EQ(lasts, pairs);
  for (int64_t edge : {63, 64, 127, 128, 191, 192, 255, 256}) {
    EXPECT_EQ(tile_edges.count(edge), 1u) << edge;
  }
}

TEST(RowsTest, TheSeedDecidesAndNothingElse) {
  const AttentionSpec spec = RowsSpec(2, 4, 1000);
  AttentionArgs args;
  args.batch = 2;
  args.seqlen_q = 1000;
  EXPECT_EQ(SampleRows(spec, args, 100, 7), SampleRows(spec, args, 100, 7));
  EXPECT_NE(SampleRows(spec, args, 100, 7), SampleRows(spec, args, 100, 8));
}

TEST(RowsTest, EmptySequencesAndTinyLimitsAreFine) {
  AttentionSpec spec = RowsSpec(4, 2, 500);
  spec.varlen = true;
  const HostCase packed(spec, 1, {0, 500, 0, 1});
  for (int64_t limit : {0, 1, 2, 3, 17, 100}) {
    const std::vector<Row> rows = SampleRows(spec, packed.args, limit, 3);
    EXPECT_LE(static_cast<int64_t>(rows.size()), limit);
    EXPECT_EQ(rows.empty(), limit == 0);
    for (const Row& row : rows) EXPECT_TRUE(row.b == 1 || (row.b == 3 && row.i == 0));
  }
}

}  // namespace
}  // namespace tilewright::reference

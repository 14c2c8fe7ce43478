#include "tests/gpu/summary.h"

#include <gtest/gtest.h>

namespace tilewright::gpu_tests {
namespace {

const nlohmann::ordered_json& Find(const std::vector<nlohmann::ordered_json>& rows,
                                   const std::string& name) {
  for (const auto& row : rows) {
    if (row["name"] == name) return row;
  }
  static const nlohmann::ordered_json none = {{"holds", "no such row"}};
  return none;
}

TEST(SummaryTest, KeepsTheWorstAndCountsFailures) {
  Summary summary;
  cli::Accuracy good;
  good.o_relative = 1e-3;
  good.o_relative_bar = 2e-3;
  good.o_max_abs = 0.3;
  good.o_max_abs_bar = 0.4;
  good.has_lse = true;
  good.lse_error = 0.2;
  summary.Record("first", good, true);
  cli::Accuracy exact;
  exact.o_relative_bar = 0;  // the straightforward computation was exact, and so is this one
  summary.Record("second", exact, true);
  auto rows = summary.Rows(/*tests_run=*/10, /*tests_failed=*/0, /*tests_skipped=*/1);
  EXPECT_EQ(Find(rows, "specs_checked")["value"], 2.0);
  EXPECT_EQ(Find(rows, "specs_checked")["holds"], false) << "300 are promised";
  EXPECT_EQ(Find(rows, "specs_failed")["holds"], true);
  EXPECT_EQ(Find(rows, "worst_relative_error")["value"], 0.5);
  EXPECT_EQ(Find(rows, "worst_relative_error")["spec"], "first");
  EXPECT_EQ(Find(rows, "worst_max_abs_error")["value"], 0.3 / 0.4);
  EXPECT_EQ(Find(rows, "worst_lse_error")["value"], 0.2);
  EXPECT_EQ(Find(rows, "tests_failed")["holds"], true);

  cli::Accuracy bad = good;
  bad.o_relative = 3e-3;
  summary.Record("third", bad, false);
  summary.RecordFailure("fourth");
  rows = summary.Rows(10, 2, 0);
  EXPECT_EQ(Find(rows, "specs_checked")["value"], 4.0);
  EXPECT_EQ(Find(rows, "specs_failed")["value"], 2.0);
  EXPECT_EQ(Find(rows, "specs_failed")["spec"], "third");
  EXPECT_EQ(Find(rows, "worst_relative_error")["holds"], false);
  EXPECT_EQ(Find(rows, "worst_relative_error")["spec"], "third");
  EXPECT_EQ(Find(rows, "tests_failed")["holds"], false);
  EXPECT_EQ(Find(rows, "tests_failed")["tests_run"], 10);
}

}  // namespace
}  // namespace tilewright::gpu_tests

#include "bench/flops.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace tilewright::bench {
namespace {

// The definition of the masks, pair by pair.
int64_t BruteForcePairs(const AttentionSpec& spec) {
  const int64_t offset = spec.align == MaskAlign::kTopLeft ? 0 : spec.seqlen_kv - spec.seqlen_q;
  const int64_t right = spec.causal ? 0 : spec.window_right;
  int64_t pairs = 0;
  for (int64_t i = 0; i < spec.seqlen_q; ++i) {
    for (int64_t j = 0; j < spec.seqlen_kv; ++j) {
      const bool left_ok = spec.window_left < 0 || j >= i + offset - spec.window_left;
      const bool right_ok = right < 0 || j <= i + offset + right;
      pairs += left_ok && right_ok ? 1 : 0;
    }
  }
  return pairs;
}

TEST(FlopsTest, PairsAreThoseOfTheDefinition) {
  for (const auto& [q, kv] :
       {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {1, 9}, {9, 9}, {13, 5}, {6, 20}}) {
    for (const MaskAlign align : {MaskAlign::kBottomRight, MaskAlign::kTopLeft}) {
      for (const int64_t left : {-1, 0, 3, 50}) {
        for (const int64_t right : {-1, 0, 2, 50}) {
          for (const bool causal : {false, true}) {
            AttentionSpec spec;
            spec.seqlen_q = q;
            spec.seqlen_kv = kv;
            spec.align = align;
            spec.window_left = left;
            spec.window_right = right;
            spec.causal = causal;
            EXPECT_EQ(AllowedPairs(spec), BruteForcePairs(spec))
                << q << "/" << kv << " window " << left << "," << right << " causal " << causal
                << " top left " << (align == MaskAlign::kTopLeft);
          }
        }
      }
    }
  }
}

TEST(FlopsTest, BackwardIsTwoAndAHalfForwards) {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 3;
  spec.seqlen_q = spec.seqlen_kv = 10;
  spec.dim_qk = 20;
  spec.dim_v = 30;
  EXPECT_EQ(Flops(spec), 2.0 * 100 * 3 * 2 * 50);
  spec.operation = Operation::kBackward;
  EXPECT_EQ(Flops(spec), 5.0 * 100 * 3 * 2 * 50);
  EXPECT_EQ(TeraFlops(1e12, 1000), 1);
}

// The same figures that tests/bench/compare_test.py checks bench/compare.py against.
TEST(FlopsTest, AgreesWithThePythonOne) {
  std::ifstream in(TILEWRIGHT_SOURCE_DIR "/tests/bench/flops_cases.json");
  const nlohmann::json cases = nlohmann::json::parse(in);
  ASSERT_GT(cases.size(), 5u);
  for (const nlohmann::json& one : cases) {
    AttentionSpec spec;
    spec.operation = one["backward"].get<bool>() ? Operation::kBackward : Operation::kForward;
    spec.batch = one["batch"];
    spec.heads_q = spec.heads_kv = one["heads"];
    spec.seqlen_q = one["seqlen_q"];
    spec.seqlen_kv = one["seqlen_kv"];
    spec.dim_qk = one["dim_qk"];
    spec.dim_v = one["dim_v"];
    spec.causal = one["causal"];
    spec.align = one["top_left"].get<bool>() ? MaskAlign::kTopLeft : MaskAlign::kBottomRight;
    spec.window_left = one["window_left"];
    spec.window_right = one["window_right"];
    EXPECT_EQ(Flops(spec), one["flops"].get<double>()) << one.dump();
  }
}

}  // namespace
}  // namespace tilewright::bench

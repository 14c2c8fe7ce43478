// Scores that rise and jump along the keys. Families that do not look for the maximum of every tile
// (attn_fwd_sm90) must give the result of those that do, for every finite input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/random_problem.h"
#include "spec/canonical.h"
#include "tests/gpu/gpu_environment.h"

namespace tilewright::gpu_tests {
namespace {

constexpr double kLn2 = 0.6931471805599453;

uint16_t Bf16Bits(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Sets column 0 of every row of a bf16 tensor.
void SetColumn(const Tensor& tensor, int64_t batch, int64_t rows, int64_t heads,
               const std::function<double(int64_t)>& value) {
  auto* data = static_cast<uint16_t*>(const_cast<void*>(tensor.data));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        data[b * tensor.strides.batch + row * tensor.strides.seq + h * tensor.strides.head] =
            Bf16Bits(value(row));
      }
    }
  }
}

class SteepScoresTest : public GpuTest {
 protected:
  // Random Q, K and V, with `log2_of_key(j)` (units of log2) added to the scores of key j.
  void Check(const std::string& text, const std::function<double(int64_t)>& log2_of_key,
             double amplitude = 1) {
    const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
    SCOPED_TRACE(text);
    cli::RandomProblemOptions random;
    random.amplitude = amplitude;
    auto problem = cli::MakeRandomProblem(spec, random);
    ASSERT_TRUE(problem.ok()) << problem.status();
    constexpr double kQuery = 16;
    const double scale = 1 / std::sqrt(static_cast<double>(spec.dim_qk));
    SetColumn(problem->args().q, spec.batch, spec.seqlen_q, spec.heads_q,
              [](int64_t) { return kQuery; });
    SetColumn(problem->args().k, spec.batch, spec.seqlen_kv, spec.heads_kv,
              [&](int64_t j) { return log2_of_key(j) * kLn2 / scale / kQuery; });
    CheckProblem(runtime(), *problem, stream(), {.row_limit = 512});
  }
};

constexpr const char* kSpecs[] = {
    "fwd bf16 b=1 h=2/1 s=700/700 d=64",        "fwd bf16 b=1 h=2/1 s=700/700 d=64 causal lse",
    "fwd bf16 b=1 h=2/1 s=700/700 d=128 lse",   "fwd bf16 b=1 h=2/1 s=700/701 d=128 causal",
    "fwd bf16 b=1 h=2/1 s=700/700 d=256 lse",   "fwd bf16 b=1 h=2/1 s=640/640 d=256 causal",
    "fwd bf16 b=1 h=2/1 s=256/640 d=80 causal", "fwd fp16 b=1 h=2/1 s=700/700 d=128 lse"};

// Decode without a look at the maxima, with two warpgroups that share a block's keys.
constexpr const char* kDecodeSpecs[] = {"fwd bf16 b=2 h=71/1 s=1/3000 d=64 lse",
                                        "fwd fp16 b=1 h=128/1 s=1/3000 d=64 softcap=400"};

bool IsFp16(const std::string& text) { return text.find("fp16") != std::string::npos; }

// Keys are walked from the last to the first.
TEST_F(SteepScoresTest, ScoresThatRiseOrFallAlongTheKeys) {
  for (const char* spec : kSpecs) {
    for (const double per_key : {-0.5, -0.1, 0.02, 0.1}) {
      Check(spec, [=](int64_t j) { return per_key * static_cast<double>(j); });
    }
  }
}

// 41 moves a reference, 168 is what a weight can take without overflow.
TEST_F(SteepScoresTest, AJumpOfAnyHeightAtAnyPlace) {
  for (const char* spec : kSpecs) {
    for (const double jump : {30.0, 41.0, 100.0, 115.0, 143.0, 168.0, 200.0, 300.0}) {
      for (const int64_t at : {3, 300, 699}) {
        Check(spec, [=](int64_t j) { return j == at ? jump : 0.0; });
        Check(spec, [=](int64_t j) { return j <= at ? jump : 0.0; });
      }
    }
  }
}

TEST_F(SteepScoresTest, DecodeOfManyRows) {
  for (const char* spec : kDecodeSpecs) {
    for (const double per_key : {-0.1, 0.02, 0.1}) {
      Check(spec, [=](int64_t j) { return per_key * static_cast<double>(j); });
    }
    for (const double jump : {30.0, 143.0, 300.0}) {
      for (const int64_t at : {3, 1500, 2999}) {
        Check(spec, [=](int64_t j) { return j == at ? jump : 0.0; });
        Check(spec, [=](int64_t j) { return j >= at ? jump : 0.0; });
      }
    }
  }
}

TEST_F(SteepScoresTest, LargeScores) {
  for (const char* spec : kSpecs) {
    for (const double amplitude : {1.5, 2.0, 4.0}) {
      // Products of fp16 values this large leave its range.
      if (IsFp16(spec) && amplitude > 2) continue;
      Check(
          spec, [](int64_t) { return 0.0; }, amplitude);
    }
  }
}

TEST_F(SteepScoresTest, EqualScores) {
  for (const char* spec : kSpecs) {
    Check(
        spec, [](int64_t) { return 1.0; }, 0);
  }
}

}  // namespace
}  // namespace tilewright::gpu_tests

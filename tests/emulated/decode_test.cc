// What attn_decode promises beyond right answers: bits that do not depend on a sequence's
// neighbours, and a workspace that serves call after call though nobody initialises it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/emulated/case_changes.h"
#include "tests/emulated/emulated_call.h"
#include "tests/reference/host_case.h"

namespace tilewright::emulated {
namespace {

using cuda_on_host::MemoryRange;
using reference::HostCase;
using testing::IsEmpty;

// O and the LSE of some sequences of a case.
struct Results {
  std::vector<std::byte> o;
  std::vector<float> lse;
  bool operator==(const Results&) const = default;
};

class DecodeTest : public testing::Test {
 protected:
  static Call CallOf(const AttentionSpec& spec) {
    const auto plans = PlansOf(spec, plan::Family::kDecode);
    EXPECT_TRUE(plans.ok() && !plans->empty()) << plans.status();
    return Call(*EmitCall(spec, plans->front()));
  }

  // Sequences [first, first + batch) of the case, as a batch of their own.
  static Results RunPart(const Call& call, const HostCase& c, int64_t first, int64_t batch,
                         int calls = 1) {
    const int64_t rows = batch * c.spec.seqlen_q * c.spec.heads_q;
    Results results = {
        std::vector<std::byte>(rows * c.spec.dim_v * spec::ElementBytes(spec::OutType(c.spec))),
        std::vector<float>(rows, 12345.f)};
    AttentionArgs args = c.args;
    const auto from = [first](const Tensor& tensor, ElementType type) {
      return Tensor{static_cast<const std::byte*>(tensor.data) +
                        first * tensor.strides.batch * spec::ElementBytes(type),
                    tensor.strides};
    };
    args.batch = batch;
    args.q = from(args.q, c.spec.type);
    args.k = from(args.k, spec::KvType(c.spec));
    args.v = from(args.v, spec::KvType(c.spec));
    args.seqused_kv = c.seqused_kv.data() + first;
    args.o = {results.o.data(), c.d_o_strides};
    args.lse = results.lse.data();
    const auto input = [](std::string name, const reference::Array& array) {
      return MemoryRange{array.data(), static_cast<size_t>(array.bytes()), false, std::move(name)};
    };
    const std::vector<MemoryRange> memory = {
        input("q", c.q),
        input("k", c.k),
        input("v", c.v),
        {c.seqused_kv.data(), c.seqused_kv.size() * 4, false, "seqused_kv"},
        {results.o.data(), results.o.size(), true, "o"},
        {results.lse.data(), results.lse.size() * 4, true, "lse"}};
    EXPECT_THAT(call.Run(args, memory, calls), IsEmpty());
    return results;
  }

  static HostCase Make(std::string_view text, std::vector<int32_t> lengths) {
    HostCase c(spec::Canonicalise(*spec::ParseSpec(text)), 7, {}, {});
    SetLengths(c, std::move(lengths));
    return c;
  }
};

// flash-attention 1570
TEST_F(DecodeTest, Case31ASequenceAloneHasTheBitsThatItHasAmongOthers) {
  const HostCase c =
      Make("fwd bf16 b=4 h=4/2 s=1/1500 d=64 varlen lse batch_invariant", {700, 3, 1500, 1100});
  const Call call = CallOf(c.spec);
  const Results together = RunPart(call, c, 0, 4);
  for (int64_t b = 0; b < 4; ++b) {
    const Results alone = RunPart(call, c, b, 1);
    const auto bytes = static_cast<int64_t>(alone.o.size());
    EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.end(), together.o.begin() + b * bytes)) << b;
    const int64_t heads = c.spec.heads_q;
    EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), together.lse.begin() + b * heads))
        << b;
  }
}

TEST_F(DecodeTest, ClustersShareFewKeysAndPartsOfMany) {
  const AttentionSpec few = Make("fwd bf16 b=3 h=4/2 s=1/400 d=64 varlen lse", {}).spec;
  const auto plans = PlansOf(few, plan::Family::kDecode);
  ASSERT_TRUE(plans.ok() && !plans->empty()) << plans.status();
  ASSERT_EQ(plans->front().cluster, 4);
  ASSERT_EQ(plans->back().cluster, 0);
  // The kernel serves longer sequences too, whose keys are then cut into parts.
  const HostCase c = Make("fwd bf16 b=3 h=4/2 s=1/2100 d=64 varlen lse", {2100, 0, 130});
  const Call clustered(*EmitCall(c.spec, plans->front()));
  const Results once = RunPart(clustered, c, 0, 3);
  EXPECT_TRUE(once == RunPart(clustered, c, 0, 3, /*calls=*/3));
  const Results alone = RunPart(Call(*EmitCall(c.spec, plans->back())), c, 0, 3);
  for (size_t row = 0; row < once.lse.size(); ++row) {
    if (std::isinf(alone.lse[row])) {
      EXPECT_EQ(once.lse[row], alone.lse[row]) << row;
    } else {
      EXPECT_NEAR(once.lse[row], alone.lse[row], 1e-4) << row;
    }
  }
}

TEST_F(DecodeTest, CallsFollowOneAnotherOnOneWorkspace) {
  for (const std::string invariant : {"", " batch_invariant"}) {
    const HostCase c = Make("fwd bf16 b=2 h=4/2 s=1/1500 d=64 varlen lse" + invariant, {1500, 900});
    const Call call = CallOf(c.spec);
    EXPECT_EQ(RunPart(call, c, 0, 2, 3), RunPart(call, c, 0, 2)) << invariant;
  }
}

}  // namespace
}  // namespace tilewright::emulated

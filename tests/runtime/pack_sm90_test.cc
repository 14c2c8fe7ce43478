#include "runtime/pack_sm90.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "abi/tensor_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/pack_args.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/device/fake_driver.h"

namespace tilewright {
namespace {

class PackSm90Test : public ::testing::Test {
 protected:
  static void* At(uintptr_t address) { return reinterpret_cast<void*>(address); }

  // Dense arguments of `text` at addresses that are multiples of 16.
  void Use(std::string_view text) {
    spec_ = spec::Canonicalise(spec::ParseSpec(text).value());
    const auto strides = spec::EffectiveStrides(spec_);
    args_ = {};
    args_.batch = spec_.batch;
    args_.seqlen_q = spec_.seqlen_q;
    args_.seqlen_kv = spec_.seqlen_kv;
    args_.q = {At(0x1000), strides[0]};
    args_.k = {At(0x2000), strides[1]};
    args_.v = {At(0x3000), strides[2]};
    args_.o = {At(0x4000), strides[3]};
  }

  absl::Status Pack() {
    const emit::ParamLayout layout = emit::MakeParamLayout(spec_, plan_);
    alignas(64) std::byte params[kMaxParamBytes] = {};
    PackArgs(spec_, layout, args_, params);
    const absl::Status status = PackSm90(driver_.api(), plan_, spec_, layout, args_, params);
    std::memcpy(&packed_, params + layout.slots.back().offset, sizeof(packed_));
    bias_bases_.clear();
    for (const emit::ParamSlot& slot : layout.slots) {
      if (slot.kind != emit::ParamSlotKind::kBiasMap) continue;
      abi::TensorMap map;
      std::memcpy(&map, params + slot.offset, sizeof(map));
      bias_bases_.push_back(map.words[0]);
    }
    return status;
  }

  device::FakeDriver driver_;
  plan::KernelPlan plan_ = [] {
    plan::KernelPlan plan;
    plan.family = plan::Family::kFwdSm90;
    plan.block_m = 128;
    plan.block_n = 64;
    plan.consumers = 2;
    plan.cluster = 1;
    return plan;
  }();
  AttentionSpec spec_;
  AttentionArgs args_;
  abi::FwdSm90Args packed_ = {};
  std::vector<uint64_t> bias_bases_;  // of their maps
};

TEST_F(PackSm90Test, HoldsAMapForEachTensorAndTheOrderOfTiles) {
  Use("fwd bf16 b=2 h=8/4 s=300/500 d=64");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.q.words[0], 0x1000u);
  EXPECT_EQ(packed_.k.words[0], 0x2000u);
  EXPECT_EQ(packed_.v.words[0], 0x3000u);
  EXPECT_EQ(packed_.o.words[0], 0x4000u);
  EXPECT_EQ(packed_.by_threads, 0u);
  EXPECT_EQ(packed_.row_tiles, 3u);
  EXPECT_EQ(packed_.heads, 16u);
  EXPECT_EQ(packed_.tiles, 48u);
  EXPECT_EQ(packed_.section_heads, 1u);
}

TEST_F(PackSm90Test, ACausalSectionHasTheHeadsWhoseKeysFitL2) {
  // 65,536 keys of 64 + 64 columns are 16 MB: two heads of K and V, eight of Q.
  Use("fwd bf16 b=2 h=16/4 s=65536 d=64 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.section_heads, 8u);
  // Blocks that walk series of tiles take those of the other heads in pairs there.
  plan_.max_grid = 132;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.section_heads, 0u);
  EXPECT_EQ(packed_.paired_heads, 24u);
  // All of them where they are short.
  Use("fwd bf16 b=2 h=16/4 s=128 d=64 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.section_heads, 32u);
}

TEST_F(PackSm90Test, TilesOfAClusterHaveTheRowsOfItsBlocks) {
  plan_.cluster = 2;
  Use("fwd bf16 b=1 h=1 s=300 d=64");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.row_tiles, 2u);
}

TEST_F(PackSm90Test, TensorsThatNoMapDescribesAreLeftToThreads) {
  Use("fwd bf16 b=1 h=2 s=300 d=64");
  args_.v.data = At(0x3002);
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kKvByThreads);
  args_.o.strides.seq += 1;
  args_.q.strides.head += 4;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kQByThreads | abi::kKvByThreads | abi::kOByThreads);
}

TEST_F(PackSm90Test, NarrowHeadsAreDescribedTogether) {
  plan_.narrow_rows = true;
  Use("fwd bf16 b=2 h=8/4 s=300 d=36/34");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, 0u);
  // A head of V on its columns 2 behind a multiple of 16 bytes, as every second one may be.
  args_.v.strides.head += 6;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, 0u);
  // Five columns behind one a head of 36 ends behind what is copied; rows must begin alike.
  args_.q.strides.head += 1;
  args_.k.strides.seq += 4;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kQByThreads | abi::kKvByThreads);
  Use("fwd bf16 b=2 h=1 s=300 d=36 layout=bhsd");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kQByThreads | abi::kKvByThreads);
}

TEST_F(PackSm90Test, TermsThatPassThroughSharedMemoryHaveMaps) {
  Use("fwd bf16 b=2 h=4 s=256/512 d=64 bias=bf16:2,4,256,512 bias=bf16:1,1,256,512");
  args_.bias[0] = {At(0x5000), 4 * 256 * 512, 256 * 512, 512, 1};
  args_.bias[1] = {At(0x6000), 0, 0, 512, 1};
  ASSERT_TRUE(Pack().ok());
  EXPECT_TRUE(bias_bases_.empty());
  plan_.staged_terms = 2;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, 0u);
  EXPECT_EQ(bias_bases_, (std::vector<uint64_t>{0x5000, 0x6000}));
  args_.bias[1].stride_q = 513;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kBiasByThreads);
  args_.bias[1] = {At(0x6000), 0, 0, 1024, 2};
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(packed_.by_threads, abi::kBiasByThreads);
}

TEST_F(PackSm90Test, LengthsBeyond31BitsAreRefused) {
  Use("fwd bf16 b=1 h=2 s=300 d=64");
  args_.seqlen_kv = int64_t{1} << 31;
  EXPECT_EQ(Pack().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(PackSm90Test, OtherFamiliesHaveNoSuchSlot) {
  Use("fwd bf16 b=1 h=2 s=300 d=64");
  plan_.family = plan::Family::kFwdSm80;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(driver_.CallCount("cuTensorMapEncodeTiled"), 0);
}

// attn_bwd_sm90, whose blocks own tiles of 128 keys.
class PackBwdSm90Test : public PackSm90Test {
 protected:
  PackBwdSm90Test() {
    plan_ = {};
    plan_.family = plan::Family::kBwdSm90;
    plan_.block_m = 64;
    plan_.block_n = 128;
    plan_.consumers = 2;
  }

  void Use(std::string_view text) {
    PackSm90Test::Use(text);
    args_.d_o = {At(0x5000), args_.o.strides};
    args_.d_q = {At(0x6000), args_.q.strides};
    args_.d_k = {At(0x7000), args_.k.strides};
    args_.d_v = {At(0x8000), args_.v.strides};
  }

  absl::Status Pack() {
    const emit::ParamLayout layout = emit::MakeParamLayout(spec_, plan_);
    alignas(64) std::byte params[kMaxParamBytes] = {};
    const absl::Status status = PackSm90(driver_.api(), plan_, spec_, layout, args_, params);
    std::memcpy(&args_of_kernel_, params + layout.slots.back().offset, sizeof(args_of_kernel_));
    return status;
  }

  abi::BwdSm90Args args_of_kernel_ = {};
};

TEST_F(PackBwdSm90Test, HoldsAMapForEachTensorAndTheOrderOfTiles) {
  Use("bwd bf16 b=2 h=8/4 s=300/500 d=128");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.q.words[0], 0x1000u);
  EXPECT_EQ(args_of_kernel_.k.words[0], 0x2000u);
  EXPECT_EQ(args_of_kernel_.v.words[0], 0x3000u);
  EXPECT_EQ(args_of_kernel_.d_o.words[0], 0x5000u);
  EXPECT_EQ(args_of_kernel_.d_k.words[0], 0x7000u);
  EXPECT_EQ(args_of_kernel_.d_v.words[0], 0x8000u);
  EXPECT_EQ(args_of_kernel_.by_threads, 0u);
  EXPECT_EQ(args_of_kernel_.key_tiles, 4u);
  EXPECT_EQ(args_of_kernel_.heads, 8u);
  EXPECT_EQ(args_of_kernel_.tiles, 32u);
  EXPECT_EQ(args_of_kernel_.section_heads, 1u);
  // In turns, the tiles of a head begin apart.
  Use("bwd bf16 b=2 h=8/4 s=300/500 d=128 deterministic");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 8u);
}

TEST_F(PackBwdSm90Test, ACausalSectionHasTheHeadsWhoseRowsFitL2) {
  // 8192 rows of two heads a group: 16-bit Q and dO and fp32 sums of dQ are 16 MB.
  Use("bwd bf16 b=4 h=8/4 s=8192 d=128 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 2u);
  Use("bwd bf16 b=1 h=8/4 s=262144 d=128 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 1u);
  // Five fit, and eight sections of four leave no short one.
  Use("bwd bf16 b=2 h=16 s=8192 d=128 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 4u);
  Use("bwd bf16 b=1 h=7 s=8192 d=128 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 4u);  // four and three
}

TEST_F(PackBwdSm90Test, ACausalSectionHasATileForEveryBlock) {
  // Two heads of keys fit L2, with 64 tiles.
  plan_.max_grid = 132;
  Use("bwd bf16 b=2 h=32/8 s=4096 d=128 causal");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.section_heads, 4u);
}

TEST_F(PackBwdSm90Test, TilesOfAClusterAreCountedTogether) {
  plan_.block_n = 64;
  plan_.cluster = 2;
  Use("bwd bf16 b=2 h=4 s=300/500 d=256");
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.key_tiles, 4u);
  EXPECT_EQ(args_of_kernel_.tiles, 32u);
}

TEST_F(PackBwdSm90Test, TensorsThatNoMapDescribesAreLeftToThreads) {
  Use("bwd bf16 b=1 h=2 s=300 d=64");
  args_.d_o.data = At(0x5008);
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.by_threads, abi::kQByThreads);
  args_.d_k.strides.seq += 4;
  ASSERT_TRUE(Pack().ok());
  EXPECT_EQ(args_of_kernel_.by_threads, abi::kQByThreads | abi::kGradientsByThreads);
}

// The map of K has no keys that a window hides from every row.
TEST_F(PackBwdSm90Test, KHasTheKeysThatSomeRowSees) {
  const struct {
    const char* words;
    uint32_t first, end;
  } cases[] = {
      {"s=100/300", 0, 300},
      {"s=100/300 causal", 0, 300},
      {"s=100/300 causal=top_left", 0, 100},
      {"s=100/300 window=30,0", 170, 300},
      {"s=100/300 window=30,7 align=top_left", 0, 107},
      {"s=300/100 window=30,7", 0, 100},
      {"s=300/100 window=0,0 align=top_left", 0, 100},
      {"s=100/300 window=9223372036854775807,0", 0, 300},
      {"s=0/300 causal=top_left", 0, 300},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    Use(absl::StrCat("bwd bf16 b=2 h=4 d=64 ", c.words));
    ASSERT_TRUE(Pack().ok());
    EXPECT_EQ(args_of_kernel_.first_key, c.first);
    EXPECT_EQ(args_of_kernel_.end_key, c.end);
    EXPECT_EQ(args_of_kernel_.k.words[0], 0x2000u + c.first * 4 * 64 * 2);
  }
}

TEST_F(PackBwdSm90Test, LengthsBeyond31BitsAreRefused) {
  Use("bwd bf16 b=1 h=2 s=300 d=64");
  args_.seqlen_q = int64_t{1} << 31;
  EXPECT_EQ(Pack().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace tilewright

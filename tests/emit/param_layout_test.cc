#include "emit/param_layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "absl/strings/str_cat.h"
#include "emit_cases.h"

namespace tilewright::emit {
namespace {

using Kind = ParamSlotKind;

TEST(ParamLayoutTest, APlainSpecHasTheCoreOnly) {
  const ParamLayout layout = MakeParamLayout(SpecOf("fwd bf16 b=2 h=4 s=64 d=64 lse causal"));
  ASSERT_EQ(layout.slots.size(), 1u);
  EXPECT_EQ(layout.slots[0].kind, Kind::kCore);
  EXPECT_EQ(layout.slots[0].offset, 0);
  EXPECT_EQ(layout.size, static_cast<int>(sizeof(abi::AttnFwdParams)));
}

// The struct that the emitted text declares for kEverySlot, compiled here.
struct EverySlot {
  abi::AttnFwdParams core;
  abi::WindowArgs window;
  abi::VarlenArgs varlen;
  abi::PageTableArgs page_table;
  abi::LeftPaddingArgs left_padding;
  abi::CacheSlotArgs cache_slots;
  abi::AlibiArgs alibi;
  abi::BiasArgs bias[2];
  abi::SoftcapArgs softcap;
  abi::SinkArgs sinks;
  abi::BlockMaskArgs block_mask;
  abi::ScaleArgs q_scale;
  abi::ScaleArgs k_scale;
  abi::ScaleArgs v_scale;
  abi::DropoutArgs dropout;
  const float* user_table;
  const signed char* user_codes;
  alignas(8) float user_gain;
  alignas(8) abi::i64 user_period;
};

TEST(ParamLayoutTest, OffsetsAreThoseOfTheStruct) {
  const ParamLayout layout = MakeParamLayout(SpecOf(kEverySlot, "true"));
  const struct {
    Kind kind;
    int index;
    size_t offset;
    size_t size;
  } expected[] = {
      {Kind::kCore, 0, offsetof(EverySlot, core), sizeof(abi::AttnFwdParams)},
      {Kind::kWindow, 0, offsetof(EverySlot, window), sizeof(abi::WindowArgs)},
      {Kind::kVarlen, 0, offsetof(EverySlot, varlen), sizeof(abi::VarlenArgs)},
      {Kind::kPageTable, 0, offsetof(EverySlot, page_table), sizeof(abi::PageTableArgs)},
      {Kind::kLeftPadding, 0, offsetof(EverySlot, left_padding), sizeof(abi::LeftPaddingArgs)},
      {Kind::kCacheSlots, 0, offsetof(EverySlot, cache_slots), sizeof(abi::CacheSlotArgs)},
      {Kind::kAlibi, 0, offsetof(EverySlot, alibi), sizeof(abi::AlibiArgs)},
      {Kind::kBias, 0, offsetof(EverySlot, bias), sizeof(abi::BiasArgs)},
      {Kind::kBias, 1, offsetof(EverySlot, bias) + sizeof(abi::BiasArgs), sizeof(abi::BiasArgs)},
      {Kind::kSoftcap, 0, offsetof(EverySlot, softcap), sizeof(abi::SoftcapArgs)},
      {Kind::kSinks, 0, offsetof(EverySlot, sinks), sizeof(abi::SinkArgs)},
      {Kind::kBlockMask, 0, offsetof(EverySlot, block_mask), sizeof(abi::BlockMaskArgs)},
      {Kind::kQScale, 0, offsetof(EverySlot, q_scale), sizeof(abi::ScaleArgs)},
      {Kind::kKScale, 0, offsetof(EverySlot, k_scale), sizeof(abi::ScaleArgs)},
      {Kind::kVScale, 0, offsetof(EverySlot, v_scale), sizeof(abi::ScaleArgs)},
      {Kind::kDropout, 0, offsetof(EverySlot, dropout), sizeof(abi::DropoutArgs)},
      {Kind::kUserArray, 0, offsetof(EverySlot, user_table), sizeof(void*)},
      {Kind::kUserArray, 1, offsetof(EverySlot, user_codes), sizeof(void*)},
      {Kind::kUserScalar, 0, offsetof(EverySlot, user_gain), 8},
      {Kind::kUserScalar, 1, offsetof(EverySlot, user_period), 8},
  };
  ASSERT_EQ(layout.slots.size(), std::size(expected));
  for (size_t n = 0; n < layout.slots.size(); ++n) {
    EXPECT_EQ(layout.slots[n].kind, expected[n].kind) << "slot " << n;
    EXPECT_EQ(layout.slots[n].index, expected[n].index) << "slot " << n;
    EXPECT_EQ(layout.slots[n].offset, static_cast<int>(expected[n].offset)) << "slot " << n;
    EXPECT_EQ(layout.slots[n].size, static_cast<int>(expected[n].size)) << "slot " << n;
  }
  EXPECT_EQ(layout.size, static_cast<int>(sizeof(EverySlot)));
}

TEST(ParamLayoutTest, TheEmittedTextAssertsTheOffsets) {
  const AttentionSpec spec = SpecOf(kEverySlot, "true");
  const std::string text = Emit(spec).text;
  const ParamLayout layout = MakeParamLayout(spec);
  for (const ParamSlot& slot : layout.slots) {
    EXPECT_NE(text.find(absl::StrCat(") == ", slot.offset, ");")), std::string::npos)
        << "offset " << slot.offset;
  }
  EXPECT_NE(text.find(absl::StrCat("static_assert(sizeof(Params) == ", layout.size, ");")),
            std::string::npos);
}

TEST(ParamLayoutTest, TheLargestParametersFitALaunch) {
  AttentionSpec spec = SpecOf(kEverySlot, "true");
  spec.bias.resize(4);
  spec.snippet_arrays.clear();
  spec.snippet_scalars.clear();
  for (int n = 0; n < 8; ++n) {
    spec.snippet_arrays.push_back({.name = absl::StrCat("a", n)});
    spec.snippet_scalars.push_back({.name = absl::StrCat("s", n)});
  }
  EXPECT_LE(MakeParamLayout(spec).size, 4096);
}

TEST(ParamLayoutTest, OnlyWindowsThatAreNotCausalTakeASlot) {
  const auto has_window = [](std::string_view words) {
    const ParamLayout layout =
        MakeParamLayout(SpecOf(absl::StrCat("fwd bf16 b=1 h=1 s=8 d=8 ", std::string(words))));
    return layout.slots.size() == 2 && layout.slots[1].kind == Kind::kWindow;
  };
  EXPECT_FALSE(has_window("causal"));
  EXPECT_FALSE(has_window("window=-1,0"));
  EXPECT_TRUE(has_window("window=3,0"));
  EXPECT_TRUE(has_window("causal window=3,-1"));
  EXPECT_TRUE(has_window("window=-1,2"));
}

}  // namespace
}  // namespace tilewright::emit

#include "spec/cache_append.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tilewright::spec {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

CacheAppendSpec FullSpec() {
  return {.cache_type = ElementType::kFp8E4m3,
          .cache_scale = ScaleKind::kPerToken,
          .heads_q = 4,
          .heads_kv = 2,
          .page_size = 16,
          .rotary = Rotary::kHalfSplit,
          .rotary_table = ElementType::kFp32};
}

template <typename T>
T* At(uintptr_t address = 0x1000) {
  return reinterpret_cast<T*>(address);
}

CacheAppendArgs FullArgs() {
  CacheAppendArgs args;
  args.batch = 3;
  args.seqlen = 2;
  args.q = {At<void>(), {1024, 512, 128}};
  args.q_out = {At<void>(), {1024, 512, 128}};
  args.k = {At<void>(), {512, 256, 128}};
  args.v = {At<void>(), {512, 256, 128}};
  args.k_cache = {At<void>(), {4096, 256, 128}};
  args.v_cache = {At<void>(), {4096, 256, 128}};
  args.capacity = 64;
  args.page_table = At<int32_t>();
  args.page_table_stride = 4;
  args.k_scale = At<float>();
  args.v_scale = At<float>();
  args.k_scale_strides = args.v_scale_strides = {32, 16, 1};
  args.cos = args.sin = At<void>();
  return args;
}

TEST(CacheAppendSpecTest, ErrorsNameTheFieldItsValueAndTheRule) {
  const struct {
    std::function<void(CacheAppendSpec&)> change;
    const char* message;
  } cases[] = {
      {[](auto& s) { s.type = ElementType::kInt8; }, "type = int8: must be fp16, bf16 or fp32"},
      {[](auto& s) { s.cache_type = ElementType::kFp16; }, "cache_type = fp16: must be bf16 (as"},
      {[](auto& s) { s.cache_type.reset(); }, "cache_scale is set and cache_type = bf16"},
      {[](auto& s) { s.cache_scale = static_cast<ScaleKind>(9); }, "cache_scale = 9"},
      {[](auto& s) { s.heads_q = -1; }, "heads_q = -1: must be >= 0"},
      {[](auto& s) { s.heads_kv = -1; }, "heads_kv = -1"},
      {[](auto& s) { s.dim_qk = 0; }, "dim_qk = 0: must be >= 1"},
      {[](auto& s) { s.dim_v = -1; }, "dim_v = -1"},
      {[](auto& s) { s.page_size = -1; }, "page_size = -1"},
      {[](auto& s) { s.rotary = Rotary::kNone; }, "heads_q = 4: must be 0 without a rotary"},
      {[](auto& s) { s.rotary = static_cast<Rotary>(7); }, "rotary = 7"},
      {[](auto& s) { s.rotary_begin = 3; }, "rotary_begin = 3: must be even"},
      {[](auto& s) { s.rotary_begin = 128; }, "rotary_begin = 128"},
      {[](auto& s) { s.rotary_dim = 31; }, "rotary_dim = 31: must be even"},
      {[](auto& s) { s.rotary_dim = 130; }, "rotary_dim = 130"},
      {[](auto& s) { s.dim_qk = 65; }, "rotary_dim = 0: must be set: dim_qk - rotary_begin = 65"},
      {[](auto& s) { s.rotary_table = ElementType::kInt8; }, "rotary_table = int8"},
      {[](auto& s) {
         s.rotary_table.reset();
         s.rotary_base = 0.5;
       },
       "rotary_base = 0.5: must be finite and >= 1"},
      {[](auto& s) {
         s.rotary_table.reset();
         s.dim_qk = 1000;
       },
       "rotary_dim = 1000: must be at most 896"},
  };
  EXPECT_TRUE(Validate(FullSpec()).ok()) << Validate(FullSpec());
  for (const auto& c : cases) {
    CacheAppendSpec spec = FullSpec();
    c.change(spec);
    EXPECT_THAT(std::string(Validate(spec).message()), StartsWith(c.message));
  }
}

TEST(CacheAppendSpecTest, EqualProblemsBecomeEqualSpecs) {
  CacheAppendSpec spelled = FullSpec(), plain = FullSpec();
  spelled.rotary_dim = 128;
  spelled.rotary_base = 5;  // the table takes its place
  EXPECT_FALSE(spelled == plain);
  EXPECT_TRUE(Canonicalise(spelled) == Canonicalise(plain));
  EXPECT_EQ(HashOf(Canonicalise(spelled)), HashOf(Canonicalise(plain)));
  EXPECT_EQ(ToText(Canonicalise(plain)),
            "append bf16 h=4/2 d=128/128 cache=e4m3 scale=token paged=16 "
            "rotary=half_split:0,128:fp32");
  EXPECT_EQ(ToText(Canonicalise({.cache_type = ElementType::kBf16, .rotary_begin = 4})),
            "append bf16 h=0/1 d=128/128");
}

TEST(CacheAppendSpecTest, ReadsTheTextThatItPrints) {
  CacheAppendSpec odd = FullSpec();
  odd.cache_type = ElementType::kInt8;
  odd.cache_scale = ScaleKind::kPerHead;
  odd.dim_qk = 96;
  odd.dim_v = 0;
  odd.rotary = Rotary::kInterleaved;
  odd.rotary_begin = 32;
  odd.rotary_table.reset();
  odd.rotary_base = 1234567.25;
  for (const CacheAppendSpec& given : {CacheAppendSpec(), FullSpec(), odd}) {
    const CacheAppendSpec spec = Canonicalise(given);
    const absl::StatusOr<CacheAppendSpec> read = ParseCacheAppend(ToText(spec));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, spec) << ToText(spec);
  }
  const absl::StatusOr<CacheAppendSpec> brief =
      ParseCacheAppend("append fp16 rotary=half_split d=64 h=4");
  ASSERT_TRUE(brief.ok()) << brief.status();
  EXPECT_EQ(ToText(*brief), "append fp16 h=4/4 d=64/64 rotary=half_split:0,64:10000");
}

TEST(CacheAppendSpecTest, ReadingNamesTheWordThatIsWrong) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"fwd bf16", "spec \"fwd bf16\": must begin with \"append\""},
      {"append", "must begin with \"append\" and a type"},
      {"append bf17", "unknown element type \"bf17\""},
      {"append bf16 h=1/2/3", "word \"h=1/2/3\""},
      {"append bf16 heads=2", "word \"heads=2\": must be one of h="},
      {"append bf16 scale=row", "word \"scale=row\""},
      {"append bf16 rotary=half_split:0", "word \"rotary=half_split:0\""},
      {"append bf16 rotary=half_split:0,64:fast", "word \"rotary=half_split:0,64:fast\""},
      {"append bf16 paged=16 h=0/8 paged=64", "word \"paged=64\": is given twice"},
      {"append bf16 scale=token cache=e4m3 cache=e4m3", "word \"cache=e4m3\": is given twice"},
      {"append bf16 h=2", "heads_q = 2: must be 0 without a rotary embedding"},
  };
  for (const auto& one : cases) {
    const absl::StatusOr<CacheAppendSpec> read = ParseCacheAppend(one.text);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << one.text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(one.message));
  }
  EXPECT_TRUE(IsCacheAppendText("  append bf16"));
  EXPECT_FALSE(IsCacheAppendText("appended bf16"));
  EXPECT_FALSE(IsCacheAppendText(""));
}

TEST(CacheAppendArgsTest, ErrorsNameTheFieldItsValueAndTheRule) {
  const struct {
    std::function<void(CacheAppendArgs&)> change;
    const char* message;
  } cases[] = {
      {[](auto& a) { a.batch = -1; }, "batch = -1"},
      {[](auto& a) { a.seqlen = -1; }, "seqlen = -1"},
      {[](auto& a) { a.seqlen = int64_t{1} << 30; }, "batch = 3: must be such that batch * seqlen"},
      {[](auto& a) { a.capacity = -1; }, "capacity = -1"},
      {[](auto& a) { a.q.data = nullptr; }, "q.data = 0x0: must be a multiple of 2 and not null"},
      {[](auto& a) { a.q_out.data = At<void>(3); }, "q_out.data = 0x3"},
      {[](auto& a) { a.k.strides.head = -1; }, "k.strides.head = -1"},
      {[](auto& a) { a.v.strides.dim = 2; }, "v.strides.dim = 2: must be 1"},
      {[](auto& a) { a.k_cache.strides.seq = 0; }, "k_cache.strides.seq = 0: must be > 0"},
      {[](auto& a) { a.v_cache.strides.batch = int64_t{1} << 40; }, "v_cache.strides = "},
      {[](auto& a) { a.page_table = nullptr; }, "page_table = 0x0"},
      {[](auto& a) { a.cu_seqlens = At<int32_t>(2); }, "cu_seqlens = 0x2"},
      {[](auto& a) { a.positions = At<int32_t>(2); }, "positions = 0x2"},
      {[](auto& a) { a.k_scale = nullptr; }, "k_scale = 0x0"},
      {[](auto& a) { a.v_scale_strides[2] = 0; }, "v_scale_strides[2] = 0: must be > 0"},
      {[](auto& a) { a.cos = nullptr; }, "cos = 0x0"},
      {[](auto& a) {
         a.new_seqused_kv = At<int32_t>();
         a.seqused_kv = At<int32_t>();
       },
       "ticket = 0x0"},
  };
  EXPECT_TRUE(ValidateArgs(FullSpec(), FullArgs()).ok()) << ValidateArgs(FullSpec(), FullArgs());
  for (const auto& c : cases) {
    CacheAppendArgs args = FullArgs();
    c.change(args);
    EXPECT_THAT(std::string(ValidateArgs(FullSpec(), args).message()), StartsWith(c.message));
  }
  CacheAppendArgs nothing;
  EXPECT_TRUE(ValidateArgs(FullSpec(), nothing).ok()) << ValidateArgs(FullSpec(), nothing);
}

}  // namespace
}  // namespace tilewright::spec

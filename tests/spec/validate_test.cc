#include "spec/validate.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>

#include "allocation_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tilewright::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kHuge = int64_t{1} << 61;

// A spec with every kind of size distinct.
AttentionSpec ValidSpec() {
  AttentionSpec spec;
  spec.batch = 6;
  spec.heads_q = 8;
  spec.heads_kv = 4;
  spec.seqlen_q = 49;
  spec.seqlen_kv = 100;
  spec.dim_qk = 40;
  spec.dim_v = 24;
  return spec;
}

struct SpecCase {
  std::function<void(AttentionSpec&)> change;
  std::string message;  // "field = value: must be rule", its beginning
};

void ExpectRefused(const std::vector<SpecCase>& cases) {
  ASSERT_TRUE(Validate(ValidSpec()).ok());
  for (const SpecCase& c : cases) {
    AttentionSpec spec = ValidSpec();
    c.change(spec);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
  }
}

TEST(ValidateTest, AcceptsDefaults) { EXPECT_TRUE(Validate(AttentionSpec()).ok()); }

TEST(ValidateTest, RefusesSizes) {
  ExpectRefused({
      {[](auto& s) { s.batch = -1; }, "batch = -1: must be >= 0"},
      {[](auto& s) { s.heads_q = -2; }, "heads_q = -2: must be >= 0"},
      {[](auto& s) { s.heads_kv = -2; }, "heads_kv = -2: must be >= 0"},
      {[](auto& s) { s.seqlen_q = -3; }, "seqlen_q = -3: must be >= 0"},
      {[](auto& s) { s.seqlen_kv = -4; }, "seqlen_kv = -4: must be >= 0"},
      {[](auto& s) { s.page_size = -16; }, "page_size = -16: must be >= 0"},
      {[](auto& s) { s.dim_qk = 0; }, "dim_qk = 0: must be >= 1"},
      {[](auto& s) { s.dim_v = 0; }, "dim_v = 0: must be >= 1"},
      {[](auto& s) { s.heads_q = 6; }, "heads_q = 6: must be a multiple of heads_kv = 4"},
      {[](auto& s) { s.heads_kv = 0; }, "heads_kv = 0: must be 0 exactly when heads_q (8) is 0"},
      {[](auto& s) { s.heads_q = 0; }, "heads_kv = 4: must be 0 exactly when heads_q (0) is 0"},
      {[](auto& s) { s.dim_qk = int64_t{1} << 31; }, "dim_qk = 2147483648: must be below 2^31"},
      {[](auto& s) { s.dim_v = int64_t{1} << 31; }, "dim_v = 2147483648: must be below 2^31"},
      {[](auto& s) { s.heads_q = int64_t{1} << 32; }, "heads_q = 4294967296: must be below 2^31"},
      {[](auto& s) { s.page_size = int64_t{1} << 31; },
       "page_size = 2147483648: must be below 2^31"},
      {[](auto& s) { s.seqlen_q = kHuge; },
       "seqlen_q = 2305843009213693952: must be such that every byte offset fits 63 bits"},
      {[](auto& s) { s.seqlen_kv = kHuge; },
       "seqlen_kv = 2305843009213693952: must be such that every byte offset fits 63 bits"},
  });
}

TEST(ValidateTest, AcceptsEmptyProblems) {
  for (auto change : std::vector<std::function<void(AttentionSpec&)>>{
           [](auto& s) { s.batch = 0; }, [](auto& s) { s.heads_q = s.heads_kv = 0; },
           [](auto& s) { s.seqlen_q = 0; }, [](auto& s) { s.seqlen_kv = 0; }}) {
    AttentionSpec spec = ValidSpec();
    change(spec);
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  }
}

TEST(ValidateTest, RefusesTypes) {
  using enum ElementType;
  ExpectRefused({
      {[](auto& s) { s.type = kInt8; }, "type = int8: must be fp16, bf16, fp32, e4m3 or e5m2"},
      {[](auto& s) { s.type = kBool; }, "type = bool: must be"},
      {[](auto& s) { s.kv_type = kFp16; },
       "kv_type = fp16: must be bf16 (as type), e4m3, e5m2 or int8"},
      {[](auto& s) { s.kv_type = kInt32; }, "kv_type = int32: must be bf16 (as type)"},
      {[](auto& s) {
         s.type = kFp32;
         s.kv_type = kInt8;
       },
       "kv_type = int8: must be fp32, as type"},
      {[](auto& s) { s.out_type = kInt8; }, "out_type = int8: must be fp16, bf16 or fp32"},
      {[](auto& s) { s.type = kFp8E4m3; },
       "out_type = e4m3: must be set to fp16 or bf16 when type is fp8"},
      {[](auto& s) {
         s.type = kFp8E4m3;
         s.out_type = kFp32;
       },
       "out_type = fp32: must be set to fp16 or bf16 when type is fp8"},
      {[](auto& s) {
         s.type = kFp8E4m3;
         s.out_type = kBf16;
         s.kv_type = kBf16;
       },
       "kv_type = bf16: must be e4m3 or e5m2 when type is fp8"},
      {[](auto& s) { s.q_scale = ScaleKind::kPerTensor; },
       "q_scale is set and type = bf16: must be e4m3 or e5m2"},
      {[](auto& s) {
         s.type = kFp8E5m2;
         s.out_type = kFp16;
         s.q_scale = ScaleKind::kPerToken;
       },
       "q_scale = token: must be per tensor or per head"},
      {[](auto& s) { s.kv_scale = ScaleKind::kPerToken; },
       "kv_scale is set and kv_type = bf16: must be e4m3, e5m2 or int8"},
  });
}

TEST(ValidateTest, AcceptsEightBitKeysAndValues) {
  using enum ElementType;
  for (ElementType kv : {kFp8E4m3, kFp8E5m2, kInt8}) {
    for (ScaleKind scale :
         {ScaleKind::kNone, ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken}) {
      AttentionSpec spec = ValidSpec();
      spec.kv_type = kv;
      spec.kv_scale = scale;
      EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
    }
  }
  AttentionSpec spec = ValidSpec();
  spec.type = kFp8E4m3;
  spec.kv_type = kFp8E5m2;
  spec.out_type = kBf16;
  spec.q_scale = ScaleKind::kPerHead;
  spec.kv_scale = ScaleKind::kPerHead;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(ValidateTest, RefusesLayouts) {
  const auto strided = [](int tensor, Strides strides) {
    return [=](AttentionSpec& s) {
      s.strides = EffectiveStrides(s);
      (*s.strides)[tensor] = strides;
    };
  };
  ExpectRefused({
      {[](auto& s) { s.layout = Layout::kThd; },
       "layout = thd: must be another one unless varlen is set"},
      {[](auto& s) { s.varlen = s.exact = true; }, "exact = true: must be false with varlen"},
      {strided(0, {-1, 1, 1, 1}), "strides.q.batch = -1: must be >= 0"},
      {strided(1, {1, -1, 1, 1}), "strides.k.seq = -1: must be >= 0"},
      {strided(2, {1, 1, -1, 1}), "strides.v.head = -1: must be >= 0"},
      {strided(3, {1, 1, 1, -1}), "strides.o.dim = -1: must be >= 0"},
      {strided(0, {1, 1, 1, 2}), "strides.q.dim = 2: must be 1 unless strided_innermost is set"},
      {strided(2, {kHuge, 1, 1, 1}),
       "strides.v = 2305843009213693952,1,1,1: must be such that every byte offset fits 63 bits"},
  });
  AttentionSpec spec = ValidSpec();
  strided(0, {1, 1, 1, 2})(spec);
  spec.strided_innermost = true;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(ValidateTest, RefusesMasks) {
  ExpectRefused({
      {[](auto& s) { s.mask_snippet.text = std::string("i >= j &&\n\0 true", 16); },
       "mask_snippet = a byte 0 in line 2: must be text"},
      {[](auto& s) { s.score_snippet.text = "score // \xff"; },
       "score_snippet = a byte 0xff in line 1: must be text"},
      {[](auto& s) { s.mask_tile_snippet.text = "some"; },
       "mask_tile_snippet = \"...\": must be empty without a mask_snippet"},
      {[](auto& s) { s.window_left = -2; }, "window_left = -2: must be >= -1"},
      {[](auto& s) { s.window_right = -2; }, "window_right = -2: must be >= -1"},
      {[](auto& s) { s.block_mask_q = -64; }, "block_mask_q = -64: must be >= 0"},
      {[](auto& s) { s.block_mask_kv = -64; }, "block_mask_kv = -64: must be >= 0"},
      {[](auto& s) { s.block_mask_q = 64; },
       "block_mask_kv = 0: must be 0 exactly when block_mask_q (64) is 0"},
  });
}

TEST(ValidateTest, RefusesScores) {
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr float kInf = std::numeric_limits<float>::infinity();
  ExpectRefused({
      {[](auto& s) { s.scale = kInf; }, "scale = inf: must be finite"},
      {[](auto& s) { s.scale = kNan; }, "scale = nan: must be finite"},
      {[](auto& s) { s.softcap = -1.5f; }, "softcap = -1.5: must be finite and >= 0"},
      {[](auto& s) { s.softcap = kInf; }, "softcap = inf: must be finite and >= 0"},
      {[](auto& s) { s.dropout = 1; }, "dropout = 1: must be in [0, 1)"},
      {[](auto& s) { s.dropout = -0.25f; }, "dropout = -0.25: must be in [0, 1)"},
      {[](auto& s) { s.dropout = kNan; }, "dropout = nan: must be in [0, 1)"},
  });
  for (float scale : {0.0f, -1.0f, 1e30f}) {
    AttentionSpec spec = ValidSpec();
    spec.scale = scale;
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  }
}

TEST(ValidateTest, RefusesBiasTerms) {
  const auto term = [](BiasTerm t) { return [=](AttentionSpec& s) { s.bias = {BiasTerm(), t}; }; };
  ExpectRefused({
      {[](auto& s) { s.bias.resize(5); }, "bias.size = 5: must be at most 4"},
      {term({.type = ElementType::kInt8}), "bias[1].type = int8: must be fp16, bf16, fp32 or bool"},
      {term({.batch = 4}), "bias[1].batch = 4: must be 1 or a divisor of batch = 6"},
      {term({.batch = 0}), "bias[1].batch = 0: must be 1 or a divisor of batch = 6"},
      {term({.batch = 12}), "bias[1].batch = 12: must be 1 or a divisor of batch = 6"},
      {term({.heads = 4}), "bias[1].heads = 4: must be 1 or heads_q = 8"},
      {term({.seqlen_q = 48}), "bias[1].seqlen_q = 48: must be 1 or seqlen_q = 49"},
      {term({.seqlen_kv = 49}), "bias[1].seqlen_kv = 49: must be 1 or seqlen_kv = 100"},
      {[](auto& s) {
         s.heads_q = s.heads_kv = 1;
         s.seqlen_q = s.seqlen_kv = int64_t{1} << 31;
         s.bias = {{.seqlen_q = s.seqlen_q, .seqlen_kv = s.seqlen_kv}};
       },
       "bias[0] = 1,1,2147483648,2147483648: must be such that every byte offset fits 63 bits"},
  });
  AttentionSpec spec = ValidSpec();
  spec.bias = {{.batch = 3, .heads = 8, .seqlen_q = 49, .seqlen_kv = 100},
               {.type = ElementType::kBool, .batch = 6, .seqlen_kv = 100},
               {.type = ElementType::kFp16, .batch = 2, .batch_map = BatchMap::kDiv}};
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(ValidateTest, RefusesSnippetNames) {
  const auto array = [](std::string name) {
    return [=](AttentionSpec& s) { s.snippet_arrays = {{.name = name}}; };
  };
  ExpectRefused({
      {array(""), "snippet_arrays[0].name = \"\": must be a C++ identifier"},
      {array("2x"), "snippet_arrays[0].name = \"2x\": must be a C++ identifier"},
      {array("a-b"), "snippet_arrays[0].name = \"a-b\": must be a C++ identifier"},
      {array("score"), "snippet_arrays[0].name = \"score\": must be a name that neither"},
      {array("float"), "snippet_arrays[0].name = \"float\": must be a name that neither"},
      {array("a__b"), "snippet_arrays[0].name = \"a__b\": must be a name that neither"},
      {[](auto& s) {
         s.snippet_arrays = {{.name = "table"}};
         s.snippet_scalars = {{.name = "table"}};
       },
       "snippet_scalars[0].name = \"table\": must be unique"},
      {[](auto& s) { s.snippet_arrays.resize(9); }, "snippet_arrays.size = 9: must be at most 8"},
      {[](auto& s) { s.snippet_scalars.resize(9); }, "snippet_scalars.size = 9: must be at most 8"},
  });
}

TEST(ValidateTest, RefusesEnumsOutOfRange) {
  ExpectRefused({
      {[](auto& s) { s.operation = static_cast<Operation>(2); }, "operation = 2: must be"},
      {[](auto& s) { s.layout = static_cast<Layout>(4); }, "layout = 4: must be"},
      {[](auto& s) { s.align = static_cast<MaskAlign>(-1); }, "align = -1: must be"},
      {[](auto& s) { s.q_scale = static_cast<ScaleKind>(4); }, "q_scale = 4: must be"},
      {[](auto& s) { s.kv_scale = static_cast<ScaleKind>(4); }, "kv_scale = 4: must be"},
      {[](auto& s) { s.lse_base = static_cast<LseBase>(2); }, "lse_base = 2: must be"},
      {[](auto& s) { s.empty_lse = static_cast<EmptyLse>(2); }, "empty_lse = 2: must be"},
      {[](auto& s) { s.bias = {{.batch_map = static_cast<BatchMap>(7)}}; },
       "bias[0].batch_map = 7: must be"},
  });
}

TEST(ValidateTest, DerivesDefaults) {
  AttentionSpec spec = ValidSpec();
  EXPECT_EQ(GroupSize(spec), 2);
  EXPECT_FLOAT_EQ(EffectiveScale(spec), 1 / std::sqrt(40.0f));
  EXPECT_EQ(EffectiveWindowRight(spec), -1);
  EXPECT_EQ(KvType(spec), ElementType::kBf16);
  EXPECT_EQ(OutType(spec), ElementType::kBf16);
  spec.causal = true;
  spec.window_right = 5;
  spec.scale = -2.0f;
  spec.kv_type = ElementType::kInt8;
  spec.out_type = ElementType::kFp32;
  EXPECT_EQ(EffectiveWindowRight(spec), 0);
  EXPECT_EQ(EffectiveScale(spec), -2.0f);
  EXPECT_EQ(KvType(spec), ElementType::kInt8);
  EXPECT_EQ(OutType(spec), ElementType::kFp32);
  spec.heads_q = spec.heads_kv = 0;
  EXPECT_EQ(GroupSize(spec), 1);
}

TEST(ValidateTest, GivesDenseStridesOfEveryLayout) {
  // Offsets of [b, s, h, d] sizes 2, 3, 5, 7 in each order.
  EXPECT_EQ(DenseStrides(Layout::kBshd, 2, 3, 5, 7), (Strides{105, 35, 7, 1}));
  EXPECT_EQ(DenseStrides(Layout::kBhsd, 2, 3, 5, 7), (Strides{105, 7, 21, 1}));
  EXPECT_EQ(DenseStrides(Layout::kSbhd, 2, 3, 5, 7), (Strides{35, 70, 7, 1}));
  EXPECT_EQ(DenseStrides(Layout::kThd, 2, 3, 5, 7), (Strides{0, 35, 7, 1}));
}

TEST(ValidateTest, StridesOfPagesAreThoseOfOnePage) {
  AttentionSpec spec = ValidSpec();
  spec.page_size = 16;
  EXPECT_EQ(EffectiveStrides(spec)[1], (Strides{16 * 4 * 40, 4 * 40, 40, 1}));
  EXPECT_EQ(EffectiveStrides(spec)[2], (Strides{16 * 4 * 24, 4 * 24, 24, 1}));
  EXPECT_EQ(EffectiveStrides(spec)[3], (Strides{49 * 8 * 24, 8 * 24, 24, 1}));
  spec.layout = Layout::kBhsd;
  EXPECT_EQ(EffectiveStrides(spec)[1], (Strides{16 * 4 * 40, 40, 16 * 40, 1}));
}

// ---- args
// -----------------------------------------------------------------------------------------------------------

alignas(256) char memory[512];

template <typename T>
T* At(int offset = 0) {
  return reinterpret_cast<T*>(memory + offset);
}

// A spec that uses every feature that fits together, and args that fit it.
AttentionSpec FullSpec() {
  AttentionSpec spec = ValidSpec();
  spec.kv_type = ElementType::kFp8E4m3;
  spec.kv_scale = ScaleKind::kPerToken;
  spec.causal = true;
  spec.block_mask_q = spec.block_mask_kv = 16;
  spec.alibi = true;
  spec.bias = {
      {.type = ElementType::kFp16, .batch = 3, .heads = 8, .seqlen_q = 49, .seqlen_kv = 100}};
  spec.sinks = true;
  spec.dropout = 0.5f;
  spec.mask_snippet.text = "table[j] != 0";
  spec.snippet_arrays = {{.name = "table", .type = ElementType::kInt32}};
  spec.lse = true;
  return spec;
}

AttentionArgs ArgsFor(const AttentionSpec& spec) {
  const std::array<Strides, 4> strides = EffectiveStrides(spec);
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  args.q = {At<void>(), strides[0]};
  args.k = {At<void>(), strides[1]};
  args.v = {At<void>(), strides[2]};
  args.o = {At<void>(), strides[3]};
  args.lse = At<float>();
  args.alibi_slopes = At<float>();
  args.bias[0] = {At<void>(), 8 * 49 * 100, 49 * 100, 100, 1};
  args.sinks = At<float>();
  args.block_mask = At<uint8_t>();
  args.k_scale = args.v_scale = At<float>();
  args.k_scale_strides = args.v_scale_strides = {4 * 100, 100, 1};
  args.snippet_arrays[0] = At<void>();
  return args;
}

struct ArgsCase {
  std::function<void(AttentionArgs&)> change;
  std::string message;
};

void ExpectRefused(const AttentionSpec& spec, const AttentionArgs& good,
                   const std::vector<ArgsCase>& cases) {
  ASSERT_TRUE(Validate(spec).ok()) << Validate(spec);
  ASSERT_TRUE(ValidateArgs(spec, good).ok()) << ValidateArgs(spec, good);
  for (const ArgsCase& c : cases) {
    AttentionArgs args = good;
    c.change(args);
    const absl::Status status = ValidateArgs(spec, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
  }
}

TEST(ValidateArgsTest, RefusesNullPointers) {
  const AttentionSpec spec = FullSpec();
  const std::string rule = " = null: must be set: the spec uses it";
  ExpectRefused(spec, ArgsFor(spec),
                {
                    {[](auto& a) { a.q.data = nullptr; }, "q.data" + rule},
                    {[](auto& a) { a.k.data = nullptr; }, "k.data" + rule},
                    {[](auto& a) { a.v.data = nullptr; }, "v.data" + rule},
                    {[](auto& a) { a.o.data = nullptr; }, "o.data" + rule},
                    {[](auto& a) { a.lse = nullptr; }, "lse" + rule},
                    {[](auto& a) { a.alibi_slopes = nullptr; }, "alibi_slopes" + rule},
                    {[](auto& a) { a.bias[0].data = nullptr; }, "bias[0].data" + rule},
                    {[](auto& a) { a.sinks = nullptr; }, "sinks" + rule},
                    {[](auto& a) { a.block_mask = nullptr; }, "block_mask" + rule},
                    {[](auto& a) { a.k_scale = nullptr; }, "k_scale" + rule},
                    {[](auto& a) { a.v_scale = nullptr; }, "v_scale" + rule},
                    {[](auto& a) { a.snippet_arrays[0] = nullptr; }, "snippet_arrays[0]" + rule},
                });
}

TEST(ValidateArgsTest, RefusesMisalignedPointers) {
  const AttentionSpec spec = FullSpec();
  const auto rule = [](const std::string& field, int offset, int bytes) {
    char address[32];
    std::snprintf(address, sizeof address, "0x%zx", reinterpret_cast<size_t>(memory + offset));
    return field + " = " + address + ": must be a multiple of " + std::to_string(bytes) + " bytes";
  };
  ExpectRefused(
      spec, ArgsFor(spec),
      {
          {[](auto& a) { a.q.data = At<void>(1); }, rule("q.data", 1, 2)},
          {[](auto& a) { a.o.data = At<void>(3); }, rule("o.data", 3, 2)},
          {[](auto& a) { a.lse = At<float>(2); }, rule("lse", 2, 4)},
          {[](auto& a) { a.alibi_slopes = At<float>(2); }, rule("alibi_slopes", 2, 4)},
          {[](auto& a) { a.bias[0].data = At<void>(1); }, rule("bias[0].data", 1, 2)},
          {[](auto& a) { a.sinks = At<float>(1); }, rule("sinks", 1, 4)},
          {[](auto& a) { a.k_scale = At<float>(2); }, rule("k_scale", 2, 4)},
          {[](auto& a) { a.dropout_seed_ptr = At<uint64_t>(4); }, rule("dropout_seed_ptr", 4, 8)},
          {[](auto& a) { a.dropout_offset_ptr = At<uint64_t>(4); },
           rule("dropout_offset_ptr", 4, 8)},
          {[](auto& a) { a.snippet_arrays[0] = At<void>(2); }, rule("snippet_arrays[0]", 2, 4)},
          {[](auto& a) { a.workspace = At<void>(128); }, rule("workspace", 128, 256)},
      });
  AttentionArgs args = ArgsFor(spec);
  args.k.data = At<void>(1);  // one-byte elements lie anywhere
  args.v.data = At<void>(3);
  args.q.data = At<void>(2);
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
}

TEST(ValidateArgsTest, RefusesSizes) {
  const AttentionSpec spec = FullSpec();
  ExpectRefused(
      spec, ArgsFor(spec),
      {
          {[](auto& a) { a.batch = -1; }, "batch = -1: must be >= 0"},
          {[](auto& a) { a.seqlen_q = -2; }, "seqlen_q = -2: must be >= 0"},
          {[](auto& a) { a.seqlen_kv = -3; }, "seqlen_kv = -3: must be >= 0"},
          {[](auto& a) { a.batch = 7; }, "batch = 7: must be a multiple of bias[0].batch = 3"},
      });
}

TEST(ValidateArgsTest, RefusesStrides) {
  const AttentionSpec spec = FullSpec();
  const std::string fits = ": must be such that every byte offset fits 63 bits";
  ExpectRefused(
      spec, ArgsFor(spec),
      {
          {[](auto& a) { a.q.strides.batch = -1; }, "q.strides.batch = -1: must be >= 0"},
          {[](auto& a) { a.k.strides.seq = -1; }, "k.strides.seq = -1: must be >= 0"},
          {[](auto& a) { a.v.strides.head = -1; }, "v.strides.head = -1: must be >= 0"},
          {[](auto& a) { a.o.strides.dim = -1; }, "o.strides.dim = -1: must be >= 0"},
          {[](auto& a) { a.k.strides.dim = 2; },
           "k.strides.dim = 2: must be 1 unless the spec has strided_innermost"},
          {[](auto& a) {
             a.q.strides = {kHuge, kHuge, kHuge, 1};
           },
           "q.strides = 2305843009213693952,2305843009213693952,2305843009213693952,1" + fits},
          {[](auto& a) { a.v.strides.seq = kHuge; }, "v.strides = "},
          {[](auto& a) { a.o.strides.batch = 0; }, "o.strides.batch = 0: must be > 0"},
          {[](auto& a) { a.o.strides.seq = 0; }, "o.strides.seq = 0: must be > 0"},
          {[](auto& a) { a.o.strides.head = 0; }, "o.strides.head = 0: must be > 0"},
          {[](auto& a) { a.lse_stride_batch = -1; }, "lse_stride_batch = -1: must be >= 0"},
          {[](auto& a) { a.lse_stride_head = -1; }, "lse_stride_head = -1: must be >= 0"},
          {[](auto& a) { a.lse_stride_batch = kHuge; },
           "lse strides = 2305843009213693952,0" + fits},
          {[](auto& a) { a.alibi_stride_batch = -8; },
           "strides of alibi_slopes = -8,1: must be >= 0"},
          {[](auto& a) { a.alibi_stride_batch = kHuge; },
           "strides of alibi_slopes = 2305843009213693952,1" + fits},
          {[](auto& a) { a.bias[0].stride_batch = -1; }, "bias[0].stride_batch = -1: must be >= 0"},
          {[](auto& a) { a.bias[0].stride_head = -1; }, "bias[0].stride_head = -1: must be >= 0"},
          {[](auto& a) { a.bias[0].stride_q = -1; }, "bias[0].stride_q = -1: must be >= 0"},
          {[](auto& a) { a.bias[0].stride_kv = -1; }, "bias[0].stride_kv = -1: must be >= 0"},
          {[](auto& a) { a.bias[0].stride_q = kHuge; }, "bias[0].strides = "},
          {[](auto& a) {
             a.block_mask_strides = {0, -1, 0};
           },
           "strides of block_mask = 0,-1,0: must be >= 0"},
          {[](auto& a) {
             a.k_scale_strides = {-1, 0, 0};
           },
           "strides of k_scale = -1,0,0: must be >= 0"},
          {[](auto& a) {
             a.v_scale_strides = {0, 0, kHuge};
           },
           "strides of v_scale = 0,0,2305843009213693952" + fits},
      });
}

TEST(ValidateArgsTest, AcceptsBroadcastStridesOfInputs) {
  const AttentionSpec spec = FullSpec();
  AttentionArgs args = ArgsFor(spec);
  args.q.strides.batch = args.k.strides.batch = args.v.strides.seq = args.k.strides.head = 0;
  args.bias[0] = {At<void>(), 0, 0, 0, 0};
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
}

TEST(ValidateArgsTest, IgnoresStridesOfBroadcastBiasExtents) {
  AttentionSpec spec = ValidSpec();
  spec.bias = {{.seqlen_kv = 100}};
  AttentionArgs args = ArgsFor(spec);
  args.bias[0] = {At<void>(), -1, -1, -1, 1};
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
}

TEST(ValidateArgsTest, AcceptsStridedInnermostWhereTheSpecHasIt) {
  AttentionSpec spec = ValidSpec();
  spec.strided_innermost = true;
  AttentionArgs args = ArgsFor(spec);
  args.q.strides.dim = 3;
  args.k.strides.dim = 0;
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
  args.o.strides.dim = 0;
  EXPECT_THAT(std::string(ValidateArgs(spec, args).message()),
              StartsWith("o.strides.dim = 0: must be > 0"));
}

TEST(ValidateArgsTest, AcceptsOtherSizesThanTheSpecs) {
  const AttentionSpec spec = FullSpec();
  AttentionArgs args = ArgsFor(spec);
  args.batch = 9;
  args.seqlen_q = 1000;
  args.seqlen_kv = 3;
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
}

TEST(ValidateArgsTest, ExactRefusesOtherSizes) {
  AttentionSpec spec = ValidSpec();
  spec.exact = true;
  ExpectRefused(
      spec, ArgsFor(spec),
      {
          {[](auto& a) { a.batch = 5; }, "batch = 5: must be 6: the spec is exact"},
          {[](auto& a) { a.seqlen_q = 1; }, "seqlen_q = 1: must be 49: the spec is exact"},
          {[](auto& a) { a.seqlen_kv = 1; }, "seqlen_kv = 1: must be 100: the spec is exact"},
      });
}

TEST(ValidateArgsTest, EmptyProblemsNeedNoPointers) {
  for (auto change : std::vector<std::function<void(AttentionArgs&)>>{
           [](auto& a) { a.batch = 0; }, [](auto& a) { a.seqlen_q = 0; }}) {
    AttentionArgs args;
    args.batch = 6;
    args.seqlen_q = 49;
    args.seqlen_kv = 100;
    change(args);
    EXPECT_TRUE(ValidateArgs(FullSpec(), args).ok()) << ValidateArgs(FullSpec(), args);
  }
}

TEST(ValidateArgsTest, WithoutKeysTheirPointersMayBeNull) {
  const AttentionSpec spec = FullSpec();
  AttentionArgs args = ArgsFor(spec);
  args.seqlen_kv = 0;
  args.k.data = args.v.data = nullptr;
  args.bias[0].data = nullptr;
  args.block_mask = nullptr;
  args.k_scale = args.v_scale = nullptr;
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
  args.o.data = nullptr;  // is written all the same
  EXPECT_THAT(std::string(ValidateArgs(spec, args).message()), HasSubstr("o.data = null"));
}

TEST(ValidateTest, LeftPaddingIsALengthOfEachSequence) {
  AttentionSpec spec = ValidSpec();
  spec.left_padding = true;
  EXPECT_THAT(std::string(Validate(spec).message()),
              HasSubstr("left_padding = true: must be false unless varlen is set"));
  spec.varlen = true;
  EXPECT_TRUE(Validate(spec).ok());
  AttentionArgs good = ArgsFor(spec);
  good.left_padding = At<int32_t>();
  ExpectRefused(spec, good,
                {{[](auto& a) { a.left_padding = nullptr; }, "left_padding = null: must be set"},
                 {[](auto& a) { a.left_padding = At<int32_t>(2); }, "left_padding = 0x"}});
}

TEST(ValidateTest, SlotsAreOfACacheThatIsOnlyRead) {
  AttentionSpec spec = ValidSpec();
  spec.cache_batch_idx = true;
  AttentionArgs good = ArgsFor(spec);
  good.cache_batch_idx = At<int32_t>();
  ExpectRefused(
      spec, good,
      {{[](auto& a) { a.cache_batch_idx = nullptr; }, "cache_batch_idx = null: must be set"},
       {[](auto& a) { a.k.strides.batch = kHuge; }, "k.strides = "}});
  spec.varlen = true;
  good.cu_seqlens_kv = At<int32_t>();
  good.total_kv = 300;
  EXPECT_THAT(std::string(ValidateArgs(spec, good).message()),
              HasSubstr("cu_seqlens_kv = set: must be null with cache_batch_idx"));
  spec.page_size = 16;
  good.page_table = At<int32_t>();
  EXPECT_TRUE(ValidateArgs(spec, good).ok()) << ValidateArgs(spec, good);
  spec.operation = Operation::kBackward;
  EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr("cache_batch_idx = true"));
}

TEST(ValidateArgsTest, ChecksLengthsOfVarlen) {
  AttentionSpec spec = ValidSpec();
  spec.varlen = true;
  spec.layout = Layout::kThd;
  AttentionArgs good = ArgsFor(spec);
  good.cu_seqlens_q = good.cu_seqlens_kv = At<int32_t>();
  good.total_q = 200;
  good.total_kv = 300;
  ExpectRefused(
      spec, good,
      {
          {[](auto& a) { a.cu_seqlens_q = a.cu_seqlens_kv = nullptr; },
           "cu_seqlens_q = null: must be set, or cu_seqlens_kv, seqused_q or seqused_kv"},
          {[](auto& a) { a.cu_seqlens_q = nullptr; },
           "cu_seqlens_q = null: must be set: the layout of the spec is thd"},
          {[](auto& a) { a.cu_seqlens_kv = At<int32_t>(2); }, "cu_seqlens_kv = 0x"},
          {[](auto& a) { a.seqused_q = At<int32_t>(2); }, "seqused_q = 0x"},
          {[](auto& a) { a.seqused_kv = At<int32_t>(1); }, "seqused_kv = 0x"},
          {[](auto& a) { a.total_q = -1; }, "total_q = -1: must be in [0, 2^31)"},
          {[](auto& a) { a.total_q = int64_t{1} << 31; }, "total_q = 2147483648: must be in"},
          {[](auto& a) { a.total_kv = -1; }, "total_kv = -1: must be in [0, 2^31)"},
          {[](auto& a) { a.total_q = 6 * 49 + 1; },
           "seqlen_q = 49: must be at least the longest sequence, so batch * seqlen_q at least "
           "total_q = 295"},
      });
  // Batch strides of packed tensors are not used.
  good.q.strides.batch = good.o.strides.batch = good.k.strides.batch = kHuge;
  EXPECT_TRUE(ValidateArgs(spec, good).ok()) << ValidateArgs(spec, good);
  good.total_q = 0;
  good.q.data = nullptr;
  EXPECT_TRUE(ValidateArgs(spec, good).ok()) << ValidateArgs(spec, good);
}

TEST(ValidateArgsTest, ChecksPageTables) {
  AttentionSpec spec = ValidSpec();
  spec.page_size = 16;
  AttentionArgs good = ArgsFor(spec);
  good.page_table = At<int32_t>();
  good.page_table_stride = 7;
  ExpectRefused(
      spec, good,
      {
          {[](auto& a) { a.page_table = nullptr; }, "page_table = null: must be set"},
          {[](auto& a) { a.page_table = At<int32_t>(2); }, "page_table = 0x"},
          {[](auto& a) { a.page_table_stride = -1; }, "strides of page_table = -1,1: must be >= 0"},
          // Pages are counted in int32: 2^31 of them must be addressable.
          {[](auto& a) { a.k.strides.batch = int64_t{1} << 33; }, "k.strides = "},
      });
}

TEST(ValidateArgsTest, ChecksQueryScales) {
  AttentionSpec spec = ValidSpec();
  spec.type = ElementType::kFp8E4m3;
  spec.out_type = ElementType::kBf16;
  spec.q_scale = spec.kv_scale = ScaleKind::kPerHead;
  AttentionArgs good = ArgsFor(spec);
  good.q_scale = At<float>();
  ExpectRefused(spec, good,
                {{[](auto& a) { a.q_scale = nullptr; }, "q_scale = null: must be set"},
                 {[](auto& a) { a.v_scale = At<float>(1); }, "v_scale = 0x"}});
}

TEST(ValidateArgsTest, AllocatesNothingWhenOk) {
  const AttentionSpec spec = FullSpec();
  const AttentionArgs args = ArgsFor(spec);
  ASSERT_TRUE(ValidateArgs(spec, args).ok());
  const int64_t before = AllocationsOfThisThread();
  const bool ok = ValidateArgs(spec, args).ok();
  EXPECT_EQ(AllocationsOfThisThread(), before);
  EXPECT_GT(before, 0);
  EXPECT_TRUE(ok);
}

TEST(ValidateTest, GradientsNeedWhatTheyAreOf) {
  AttentionSpec spec;
  spec.operation = Operation::kBackward;
  spec.score_snippet.text = "score";
  spec.snippet_arrays = {{.name = "t", .type = ElementType::kFp32}};
  ASSERT_TRUE(Validate(spec).ok());
  const auto message = [&](const auto& change) {
    AttentionSpec changed = spec;
    change(changed);
    const absl::Status status = Validate(changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& s) { s.alibi_gradient = true; }), HasSubstr("alibi_gradient"));
  EXPECT_THAT(message([](auto& s) { s.sinks_gradient = true; }), HasSubstr("sinks_gradient"));
  EXPECT_THAT(message([](auto& s) { s.bias = {{.type = ElementType::kBool, .gradient = true}}; }),
              HasSubstr("bias[0].gradient"));
  EXPECT_THAT(message([](auto& s) { s.snippet_arrays[0].gradient = true; }),
              HasSubstr("snippet_arrays[0].gradient"));
  EXPECT_THAT(message([](auto& s) {
                s.score_snippet = {};
                s.score_gradient_snippet.text = "d_score";
              }),
              HasSubstr("score_gradient_snippet"));
  spec.score_gradient_snippet.text = "d_score";
  spec.snippet_arrays[0].gradient = true;
  ASSERT_TRUE(Validate(spec).ok());
  EXPECT_THAT(message([](auto& s) { s.deterministic = true; }), HasSubstr("deterministic"));
  EXPECT_THAT(message([](auto& s) { s.snippet_scalars = {{.name = "d_t"}}; }), HasSubstr("d_t"));
  EXPECT_THAT(message([](auto& s) {
                s.mask_snippet = {};
                s.mask_tile_snippet.text = "some";
              }),
              HasSubstr("mask_tile_snippet"));
}

// A backward of 2 sequences of 4 rows and 6 keys, 2 heads of 8.
TEST(ValidateArgsTest, ABackwardNamesTheGradientThatIsWrong) {
  AttentionSpec spec;
  spec.operation = Operation::kBackward;
  spec.batch = 2;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = 4;
  spec.seqlen_kv = 6;
  spec.dim_qk = spec.dim_v = 8;
  spec.bias = {{.type = ElementType::kBf16, .heads = 2, .seqlen_q = 4, .gradient = true}};
  spec.sinks = spec.sinks_gradient = true;
  alignas(16) static std::byte memory[16];
  AttentionArgs args;
  args.batch = 2;
  args.seqlen_q = 4;
  args.seqlen_kv = 6;
  const auto strides = [](int64_t rows) { return DenseStrides(Layout::kBshd, 2, rows, 2, 8); };
  args.q = args.d_o = {memory, strides(4)};
  args.k = args.v = {memory, strides(6)};
  args.o = args.d_q = {memory, strides(4)};
  args.d_k = args.d_v = {memory, strides(6)};
  args.lse = reinterpret_cast<float*>(memory);
  args.sinks = args.lse;
  args.d_sinks = args.lse;
  args.bias[0] = {memory, 0, 4, 1, 0};
  args.d_bias[0] = {args.lse, 0, 4, 1, 0};
  ASSERT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
  const auto message = [&](const auto& change) {
    AttentionArgs changed = args;
    change(changed);
    const absl::Status status = ValidateArgs(spec, changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& a) { a.d_o.data = nullptr; }), HasSubstr("d_o.data = null"));
  EXPECT_THAT(message([](auto& a) { a.d_q.strides.seq = 0; }), HasSubstr("d_q.strides.seq = 0"));
  EXPECT_THAT(message([](auto& a) { a.d_k.data = nullptr; }), HasSubstr("d_k.data = null"));
  EXPECT_THAT(message([](auto& a) { a.d_v.strides.batch = 0; }), HasSubstr("d_v.strides.batch"));
  EXPECT_THAT(message([](auto& a) { a.lse = nullptr; }), HasSubstr("lse = null"));
  EXPECT_THAT(message([](auto& a) { a.d_bias[0].data = nullptr; }), HasSubstr("d_bias[0].data"));
  EXPECT_THAT(message([](auto& a) { a.d_bias[0].stride_q = 0; }), HasSubstr("d_bias[0].stride_q"));
  EXPECT_THAT(message([](auto& a) { a.d_sinks = nullptr; }), HasSubstr("d_sinks = null"));
}

// A library's array of no elements has strides of 0 and no address.
TEST(ValidateArgsTest, AGradientOfNoElementsMayBeNull) {
  AttentionSpec spec;
  spec.operation = Operation::kBackward;
  spec.batch = spec.seqlen_q = 2;
  spec.seqlen_kv = 0;
  spec.bias = {{.batch = 2, .seqlen_q = 2, .seqlen_kv = 0, .gradient = true}};
  alignas(16) static std::byte memory[16];
  AttentionArgs args;
  args.batch = args.seqlen_q = 2;
  args.q = args.d_o = {memory, DenseStrides(Layout::kBshd, 2, 2, 1, 64)};
  args.o = args.d_q = {memory, DenseStrides(Layout::kBshd, 2, 2, 1, 64)};
  args.lse = reinterpret_cast<float*>(memory);
  EXPECT_TRUE(ValidateArgs(spec, args).ok()) << ValidateArgs(spec, args);
}

}  // namespace
}  // namespace tilewright::spec

#include "spec/canonical.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/validate.h"

namespace tilewright::spec {
namespace {

using ::testing::HasSubstr;

AttentionSpec Parse(std::string_view text, const SnippetReader& reader = nullptr) {
  absl::StatusOr<AttentionSpec> spec = ParseSpec(text, reader);
  EXPECT_TRUE(spec.ok()) << text << ": " << spec.status();
  return spec.ok() ? *spec : AttentionSpec();
}

std::string Canonical(std::string_view text) { return ToText(Canonicalise(Parse(text))); }

std::string ParseError(std::string_view text) {
  const absl::StatusOr<AttentionSpec> spec = ParseSpec(text);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(spec.status().message());
}

TEST(CanonicalTest, AForwardKnowsNoGradientsAndABackwardNoLse) {
  EXPECT_EQ(Canonical("fwd bf16 d=64 s=8 alibi alibi_grad sinks sinks_grad bias=fp16:1,1,8,8:grad"),
            Canonical("fwd bf16 d=64 s=8 alibi sinks bias=fp16:1,1,8,8"));
  EXPECT_EQ(Canonical("bwd bf16 d=64 s=8 lse empty_lse=+inf"),
            Canonical("bwd bf16 d=64 s=8 empty_lse=+inf"));
}

TEST(CanonicalTest, GradientsOfSnippets) {
  const auto reader = [](std::string_view path) { return std::string(path) + ";"; };
  const std::string text =
      "bwd bf16 b=1 h=1/1 s=8/8 d=64/64 score=@a score_grad=@b array=t:fp32:grad array=u:bf16";
  const AttentionSpec spec = Parse(text, reader);
  EXPECT_EQ(spec.score_gradient_snippet.text, "b;");
  EXPECT_TRUE(spec.snippet_arrays[0].gradient);
  EXPECT_FALSE(spec.snippet_arrays[1].gradient);
  EXPECT_EQ(ToText(Canonicalise(spec)), text);
}

TEST(CanonicalTest, ReadsAndPrintsEveryWord) {
  for (std::string text : {
           "fwd bf16 b=2 h=32/8 s=4096/4096 d=128/128 causal lse",
           "bwd bf16 b=4 h=16/16 s=2048/2048 d=72/72 window=511,0 deterministic",
           "bwd bf16 b=4 h=2/2 s=8/8 d=64/64 alibi alibi_grad bias=fp16:1,2,8,8:grad "
           "bias=fp32:2,1,8,8:mod:grad sinks sinks_grad lse_base=2",
           "fwd bf16 b=32 h=128/1 s=1/8192 d=576/512 varlen paged=64 lse",
           "fwd bf16 b=4 h=8/2 s=1/512 d=64/64 varlen paged=16 left_padding cache_batch_idx",
           "fwd fp16 b=4096 h=4/4 s=49/49 d=32/32 bias=fp16:1,4,49,49 bias=fp16:64,1,49,49:mod",
           "fwd fp16 b=4096 h=4/4 s=49/49 d=32/32 bias=fp32:64,1,49,49:div mask=bool:1,1,1,49",
           "fwd fp32 b=1 h=1/1 s=1/1 d=64/64 layout=sbhd allow_tf32 batch_invariant exact",
           "fwd bf16 b=1 h=1/1 s=1/1 d=64/64 layout=thd causal=top_left varlen",
           "fwd bf16 b=1 h=1/1 s=8/8 d=64/64 align=top_left window=4,4",
           "fwd bf16 b=1 h=1/1 s=8/8 d=64/64 align=top_left alibi sinks dropout=0.1",
           "fwd bf16 b=1 h=1/1 s=8/8 d=64/64 scale=0.3 softcap=50 softcap_before_bias alibi",
           "fwd e4m3 b=1 h=2/2 s=8/8 d=64/64 kv=e5m2 out=bf16 q_scale=head kv_scale=token",
           "fwd bf16 b=1 h=2/2 s=8/8 d=64/64 kv=int8 block_mask=64,128 q_scale=tensor",
           "fwd bf16 b=1 h=2/2 s=8/8 d=64/64 lse lse_base=2 empty_lse=+inf",
           "fwd bf16 b=2 h=1/1 s=3/3 d=4/4 strides=1,2,3,1;4,5,6,1;7,8,9,1;10,11,12,1",
           "fwd bf16 b=2 h=1/1 s=3/3 d=4/4 layout=bhsd strided_innermost",
       }) {
    if (text.find("kv=int8") != std::string::npos) {
      EXPECT_THAT(ParseError(text), HasSubstr("q_scale is set and type = bf16"));
      text = text.substr(0, text.find(" q_scale"));
    }
    EXPECT_EQ(Canonical(text), text);
  }
}

TEST(CanonicalTest, WordsComeInAnyOrderAndOneNumberMeansBoth) {
  EXPECT_EQ(Canonical("fwd  fp16 lse d=64\n causal h=8 b=3 s=10/20"),
            "fwd fp16 b=3 h=8/8 s=10/20 d=64/64 causal lse");
}

TEST(CanonicalTest, ErrorsNameTheWord) {
  EXPECT_THAT(ParseError(""), HasSubstr("must begin with an operation and an element type"));
  EXPECT_THAT(ParseError("fwd"), HasSubstr("must begin with an operation"));
  EXPECT_THAT(ParseError("forward bf16"), HasSubstr("unknown operation \"forward\""));
  EXPECT_THAT(ParseError("fwd bfloat16"), HasSubstr("the nearest known one is \"bf16\""));
  EXPECT_THAT(ParseError("fwd bf16 casual"),
              HasSubstr("word \"casual\": unknown word \"casual\"; the nearest known one is "
                        "\"causal\""));
  EXPECT_THAT(ParseError("fwd bf16 soft_cap=3"), HasSubstr("\"softcap\""));
  EXPECT_THAT(ParseError("fwd bf16 layout=bsdh"), HasSubstr("unknown layout \"bsdh\""));
  EXPECT_THAT(ParseError("fwd bf16 b=two"), HasSubstr("word \"b=two\": \"two\" is not an integer"));
  EXPECT_THAT(ParseError("fwd bf16 b=99999999999999999999"), HasSubstr("is not an integer"));
  EXPECT_THAT(ParseError("fwd bf16 h=1/2/3"), HasSubstr("takes 1 or 2 integers"));
  EXPECT_THAT(ParseError("fwd bf16 window=1"), HasSubstr("takes 2 integers"));
  EXPECT_THAT(ParseError("fwd bf16 b=1 b=2"), HasSubstr("word \"b=2\": is given twice"));
  EXPECT_THAT(ParseError("fwd bf16 lse=1"), HasSubstr("word \"lse=1\": takes no value"));
  EXPECT_THAT(ParseError("fwd bf16 scale"), HasSubstr("word \"scale\": needs a value"));
  EXPECT_THAT(ParseError("fwd bf16 scale="), HasSubstr("needs a value"));
  EXPECT_THAT(ParseError("fwd bf16 causal="), HasSubstr("needs a value"));
  EXPECT_THAT(ParseError("fwd bf16 scale=1x"), HasSubstr("\"1x\" is not a number"));
  EXPECT_THAT(ParseError("fwd bf16 strides=1,1,1,1"), HasSubstr("takes four tensors"));
  EXPECT_THAT(ParseError("fwd bf16 bias=fp16"), HasSubstr("takes TYPE:batch,heads,queries,keys"));
  EXPECT_THAT(ParseError("fwd bf16 bias=fp16:1,1,1"), HasSubstr("takes 4 integers"));
  EXPECT_THAT(ParseError("fwd bf16 bias=fp16:1,1,1,1:min"), HasSubstr("unknown batch map"));
  EXPECT_THAT(ParseError("fwd bf16 mask=fp16:1,1,1,1"), HasSubstr("takes bool:"));
  EXPECT_THAT(ParseError("fwd bf16 score=x"), HasSubstr("takes @FILE"));
  EXPECT_THAT(ParseError("fwd bf16 score=@x.cuh"), HasSubstr("cannot be read here"));
  EXPECT_THAT(ParseError("fwd bf16 array=x"), HasSubstr("takes NAME:TYPE"));
  EXPECT_THAT(ParseError("fwd bf16 scalar=x:double"), HasSubstr("unknown scalar type"));
  EXPECT_THAT(ParseError("fwd bf16 h=6/4"), HasSubstr("heads_q = 6: must be a multiple"));
}

TEST(CanonicalTest, ReadsSnippetFiles) {
  std::vector<std::string> asked;
  const SnippetReader reader = [&](std::string_view path) -> absl::StatusOr<std::string> {
    asked.emplace_back(path);
    if (path == "gone") return absl::NotFoundError("no such file");
    return absl::StrCat("text of ", std::string(path));
  };
  const std::string text =
      "fwd bf16 b=1 h=1/1 s=1/1 d=64/64 score=@my%20dir/s.cuh mask=@m.cuh mask_tile=@t.cuh "
      "array=t:fp32 "
      "array=u:int32 scalar=x:float scalar=y:int64";
  const AttentionSpec spec = Parse(text, reader);
  EXPECT_THAT(asked, ::testing::ElementsAre("my dir/s.cuh", "m.cuh", "t.cuh"));
  EXPECT_EQ(spec.score_snippet.text, "text of my dir/s.cuh");
  EXPECT_EQ(spec.mask_snippet.file_name, "m.cuh");
  EXPECT_EQ(spec.mask_tile_snippet.text, "text of t.cuh");
  EXPECT_EQ(spec.snippet_arrays[1], (SnippetArray{"u", ElementType::kInt32}));
  EXPECT_EQ(spec.snippet_scalars[1], (SnippetScalar{"y", ScalarType::kInt64}));
  EXPECT_EQ(ToText(spec), text);
  EXPECT_THAT(std::string(ParseSpec("fwd bf16 mask=@gone", reader).status().message()),
              HasSubstr("word \"mask=@gone\": no such file"));
  EXPECT_THAT(std::string(ParseSpec("fwd bf16 mask=@a mask=@b", reader).status().message()),
              HasSubstr("is given twice"));
  EXPECT_THAT(std::string(ParseSpec("fwd bf16 score=@a%2", reader).status().message()),
              HasSubstr("% must be followed by two hex digits"));
}

TEST(CanonicalTest, FloatsPrintShortestAndReadBackEqual) {
  EXPECT_EQ(Canonical("fwd bf16 scale=0.1000000000"), "fwd bf16 b=1 h=1/1 s=1/1 d=64/64 scale=0.1");
  std::mt19937 random(1);
  for (int n = 0; n < 2000; ++n) {
    uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    AttentionSpec spec;
    spec.scale = value;
    EXPECT_EQ(Parse(ToText(spec)).scale, value) << ToText(spec);
  }
}

TEST(CanonicalTest, EqualProblemsBecomeEqual) {
  const struct {
    const char* spelled;
    const char* canonical;  // the words after the sizes
  } cases[] = {
      {"kv=bf16 out=bf16", ""},
      {"window=-1,0", " causal"},
      {"causal window=-1,0", " causal"},
      {"causal window=-1,7", " causal"},
      {"causal window=511,7", " window=511,0"},
      {"causal window=511,-1", " window=511,0"},
      // "All" as the largest number of a type.
      {"window=9223372036854775807,0", " causal"},
      {"window=7,9223372036854775807", " window=7,-1"},
      {"window=9223372036854775807,9223372036854775807", ""},
      {"scale=0.125", ""},
      {"scale=-0", " scale=0"},
      {"align=top_left", ""},
      {"align=top_left causal exact", " causal exact"},
      {"softcap=5 softcap_before_bias", " softcap=5"},
      {"softcap=5 softcap_before_bias alibi", " softcap=5 softcap_before_bias alibi"},
      {"softcap=5 softcap_before_bias mask=bool:1,1,1,8", " softcap=5 mask=bool:1,1,1,8"},
      {"alibi softcap_before_bias", " alibi"},
      {"bias=fp16:1,1,8,8:div bias=fp16:4,1,8,8:div bias=fp16:2,1,8,8:div",
       " bias=fp16:1,1,8,8 bias=fp16:4,1,8,8 bias=fp16:2,1,8,8:div"},
      {"bias=bool:1,1,8,8", " mask=bool:1,1,8,8"},
      {"strides=1024,128,64,1;1024,128,64,1;1024,128,64,1;1024,128,64,1", ""},
      {"strides=1024,64,512,1;1024,64,512,1;1024,64,512,1;1024,64,512,1", " layout=bhsd"},
      {"strides=128,512,64,1;128,512,64,1;128,512,64,1;128,512,64,1", " layout=sbhd"},
      {"layout=bhsd strides=2,128,64,1;1024,128,64,1;1024,128,64,1;1024,128,64,1",
       " strides=2,128,64,1;1024,128,64,1;1024,128,64,1;1024,128,64,1"},
      {"lse_base=2 empty_lse=+inf", ""},
      {"allow_tf32 deterministic", ""},
      {"array=t:fp32 scalar=x:float", ""},
  };
  const std::string sizes = "fwd bf16 b=4 h=2/2 s=8/8 d=64/64";
  for (const auto& c : cases) {
    EXPECT_EQ(Canonical(absl::StrCat(sizes, " ", c.spelled)), absl::StrCat(sizes, c.canonical));
  }
}

TEST(CanonicalTest, DifferentProblemsStayDifferent) {
  absl::flat_hash_set<std::string> texts;
  int count = 0;
  for (const char* words : {"",
                            "causal",
                            "causal=top_left",
                            "window=7,0",
                            "window=0,7",
                            "align=top_left window=7,0",
                            "alibi",
                            "align=top_left alibi",
                            "scale=0.5",
                            "softcap=5",
                            "kv=e4m3",
                            "kv=int8",
                            "out=fp32",
                            "lse",
                            "lse lse_base=2",
                            "lse empty_lse=+inf",
                            "varlen",
                            "varlen layout=thd",
                            "varlen left_padding",
                            "cache_batch_idx",
                            "paged=16",
                            "strided_innermost",
                            "layout=bhsd",
                            "exact",
                            "batch_invariant",
                            "sinks",
                            "dropout=0.1",
                            "block_mask=8,8",
                            "bias=fp16:2,1,8,8",
                            "bias=fp16:2,1,8,8:div",
                            "mask=bool:2,1,8,8"}) {
    texts.insert(Canonical(absl::StrCat("fwd bf16 b=4 h=2/2 s=8/8 d=64/64 ", words)));
    ++count;
  }
  EXPECT_EQ(texts.size(), count);
}

// ---- properties over random specs
// -----------------------------------------------------------------------------------

class RandomSpecs {
 public:
  explicit RandomSpecs(uint32_t seed) : random_(seed) {}

  // A valid spec with each feature on at times, not canonical.
  AttentionSpec Next() {
    while (true) {
      AttentionSpec spec = Draw();
      if (Validate(spec).ok()) return spec;
    }
  }

 private:
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Rarely() { return Int(0, 3) == 0; }
  float Float() { return std::uniform_real_distribution<float>(0, 1)(random_); }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Int(0, static_cast<int64_t>(choices.size()) - 1)];
  }

  AttentionSpec Draw() {
    using enum ElementType;
    AttentionSpec s;
    s.operation = Pick({Operation::kForward, Operation::kForward, Operation::kBackward});
    s.type = Pick({kBf16, kFp16, kFp32, kFp8E4m3, kFp8E5m2});
    if (Rarely()) s.kv_type = Pick({s.type, kFp8E4m3, kFp8E5m2, kInt8});
    if (Rarely() || s.type == kFp8E4m3 || s.type == kFp8E5m2) {
      s.out_type = Pick({s.type, kBf16, kFp16, kFp32});
    }
    s.batch = Int(0, 12);
    s.heads_kv = Int(1, 4);
    s.heads_q = s.heads_kv * Int(1, 4);
    s.seqlen_q = Int(0, 300);
    s.seqlen_kv = Rarely() ? s.seqlen_q : Int(0, 300);
    s.dim_qk = Int(1, 300);
    s.dim_v = Rarely() ? s.dim_qk : Int(1, 300);
    s.varlen = Rarely();
    s.layout = Pick({Layout::kBshd, Layout::kBhsd, Layout::kSbhd, Layout::kThd});
    s.strided_innermost = Rarely();
    if (Rarely()) {
      AttentionSpec dense = s;
      dense.layout = Pick({Layout::kBshd, Layout::kBhsd, Layout::kSbhd, Layout::kThd});
      s.strides = EffectiveStrides(dense);
      if (Rarely()) (*s.strides)[Int(0, 3)].seq += Int(0, 9);
    }
    s.causal = Rarely();
    s.align = Pick({MaskAlign::kBottomRight, MaskAlign::kTopLeft});
    if (Rarely()) s.window_left = Int(-1, 100);
    if (Rarely()) s.window_right = Int(-1, 100);
    if (Rarely()) {
      s.block_mask_q = Int(1, 128);
      s.block_mask_kv = Int(1, 128);
    }
    if (Rarely()) s.scale = Float() - 0.5f;
    if (Rarely()) {
      s.scale.reset();
      s.scale = EffectiveScale(s);
    }
    if (Rarely()) s.softcap = 50 * Float();
    s.softcap_before_bias = Rarely();
    s.alibi = Rarely();
    for (int64_t n = Rarely() ? Int(1, 4) : 0; n > 0; --n) {
      s.bias.push_back({.type = Pick({kFp16, kBf16, kFp32, kBool}),
                        .batch = Pick<int64_t>({1, s.batch, 2, 3}),
                        .heads = Pick<int64_t>({1, s.heads_q}),
                        .seqlen_q = Pick<int64_t>({1, s.seqlen_q}),
                        .seqlen_kv = Pick<int64_t>({1, s.seqlen_kv}),
                        .batch_map = Pick({BatchMap::kMod, BatchMap::kDiv})});
    }
    s.sinks = Rarely();
    if (Rarely()) s.dropout = 0.99f * Float();
    if (Rarely()) s.q_scale = Pick({ScaleKind::kPerTensor, ScaleKind::kPerHead});
    if (Rarely()) {
      s.kv_scale = Pick({ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken});
    }
    if (Rarely()) s.score_snippet = {.text = "score", .file_name = Pick({"", "s %.cuh", "a/b"})};
    if (Rarely()) s.mask_snippet = {.text = "i != j", .file_name = Pick({"", "m", "\tq=@:"})};
    if (!s.mask_snippet.empty() && Rarely()) {
      s.mask_tile_snippet = {.text = "some", .file_name = Pick({"", "t"})};
    }
    for (int64_t n = Rarely() ? Int(1, 8) : 0; n > 0; --n) {
      s.snippet_arrays.push_back({absl::StrCat("array_", n), Pick({kFp16, kInt32, kBool})});
    }
    for (int64_t n = Rarely() ? Int(1, 8) : 0; n > 0; --n) {
      s.snippet_scalars.push_back(
          {absl::StrCat("scalar_", n), Pick({ScalarType::kFloat, ScalarType::kInt64})});
    }
    if (Rarely()) s.page_size = Int(1, 256);
    s.left_padding = Rarely();
    s.cache_batch_idx = Rarely();
    s.lse = Rarely();
    s.lse_base = Pick({LseBase::kE, LseBase::kTwo});
    s.empty_lse = Pick({EmptyLse::kMinusInf, EmptyLse::kPlusInf});
    s.allow_tf32 = Rarely();
    s.deterministic = Rarely();
    s.batch_invariant = Rarely();
    s.exact = Rarely();
    return s;
  }

  std::mt19937 random_;
};

AttentionSpec ReadBack(const AttentionSpec& spec) {
  return Parse(ToText(spec), [&spec](std::string_view path) -> absl::StatusOr<std::string> {
    const auto is = [path](const Snippet& snippet, std::string_view otherwise) {
      return path == (snippet.file_name.empty() ? otherwise : snippet.file_name);
    };
    if (is(spec.score_snippet, "score_snippet")) return spec.score_snippet.text;
    const bool tile = is(spec.mask_tile_snippet, "mask_tile_snippet");
    return tile ? spec.mask_tile_snippet.text : spec.mask_snippet.text;
  });
}

TEST(CanonicalTest, RandomSpecsRoundTrip) {
  RandomSpecs specs(2);
  for (int n = 0; n < 3000; ++n) {
    const AttentionSpec spec = specs.Next();
    EXPECT_TRUE(ReadBack(spec) == spec) << ToText(spec) << "\n" << ToText(ReadBack(spec));
  }
}

TEST(CanonicalTest, GarbledTextsAreReadOrRefused) {
  RandomSpecs specs(5);
  std::mt19937 random(5);
  int read = 0, refused = 0;
  for (int n = 0; n < 10000; ++n) {
    std::string text = ToText(specs.Next());
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, 1 + random() % 4);
          break;
        case 1:
          text.insert(at, 1, "=:,;/@%0-9 \t\n.\"+"[random() % 16]);
          break;
        default:
          text[at] = static_cast<char>(random());
      }
    }
    const absl::StatusOr<AttentionSpec> spec = ParseSpec(
        text, [](std::string_view) -> absl::StatusOr<std::string> { return std::string("score"); });
    if (spec.ok()) {
      ++read;
      EXPECT_TRUE(ReadBack(*spec) == *spec) << text;
    } else {
      ++refused;
      EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << spec.status();
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

TEST(CanonicalTest, CanonicaliseIsIdempotentAndKeepsSpecsValid) {
  RandomSpecs specs(3);
  for (int n = 0; n < 3000; ++n) {
    const AttentionSpec spec = specs.Next();
    const AttentionSpec canonical = Canonicalise(spec);
    EXPECT_TRUE(Validate(canonical).ok()) << ToText(spec) << ": " << Validate(canonical);
    EXPECT_TRUE(Canonicalise(canonical) == canonical) << ToText(spec);
    EXPECT_TRUE(ReadBack(canonical) == canonical) << ToText(spec);
    // The meaning is kept.
    EXPECT_EQ(EffectiveScale(canonical), EffectiveScale(spec));
    EXPECT_EQ(EffectiveWindowRight(canonical), EffectiveWindowRight(spec));
    EXPECT_EQ(KvType(canonical), KvType(spec));
    EXPECT_EQ(OutType(canonical), OutType(spec));
    EXPECT_TRUE(EffectiveStrides(canonical) == EffectiveStrides(spec)) << ToText(spec);
  }
}

TEST(CanonicalTest, HashSeesEveryField) {
  RandomSpecs specs(4);
  absl::flat_hash_set<size_t> hashes;
  absl::flat_hash_set<std::string> texts;
  for (int n = 0; n < 3000; ++n) {
    const AttentionSpec spec = specs.Next();
    texts.insert(ToText(spec));
    hashes.insert(SpecHash()(spec));
    EXPECT_EQ(SpecHash()(spec), SpecHash()(AttentionSpec(spec)));
  }
  // The texts leave out the snippets' own text, which is the same for all here.
  EXPECT_EQ(hashes.size(), texts.size());
  AttentionSpec a, b;
  a.score_snippet.text = "score";
  b.score_snippet.text = "2 * score";
  EXPECT_NE(SpecHash()(a), SpecHash()(b));
  EXPECT_NE(SpecHash()(a), SpecHash()(AttentionSpec()));
}

TEST(CanonicalTest, ElementTypeNamesReadBack) {
  for (int n = 0; n <= static_cast<int>(ElementType::kInt32); ++n) {
    const auto type = static_cast<ElementType>(n);
    EXPECT_EQ(ParseElementType(ElementTypeName(type)).value(), type);
  }
  EXPECT_FALSE(ParseElementType("float").ok());
}

}  // namespace
}  // namespace tilewright::spec

#include "tests/gpu/spec_sweep.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spec/validate.h"
#include "tests/gpu/snippet_rules.h"

namespace tilewright::gpu_tests {
namespace {

constexpr ElementType kHalfTypes[] = {ElementType::kBf16, ElementType::kFp16};
constexpr ElementType kAllTypes[] = {ElementType::kBf16, ElementType::kFp16, ElementType::kFp32};

const char* TypeWord(ElementType type) {
  switch (type) {
    case ElementType::kFp16:
      return "fp16";
    case ElementType::kBf16:
      return "bf16";
    case ElementType::kFp32:
      return "fp32";
    case ElementType::kFp8E4m3:
      return "e4m3";
    case ElementType::kFp8E5m2:
      return "e5m2";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kBool:
      return "bool";
    case ElementType::kInt32:
      return "int32";
  }
  return "";
}

// Lengths that no tile divides, with off = Skv - Sq > 0.
AttentionSpec Plain() {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = spec.heads_kv = 3;
  spec.seqlen_q = 77;
  spec.seqlen_kv = 133;
  spec.dim_qk = spec.dim_v = 40;
  spec.lse = true;
  return spec;
}

class Sweep {
 public:
  // `change` edits a copy of Plain().
  SweepCase& Add(std::string name, const std::function<void(AttentionSpec&)>& change) {
    SweepCase one;
    one.name = std::move(name);
    one.spec = Plain();
    change(one.spec);
    return Add(std::move(one));
  }
  // Cases have the data of their number: new ones come last, so that the others keep theirs.
  SweepCase& Add(SweepCase one) {
    one.problem.seed = 1000 + cases_.size();
    cases_.push_back(std::move(one));
    return cases_.back();
  }
  std::vector<SweepCase> Take() { return std::move(cases_); }

 private:
  std::vector<SweepCase> cases_;
};

void SetHeads(AttentionSpec& s, int64_t q, int64_t kv) {
  s.heads_q = q;
  s.heads_kv = kv;
}
void SetLengths(AttentionSpec& s, int64_t q, int64_t kv) {
  s.seqlen_q = q;
  s.seqlen_kv = kv;
}
void SetDims(AttentionSpec& s, int64_t qk, int64_t v) {
  s.dim_qk = qk;
  s.dim_v = v;
}

void AddDims(Sweep& sweep) {
  for (const int64_t dim : {1,  3,   7,   8,   16,  32,  33,  36,  40,  64,  72,  80,  88,
                            96, 100, 104, 112, 120, 128, 160, 192, 256, 261, 320, 512, 1024}) {
    for (const ElementType type : kAllTypes) {
      SweepCase& one = sweep.Add(absl::StrCat("dim_", dim, "_", TypeWord(type)), [&](auto& s) {
        s.type = type;
        SetDims(s, dim, dim);
        SetHeads(s, 2, 1);
        s.causal = type == ElementType::kFp16;
      });
      one.sanitizer = type == ElementType::kBf16 && (dim == 1 || dim == 33 || dim == 261);
    }
  }
  const std::pair<int64_t, int64_t> mixed[] = {{576, 512}, {192, 128}, {33, 65}, {7, 1},
                                               {1, 7},     {128, 256}, {40, 72}, {256, 64},
                                               {261, 100}, {1024, 3},  {3, 1024}};
  for (const auto& [qk, v] : mixed) {
    for (const ElementType type : kHalfTypes) {
      SweepCase& one = sweep.Add(absl::StrCat("dims_", qk, "_", v, "_", TypeWord(type)),
                                 [&, qk = qk, v = v](auto& s) {
                                   s.type = type;
                                   SetDims(s, qk, v);
                                   s.causal = type == ElementType::kBf16;
                                   SetHeads(s, 2, 1);
                                 });
      one.sanitizer = type == ElementType::kBf16 && qk == 576;
    }
  }
}

// Few queries over many keys: shares cut across sequences, every group, type and page size.
void AddDecode(Sweep& sweep) {
  const auto base = [](AttentionSpec& s) {
    s.type = ElementType::kBf16;
    s.batch = 3;
    SetLengths(s, 1, 3001);
    SetDims(s, 128, 128);
    SetHeads(s, 8, 2);
  };
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 16, 24, 71, 128}) {
    sweep.Add(absl::StrCat("decode_group_", group), [&](auto& s) {
      base(s);
      SetHeads(s, 2 * group, 2);
    });
  }
  constexpr std::pair<int64_t, int64_t> kDims[] = {{64, 64},   {192, 128}, {256, 256},
                                                   {40, 72},   {33, 65},   {320, 256},
                                                   {512, 512}, {576, 512}, {300, 7}};
  for (const auto& [qk, v] : kDims) {
    for (const int64_t group : {4, 20}) {
      sweep.Add(absl::StrCat("decode_dims_", qk, "_", v, "_group_", group),
                [&, qk = qk, v = v](auto& s) {
                  base(s);
                  SetDims(s, qk, v);
                  SetHeads(s, group, 1);
                });
    }
  }
  for (const int64_t page : {1, 3, 16, 48, 64, 256}) {
    sweep.Add(absl::StrCat("decode_page_", page), [&](auto& s) {
      base(s);
      s.varlen = true;
      s.page_size = page;
    });
    sweep.Add(absl::StrCat("decode_latent_page_", page), [&](auto& s) {
      base(s);
      SetDims(s, 576, 512);
      SetHeads(s, 16, 1);
      s.varlen = true;
      s.page_size = page;
    });
  }
  // Up to 16 rows of latent heads.
  for (const auto& [qk, v] : {std::pair<int64_t, int64_t>{576, 512}, {320, 256}}) {
    for (const auto& [group, queries] :
         {std::pair<int64_t, int64_t>{1, 1}, {8, 1}, {5, 3}, {16, 1}}) {
      for (const int64_t page : {0, 16}) {
        sweep.Add(absl::StrCat("decode_few_rows_", group, "_of_", queries, "_dims_", qk, "_", v,
                               "_page_", page),
                  [&, qk = qk, v = v, group = group, queries = queries](auto& s) {
                    base(s);
                    SetDims(s, qk, v);
                    SetHeads(s, group, 1);
                    s.seqlen_q = queries;
                    s.varlen = page != 0;
                    s.page_size = page;
                    s.window_right = queries > 1 ? 0 : -1;
                    s.sinks = page != 0;
                    s.lse = true;
                  });
      }
    }
  }
  // The tensor cores' share of decode.
  const std::pair<int64_t, int64_t> tensor_core_dims[] = {{64, 64},   {72, 40},   {128, 128},
                                                          {192, 128}, {256, 256}, {576, 512}};
  for (const auto& [qk, v] : tensor_core_dims) {
    for (const int64_t group : {40, 71, 128}) {
      for (const int64_t page : {0, 16, 64}) {
        sweep.Add(absl::StrCat("decode_many_rows_", group, "_dims_", qk, "_", v, "_page_", page),
                  [&, qk = qk, v = v](auto& s) {
                    base(s);
                    SetDims(s, qk, v);
                    SetHeads(s, group, 1);
                    s.seqlen_q = page == 16 ? 3 : 1;
                    s.varlen = page != 0;
                    s.page_size = page;
                    s.window_right = page == 16 ? 0 : -1;
                    s.lse = true;
                  });
      }
    }
  }
  // Two parts of each sequence to a cluster.
  for (const int64_t page : {0, 64}) {
    sweep.Add(absl::StrCat("decode_in_clusters_page_", page), [&](auto& s) {
      base(s);
      SetDims(s, 320, 256);
      SetHeads(s, 9, 1);
      s.batch = 64;
      s.seqlen_kv = 1000;
      s.varlen = page != 0;
      s.page_size = page;
      s.lse = true;
    });
  }
  const std::pair<const char*, ElementType> stored[] = {{"e4m3", ElementType::kFp8E4m3},
                                                        {"e5m2", ElementType::kFp8E5m2},
                                                        {"int8", ElementType::kInt8}};
  for (const auto& [word, type] : stored) {
    for (const ScaleKind kind :
         {ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken}) {
      for (const ElementType query : kHalfTypes) {
        sweep.Add(
            absl::StrCat("decode_", word, "_scale_", static_cast<int>(kind), "_", TypeWord(query)),
            [&, type = type](auto& s) {
              base(s);
              s.type = query;
              s.kv_type = type;
              s.kv_scale = kind;
              s.varlen = s.page_size != 0;
            });
      }
    }
  }
  const auto add = [&](std::string name, const std::function<void(AttentionSpec&)>& change) {
    sweep.Add(std::move(name), [&](auto& s) {
      base(s);
      change(s);
    });
  };
  add("decode_causal_4", [](auto& s) {
    s.seqlen_q = 4;
    s.causal = true;
  });
  add("decode_window", [](auto& s) { s.window_left = 1000; });
  add("decode_softcap_alibi_sinks", [](auto& s) {
    s.softcap = 20;
    s.alibi = s.sinks = true;
  });
  add("decode_bias", [](auto& s) {
    s.bias = {{.type = ElementType::kFp16, .heads = s.heads_q, .seqlen_kv = s.seqlen_kv}};
  });
  add("decode_bool_mask", [](auto& s) {
    s.bias = {{.type = ElementType::kBool, .batch = s.batch, .seqlen_kv = s.seqlen_kv}};
  });
  add("decode_invariant", [](auto& s) { s.batch_invariant = true; });
  add("decode_short", [](auto& s) { s.seqlen_kv = 300; });
  add("decode_batch_2000", [](auto& s) {
    s.batch = 2000;
    s.seqlen_kv = 700;
    SetHeads(s, 2, 1);
    SetDims(s, 16, 16);
  });
  SweepCase& uneven = sweep.Add("decode_uneven", [&](auto& s) {
    base(s);
    s.batch = 5;
    s.varlen = true;
    s.lse_base = LseBase::kTwo;
  });
  uneven.problem.lengths_kv = {3001, 0, 17, 2999, 1};
  SweepCase& mixed = sweep.Add("decode_mixed_batch", [&](auto& s) {
    base(s);
    s.batch = 4;
    s.varlen = s.causal = true;
    s.layout = Layout::kThd;
    s.seqlen_q = 6;
  });
  mixed.problem.lengths_q = {1, 6, 0, 1};
  mixed.problem.lengths_kv = {3001, 700, 50, 1};
}

void AddLengths(Sweep& sweep) {
  int index = 0;
  for (const int64_t q : {0, 1, 7, 49, 1023, 4097}) {
    for (const int64_t kv : {0, 1, 7, 49, 1023, 4097}) {
      SweepCase& one = sweep.Add(absl::StrCat("length_", q, "_", kv), [&](auto& s) {
        s.batch = 1;
        SetHeads(s, 2, 1);
        SetLengths(s, q, kv);
        s.type = kAllTypes[index % 3];
        const int64_t dim = index % 2 == 0 ? 32 : 36;
        SetDims(s, dim, dim);
        s.causal = index % 4 >= 2;
        s.align = index % 8 >= 6 ? MaskAlign::kTopLeft : MaskAlign::kBottomRight;
      });
      one.sanitizer = (q == 7 && kv == 0) || (q == 49 && kv == 49);
      ++index;
    }
  }
  sweep.Add("batch_0", [](auto& s) { s.batch = 0; });
  for (const int64_t length : {4095, 4096}) {
    sweep.Add(absl::StrCat("length_", length, "_square"), [&](auto& s) {
      s.batch = 1;
      SetHeads(s, 1, 1);
      SetLengths(s, length, length);
      SetDims(s, 64, 64);
      s.causal = true;
    });
  }
}

void AddHeads(Sweep& sweep) {
  for (const int64_t group : {1, 2, 3, 7, 71}) {
    for (const bool causal : {false, true}) {
      SweepCase& one =
          sweep.Add(absl::StrCat("group_", group, causal ? "_causal" : "_full"), [&](auto& s) {
            const int64_t kv = group == 71 ? 1 : 2;
            SetHeads(s, group * kv, kv);
            s.causal = causal;
            SetLengths(s, 33, 65);
          });
      one.sanitizer = group == 7 && causal;
    }
  }
}

void AddMasks(Sweep& sweep) {
  const std::pair<int64_t, int64_t> lengths[] = {{77, 133}, {133, 77}, {100, 100}};
  const std::pair<int64_t, int64_t> windows[] = {{0, 0},  {16, 0},  {16, 16},  {-1, 5},
                                                 {5, -1}, {100, 3}, {1000, 0}, {31, 0}};
  for (const MaskAlign align : {MaskAlign::kBottomRight, MaskAlign::kTopLeft}) {
    const char* corner = align == MaskAlign::kTopLeft ? "top_left" : "bottom_right";
    for (const auto& [q, kv] : lengths) {
      SweepCase& one =
          sweep.Add(absl::StrCat("causal_", corner, "_", q, "_", kv), [&, q = q, kv = kv](auto& s) {
            s.causal = true;
            s.align = align;
            SetLengths(s, q, kv);
          });
      one.sanitizer = q == 133;
    }
    int index = 0;
    for (const auto& [left, right] : windows) {
      const auto& [q, kv] = lengths[index++ % 3];
      SweepCase& one =
          sweep.Add(absl::StrCat("window_", corner, "_", left < 0 ? "all" : absl::StrCat(left), "_",
                                 right < 0 ? "all" : absl::StrCat(right)),
                    [&, left = left, right = right, q = q, kv = kv](auto& s) {
                      s.align = align;
                      s.window_left = left;
                      s.window_right = right;
                      SetLengths(s, q, kv);
                    });
      one.sanitizer = left == 16 && right == 16;
    }
  }
  for (const auto& [q, kv] : {std::pair<int64_t, int64_t>{64, 64}, {16, 128}, {128, 32}, {1, 1}}) {
    SweepCase& one = sweep.Add(absl::StrCat("block_mask_", q, "_", kv), [q = q, kv = kv](auto& s) {
      s.block_mask_q = q;
      s.block_mask_kv = kv;
    });
    one.sanitizer = q == 16;
  }
  sweep.Add("block_mask_causal", [](auto& s) {
    s.block_mask_q = 32;
    s.block_mask_kv = 64;
    s.causal = true;
  });
}

void AddScores(Sweep& sweep) {
  for (const float scale : {0.0f, -0.2f, 0.5f, 0.02f}) {
    sweep.Add(absl::StrCat("scale_", static_cast<int>(std::lround(scale * 100 + 100))),
              [&](auto& s) { s.scale = scale; });
  }
  for (const ElementType type : kAllTypes) {
    SweepCase& one = sweep.Add(absl::StrCat("softcap_", TypeWord(type)), [&](auto& s) {
      s.softcap = 1.5f;
      s.type = type;
      s.causal = true;
    });
    one.sanitizer = type == ElementType::kBf16;
    sweep
        .Add(absl::StrCat("sinks_", TypeWord(type)),
             [&](auto& s) {
               s.sinks = true;
               s.type = type;
             })
        .sanitizer = type == ElementType::kFp16;
    sweep
        .Add(absl::StrCat("alibi_", TypeWord(type)),
             [&](auto& s) {
               s.alibi = true;
               s.type = type;
             })
        .sanitizer = type == ElementType::kFp32;
  }
  for (const bool before : {false, true}) {
    const char* order = before ? "softcap_first" : "bias_first";
    sweep.Add(absl::StrCat(order, "_bias"), [&](auto& s) {
      s.softcap = 2;
      s.softcap_before_bias = before;
      s.bias.push_back({.type = ElementType::kFp16, .heads = 3, .seqlen_q = 77, .seqlen_kv = 133});
    });
    sweep.Add(absl::StrCat(order, "_alibi"), [&](auto& s) {
      s.softcap = 2;
      s.softcap_before_bias = before;
      s.alibi = true;
      s.causal = true;
    });
  }
  sweep.Add("alibi_causal", [](auto& s) { s.alibi = s.causal = true; });
  sweep.Add("alibi_top_left", [](auto& s) {
    s.alibi = true;
    s.align = MaskAlign::kTopLeft;
  });
  sweep.Add("alibi_gqa", [](auto& s) {
    s.alibi = true;
    SetHeads(s, 6, 2);
  });
  // Queries that see no key but the sink.
  sweep.Add("sinks_empty_rows", [](auto& s) {
    s.sinks = s.causal = true;
    SetLengths(s, 133, 77);
  });
  sweep.Add("sinks_no_keys", [](auto& s) {
    s.sinks = true;
    SetLengths(s, 5, 0);
  });
}

void AddBiases(Sweep& sweep) {
  const ElementType types[] = {ElementType::kFp16, ElementType::kBf16, ElementType::kFp32,
                               ElementType::kBool};
  struct Shape {
    const char* name;
    int64_t batch, heads, q, kv;
    BatchMap map;
  };
  // Over b=4 h=3 s=77/133.
  const Shape shapes[] = {
      {"keys", 4, 1, 1, 133, BatchMap::kMod},  {"heads", 1, 3, 77, 133, BatchMap::kMod},
      {"full", 4, 3, 77, 133, BatchMap::kMod}, {"rows", 1, 1, 77, 1, BatchMap::kMod},
      {"mod", 2, 3, 77, 133, BatchMap::kMod},  {"div", 2, 1, 77, 133, BatchMap::kDiv},
      {"one", 1, 1, 1, 1, BatchMap::kMod}};
  int index = 0;
  for (const ElementType type : types) {
    for (const Shape& shape : shapes) {
      SweepCase& one =
          sweep.Add(absl::StrCat("bias_", TypeWord(type), "_", shape.name), [&](auto& s) {
            s.batch = 4;
            s.bias.push_back({.type = type,
                              .batch = shape.batch,
                              .heads = shape.heads,
                              .seqlen_q = shape.q,
                              .seqlen_kv = shape.kv,
                              .batch_map = shape.map});
            s.type = kAllTypes[index % 3];
          });
      one.sanitizer = index % 7 == 4;
      ++index;
    }
  }
  sweep.Add("bias_two_terms", [](auto& s) {
    s.batch = 6;
    s.bias = {{.type = ElementType::kFp16, .heads = 3, .seqlen_q = 77, .seqlen_kv = 133},
              {.type = ElementType::kBool, .batch = 3, .seqlen_q = 77, .seqlen_kv = 133}};
  });
  sweep
      .Add("bias_four_terms",
           [](auto& s) {
             s.batch = 4;
             s.causal = true;
             s.bias = {{.type = ElementType::kFp32, .heads = 3, .seqlen_q = 77, .seqlen_kv = 133},
                       {.type = ElementType::kBf16, .batch = 4, .seqlen_kv = 133},
                       {.type = ElementType::kBool, .batch = 4, .seqlen_kv = 133},
                       {.type = ElementType::kFp16, .seqlen_q = 77}};
           })
      .sanitizer = true;
  // The row stride of 498 elements is no multiple of a vector.
  sweep.Add("bias_odd_rows", [](auto& s) {
    SetLengths(s, 49, 498);
    s.bias = {{.type = ElementType::kFp16, .heads = 3, .seqlen_q = 49, .seqlen_kv = 498}};
  });
}

void AddDropout(Sweep& sweep) {
  const float rates[] = {0.1f, 0.5f, 0.9f};
  for (int i = 0; i < 3; ++i) {
    SweepCase& one = sweep.Add(absl::StrCat("dropout_", TypeWord(kAllTypes[i])), [&](auto& s) {
      s.dropout = rates[i];
      s.type = kAllTypes[i];
    });
    one.problem.dropout_by_pointer = i == 1;
    one.sanitizer = i == 0;
  }
  sweep.Add("dropout_causal_gqa", [](auto& s) {
    s.dropout = 0.2f;
    s.causal = true;
    SetHeads(s, 6, 2);
  });
}

// What caches of serving programs ask for beside pages.
void AddServing(Sweep& sweep) {
  const auto decode = [](AttentionSpec& s) {
    s.varlen = true;
    s.batch = 5;
    SetLengths(s, 1, 300);
    SetHeads(s, 8, 2);
  };
  for (const ElementType type : kAllTypes) {
    SweepCase& one = sweep.Add(absl::StrCat("left_padding_", TypeWord(type)), [&](auto& s) {
      s.varlen = s.left_padding = true;
      s.batch = 5;
      s.type = type;
      s.causal = type != ElementType::kFp16;
    });
    one.sanitizer = type == ElementType::kBf16;
  }
  sweep.Add("left_padding_window", [](auto& s) {
    s.varlen = s.left_padding = true;
    s.batch = 5;
    s.window_left = 20;
    s.window_right = 30;
  });
  sweep
      .Add("left_padding_only",
           [](auto& s) {
             s.varlen = s.left_padding = s.alibi = true;
             s.batch = 5;
           })
      .problem.varlen_arrays = cli::VarlenArrays{};
  sweep.Add("left_padding_decode", [&](auto& s) {
    decode(s);
    s.left_padding = true;
  });
  sweep
      .Add("left_padding_paged",
           [&](auto& s) {
             decode(s);
             s.left_padding = true;
             s.page_size = 16;
           })
      .sanitizer = true;
  sweep.Add("left_padding_paged_prefill", [](auto& s) {
    s.varlen = s.left_padding = s.causal = true;
    s.page_size = 64;
    s.batch = 5;
    SetHeads(s, 4, 2);
  });
  sweep.Add("slots", [](auto& s) { s.cache_batch_idx = true; });
  for (const int64_t page : {0, 1, 16}) {
    SweepCase& one = sweep.Add(absl::StrCat("slots_decode_", page), [&](auto& s) {
      decode(s);
      s.page_size = page;
      s.cache_batch_idx = true;
    });
    one.sanitizer = page != 0;
  }
  for (const int64_t page : {0, 64}) {
    sweep.Add(absl::StrCat("slots_e4m3_token_", page), [&](auto& s) {
      decode(s);
      s.page_size = page;
      s.cache_batch_idx = true;
      s.kv_type = ElementType::kFp8E4m3;
      s.kv_scale = ScaleKind::kPerToken;
    });
  }
  sweep.Add("slots_prefill_paged", [](auto& s) {
    s.varlen = s.cache_batch_idx = s.causal = true;
    s.page_size = 128;
    s.batch = 5;
    SetHeads(s, 4, 2);
  });
  for (const ElementType type : kAllTypes) {
    sweep
        .Add(absl::StrCat("seqused_q_", TypeWord(type)),
             [&](auto& s) {
               s.varlen = true;
               s.batch = 5;
               s.type = type;
               s.causal = type != ElementType::kFp16;
             })
        .problem.varlen_arrays = cli::VarlenArrays{.seqused_q = true, .seqused_kv = true};
  }
  sweep
      .Add("seqused_q_packed",
           [](auto& s) {
             s.varlen = s.causal = true;
             s.layout = Layout::kThd;
             s.batch = 5;
           })
      .problem.varlen_arrays =
      cli::VarlenArrays{.cu_seqlens_q = true, .cu_seqlens_kv = true, .seqused_q = true};
  // A few tokens at a time, not the same number for each sequence: speculative decoding.
  SweepCase& speculative = sweep.Add("seqused_q_speculative", [&](auto& s) {
    decode(s);
    s.seqlen_q = 4;
    s.page_size = 16;
    s.left_padding = s.cache_batch_idx = s.causal = true;
  });
  speculative.problem.varlen_arrays = cli::VarlenArrays{.seqused_q = true, .seqused_kv = true};
  speculative.sanitizer = true;
}

void AddLengthsOnTheDevice(Sweep& sweep) {
  const auto packed = [](AttentionSpec& s) {
    s.varlen = true;
    s.layout = Layout::kThd;
    s.batch = 5;
  };
  sweep.Add("varlen", packed).sanitizer = true;
  sweep
      .Add("varlen_causal",
           [&](auto& s) {
             packed(s);
             s.causal = true;
             SetHeads(s, 6, 2);
           })
      .sanitizer = true;
  sweep.Add("varlen_window_top_left", [&](auto& s) {
    packed(s);
    s.window_left = 20;
    s.window_right = 7;
    s.align = MaskAlign::kTopLeft;
  });
  sweep.Add("varlen_alibi_sinks_dropout", [&](auto& s) {
    packed(s);
    s.alibi = s.sinks = true;
    s.dropout = 0.3f;
  });
  for (const ElementType type : kAllTypes) {
    sweep.Add(absl::StrCat("seqused_", TypeWord(type)), [&](auto& s) {
      s.varlen = true;
      s.batch = 5;
      s.type = type;
      s.causal = type == ElementType::kBf16;
    });
  }
  sweep
      .Add("varlen_padded_keys",
           [](auto& s) {
             s.varlen = true;
             s.layout = Layout::kThd;
             s.batch = 4;
           })
      .problem.varlen_arrays =
      cli::VarlenArrays{.cu_seqlens_q = true, .cu_seqlens_kv = true, .seqused_kv = true};
  AddServing(sweep);
  for (const int64_t page : {1, 3, 16, 64, 256}) {
    SweepCase& one = sweep.Add(absl::StrCat("paged_", page), [&](auto& s) {
      s.page_size = page;
      s.causal = page == 16;
      SetHeads(s, 4, 2);
    });
    one.problem.negative_pages = page == 3;
    one.sanitizer = page == 16;
  }
  sweep
      .Add("paged_decode",
           [](auto& s) {
             s.varlen = true;
             s.page_size = 16;
             s.batch = 7;
             SetLengths(s, 1, 500);
             SetHeads(s, 8, 2);
             s.causal = true;
           })
      .sanitizer = true;
  sweep.Add("paged_packed_queries", [](auto& s) {
    s.varlen = true;
    s.layout = Layout::kThd;
    s.page_size = 32;
    s.batch = 4;
    s.causal = true;
  });
  sweep.Add("paged_mla", [](auto& s) {
    s.varlen = true;
    s.page_size = 64;
    s.batch = 3;
    SetLengths(s, 1, 300);
    SetHeads(s, 16, 1);
    SetDims(s, 576, 512);
  });
}

void AddStoredTypes(Sweep& sweep) {
  const std::pair<ScaleKind, const char*> scales[] = {{ScaleKind::kPerTensor, "tensor"},
                                                      {ScaleKind::kPerHead, "head"},
                                                      {ScaleKind::kPerToken, "token"}};
  int index = 0;
  for (const ElementType kv : {ElementType::kFp8E4m3, ElementType::kFp8E5m2, ElementType::kInt8}) {
    for (const auto& [kind, word] : scales) {
      SweepCase& one =
          sweep.Add(absl::StrCat("kv_", TypeWord(kv), "_", word), [&, kind = kind](auto& s) {
            s.kv_type = kv;
            s.kv_scale = kind;
            s.type = kHalfTypes[index % 2];
            s.causal = index % 3 == 0;
            SetHeads(s, 4, 2);
          });
      one.sanitizer = index == 4 || index == 8;
      ++index;
    }
  }
  sweep.Add("kv_e4m3_unscaled", [](auto& s) { s.kv_type = ElementType::kFp8E4m3; });
  sweep.Add("kv_int8_paged", [](auto& s) {
    s.kv_type = ElementType::kInt8;
    s.kv_scale = ScaleKind::kPerToken;
    s.page_size = 16;
    s.varlen = true;
  });
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    for (const ScaleKind kind : {ScaleKind::kPerTensor, ScaleKind::kPerHead}) {
      const bool head = kind == ScaleKind::kPerHead;
      SweepCase& one =
          sweep.Add(absl::StrCat("qkv_", TypeWord(type), head ? "_head" : "_tensor"), [&](auto& s) {
            s.type = type;
            s.out_type = head ? ElementType::kFp16 : ElementType::kBf16;
            s.q_scale = s.kv_scale = kind;
            SetDims(s, 64, 64);
          });
      one.sanitizer = type == ElementType::kFp8E4m3 && head;
    }
  }
}

void AddMemory(Sweep& sweep) {
  for (const auto& [layout, word] : {std::pair<Layout, const char*>{Layout::kBshd, "bshd"},
                                     {Layout::kBhsd, "bhsd"},
                                     {Layout::kSbhd, "sbhd"}}) {
    sweep.Add(absl::StrCat("layout_", word), [layout = layout](auto& s) {
      s.layout = layout;
      SetHeads(s, 4, 2);
    });
    // First elements and rows that no wide copy fits.
    SweepCase& odd = sweep.Add(absl::StrCat("odd_strides_", word), [layout = layout](auto& s) {
      s.layout = layout;
      s.causal = true;
      SetDims(s, 64, 64);
    });
    odd.problem.odd_strides = true;
    odd.sanitizer = layout == Layout::kBhsd;
  }
  for (const ElementType type : kAllTypes) {
    SweepCase& one = sweep.Add(absl::StrCat("strided_innermost_", TypeWord(type)), [&](auto& s) {
      s.type = type;
      s.strided_innermost = true;
    });
    one.problem.odd_strides = true;
    one.sanitizer = type == ElementType::kFp16;
  }
  // b=2 h=3 s=77/133 d=40.
  const Strides q = DenseStrides(Layout::kBshd, 2, 77, 3, 40);
  const Strides kv = DenseStrides(Layout::kBshd, 2, 133, 3, 40);
  const auto with = [&](const char* name, const Strides& sq, const Strides& sk, const Strides& sv,
                        const Strides& so) {
    sweep.Add(name, [&](auto& s) { s.strides = std::array<Strides, 4>{sq, sk, sv, so}; });
  };
  const Strides no_batch = {0, kv.seq, kv.head};
  const Strides no_head = {133 * 40, 40, 0};
  const Strides no_key = {120, 0, 40};
  const Strides twice_q = {2 * q.batch, 2 * q.seq, q.head};
  const Strides twice_kv = {2 * kv.batch, 2 * kv.seq, kv.head};
  with("expanded_batch", q, no_batch, no_batch, q);
  with("expanded_heads", q, no_head, no_head, q);
  with("expanded_keys", q, no_key, no_key, q);
  with("transposed", {3 * 77 * 40, 40, 77 * 40}, {3 * 133 * 40, 40, 133 * 40}, kv,
       {40, 3 * 2 * 40, 2 * 40});
  with("doubled_rows", q, twice_kv, kv, twice_q);
  with("doubled_value_rows", twice_q, kv, twice_kv, q);
  sweep
      .Add("packed_qkv",
           [](auto& s) {
             SetLengths(s, 100, 100);
             const Strides packed = {100 * 3 * 3 * 40, 3 * 3 * 40, 40};
             s.strides = std::array<Strides, 4>{packed, packed, packed, {100 * 120, 120, 40}};
           })
      .sanitizer = true;
}

void AddOutputs(Sweep& sweep) {
  sweep.Add("no_lse", [](auto& s) { s.lse = false; }).sanitizer = true;
  sweep.Add("lse_base_2", [](auto& s) { s.lse_base = LseBase::kTwo; });
  sweep.Add("lse_base_2_empty_rows", [](auto& s) {
    s.lse_base = LseBase::kTwo;
    s.causal = true;
    SetLengths(s, 133, 77);
  });
  sweep.Add("empty_lse_plus_inf", [](auto& s) {
    s.empty_lse = EmptyLse::kPlusInf;
    s.causal = true;
    SetLengths(s, 133, 77);
  });
  sweep.Add("exact", [](auto& s) { s.exact = s.causal = true; });
  sweep.Add("batch_invariant", [](auto& s) { s.batch_invariant = true; });
  sweep.Add("deterministic", [](auto& s) { s.deterministic = true; });
}

void AddSnippets(Sweep& sweep) {
  for (const SnippetRule& rule : SnippetRules()) {
    SweepCase& one = sweep.Add(absl::StrCat("snippet_", rule.name), [&](auto& s) {
      const bool square = rule.name == "document_mask" || rule.name == "neighbourhood_mask" ||
                          rule.name == "chunked_attention" || rule.name == "prefix_lm";
      if (square) SetLengths(s, 130, 130);
    });
    rule.apply(one);
    one.sanitizer = rule.name == "t5_buckets" || rule.name == "tree_mask" ||
                    rule.name == "document_mask" || rule.name == "infinite_scores";
  }
  // A score and a mask rule together, over the built-in features.
  SweepCase& both = sweep.Add("snippet_score_and_mask", [](auto& s) {
    s.causal = s.alibi = true;
    SetLengths(s, 130, 130);
  });
  for (const SnippetRule& rule : SnippetRules()) {
    if (rule.name == "t5_buckets" || rule.name == "chunked_attention") rule.apply(both);
  }
}

// Grids beyond 65,535 in some index, and many small problems at once.
void AddLargeCounts(Sweep& sweep) {
  sweep.Add("batch_70000", [](auto& s) {
    s.batch = 70000;
    SetHeads(s, 1, 1);
    SetLengths(s, 1, 3);
    SetDims(s, 8, 8);
  });
  sweep.Add("heads_66000", [](auto& s) {
    s.batch = 1;
    SetHeads(s, 66000, 66000);
    SetLengths(s, 2, 3);
    SetDims(s, 8, 8);
  });
  sweep.Add("swin_512", [](auto& s) {
    s.batch = 512;
    SetHeads(s, 4, 4);
    SetLengths(s, 49, 49);
    SetDims(s, 32, 32);
    s.type = ElementType::kFp16;
    s.bias = {{.type = ElementType::kFp16, .heads = 4, .seqlen_q = 49, .seqlen_kv = 49},
              {.type = ElementType::kFp16, .batch = 64, .seqlen_q = 49, .seqlen_kv = 49}};
  });
  // Batches that share a bias, more of them than the blocks of a GPU attend to at a time.
  for (const int64_t length : {130, 384}) {
    sweep.Add(absl::StrCat("pair_bias_", length), [length](auto& s) {
      s.batch = 200;
      SetHeads(s, 4, 4);
      SetLengths(s, length, length);
      SetDims(s, 32, 32);
      s.lse = true;
      s.bias = {{.type = ElementType::kBf16, .heads = 4, .seqlen_q = length, .seqlen_kv = length},
                {.type = ElementType::kBool, .batch = 200, .seqlen_kv = length}};
    });
  }
  sweep.Add("long_rows_1_20001", [](auto& s) {
    s.batch = 2;
    SetHeads(s, 8, 2);
    SetLengths(s, 1, 20001);
    SetDims(s, 128, 128);
  });
}

// Draws a legal combination: what a feature excludes is left out, all else is a coin.
class Drawer {
 public:
  explicit Drawer(uint64_t seed) : bits_(seed) {}

  int64_t Below(int64_t count) { return static_cast<int64_t>(bits_() % count); }
  bool Coin(int one_in) { return Below(one_in) == 0; }
  template <typename T>
  T Of(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(static_cast<int64_t>(choices.size())));
  }

  SweepCase Draw(std::string name) {
    SweepCase one;
    one.name = std::move(name);
    AttentionSpec& s = one.spec;
    DrawSizes(s);
    DrawTypes(s);
    DrawMemory(one);
    DrawMasks(s);
    DrawScores(s);
    if (Coin(5)) {
      const auto& rules = SnippetRules();
      rules[Below(static_cast<int64_t>(rules.size()))].apply(one);
    }
    s.lse = !Coin(4);
    if (s.lse) {
      s.lse_base = Coin(4) ? LseBase::kTwo : LseBase::kE;
      s.empty_lse = Coin(4) ? EmptyLse::kPlusInf : EmptyLse::kMinusInf;
    }
    return one;
  }

 private:
  void DrawSizes(AttentionSpec& s) {
    s.batch = 1 + Below(5);
    const int64_t kv = 1 + Below(3);
    SetHeads(s, kv * Of<int64_t>({1, 1, 2, 3, 7}), kv);
    // One after the other: compilers differ in the order of arguments.
    const int64_t seqlen_kv = Of<int64_t>({1, 7, 49, 64, 65, 130, 257, 400});
    const int64_t seqlen_q = Of<int64_t>({1, 7, 49, 64, 65, 130, 200});
    SetLengths(s, seqlen_q, seqlen_kv);
    const auto dim = [&] {
      return Of<int64_t>({1, 3, 7, 33, 36, 40, 64, 72, 96, 100, 128, 192, 261});
    };
    s.dim_qk = dim();
    s.dim_v = Coin(2) ? s.dim_qk : dim();
  }

  void DrawTypes(AttentionSpec& s) {
    s.type = Of({ElementType::kBf16, ElementType::kFp16, ElementType::kFp32});
    if (s.type != ElementType::kFp32 && Coin(4)) {
      s.kv_type = Of({ElementType::kFp8E4m3, ElementType::kFp8E5m2, ElementType::kInt8});
      s.kv_scale = Of({ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken});
    }
  }

  void DrawMemory(SweepCase& one) {
    AttentionSpec& s = one.spec;
    s.varlen = Coin(3);
    s.layout =
        s.varlen && Coin(2) ? Layout::kThd : Of({Layout::kBshd, Layout::kBhsd, Layout::kSbhd});
    if (Coin(4)) {
      s.page_size = Of<int64_t>({1, 5, 16, 64});
      one.problem.negative_pages = Coin(4);
    }
    s.strided_innermost = s.layout != Layout::kThd && s.page_size == 0 && Coin(8);
    one.problem.odd_strides = s.strided_innermost || Coin(3);
    one.problem.dropout_by_pointer = Coin(2);
  }

  void DrawMasks(AttentionSpec& s) {
    s.align = Coin(4) ? MaskAlign::kTopLeft : MaskAlign::kBottomRight;
    s.causal = Coin(2);
    if (Coin(3)) s.window_left = Below(90);
    if (!s.causal && Coin(4)) s.window_right = Below(90);
    if (Coin(6)) {
      s.block_mask_q = Of<int64_t>({16, 64, 128});
      s.block_mask_kv = Of<int64_t>({16, 64, 128});
    }
  }

  void DrawScores(AttentionSpec& s) {
    if (Coin(4)) s.scale = Of<float>({0.05f, 0.2f, -0.1f});
    if (Coin(4)) s.softcap = Of<float>({1.0f, 8.0f});
    s.alibi = Coin(4);
    s.sinks = Coin(4);
    if (Coin(4)) s.dropout = Of<float>({0.1f, 0.6f});
    for (int64_t terms = Coin(3) ? 1 + Below(3) : 0; terms > 0; --terms) {
      BiasTerm term;
      term.type =
          Of({ElementType::kFp16, ElementType::kBf16, ElementType::kFp32, ElementType::kBool});
      term.batch = Coin(2) ? s.batch : 1;
      if (s.batch == 4 && Coin(2)) {
        term.batch = 2;
        term.batch_map = Of({BatchMap::kMod, BatchMap::kDiv});
      }
      term.heads = Coin(2) ? s.heads_q : 1;
      term.seqlen_q = Coin(2) ? s.seqlen_q : 1;
      term.seqlen_kv = Coin(4) ? 1 : s.seqlen_kv;
      s.bias.push_back(term);
    }
    // The order matters, and is legal to ask for, only with a softcap and something to add.
    s.softcap_before_bias = s.softcap > 0 && (s.alibi || !s.bias.empty()) && Coin(2);
  }

  std::mt19937_64 bits_;
};

void AddRandomCombinations(Sweep& sweep) {
  for (int i = 0; i < kRandomCombinations; ++i) {
    SweepCase& one = sweep.Add(Drawer(0x7115 + i).Draw(absl::StrCat("random_", i)));
    one.sanitizer = i % 33 == 0;
  }
}

void AddFewOrHiddenKeys(Sweep& sweep) {
  // Rows of a few keys: what a weight loses by being rounded shows.
  sweep.Add("dropout_few_keys_top_left", [](auto& s) {
    SetHeads(s, 21, 3);
    SetLengths(s, 7, 3);
    SetDims(s, 164, 164);
    s.layout = Layout::kSbhd;
    s.causal = true;
    s.align = MaskAlign::kTopLeft;
    s.dropout = 0.01f;
  });
  sweep.Add("dropout_few_keys_wide_group", [](auto& s) {
    SetHeads(s, 71, 1);
    SetLengths(s, 4, 4);
    SetDims(s, 192, 192);
    s.type = ElementType::kFp16;
    s.causal = true;
    s.dropout = 0.01f;
  });
  for (int64_t left : {-1, 30}) {
    sweep
        .Add(absl::StrCat("hidden_keys_nan_", left < 0 ? "top_left" : "window"),
             [left](auto& s) {
               SetHeads(s, 6, 2);
               SetLengths(s, 70, 300);
               SetDims(s, 64, 64);
               s.window_left = left;
               s.causal = true;
               s.align = left < 0 ? MaskAlign::kTopLeft : MaskAlign::kBottomRight;
             })
        .problem.poison_hidden_kv = true;
  }
}

// Heads side by side that begin between multiples of 16 bytes, in rows of all heads that do not;
// with their own keys, and in groups, where Q and K begin differently.
void AddNarrowHeads(Sweep& sweep) {
  constexpr std::pair<int64_t, int64_t> kDims[] = {{1, 7},   {33, 33},   {34, 34},  {35, 35},
                                                   {36, 36}, {44, 37},   {60, 58},  {36, 40},
                                                   {68, 68}, {100, 130}, {250, 250}};
  for (const auto& [qk, v] : kDims) {
    for (const int64_t heads : {8, 16}) {
      const auto base = [&, qk = qk, v = v](AttentionSpec& s) {
        s.type = ElementType::kBf16;
        SetDims(s, qk, v);
        SetHeads(s, heads, 8);
        SetLengths(s, 270, 333);
      };
      const std::string name = absl::StrCat("narrow_", qk, "_", v, "_heads_", heads);
      sweep.Add(name, base);
      sweep.Add(name + "_fp16_causal", [&](auto& s) {
        base(s);
        s.type = ElementType::kFp16;
        s.causal = true;
      });
      sweep.Add(name + "_paged", [&](auto& s) {
        base(s);
        s.varlen = s.causal = true;
        s.page_size = 16;
        s.softcap = 20;
      });
      sweep.Add(name + "_parts", [&](auto& s) {
        base(s);
        s.batch = 1;
        SetLengths(s, 130, 4100);
      });
      if (heads != 8 || (qk != 33 && qk != 100)) continue;
      SweepCase& small = sweep.Add(name + "_small", [&](auto& s) {
        base(s);
        s.batch = 1;
        SetLengths(s, 70, 333);
      });
      small.sanitizer = true;
    }
  }
}

// Small problems of narrow rows, more of them than the blocks of a GPU attend to at a time.
void AddManyNarrowProblems(Sweep& sweep) {
  const auto add = [&sweep](const std::string& name, int64_t batch, int64_t heads, int64_t queries,
                            int64_t keys, int64_t qk, int64_t v) -> SweepCase& {
    return sweep.Add("many_narrow_" + name, [=](auto& s) {
      s.batch = batch;
      s.type = ElementType::kFp16;
      SetHeads(s, heads, heads);
      SetLengths(s, queries, keys);
      SetDims(s, qk, v);
    });
  };
  add("6", 12544, 4, 16, 16, 6, 6);
  add("10", 9000, 4, 16, 16, 10, 10);
  add("30", 1800, 4, 64, 64, 30, 30);
  add("30_32", 1800, 4, 40, 90, 30, 32);
  add("32_30", 1800, 4, 90, 40, 32, 30);
  const auto add_bias = [](SweepCase& one) {
    AttentionSpec& s = one.spec;
    s.bias = {
        {.type = s.type, .heads = s.heads_q, .seqlen_q = s.seqlen_q, .seqlen_kv = s.seqlen_kv}};
  };
  add_bias(add("bias_64", 1024, 6, 64, 64, 30, 30));
  add_bias(add("bias_256", 256, 6, 256, 256, 30, 30));
}

}  // namespace

const std::vector<SweepCase>& SpecSweep() {
  static const auto* cases = [] {
    Sweep sweep;
    AddDims(sweep);
    AddLengths(sweep);
    AddHeads(sweep);
    AddMasks(sweep);
    AddScores(sweep);
    AddBiases(sweep);
    AddDropout(sweep);
    AddLengthsOnTheDevice(sweep);
    AddStoredTypes(sweep);
    AddMemory(sweep);
    AddOutputs(sweep);
    AddSnippets(sweep);
    AddLargeCounts(sweep);
    AddRandomCombinations(sweep);
    AddDecode(sweep);
    AddNarrowHeads(sweep);
    AddFewOrHiddenKeys(sweep);
    AddManyNarrowProblems(sweep);
    return new std::vector<SweepCase>(sweep.Take());
  }();
  return *cases;
}

std::vector<SweepCase> SanitizerSweep() {
  std::vector<SweepCase> chosen;
  for (const SweepCase& one : SpecSweep()) {
    if (one.sanitizer) chosen.push_back(one);
  }
  return chosen;
}

}  // namespace tilewright::gpu_tests

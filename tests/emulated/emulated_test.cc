// Runs emitted kernels without a GPU: the translation unit is compiled by the C++ compiler that
// built this test, with cuda_on_host.h in CUDA's place, and launched on the bytes that the runtime
// packs. The results are held against the fp64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spec/validate.h"
#include "tests/emulated/case_changes.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using emulated::MakeLongPaged;
using emulated::Misalign;
using emulated::PoisonKeysBefore;
using emulated::PoisonKeysFrom;
using emulated::Scenario;
using emulated::SetLengths;
using emulated::ShareKeys;
using reference::HostCase;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void SetBiasRow(HostCase& c, int64_t i, double value) {
  for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) c.bias[0].Set(i * c.spec.seqlen_kv + j, value);
}

// Three sequences of 50, 0 and 13 keys on pages of 16 rows, one of them missing.
void MakePaged(HostCase& c) {
  SetLengths(c, {50, 0, 13});
  c.page_table = {3, 1, 5, -1, 99, 99, 99, 99, 2, 99, 99, 99};
  c.args.page_table = c.page_table.data();
  c.args.page_table_stride = 4;
  const int64_t rows = 6 * c.spec.page_size;
  std::mt19937_64 random(5);
  c.k = reference::Array(spec::KvType(c.spec), rows * c.spec.dim_qk);
  c.v = reference::Array(spec::KvType(c.spec), rows * c.spec.dim_v);
  c.k.Fill(random, 2);
  c.v.Fill(random, 2);
  const auto strides = [&](int64_t dim) {
    return Strides{.batch = c.spec.page_size * dim, .seq = dim, .head = dim};
  };
  c.args.k = {c.k.data(), strides(c.spec.dim_qk)};
  c.args.v = {c.v.data(), strides(c.spec.dim_v)};
}

// What only the rows of head 3 see.
void PutNaNInHead3(HostCase& c) {
  const int64_t j = c.spec.seqlen_kv / 2;
  for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(0, j, 3, d), kNaN);
  for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(0, j, 3, d), kInfinity);
}

// The same memory read with keys innermost.
void Transpose(HostCase& c) {
  for (Strides* strides : {&c.args.k.strides, &c.args.v.strides}) {
    strides->dim = c.spec.seqlen_kv;
    strides->seq = 1;
  }
}

// Values that must stay where they are seen: rows below the causal diagonal see key 40 and 50.
void PutSpecialValues(HostCase& c) {
  for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(0, 50, 0, d), kNaN);
  for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(0, 40, 0, d), kInfinity);
  for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.q.Set(c.QAt(0, 3, 0, d), kNaN);
  c.k.Set(c.KAt(0, 60, 0, 0), kInfinity);
}

// Rows without a finite score, one with a peak, one whose first tile is empty, and NaN in V.
void PutMinusInfinity(HostCase& c) {
  for (int64_t i = 0; i < 20; ++i) SetBiasRow(c, i, -kInfinity);
  SetBiasRow(c, 25, 0);
  c.bias[0].Set(25 * c.spec.seqlen_kv + 3, 200);
  for (int64_t j = 0; j < 32; ++j) c.bias[0].Set(26 * c.spec.seqlen_kv + j, -kInfinity);
  c.v.Set(c.VAt(0, 5, 0, 0), kNaN);
}

// Two keys with three times the weight of two others, whose tile comes before theirs. Against the
// others' score as reference their weight is 3 minus what ln 3 lost to its element type, which is
// no 16-bit number: O is right if it is divided by what it was multiplied with.
void PutThreeQuarters(HostCase& c) {
  for (int64_t i = 0; i < c.spec.seqlen_q; ++i) {
    for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.q.Set(c.QAt(0, i, 0, d), d == 0 ? 1 : 0);
  }
  for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) {
    const bool heavy = j < 2, light = j >= c.spec.seqlen_kv - 2;
    c.k.Set(c.KAt(0, j, 0, 0), heavy ? std::log(3.0) : light ? 0 : -100);
    for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(0, j, 0, d), heavy ? 1 : 0);
  }
}

// One key with nearly all the weight, by a score just below 100, where the bar of an LSE is the
// narrowest in last places of the score: what tensor cores cut off must not show.
void PutSteepScore(HostCase& c) {
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    for (int64_t h = 0; h < c.spec.heads_q; ++h) {
      for (int64_t i = 0; i < c.spec.seqlen_q; ++i) c.q.Set(c.QAt(b, i, h, 0), 16);
    }
    for (int64_t h = 0; h < c.spec.heads_kv; ++h) {
      for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) {
        const double score = j == c.spec.seqlen_kv / 3 ? 99 : 0;
        c.k.Set(c.KAt(b, j, h, 0), score * std::sqrt(static_cast<double>(c.spec.dim_qk)) / 16);
      }
    }
  }
}

// Fewer rows than the tensor has, none among them; the others stay as they were.
void UseSomeRows(HostCase& c) {
  c.seqused_q = {static_cast<int32_t>(c.spec.seqlen_q) - 1, 0, 1};
  c.args.seqused_q = c.seqused_q.data();
}

// Three sequences in two slots.
void ShareSlots(HostCase& c) {
  c.cache_batch_idx = {1, 0, 1};
  c.args.cache_batch_idx = c.cache_batch_idx.data();
}

// NaN in the keys that left padding hides; all of a sequence among them.
void PadLeft(HostCase& c) {
  SetLengths(c, {static_cast<int32_t>(c.spec.seqlen_kv), 40, 40});
  c.left_padding = {33, 0, 40};
  c.args.left_padding = c.left_padding.data();
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    for (int64_t j = 0; j < c.left_padding[b]; ++j) {
      for (int64_t h = 0; h < c.spec.heads_kv; ++h) {
        for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(b, j, h, d), kNaN);
        for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(b, j, h, d), kNaN);
      }
    }
  }
}

std::vector<Scenario> Scenarios() {
  std::vector<Scenario> all = {
      {"fwd fp32 b=2 h=2/1 s=37/70 d=36 causal lse"},
      {"fwd bf16 b=1 h=2 s=33/65 d=64 lse"},
      {"fwd fp16 b=2 h=4/2 s=70/37 d=72/40 causal lse"},
      {"fwd fp32 b=1 h=2/1 s=70/37 d=1 causal=top_left lse"},
      {"fwd bf16 b=1 h=1 s=9/45 d=33/261 window=7,3 lse"},
      {"fwd fp32 b=1 h=1 s=40/90 d=160/140 window=-1,5 align=top_left scale=-0.3 lse"},
      {"fwd fp32 b=4 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 bias=bf16:2,1,20,50:mod "
       "bias=fp16:2,1,1,50:div bias=bool:4,1,1,50 alibi softcap=5 lse"},
      {"fwd fp32 b=2 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 alibi softcap=5 softcap_before_bias "
       "lse lse_base=2 empty_lse=+inf"},
      {"fwd fp32 b=1 h=2/1 s=70/37 d=8 causal lse empty_lse=+inf sinks"},
      {"fwd fp32 b=2 h=2/1 s=20/50 d=32 dropout=0.3 lse sinks"},
      {"fwd bf16 b=2 h=4/1 s=40/50 d=32 kv=e4m3 kv_scale=token lse"},
      {"fwd fp16 b=2 h=4/2 s=40/50 d=32 kv=int8 kv_scale=head scale=0.001 lse"},
      {"fwd e4m3 b=2 h=4/2 s=40/50 d=32 out=bf16 q_scale=head kv_scale=tensor lse"},
      {"fwd bf16 b=2 h=2 s=20/30 d=8/16 strided_innermost layout=bhsd lse", {}, {}, Transpose},
      {"fwd fp32 b=2 h=2 s=70/90 d=16 block_mask=128,24 causal lse layout=sbhd"},
      {"fwd fp32 b=4 h=2/1 s=40/50 d=16 varlen layout=thd causal lse sinks",
       {40, 0, 3, 7},
       {50, 3, 0, 33}},
      {"fwd bf16 b=3 h=2/1 s=4/150 d=16 varlen causal lse", {}, {}, UseSomeRows},
      {"fwd bf16 b=3 h=2/1 s=70/150 d=64 varlen causal lse", {}, {}, UseSomeRows},
      {"fwd bf16 b=3 h=2/1 s=2/150 d=16 varlen left_padding lse", {}, {}, PadLeft},
      {"fwd bf16 b=3 h=2/1 s=70/150 d=64 varlen left_padding causal lse", {}, {}, PadLeft},
      {"fwd bf16 b=3 h=2/1 s=3/100 d=16 cache_batch_idx lse", {}, {}, ShareSlots},
      {"fwd fp32 b=3 h=2/1 s=40/50 d=16 varlen lse",
       {},
       {},
       [](HostCase& c) {
         SetLengths(c, {50, 0, 13});
       }},
      {"fwd bf16 b=3 h=2/1 s=5/50 d=16/24 paged=16 varlen lse causal", {}, {}, MakePaged},
      {"fwd bf16 b=2 h=2/1 s=40/33 d=16/24 exact lse"},
      // Tensor cores may let them into other rows of a tile: this is for the simple family.
      {"fwd bf16 b=1 h=1 s=40/64 d=16/24 out=fp32 causal lse", {}, {}, PutSpecialValues},
      {"fwd fp32 b=1 h=1 s=40/64 d=16/24 bias=fp32:1,1,40,64 lse", {}, {}, PutMinusInfinity},
      {"fwd fp32 b=1 h=1 s=40/64 d=16/24 bias=fp32:1,1,40,64 sinks lse", {}, {}, PutMinusInfinity},
      {"fwd bf16 b=1 h=1 s=8/40 d=576/512 lse"},
      {"fwd fp32 b=1 h=1 s=3/0 d=16 lse sinks"},
  };
  // For tensor cores: 16-bit, and every policy.
  const std::vector<Scenario> halves = {
      // Scores that rise by hundreds from one tile of keys to the next, beyond what weights can
      // take
      // that nobody has searched for their maximum.
      {"fwd bf16 b=1 h=1 s=130/400 d=64 scale=40 lse"},
      // Rows with an LSE from exact scores.
      {"fwd bf16 b=1 h=1 s=40/90 d=264/16 lse scale=6"},
      {"fwd fp16 b=1 h=2/1 s=40/70 d=120 lse scale=3.1 sinks"},
      {"fwd bf16 b=1 h=2/1 s=130/400 d=72 scale=40 causal"},
      {"fwd fp16 b=1 h=3/1 s=129/200 d=128 causal lse"},
      {"fwd bf16 b=1 h=1 s=70/37 d=64 causal lse"},
      {"fwd bf16 b=1 h=1 s=70/37 d=64 causal=top_left lse empty_lse=+inf sinks"},
      {"fwd fp16 b=1 h=1 s=90/170 d=40 window=20,3 lse"},
      {"fwd fp16 b=1 h=1 s=170/90 d=96/80 window=-1,5 align=top_left scale=-0.3 lse"},
      {"fwd bf16 b=1 h=2/1 s=100/130 d=72 softcap=5 causal lse"},
      {"fwd fp16 b=2 h=2 s=65/100 d=32 alibi causal sinks lse lse_base=2"},
      {"fwd bf16 b=4 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 bias=bf16:2,1,20,50:mod "
       "bias=fp16:2,1,1,50:div bias=bool:4,1,1,50 softcap=5 lse"},
      {"fwd fp16 b=2 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 softcap=5 softcap_before_bias lse"},
      {"fwd bf16 b=1 h=2/1 s=70/137 d=48 dropout=0.3 lse sinks"},
      // Rows of one key, whose weight is exact, and of one key that has all the weight.
      {"fwd bf16 b=3 h=6/2 s=7/3 d=64 causal=top_left dropout=0.01 lse"},
      {"fwd fp16 b=1 h=9/1 s=4 d=64 causal dropout=0.01"},
      {"fwd bf16 b=1 h=1 s=130/150 d=64 dropout=0.01 lse", {}, {}, PutThreeQuarters},
      {"fwd fp16 b=2 h=2 s=70/290 d=16 block_mask=128,24 causal lse layout=sbhd"},
      {"fwd fp16 b=4 h=2/1 s=40/150 d=16 varlen layout=thd causal lse sinks",
       {40, 0, 3, 7},
       {150, 3, 0, 133}},
      {"fwd bf16 b=3 h=2/1 s=40/50 d=24 varlen lse",
       {},
       {},
       [](HostCase& c) {
         SetLengths(c, {50, 0, 13});
         PoisonKeysFrom(c, 50);
       }},
      {"fwd bf16 b=1 h=1 s=40/300 d=64 causal=top_left lse",
       {},
       {},
       [](HostCase& c) { PoisonKeysFrom(c, 40); }},
      {"fwd fp16 b=2 h=2/1 s=20/170 d=40/64 window=30,0 lse",
       {},
       {},
       [](HostCase& c) { PoisonKeysBefore(c, 120); }},
      {"fwd bf16 b=3 h=2/1 s=70/50 d=80/24 paged=16 varlen lse causal", {}, {}, MakePaged},
      {"fwd bf16 b=1 h=2/1 s=50/133 d=33/57 lse", {}, {}, [](HostCase& c) { Misalign(c, 1); }},
      {"fwd fp16 b=2 h=2/1 s=33/70 d=64/40 causal lse layout=bhsd",
       {},
       {},
       [](HostCase& c) { Misalign(c, 4); }},
      {"fwd bf16 b=1 h=2/1 s=33/70 d=100 exact lse", {}, {}, [](HostCase& c) { Misalign(c, 12); }},
      {"fwd fp16 b=1 h=1 s=40/170 d=192/128 lse"},
      {"fwd bf16 b=1 h=1 s=40/70 d=256 causal lse"},
      {"fwd fp16 b=1 h=1 s=3/5 d=1/7 lse"},
      {"fwd bf16 b=1 h=1 s=33/0 d=16 lse sinks"},
      // Heads side by side that begin between multiples of 16 bytes, one of them with NaN.
      {"fwd bf16 b=1 h=16/8 s=70/190 d=33 lse", {}, {}, PutNaNInHead3},
      {"fwd fp16 b=2 h=8 s=40/150 d=36/38 causal lse", {}, {}, PutNaNInHead3},
      {"fwd bf16 b=1 h=8 s=3/1100 d=34/44 lse", {}, {}, PutNaNInHead3},
      // Many short sequences, which share their terms.
      {"fwd bf16 b=40 h=4 s=9/20 d=16 bias=bf16:1,4,9,20 mask=bool:2,1,9,20 lse"},
      {"fwd fp16 b=24 h=2/1 s=40/50 d=32/24 bias=fp16:1,2,40,50 bias=fp16:4,1,40,50:mod "
       "causal=top_left",
       {},
       {},
       [](HostCase& c) { PoisonKeysFrom(c, 40); }},
      {"fwd bf16 b=90 h=3 s=16/17 d=40 layout=bhsd lse"},
      // Longer ones, whose batches share one bias.
      {"fwd bf16 b=5 h=2 s=70/150 d=16 bias=bf16:1,2,70,150 mask=bool:5,1,1,150 lse"},
      {"fwd fp16 b=3 h=2/1 s=40/180 d=24/16 bias=fp16:1,1,1,180 mask=bool:1,2,40,180 "
       "causal=top_left",
       {},
       {},
       [](HostCase& c) { PoisonKeysFrom(c, 40); }},
      // Cut into parts, of which the mask or the lengths leave some rows none.
      {"fwd bf16 b=1 h=2/1 s=3/1100 d=32/40 lse"},
      {"fwd fp16 b=1 h=1 s=20/1100 d=16/250 causal=top_left lse sinks empty_lse=+inf"},
      {"fwd bf16 b=3 h=2/1 s=5/800 d=16 varlen layout=thd lse lse_base=2", {5, 0, 2}, {700, 3, 0}},
  };
  // Few queries over many keys, for attn_decode.
  const std::vector<Scenario> decode = {
      {"fwd bf16 b=2 h=10/2 s=1/1300 d=64 lse"},
      {"fwd fp16 b=1 h=3/1 s=4/700 d=72/40 causal sinks lse lse_base=2"},
      {"fwd bf16 b=1 h=24/1 s=1/600 d=32 window=99,0 alibi lse"},
      {"fwd bf16 b=1 h=50/1 s=1/600 d=48/80 softcap=5 lse empty_lse=+inf"},
      {"fwd bf16 b=3 h=4/2 s=1/900 d=32 paged=16 varlen lse", {}, {}, MakeLongPaged},
      {"fwd fp16 b=3 h=4/2 s=2/900 d=16/24 paged=1 varlen causal lse sinks", {}, {}, MakeLongPaged},
      {"fwd bf16 b=3 h=2/1 s=1/900 d=24 paged=48 varlen lse batch_invariant",
       {},
       {},
       MakeLongPaged},
      {"fwd bf16 b=4 h=6/2 s=3/1500 d=16 varlen layout=thd causal lse batch_invariant",
       {3, 0, 1, 2},
       {1500, 3, 0, 700}},
      {"fwd bf16 b=2 h=4/1 s=2/600 d=40/24 kv=e4m3 kv_scale=token lse"},
      {"fwd fp16 b=2 h=4/2 s=1/600 d=64 kv=e5m2 kv_scale=head lse"},
      {"fwd bf16 b=1 h=40/1 s=1/600 d=32/48 kv=int8 kv_scale=tensor lse"},
      // Rows of whole lines of 128 bytes, copied by chunks and by elements, and masked by element.
      {"fwd bf16 b=1 h=8/2 s=2/700 d=64/128 causal sinks lse",
       {},
       {},
       [](HostCase& c) { Misalign(c, 1); }},
      {"fwd bf16 b=2 h=4/1 s=1/800 d=128 kv=e4m3 kv_scale=head lse"},
      {"fwd fp16 b=1 h=2/1 s=3/300 d=64 bias=bool:1,1,3,300 lse"},
      {"fwd fp16 b=1 h=9/1 s=1/900 d=320/256 lse", {}, {}, ShareKeys},
      {"fwd bf16 b=1 h=16/1 s=1/300 d=576/512 lse"},
      {"fwd bf16 b=1 h=20/1 s=1/600 d=288/272 lse", {}, {}, ShareKeys},
      {"fwd fp16 b=3 h=4/1 s=2/900 d=300/20 paged=16 varlen causal lse", {}, {}, MakeLongPaged},
      {"fwd bf16 b=3 h=4/1 s=1/900 d=264/280 paged=3 varlen lse", {}, {}, MakeLongPaged},
  };
  all.insert(all.end(), halves.begin(), halves.end());
  all.insert(all.end(), decode.begin(), decode.end());
  // Documents of 16 keys and a rule of distance, once in CUDA, once in C++.
  Scenario snippets = {"fwd fp32 b=2 h=2 s=40/48 d=16 score=@score mask=@mask lse"};
  snippets.score_snippet = "return score * (1 + h) - 0.25f * (i - j) + b;";
  snippets.mask_snippet = "i / 16 == j / 16 && j + 4 < seqlen_kv";
  snippets.rules.score = [](double score, const reference::Where& at) {
    return score * static_cast<double>(1 + at.h) - 0.25 * static_cast<double>(at.i - at.j) +
           static_cast<double>(at.b);
  };
  snippets.rules.mask = [](const reference::Where& at) {
    return at.i / 16 == at.j / 16 && at.j + 4 < at.seqlen_kv;
  };
  all.push_back(snippets);
  snippets.spec = "fwd bf16 b=2 h=2 s=80/148 d=32 score=@score mask=@mask lse";
  all.push_back(snippets);
  // Tiles of documents of 64 keys; and a rule of tiles that masks what the rule of pairs does not,
  // which shows that kernels listen to it.
  Scenario tiles = {"fwd bf16 b=1 h=2 s=130/300 d=32 mask=@mask mask_tile=@mask_tile lse"};
  tiles.mask_snippet = "i / 64 == j / 64";
  tiles.mask_tile_snippet =
      "const int64_t first = i_begin / 64, last = (i_end - 1) / 64;\n"
      "if (j_begin / 64 > last || (j_end - 1) / 64 < first) return none;\n"
      "return first == last && j_begin / 64 == first && (j_end - 1) / 64 == first ? all : some;";
  tiles.rules.mask = [](const reference::Where& at) { return at.i / 64 == at.j / 64; };
  all.push_back(tiles);
  tiles.mask_snippet = "true";
  tiles.mask_tile_snippet = "j_begin >= 256 ? none : some";
  tiles.rules.mask = [](const reference::Where& at) { return at.j < 256; };
  all.push_back(tiles);
  const std::vector<Scenario> steep = {
      {"fwd bf16 b=2 h=2/1 s=40/70 d=64 lse", {}, {}, PutSteepScore},
      {"fwd bf16 b=1 h=2/1 s=4/600 d=128 lse", {}, {}, PutSteepScore},
      {"fwd bf16 b=1 h=1 s=20/200 d=256 lse", {}, {}, PutSteepScore},
      {"fwd bf16 b=1 h=4/1 s=1/600 d=576/512 lse", {}, {}, PutSteepScore},
  };
  all.insert(all.end(), steep.begin(), steep.end());
  return all;
}

// For the families that take it from mma/score_tile.cuh, and the simple one.
std::vector<Emulation> RowSums() {
  const std::vector<Scenario> scenarios = {
      {"fwd bf16 b=1 h=1 s=4/200 d=16/24 scale=1 lse", {}, {}, PutThreeQuarters},
      {"fwd bf16 b=1 h=1 s=70/200 d=64 scale=1", {}, {}, PutThreeQuarters},
      {"fwd bf16 b=1 h=1 s=4/200 d=16/272 scale=1 lse", {}, {}, PutThreeQuarters},
      {"fwd fp16 b=1 h=1 s=4/200 d=32 scale=1", {}, {}, PutThreeQuarters},
      {"fwd bf16 b=3 h=4/2 s=7/3 d=164 causal=top_left dropout=0.01 lse"},
      {"fwd fp16 b=1 h=9/1 s=4 d=192 causal dropout=0.01"},
      {"fwd bf16 b=1 h=1 s=70/200 d=192 scale=1 dropout=0.01", {}, {}, PutThreeQuarters},
  };
  return emulated::Served(scenarios, {plan::Family::kFwdSimple, plan::Family::kFwdSm80,
                                      plan::Family::kDecode, plan::Family::kDecodeWide});
}

const std::vector<Emulation>& Emulations() {
  static const auto* all = [] {
    auto* emulations =
        new std::vector<Emulation>(emulated::Served(Scenarios(), emulated::ForwardFamilies()));
    for (Emulation& one : RowSums()) emulations->push_back(std::move(one));
    return emulations;
  }();
  return *all;
}

class EmulatedTest : public testing::TestWithParam<size_t> {};

TEST_P(EmulatedTest, AgreesWithTheReference) { emulated::CheckEmulation(Emulations(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, EmulatedTest, testing::Range(size_t{0}, Emulations().size()));

}  // namespace
}  // namespace tilewright

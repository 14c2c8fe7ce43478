#include "tests/gpu/random_case.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spec/validate.h"
#include "tests/gpu/snippet_rules.h"

namespace tilewright::gpu_tests {
namespace {

constexpr ElementType kStored[] = {ElementType::kFp8E4m3, ElementType::kFp8E5m2,
                                   ElementType::kInt8};

// Draws a legal combination: what a feature excludes is left out, all else is a coin.
class Drawer {
 public:
  Drawer(uint64_t seed, const RandomKinds& kinds) : bits_(seed), kinds_(kinds) {}

  RandomCase Draw() {
    s_.operation = kinds_.backward && Coin(4) ? Operation::kBackward : Operation::kForward;
    decode_ = !Backward() && kinds_.decode && Coin(3);
    DrawDims();
    DrawSizes();
    DrawTypes();
    DrawLengthsOnTheDevice();
    DrawMemory();
    DrawMasks();
    DrawScores();
    DrawOutputs();
    if (!Backward() && Coin(12)) {
      const auto& rules = SnippetRules();
      rules[Below(static_cast<int64_t>(rules.size()))].apply(case_.one);
    }
    case_.prepared = s_;
    if (!s_.exact && !s_.strides.has_value() && s_.snippet_arrays.empty() && Coin(5)) {
      DrawOtherSizes();
    }
    return std::move(case_);
  }

 private:
  // ---- chance
  int64_t Below(int64_t count) { return static_cast<int64_t>(bits_() % count); }
  int64_t Between(int64_t first, int64_t last) { return first + Below(last - first + 1); }
  bool Coin(int one_in) { return Below(one_in) == 0; }
  template <typename T>
  T Of(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(static_cast<int64_t>(choices.size())));
  }

  bool Backward() const { return s_.operation == Operation::kBackward; }

  // ---- sizes
  int64_t DrawDim() {
    if (Coin(2)) return Of<int64_t>({64, 128, 32, 96, 256});
    if (Coin(2)) return Of<int64_t>({16, 40, 48, 72, 80, 104, 112, 160, 192});
    if (Coin(6)) return Of<int64_t>({320, 512, 576, 700, 1024});
    return Coin(2) ? 8 * Between(1, 33) : Between(1, 300);
  }

  void DrawDims() {
    if (Coin(8)) {
      const auto dims = Of<std::pair<int64_t, int64_t>>(
          {{192, 128}, {576, 512}, {320, 256}, {128, 64}, {64, 128}});
      s_.dim_qk = dims.first;
      s_.dim_v = dims.second;
      return;
    }
    s_.dim_qk = s_.dim_v = DrawDim();
    if (Coin(5)) s_.dim_v = DrawDim();
  }

  // A length that tells tiles apart: one, about a multiple of some tile, or any.
  int64_t DrawLength(int64_t most) {
    int64_t length = 0;
    switch (Below(8)) {
      case 0:
        length = Between(1, 9);
        break;
      case 1:
      case 2:
      case 3:
        length = Of<int64_t>({16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 224, 256, 320, 384,
                              512, 640}) +
                 Between(-1, 1);
        break;
      case 4:
        length = Of<int64_t>({13, 49, 61, 97, 127, 131, 197, 211, 257, 307, 401, 577});
        break;
      default:
        length = Between(1, most);
    }
    return std::min(length, most);
  }

  double Multiplications() const {
    return static_cast<double>(s_.batch * s_.heads_q * std::max<int64_t>(s_.seqlen_q, 1)) *
           static_cast<double>(std::max<int64_t>(s_.seqlen_kv, 1) * (s_.dim_qk + s_.dim_v));
  }

  void DrawSizes() {
    s_.batch = Coin(20) ? Between(20, 200) : Between(1, 5);
    if (decode_) {
      const int64_t group = Of<int64_t>({1, 1, 2, 3, 4, 4, 5, 7, 8, 8, 12, 16, 24, 40, 71, 128});
      s_.heads_kv = group > 16 ? Between(1, 2) : Of<int64_t>({1, 2, 3, 4, 8});
      s_.heads_q = s_.heads_kv * group;
      s_.seqlen_q = Coin(2) ? 1 : Between(1, Coin(4) ? 17 : 8);
      s_.seqlen_kv = Coin(3) ? DrawLength(700) : Between(400, 5000);
    } else {
      s_.heads_kv = Of<int64_t>({1, 1, 2, 2, 3, 4, 5});
      s_.heads_q = s_.heads_kv * Of<int64_t>({1, 1, 1, 2, 3, 4, 7, 8});
      if (Coin(40)) {
        s_.heads_kv = 1;
        s_.heads_q = Of<int64_t>({71, 128});
      }
      s_.seqlen_q = DrawLength(700);
      s_.seqlen_kv = Coin(2) ? s_.seqlen_q : DrawLength(Coin(8) ? 2500 : 700);
    }
    if (Coin(60)) s_.seqlen_kv = 0;
    if (!Backward() && Coin(100)) s_.seqlen_q = 0;  // a backward of no rows writes nothing
    // What a reference on the CPU computes soon: gradients need every pair, twice.
    const double most = Backward() ? 8e7 : 1.5e9;
    while (Multiplications() > most) {
      if (s_.batch > 2) {
        s_.batch /= 2;
      } else if (s_.heads_kv > 2) {
        s_.heads_q = s_.heads_q / s_.heads_kv * 2;
        s_.heads_kv = 2;
      } else if (s_.seqlen_q > s_.seqlen_kv) {
        s_.seqlen_q = s_.seqlen_q / 2 + 1;
      } else if (s_.seqlen_kv > 300) {
        s_.seqlen_kv = s_.seqlen_kv / 2 + 1;
      } else if (s_.batch * s_.heads_q > 1) {
        s_.batch = s_.heads_kv = s_.heads_q = 1;
      } else {
        break;
      }
    }
  }

  // ---- types
  void DrawTypes() {
    s_.type = Of({ElementType::kBf16, ElementType::kBf16, ElementType::kBf16, ElementType::kFp16,
                  ElementType::kFp16, ElementType::kFp32});
    if (Backward()) return;
    if (s_.type != ElementType::kFp32 && Coin(decode_ ? 3 : 7)) {
      s_.kv_type = kStored[Below(3)];
      s_.kv_scale =
          Of({ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken, ScaleKind::kNone});
    } else if (Coin(16)) {
      s_.type = Of({ElementType::kFp8E4m3, ElementType::kFp8E4m3, ElementType::kFp8E5m2});
      s_.out_type = Of({ElementType::kBf16, ElementType::kFp16});
      if (Coin(4)) s_.kv_type = Of({ElementType::kFp8E4m3, ElementType::kFp8E5m2});
      s_.q_scale = Of({ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kNone});
      s_.kv_scale =
          Of({ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken, ScaleKind::kNone});
      return;
    }
    if (Coin(12)) s_.out_type = Of({ElementType::kBf16, ElementType::kFp16, ElementType::kFp32});
    s_.allow_tf32 =
        s_.type == ElementType::kFp32 && s_.out_type.value_or(s_.type) == s_.type && Coin(4);
  }

  // ---- lengths, pages, slots
  void DrawLengthsOnTheDevice() {
    cli::RandomProblemOptions& problem = case_.one.problem;
    if (!Backward() && Coin(decode_ ? 2 : 6)) {
      s_.page_size = Of<int64_t>({16, 16, 64, 64, 128, 256, 8, 1, 32, 48, 5, 24, 100});
      problem.negative_pages = Coin(6);
    }
    s_.varlen = Coin(decode_ ? 2 : 3) || (s_.page_size > 0 && !Coin(4));
    if (!s_.varlen) return;
    cli::VarlenArrays arrays;
    if (Coin(2)) {
      s_.layout = Layout::kThd;
      arrays.cu_seqlens_q = true;
      arrays.cu_seqlens_kv = s_.page_size == 0;
      arrays.seqused_q = Coin(4);
      arrays.seqused_kv = s_.page_size > 0 || Coin(4);
    } else {
      arrays.seqused_kv = !Coin(6);
      arrays.seqused_q = !arrays.seqused_kv || Coin(3);
    }
    problem.varlen_arrays = arrays;
    s_.left_padding = Coin(8);
    if (s_.batch < 3) s_.batch = Between(2, 6);
  }

  void DrawMemory() {
    cli::RandomProblemOptions& problem = case_.one.problem;
    if (s_.layout != Layout::kThd && Coin(3)) {
      s_.layout = Of({Layout::kBhsd, Layout::kBhsd, Layout::kSbhd});
    }
    const bool packed_kv =
        problem.varlen_arrays.has_value() && problem.varlen_arrays->cu_seqlens_kv;
    s_.cache_batch_idx = !Backward() && !packed_kv && Coin(decode_ ? 6 : 12);
    s_.strided_innermost = s_.layout != Layout::kThd && s_.page_size == 0 && Coin(24);
    // 8-bit queries planned for rows on multiples of 16 bytes must lie so.
    const bool may_be_odd = spec::ElementBytes(s_.type) > 1;
    problem.odd_strides = s_.strided_innermost || (may_be_odd && Coin(5));
    problem.dropout_by_pointer = Coin(2);
    if (!problem.odd_strides && !s_.varlen && s_.page_size == 0 && !s_.cache_batch_idx && Coin(5)) {
      DrawStrides();
    }
  }

  // Rows of one projection, rows that are padded, and batches or heads that share keys.
  void DrawStrides() {
    std::array<Strides, 4> strides = spec::EffectiveStrides(s_);
    const int64_t bytes = spec::ElementBytes(s_.type);
    const bool square = s_.seqlen_q == s_.seqlen_kv && s_.dim_qk == s_.dim_v;
    if (square && !s_.kv_type.has_value() && Coin(2)) {
      const int64_t row = (s_.heads_q + 2 * s_.heads_kv) * s_.dim_qk;
      for (int n = 0; n < 3; ++n) {
        strides[n] = {.batch = row * s_.seqlen_q, .seq = row, .head = s_.dim_qk};
      }
    } else if (Coin(2)) {
      const int64_t pad = Of<int64_t>({16 / bytes, 1, 64});
      const auto padded = [&](int64_t rows, int64_t heads, int64_t dim) {
        const int64_t row = heads * dim + pad;
        return Strides{.batch = rows * row, .seq = row, .head = dim};
      };
      strides = {
          padded(s_.seqlen_q, s_.heads_q, s_.dim_qk), padded(s_.seqlen_kv, s_.heads_kv, s_.dim_qk),
          padded(s_.seqlen_kv, s_.heads_kv, s_.dim_v), padded(s_.seqlen_q, s_.heads_q, s_.dim_v)};
    } else if (!Backward()) {  // d_k and d_v lie as k and v do, and nobody writes an element twice
      const bool batch = Coin(2);
      for (int n = 1; n < 3; ++n) (batch ? strides[n].batch : strides[n].head) = 0;
    }
    s_.strides = strides;
  }

  // ---- masks
  void DrawMasks() {
    s_.align = Coin(4) ? MaskAlign::kTopLeft : MaskAlign::kBottomRight;
    s_.causal = Coin(2);
    if (Coin(4)) s_.window_left = Coin(4) ? 0 : Below(s_.seqlen_kv + 2);
    if (!s_.causal && Coin(5)) s_.window_right = Coin(4) ? 0 : Below(s_.seqlen_kv + 2);
    if (!decode_ && Coin(10)) {
      s_.block_mask_q = Of<int64_t>({16, 64, 128, 1, 40});
      s_.block_mask_kv = Of<int64_t>({16, 64, 128, 1, 24});
    }
    case_.one.problem.poison_hidden_kv = Coin(2);
    case_.one.problem.keep_probability = Of<double>({0.75, 0.75, 0.1, 0.98});
  }

  // ---- scores
  void DrawScores() {
    if (Coin(6)) s_.scale = Of<float>({0.05f, 0.2f, -0.1f, 0.0f});
    if (Coin(7)) s_.softcap = Of<float>({1.0f, 8.0f, 50.0f});
    s_.alibi = Coin(9);
    s_.sinks = Coin(8);
    if (Coin(7)) s_.dropout = Of<float>({0.1f, 0.1f, 0.6f, 0.01f});
    for (int64_t terms = Coin(4) ? 1 + (Coin(3) ? Below(4) : 0) : 0; terms > 0; --terms) {
      BiasTerm term;
      term.type =
          Of({ElementType::kFp16, ElementType::kBf16, ElementType::kFp32, ElementType::kBool});
      term.batch = Coin(2) ? s_.batch : 1;
      if (s_.batch > 1 && s_.batch % 2 == 0 && Coin(3)) {
        term.batch = s_.batch / 2;
        term.batch_map = Of({BatchMap::kMod, BatchMap::kDiv});
      }
      term.heads = Coin(2) ? s_.heads_q : 1;
      term.seqlen_q = Coin(3) ? 1 : s_.seqlen_q;
      term.seqlen_kv = Coin(6) ? 1 : s_.seqlen_kv;
      term.gradient = Backward() && term.type != ElementType::kBool && Coin(2);
      s_.bias.push_back(term);
    }
    if (Coin(4)) case_.one.problem.bias_amplitude = 6;
    // The order matters, and is legal to ask for, only with a softcap and something to add.
    s_.softcap_before_bias = s_.softcap > 0 && (s_.alibi || !s_.bias.empty()) && Coin(2);
    s_.alibi_gradient = Backward() && s_.alibi && Coin(2);
    s_.sinks_gradient = Backward() && s_.sinks && Coin(2);
  }

  void DrawOutputs() {
    s_.lse = Backward() || !Coin(3);
    if (s_.lse) {
      s_.lse_base = Coin(5) ? LseBase::kTwo : LseBase::kE;
      s_.empty_lse = Coin(5) ? EmptyLse::kPlusInf : EmptyLse::kMinusInf;
    }
    s_.deterministic = Backward() && Coin(3);
    s_.batch_invariant = Coin(10);
    s_.exact = !s_.varlen && Coin(12);
  }

  // The sizes that the kernel is planned for. What is one element stays one, since a bias term of
  // that extent broadcasts for ever.
  void DrawOtherSizes() {
    AttentionSpec& p = case_.prepared;
    const auto other = [&](int64_t size, int64_t drawn) {
      return size > 1 ? std::max<int64_t>(drawn, 2) : size;
    };
    if (Coin(2)) p.seqlen_q = other(p.seqlen_q, decode_ ? Between(2, 8) : DrawLength(700));
    if (Coin(2)) p.seqlen_kv = other(p.seqlen_kv, DrawLength(Coin(3) ? 5000 : 700));
    const bool halved = std::any_of(p.bias.begin(), p.bias.end(), [&](const BiasTerm& term) {
      return term.batch != 1 && term.batch != s_.batch;
    });
    if (!halved && Coin(2)) p.batch = other(p.batch, Coin(3) ? 300 : Between(2, 20));
    for (BiasTerm& term : p.bias) {
      if (term.batch == s_.batch) term.batch = p.batch;
      if (term.seqlen_q == s_.seqlen_q) term.seqlen_q = p.seqlen_q;
      if (term.seqlen_kv == s_.seqlen_kv) term.seqlen_kv = p.seqlen_kv;
    }
  }

  std::mt19937_64 bits_;
  RandomKinds kinds_;
  bool decode_ = false;
  RandomCase case_;
  AttentionSpec& s_ = case_.one.spec;
};

}  // namespace

RandomCase DrawCase(uint64_t seed, const RandomKinds& kinds) {
  RandomCase drawn = Drawer(seed, kinds).Draw();
  drawn.one.name = absl::StrCat("random_", seed);
  drawn.one.problem.seed = seed;
  return drawn;
}

}  // namespace tilewright::gpu_tests

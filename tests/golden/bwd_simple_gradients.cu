// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'bwd fp32 b=1 h=1/1 s=1/1 d=1/36' --plan 'attn_bwd_prep sm_90a m0n0 w4 r0 smem=4'
#include "family/attn_bwd_prep.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::AttnBwdParams gradients;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, gradients) == 232);
static_assert(sizeof(Params) == 440);

struct Config {
  // spec
  using Element = float;
  using KvElement = float;
  using OutElement = float;
  static constexpr int kHeadDimQk = 1;
  static constexpr int kHeadDimV = 36;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 0;
  static constexpr int kBlockM = 0;
  static constexpr int kBlockN = 0;
  static constexpr int kDqSumsOfTile = 0;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
  // gradients
  static constexpr int kBiasGradients = 0;
  using AlibiGradient = AlibiGradientNone;
  static constexpr bool kSinksGradient = false;
  static constexpr bool kHasScoreGradient = false;
  static constexpr bool kDeterministic = false;
};
static_assert(sizeof(bwd_prep::SharedStorage<Config>) == 4,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_bwd_prep__fp32_d1v36__m0w4(const __grid_constant__ tilewright::Params params) {
  tilewright::bwd_prep::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'bwd fp32 b=1 h=1/1 s=1/1 d=36/36 alibi alibi_grad bias=fp32:1,1,1,1:grad sinks sinks_grad score=@distance.cuh score_grad=@gradient.cuh array=table:fp32:grad' --plan 'attn_bwd_simple sm_90a m16n32 w4 r4 p64 smem=13312'
#include "family/attn_bwd_simple.cuh"
#include "policy/bias_terms.cuh"
#include "policy/score_alibi.cuh"
#include "user/score_mod.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::AttnBwdParams gradients;
  abi::AlibiArgs alibi;
  abi::BiasArgs bias[1];
  abi::SinkArgs sinks;
  const float* user_table;
  abi::BiasGradientArgs bias_gradients[1];
  abi::BiasGradientArgs alibi_gradient;
  abi::SinkGradientArgs sinks_gradient;
  float* d_user_table;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, gradients) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, alibi) == 440);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[0]) == 456);
static_assert(TILEWRIGHT_OFFSETOF(Params, sinks) == 512);
static_assert(TILEWRIGHT_OFFSETOF(Params, user_table) == 520);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias_gradients[0]) == 528);
static_assert(TILEWRIGHT_OFFSETOF(Params, alibi_gradient) == 616);
static_assert(TILEWRIGHT_OFFSETOF(Params, sinks_gradient) == 704);
static_assert(TILEWRIGHT_OFFSETOF(Params, d_user_table) == 712);
static_assert(sizeof(Params) == 720);

struct Config {
  // spec
  using Element = float;
  using KvElement = float;
  using OutElement = float;
  static constexpr int kHeadDimQk = 36;
  static constexpr int kHeadDimV = 36;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 4;
  static constexpr int kBlockM = 16;
  static constexpr int kBlockN = 32;
  static constexpr int kPanel = 64;
  static constexpr bool kWritesTensors = true;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreBias<0, float>, ScoreAlibi<Align::kBottomRight>, ScoreUser>;
  using Mask = MaskChain<>;
  using Sink = SinkPerHead;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
  // gradients
  static constexpr int kBiasGradients = 1;
  using AlibiGradient = AlibiGradientOf<Align::kBottomRight>;
  static constexpr bool kSinksGradient = true;
  static constexpr bool kHasScoreGradient = true;
  static constexpr bool kDeterministic = false;
};
static_assert(sizeof(bwd_simple::SharedStorage<Config>) == 13312,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_bwd_simple__fp32_d36_alibigrad_biasfp32grad_sinksgrad_scoregrad__m16w4p64(const __grid_constant__ tilewright::Params params) {
  tilewright::bwd_simple::Run<tilewright::Config>(params);
}

// ==== user/score_mod.cuh
// The caller's score rule.
#ifndef TILEWRIGHT_USER_SCORE_MOD_CUH_
#define TILEWRIGHT_USER_SCORE_MOD_CUH_

#include "core/accumulate.cuh"
#include "core/convert.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

struct ScoreUser {
  static constexpr bool kHasSlopeOne = false;
  static constexpr bool kHasOwnGradient = true;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(
      [[maybe_unused]] Scalar score, const Problem& problem__, i64 i__, i64 j__,
      const Params& params__) {
    using int32_t [[maybe_unused]] = i32;
    using uint32_t [[maybe_unused]] = u32;
    using int64_t [[maybe_unused]] = i64;
    using uint64_t [[maybe_unused]] = u64;
    [[maybe_unused]] const i64 b = problem__.b, h = problem__.h;
    [[maybe_unused]] const i64 seqlen_q = problem__.seqlen_q;
    [[maybe_unused]] const i64 seqlen_kv = problem__.seqlen_kv;
    [[maybe_unused]] const i64 i = i__, j = j__;
    {
      [[maybe_unused]] const float* const table = params__.user_table;
      return static_cast<Scalar>(
#line 1 "distance.cuh"
score + table[h]

#line 34 "user/score_mod.cuh"
      );
    }
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Gradient(
      [[maybe_unused]] const float score, [[maybe_unused]] const float d_score,
      [[maybe_unused]] const bool adds__, const Problem& problem__, i64 i__, i64 j__,
      const Params& params__) {
    using int32_t [[maybe_unused]] = i32;
    using uint32_t [[maybe_unused]] = u32;
    using int64_t [[maybe_unused]] = i64;
    using uint64_t [[maybe_unused]] = u64;
    [[maybe_unused]] const i64 b = problem__.b, h = problem__.h;
    [[maybe_unused]] const i64 seqlen_q = problem__.seqlen_q;
    [[maybe_unused]] const i64 seqlen_kv = problem__.seqlen_kv;
    [[maybe_unused]] const i64 i = i__, j = j__;
    {
      [[maybe_unused]] const float* const table = params__.user_table;
      [[maybe_unused]] float* const d_table = params__.d_user_table;
      [[maybe_unused]] const auto Accumulate = [adds__](float* at__, float value__) {
        if (adds__) ::tilewright::Accumulate(at__, value__);
      };
      {
#line 1 "gradient.cuh"
Accumulate(d_table + h, d_score);
return d_score;

#line 62 "user/score_mod.cuh"
      }
    }
  }
  template <class Params>
  using Head = ElementwiseScoreHead<ScoreUser, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_USER_SCORE_MOD_CUH_

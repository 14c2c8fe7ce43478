// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'bwd bf16 b=1 h=1/1 s=1/1 d=128/128' --plan 'attn_bwd_prep sm_90a m64n0 w4 r0 smem=4'
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
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 128;
  static constexpr int kHeadDimV = 128;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 0;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 0;
  static constexpr int kDqSumsOfTile = 8192;
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
attn_bwd_prep__bf16_d128__m64w4(const __grid_constant__ tilewright::Params params) {
  tilewright::bwd_prep::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'bwd bf16 b=1 h=4/1 s=1/1 d=128/128 causal' --plan 'attn_bwd_sm80 sm_90a m64n128 w8 r0 s2 kw4 qw2 smem=196112'
#include "family/attn_bwd_sm80.cuh"
#include "policy/mask_window.cuh"

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
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 128;
  static constexpr int kHeadDimV = 128;
  static constexpr int kGroup = 4;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 8;
  static constexpr int kRowsPerWarp = 0;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 128;
  static constexpr int kKeyWarps = 4;
  static constexpr int kDqRowWarps = 2;
  static constexpr int kStages = 2;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<MaskCausal<Align::kBottomRight>>;
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
static_assert(sizeof(bwd_sm80::SharedStorage<Config>) == 196112,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(256, 1)
attn_bwd_sm80__bf16_d128_gqa4_causal__m64n128w8k4q2s2(const __grid_constant__ tilewright::Params params) {
  tilewright::bwd_sm80::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'bwd bf16 b=1 h=1/1 s=1/1 d=128/128' --plan 'attn_bwd_finish sm_90a m64n0 w4 r0 smem=4'
#include "family/attn_bwd_finish.cuh"

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
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 128;
  static constexpr int kHeadDimV = 128;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 0;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 0;
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
static_assert(sizeof(bwd_finish::SharedStorage<Config>) == 4,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_bwd_finish__bf16_d128__m64w4(const __grid_constant__ tilewright::Params params) {
  tilewright::bwd_finish::Run<tilewright::Config>(params);
}

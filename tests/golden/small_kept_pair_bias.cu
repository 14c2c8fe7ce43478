// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=32/32 bias=bf16:1,1,1,1 mask=bool:1,1,1,1' --plan 'attn_fwd_small sm_90a m128n64 w12 r32 s2 k32 kt1 kk384 packed smem=222800'
#include "family/attn_fwd_small.cuh"
#include "policy/bias_terms.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::BiasArgs bias[2];
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[0]) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[1]) == 288);
static_assert(sizeof(Params) == 344);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 32;
  static constexpr int kHeadDimV = 32;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 12;
  static constexpr int kRowsPerWarp = 32;
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = 64;
  static constexpr int kTeams = 3;
  static constexpr int kStepKeys = 32;
  static constexpr int kStages = 2;
  static constexpr int kKeptTerms = 1;
  static constexpr int kTermKeys = 384;
  static constexpr bool kPackedTerms = true;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 2;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreBias<0, Bf16>>;
  using Mask = MaskChain<MaskBias<1>>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
  using KeptScore = ScoreChain<ScoreBias<0, Bf16>>;
  using KeptMask = MaskChain<>;
  static constexpr int kOtherMasks = 2;
};
static_assert(sizeof(fwd_small::SharedStorage<Config>) == 222800,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(384, 1)
attn_fwd_small__bf16_d32_biasbf16_biasbool__m128n64w12k32s2kt1k384packed(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_small::Run<tilewright::Config>(params);
}

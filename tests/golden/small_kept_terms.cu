// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=1/1 s=1/1 d=32/32 bias=fp16:1,1,1,1 bias=fp16:1,1,1,1' --plan 'attn_fwd_small sm_90a m64n64 w6 r32 s2 b2 k32 kt3 kk64 smem=110160'
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
  using Element = Fp16;
  using KvElement = Fp16;
  using OutElement = Fp16;
  static constexpr int kHeadDimQk = 32;
  static constexpr int kHeadDimV = 32;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 6;
  static constexpr int kRowsPerWarp = 32;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 64;
  static constexpr int kTeams = 3;
  static constexpr int kStepKeys = 32;
  static constexpr int kStages = 2;
  static constexpr int kKeptTerms = 3;
  static constexpr int kTermKeys = 64;
  static constexpr bool kPackedTerms = false;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 2;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreBias<0, Fp16>, ScoreBias<1, Fp16>>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
  using KeptScore = ScoreChain<ScoreBias<0, Fp16>, ScoreBias<1, Fp16>>;
  using KeptMask = MaskChain<>;
  static constexpr int kOtherMasks = 0;
};
static_assert(sizeof(fwd_small::SharedStorage<Config>) == 110160,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(192, 2)
attn_fwd_small__fp16_d32_biasfp16_biasfp16__m64n64w6k32s2kt3k64(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_small::Run<tilewright::Config>(params);
}

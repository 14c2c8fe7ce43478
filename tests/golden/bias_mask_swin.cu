// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=1/1 s=1/1 d=32/32 bias=fp16:1,1,1,1 bias=fp16:1,1,1,1 mask=bool:1,1,1,1' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p32 smem=6656'
#include "family/attn_fwd_simple.cuh"
#include "policy/bias_terms.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::BiasArgs bias[3];
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[0]) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[1]) == 288);
static_assert(TILEWRIGHT_OFFSETOF(Params, bias[2]) == 344);
static_assert(sizeof(Params) == 400);

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
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 4;
  static constexpr int kBlockM = 16;
  static constexpr int kBlockN = 32;
  static constexpr int kPanel = 32;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreBias<0, Fp16>, ScoreBias<1, Fp16>>;
  using Mask = MaskChain<MaskBias<2>>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 6656,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__fp16_d32_biasfp16_biasfp16_biasbool__m16n32w4r4p32(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp32 b=1 h=1/1 s=1/1 d=36/36 align=top_left window=1,1' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p36 smem=7424'
#include "family/attn_fwd_simple.cuh"
#include "policy/mask_window.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::WindowArgs window;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, window) == 232);
static_assert(sizeof(Params) == 248);

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
  static constexpr int kPanel = 36;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<MaskWindow<Align::kTopLeft>>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 7424,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__fp32_d36_windowtl__m16n32w4r4p36(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

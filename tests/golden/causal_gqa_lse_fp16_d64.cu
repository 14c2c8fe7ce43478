// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=4/1 s=1/1 d=64/64 causal lse' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p64 smem=12800'
#include "family/attn_fwd_simple.cuh"
#include "policy/mask_window.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(sizeof(Params) == 232);

struct Config {
  // spec
  using Element = Fp16;
  using KvElement = Fp16;
  using OutElement = Fp16;
  static constexpr int kHeadDimQk = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kGroup = 4;
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
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 12800,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__fp16_d64_gqa4_causal_lse__m16n32w4r4p64(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

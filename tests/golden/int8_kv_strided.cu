// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=1/1 s=1/1 d=64/64 strided_innermost kv=int8 kv_scale=tensor' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p64 smem=12800'
#include "family/attn_fwd_simple.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::ScaleArgs k_scale;
  abi::ScaleArgs v_scale;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, k_scale) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, v_scale) == 264);
static_assert(sizeof(Params) == 296);

struct Config {
  // spec
  using Element = Fp16;
  using KvElement = Int8;
  using OutElement = Fp16;
  static constexpr int kHeadDimQk = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = true;
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
  using ScaleOfKv = ScaleKv;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 12800,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__fp16_kvint8_d64_kvscale_strided__m16n32w4r4p64(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

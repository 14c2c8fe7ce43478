// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=64/64 block_mask=128,128 dropout=0.5' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p64 smem=12800'
#include "family/attn_fwd_simple.cuh"
#include "policy/mask_block.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::BlockMaskArgs block_mask;
  abi::DropoutArgs dropout;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, block_mask) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, dropout) == 264);
static_assert(sizeof(Params) == 304);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 64;
  static constexpr int kHeadDimV = 64;
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
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<MaskBlock<128, 128>>;
  using Sink = SinkNone;
  using Dropout = DropoutPhilox;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 12800,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__bf16_d64_blockmask128x128_dropout__m16n32w4r4p64(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

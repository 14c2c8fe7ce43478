// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=128/1 s=1/1 d=576/512 varlen paged=64 lse' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p128 smem=53760'
#include "family/attn_fwd_simple.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
  abi::PageTableArgs page_table;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, page_table) == 264);
static_assert(sizeof(Params) == 280);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 576;
  static constexpr int kHeadDimV = 512;
  static constexpr int kGroup = 128;
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
  static constexpr int kPanel = 128;
  // policies
  using Lengths = LengthsVarlen;
  using KvRows = KvRowsPaged<64>;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 53760,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__bf16_d576v512_gqa128_varlen_paged64_lse__m16n32w4r4p128(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

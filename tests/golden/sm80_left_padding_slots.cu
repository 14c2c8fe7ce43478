// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=4/1 s=1/1 d=64/64 causal varlen paged=64 left_padding cache_batch_idx' --plan 'attn_fwd_sm80 sm_80 m64n64 w4 r16 s1 smem=27648'
#include "family/attn_fwd_sm80.cuh"
#include "policy/mask_left_padding.cuh"
#include "policy/mask_window.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
  abi::PageTableArgs page_table;
  abi::LeftPaddingArgs left_padding;
  abi::CacheSlotArgs cache_slots;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, page_table) == 264);
static_assert(TILEWRIGHT_OFFSETOF(Params, left_padding) == 280);
static_assert(TILEWRIGHT_OFFSETOF(Params, cache_slots) == 288);
static_assert(sizeof(Params) == 296);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
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
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 64;
  static constexpr int kColumnWarps = 1;
  static constexpr int kTf32Terms = 0;
  static constexpr bool kTuring = false;
  static constexpr int kStages = 1;
  static constexpr bool kPeeled = false;
  static constexpr bool kSplit = false;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 8;
  // policies
  using Lengths = LengthsOfSlots<LengthsVarlen>;
  using KvRows = KvRowsPaged<64, true>;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<MaskCausal<Align::kBottomRight>, MaskLeftPadding>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_sm80::SharedStorage<Config>) == 27648,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_sm80__bf16_d64_gqa4_causal_varlen_paged64_leftpadding_slots__m64n64w4s1(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm80::Run<tilewright::Config>(params);
}

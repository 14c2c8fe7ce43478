// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=1/1 s=1/1 d=64/64 window=1,1 alibi' --plan 'attn_fwd_sm90 sm_90a m192n96 w16 r16 s2 c3 x2 ones pp own_o smem=123904'
#include "family/attn_fwd_sm90.cuh"
#include "policy/mask_window.cuh"
#include "policy/score_alibi.cuh"
#include "generated/wgmma.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::WindowArgs window;
  abi::AlibiArgs alibi;
  abi::FwdSm90Args sm90;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, window) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, alibi) == 248);
static_assert(TILEWRIGHT_OFFSETOF(Params, sm90) == 320);
static_assert(sizeof(Params) == 1024);

struct Config {
  // spec
  using Element = Fp16;
  using KvElement = Fp16;
  using OutElement = Fp16;
  static constexpr int kHeadDimQk = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 16;
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 192;
  static constexpr int kBlockN = 96;
  static constexpr int kStages = 2;
  static constexpr int kConsumers = 3;
  static constexpr int kSharers = 1;
  static constexpr int kCluster = 2;
  static constexpr int kStagedTerms = 0;
  static constexpr bool kScoresMayHide = false;
  static constexpr bool kOptimistic = false;
  static constexpr bool kOnes = true;
  static constexpr bool kPingPong = true;
  static constexpr bool kQInRegisters = false;
  static constexpr bool kNarrowRows = false;
  static constexpr bool kOwnO = true;
  static constexpr bool kOverV = false;
  static constexpr bool kSplit = false;
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kConsumerRegisters = 160;
  using Wgmma = AttentionWgmma;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreAlibi<Align::kBottomRight>>;
  using Mask = MaskChain<MaskWindow<Align::kBottomRight>>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_sm90::SharedStorage<Config>) == 123904,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(512, 1)
attn_fwd_sm90__fp16_d64_window_alibi__m192n96s2x2onesppo(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm90::Run<tilewright::Config>(params);
}

// ==== generated/wgmma.cuh
// Emitted by tilewright for tiles of 192 rows and 96 keys.
#ifndef TILEWRIGHT_GENERATED_WGMMA_CUH_
#define TILEWRIGHT_GENERATED_WGMMA_CUH_

#include "core/types.cuh"

namespace tilewright {

struct AttentionWgmma {
  // d = q k^T: 4 steps of m64n96k16; what d held is ignored.
  static __device__ __forceinline__ void Scores(float (&d)[48], u64 q, u64 k) {
    asm volatile(
        "{.reg .b64 a, b; .reg .pred first, more;\n"
        "setp.ne.b32 first, 0, 0; setp.ne.b32 more, 1, 0;\n"
        "add.s64 a, %48, 0; add.s64 b, %49, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, a, b, first, 1, 1, 0, 0;\n"
        "add.s64 a, %48, 2; add.s64 b, %49, 2;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, a, b, more, 1, 1, 0, 0;\n"
        "add.s64 a, %48, 4; add.s64 b, %49, 4;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, a, b, more, 1, 1, 0, 0;\n"
        "add.s64 a, %48, 6; add.s64 b, %49, 6;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, a, b, more, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "l"(q), "l"(k)
        : "memory");
  }
  // d += p v: 6 steps of m64n72k16.
  static __device__ __forceinline__ void Values(float (&d)[36], const u32 (&p)[24], u64 v) {
    asm volatile(
        "{.reg .b64 b; .reg .pred more;\n"
        "setp.ne.b32 more, 1, 0;\n"
        "add.s64 b, %60, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%36, %37, %38, %39}, b, more, 1, 1, 1;\n"
        "add.s64 b, %60, 128;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%40, %41, %42, %43}, b, more, 1, 1, 1;\n"
        "add.s64 b, %60, 256;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%44, %45, %46, %47}, b, more, 1, 1, 1;\n"
        "add.s64 b, %60, 384;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%48, %49, %50, %51}, b, more, 1, 1, 1;\n"
        "add.s64 b, %60, 512;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%52, %53, %54, %55}, b, more, 1, 1, 1;\n"
        "add.s64 b, %60, 640;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, {%56, %57, %58, %59}, b, more, 1, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
        : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(p[4]), "r"(p[5]),
          "r"(p[6]), "r"(p[7]), "r"(p[8]), "r"(p[9]), "r"(p[10]), "r"(p[11]),
          "r"(p[12]), "r"(p[13]), "r"(p[14]), "r"(p[15]), "r"(p[16]), "r"(p[17]),
          "r"(p[18]), "r"(p[19]), "r"(p[20]), "r"(p[21]), "r"(p[22]), "r"(p[23]), "l"(v)
        : "memory");
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_GENERATED_WGMMA_CUH_

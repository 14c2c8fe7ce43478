// What tensor cores cut off a score, and an LSE gets back.
#ifndef TILEWRIGHT_MMA_CUT_OFF_CUH_
#define TILEWRIGHT_MMA_CUT_OFF_CUH_

#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/types.cuh"
#include "policy/lse.cuh"
#include "policy/scale.cuh"
#include "policy/sink.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// An instruction adds its products to a sum with a few places more than fp32 has, and cuts the rest
// off each of them and off the result. With two places more, as mma.sync has on an H200, a score
// that large products make early loses 3/8 of its last place an instruction on average; with three,
// as wgmma, 7/16; one that grows evenly loses half of that. What lies between is given back, nearer
// to the former, which are the larger losses. (At d 256, 12,000 scores of 244 / scale
// lost 6 places by mma.sync, between -1 and 14.)
inline constexpr float kCutOffPlaces = 0.35f;
inline constexpr float kCutOffPlacesOfWgmma = 0.4f;

// The last places that a score loses by so many instructions of mma.sync in a row, or by wgmma.
template <int kCuts>
inline constexpr float kLostPlaces = kCutOffPlaces* kCuts;
template <class Config>
inline constexpr float kLostByWgmma = kCutOffPlacesOfWgmma*(RoundUp(Config::kHeadDimQk, 16) / 16);

// Whether an LSE gets that back. Scores that something is added to, and rows with a sink, keep what
// they have.
template <class Config>
inline constexpr bool kGivesCutOffBack =
    !kIsSame<typename Config::Lse, LseNone> && Config::Score::kIdentity &&
    kIsSame<typename Config::Sink, SinkNone> && kIsSame<typename Config::ScaleOfKv, ScaleNone>;

// The value of the last place of a product that makes the score `lse`, by sign and unit those of
// scores; not finite where there is none.
__device__ __forceinline__ float LastPlace(float lse, float unit) {
  const float product = lse * ptx::rcp_approx_ftz(unit);
  return FloatOfBits(BitsOfFloat(product) & 0xff800000u) * (unit * 0x1p-23f);
}

// `lse`, of a row of scores that have lost so many last places, with what it has lost.
template <class Config, class Params>
__device__ __forceinline__ float WithCutOff(float lse, float lost_places, const Params& params) {
  if constexpr (!kGivesCutOffBack<Config>) {
    return lse;
  } else {
    const float place = LastPlace(lse, params.core.scale);
    return fabsf(place) < Infinity() ? fmaf(place, lost_places, lse) : lse;
  }
}

// What is cut off spreads about that mean, by the small products of an instruction that are cut
// where the large sum ends: of 40,000 scores of 1121 at d 128, whose LSE may err by 4.6 places,
// eight instructions in a row took 8 to -2 places. Rows whose LSE may miss its bar thereby get it
// from scores that lose nothing (mma/exact_lse.cuh). Up to six instructions do not take so much.
template <class Config, int kCuts>
inline constexpr bool kMayMissBar = !kIsSame<typename Config::Lse, LseNone> && kCuts > 6;
template <class Config, int kCuts>
inline constexpr float kSpreadPlaces = 2.2f + (kGivesCutOffBack<Config> ? 0.375f : 0.75f) * kCuts;

// Whether `lse` may err by more than 0.95 of its bar: 5e-5, beyond 100 a millionth.
template <class Config, int kCuts, class Params>
__device__ __forceinline__ bool MayMissBar(float lse, const Params& params) {
  const float bar = fabsf(lse) <= 100 ? 4.75e-5f : fabsf(lse) * 0.95e-6f;
  return fabsf(LastPlace(lse, params.core.scale)) * kSpreadPlaces<Config, kCuts> > bar;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_CUT_OFF_CUH_

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

// `lse`, of a row of scores that have lost so many last places, with what it has lost. Scores that
// something is added to, and rows with a sink, keep what they have.
template <class Config, class Params>
__device__ __forceinline__ float WithCutOff(float lse, float lost_places, const Params& params) {
  if constexpr (kIsSame<typename Config::Lse, LseNone> || !Config::Score::kIdentity ||
                !kIsSame<typename Config::Sink, SinkNone> ||
                !kIsSame<typename Config::ScaleOfKv, ScaleNone>) {
    return lse;
  } else {
    const float unit = params.core.scale;
    const float product = lse * ptx::rcp_approx_ftz(unit);
    if (!(fabsf(product) < Infinity())) return lse;
    // A power of two: the value of a last place.
    const float place = FloatOfBits(BitsOfFloat(product) & 0xff800000u) * 0x1p-23f;
    return fmaf(place, unit * lost_places, lse);
  }
}

// Instructions after which a sum of many is added to a score by an addition that rounds, where
// there are registers for it: what they cut off spreads too far about its mean.
inline constexpr int kMostCuts = 12;

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_CUT_OFF_CUH_

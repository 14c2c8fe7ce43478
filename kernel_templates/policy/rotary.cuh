// Sine and cosine of the angles of a rotary embedding (Su et al., arXiv 2104.09864), exact in the
// reduction of the angle at every position.
#ifndef TILEWRIGHT_POLICY_ROTARY_CUH_
#define TILEWRIGHT_POLICY_ROTARY_CUH_

#include "core/types.cuh"

namespace tilewright {

struct SinCos {
  float sin;
  float cos;
};

// Of an angle in 2^-64 turns. Whole turns have wrapped away, so that position * frequency needs no
// more than a 64-bit product. Error below 2^-23: Taylor sums within an eighth of a turn.
TILEWRIGHT_HOST_DEVICE SinCos SinCosOfTurns(u64 turns) {
  const u64 quadrant = (turns + (u64{1} << 61)) >> 62;  // the nearest multiple of a quarter
  const u64 rest = turns - (quadrant << 62);
  constexpr float kRadians = 6.28318530717958647692f / 4294967296.f;
  const float x = static_cast<float>(static_cast<i32>(rest >> 32)) * kRadians;
  const float x2 = x * x;
  const float sine =
      x + x * x2 * (-1.f / 6 + x2 * (1.f / 120 + x2 * (-1.f / 5040 + x2 * (1.f / 362880))));
  const float cosine =
      1.f + x2 * (-1.f / 2 +
                  x2 * (1.f / 24 + x2 * (-1.f / 720 + x2 * (1.f / 40320 - x2 * (1.f / 3628800)))));
  const bool swaps = (quadrant & 1) != 0;
  const float s = swaps ? cosine : sine, c = swaps ? sine : cosine;
  return {(quadrant & 2) != 0 ? -s : s, ((quadrant + 1) & 2) != 0 ? -c : c};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_ROTARY_CUH_

// The keys of one row that a lane holds in registers: kRuns runs of kKeys adjacent keys, the first
// keys of two runs kStep apart. Number n of them lies Offset(n) behind the lane's first key; a set
// of them is a word with bit n for number n.
#ifndef TILEWRIGHT_POLICY_KEY_RUNS_CUH_
#define TILEWRIGHT_POLICY_KEY_RUNS_CUH_

#include "core/math.cuh"
#include "core/types.cuh"

namespace tilewright {

template <int kRunCount, int kKeysOfRun, int kRunStep>
struct KeyRuns {
  static constexpr int kRuns = kRunCount;
  static constexpr int kKeys = kKeysOfRun;
  static constexpr int kStep = kRunStep;
  static constexpr int kCount = kRuns * kKeys;
  static_assert(kCount <= 32, "a set is one word");
  static_assert(kKeys <= kStep);
  static constexpr u32 kAll = kCount == 32 ? ~0u : (1u << kCount) - 1;

  TILEWRIGHT_HOST_DEVICE static constexpr int Offset(int n) {
    return n / kKeys * kStep + n % kKeys;
  }

  // Those less than `keys` behind the lane's first key.
  TILEWRIGHT_HOST_DEVICE static u32 Below(i64 keys) {
    const u32 ahead = keys < 0 ? 0 : keys > kRuns * kStep ? kRuns * kStep : static_cast<u32>(keys);
    const u32 rest = ahead % kStep;
    const u32 count = ahead / kStep * kKeys + (rest < kKeys ? rest : kKeys);
    return count == 0 ? 0 : ~0u >> (32 - count);
  }
};

// Row i and the keys that a lane holds of it: the first is j, and `existing` keys follow from there
// on (fewer than none: 0), however many of them the lane holds.
struct LaneKeys {
  i64 i;
  i64 j;
  int existing;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_KEY_RUNS_CUH_

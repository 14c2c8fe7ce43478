// Several elements by one load.
#ifndef TILEWRIGHT_CORE_WORDS_CUH_
#define TILEWRIGHT_CORE_WORDS_CUH_

#include "core/types.cuh"

namespace tilewright {

#ifdef __CUDACC__
#define TILEWRIGHT_MAY_ALIAS
#else
#define TILEWRIGHT_MAY_ALIAS [[gnu::may_alias]]
#endif

// What a load of kBytes (2, 4, 8 or 16) brings, as 32-bit words, the first bytes in the lowest
// bits.
template <int kBytes>
struct TILEWRIGHT_MAY_ALIAS alignas(kBytes) Words {
  u32 word[kBytes / 4];
};
template <>
struct TILEWRIGHT_MAY_ALIAS alignas(2) Words<2> {
  u16 half;
};

#undef TILEWRIGHT_MAY_ALIAS

// The largest power of two up to 16 that divides `n`; 16 for 0.
TILEWRIGHT_HOST_DEVICE constexpr int AlignmentOf(u64 n) {
  const u32 low = static_cast<u32>(n) | 16u;
  return static_cast<int>(low & (0u - low));
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_WORDS_CUH_

// Philox4x32-10: a counter-based random generator (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), and the dropout rule built on it. The word of an element
// depends on its coordinates only, so the mask is the same whatever the tiles.
#ifndef TILEWRIGHT_CORE_PHILOX_CUH_
#define TILEWRIGHT_CORE_PHILOX_CUH_

#include "core/types.cuh"

namespace tilewright {

struct PhiloxCounter {
  u32 word[4];
};

TILEWRIGHT_HOST_DEVICE PhiloxCounter Philox4x32(PhiloxCounter counter, u32 key_low, u32 key_high) {
  constexpr u32 kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr u32 kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(kMultiplier0) * counter.word[0];
    const u64 product1 = static_cast<u64>(kMultiplier1) * counter.word[2];
    counter = {{static_cast<u32>(product1 >> 32) ^ counter.word[1] ^ key_low,
                static_cast<u32>(product1),
                static_cast<u32>(product0 >> 32) ^ counter.word[3] ^ key_high,
                static_cast<u32>(product0)}};
    key_low += kWeyl0;
    key_high += kWeyl1;
  }
  return counter;
}

// The random words of the weights (i, j) to (i, j + 3), j being rounded down to a multiple of 4, of
// (batch, head) number `bh` = b * heads_q + h.
TILEWRIGHT_HOST_DEVICE PhiloxCounter DropoutWords(u64 seed, u64 offset, i64 bh, i64 i, i64 j) {
  const PhiloxCounter counter = {{static_cast<u32>(offset), static_cast<u32>(bh),
                                  static_cast<u32>(i), static_cast<u32>(j / 4)}};
  const u32 key_high = static_cast<u32>(seed >> 32) + static_cast<u32>(offset >> 32);
  return Philox4x32(counter, static_cast<u32>(seed), key_high);
}

// The one of these that is key j's.
TILEWRIGHT_HOST_DEVICE u32 WordOf(const PhiloxCounter& random, i64 j) {
  // Selections rather than word[j % 4]: an index known only at run time would put the words in
  // memory.
  const u32 first_two = j % 2 == 0 ? random.word[0] : random.word[1];
  const u32 last_two = j % 2 == 0 ? random.word[2] : random.word[3];
  return j % 4 < 2 ? first_two : last_two;
}

TILEWRIGHT_HOST_DEVICE u32 DropoutWord(u64 seed, u64 offset, i64 bh, i64 i, i64 j) {
  return WordOf(DropoutWords(seed, offset, bh, i, j), j);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_PHILOX_CUH_

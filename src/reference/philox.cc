#include "reference/philox.h"

#include <algorithm>
#include <cmath>

#include "reference/reference.h"

namespace tilewright::reference {
namespace {

constexpr uint64_t kMultiplier0 = 0xD2511F53;
constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {High(product1) ^ counter[1] ^ key[0], Low(product1),
               High(product0) ^ counter[3] ^ key[1], Low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

DropoutRule::DropoutRule(float p, uint64_t seed, uint64_t offset, int64_t heads_q)
    : p_(p),
      // p * 2^32 is exact in a double; the largest float below 1 stays below 2^32.
      threshold_(static_cast<uint32_t>(
          std::min(4294967295.0, std::round(static_cast<double>(p) * 4294967296.0)))),
      offset_low_(Low(offset)),
      heads_q_(heads_q),
      key_({Low(seed), High(seed) + High(offset)}) {}

std::array<uint32_t, 4> DropoutRule::Words(int64_t b, int64_t h, int64_t i, int64_t quad) const {
  return Philox4x32({offset_low_, static_cast<uint32_t>(b * heads_q_ + h), static_cast<uint32_t>(i),
                     static_cast<uint32_t>(quad)},
                    key_);
}

bool DropoutKeeps(float p, uint64_t seed, uint64_t offset, int64_t heads_q, int64_t b, int64_t h,
                  int64_t i, int64_t j) {
  const DropoutRule rule(p, seed, offset, heads_q);
  return rule.Keeps(rule.Words(b, h, i, j / 4)[j % 4]);
}

}  // namespace tilewright::reference

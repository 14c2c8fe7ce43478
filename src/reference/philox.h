// The counter-based generator of dropout: Philox4x32 with 10 rounds, Salmon, Moraes, Dror and Shaw,
// "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).
#ifndef TILEWRIGHT_REFERENCE_PHILOX_H_
#define TILEWRIGHT_REFERENCE_PHILOX_H_

#include <array>
#include <cstdint>

namespace tilewright::reference {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The rule of one problem. Key: the seed, with the upper half of the offset added to its upper
// word. Counter: lower half of the offset, b * heads_q + h, i, j / 4; word j % 4 decides.
class DropoutRule {
 public:
  DropoutRule(float p, uint64_t seed, uint64_t offset, int64_t heads_q);

  bool enabled() const { return p_ != 0; }
  // 1 / (1 - p).
  double keep_scale() const { return 1.0 / (1.0 - static_cast<double>(p_)); }

  // The four words that decide about keys 4 * quad to 4 * quad + 3.
  std::array<uint32_t, 4> Words(int64_t b, int64_t h, int64_t i, int64_t quad) const;
  bool Keeps(uint32_t word) const { return word >= threshold_; }

 private:
  float p_;
  uint32_t threshold_;
  uint32_t offset_low_;
  int64_t heads_q_;
  std::array<uint32_t, 2> key_;
};

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_PHILOX_H_

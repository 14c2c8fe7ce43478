// The result of a sum on tensor cores.
#ifndef TILEWRIGHT_TESTS_EMULATED_EMULATOR_CUT_OFF_H_
#define TILEWRIGHT_TESTS_EMULATED_EMULATOR_CUT_OFF_H_

#include <cmath>

namespace cuda_on_host {

// They do not round: they cut the last places off.
inline float CutOff(double sum) {
  const auto rounded = static_cast<float>(sum);
  return std::abs(rounded) > std::abs(sum) ? std::nextafter(rounded, 0.f) : rounded;
}

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_EMULATOR_CUT_OFF_H_

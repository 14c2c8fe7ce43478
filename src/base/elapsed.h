#ifndef TILEWRIGHT_BASE_ELAPSED_H_
#define TILEWRIGHT_BASE_ELAPSED_H_

#include <chrono>

namespace tilewright {

inline double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_ELAPSED_H_

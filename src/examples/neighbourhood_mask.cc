// 2-D neighbourhood attention (NATTEN, Hassani et al., arXiv 2204.07143): a pixel sees the kernel x
// kernel pixels around it. At the border of the image the neighbourhood is moved inwards, so that
// every pixel has equally many.
#include <algorithm>

#include "examples/example.h"

namespace tilewright::examples {

Example NeighbourhoodMask(const AttentionSpec& spec) {
  constexpr int64_t kWidth = 12, kKernel = 5;
  const int64_t height = std::max(kKernel, (spec.seqlen_kv + kWidth - 1) / kWidth);
  Example example;
  example.mask = R"(
    const auto near = [&](int64_t key, int64_t query, int64_t extent) {
      int64_t begin = query - kernel / 2;
      begin = begin < 0 ? 0 : begin > extent - kernel ? extent - kernel : begin;
      return key >= begin && key < begin + kernel;
    };
    return near(j / width, i / width, height) && near(j % width, i % width, width);)";
  example.Scalar("width", kWidth).Scalar("height", height).Scalar("kernel", kKernel);
  example.rules.mask = [height](const reference::Where& at) {
    const auto begin = [](int64_t query, int64_t extent) {
      return std::clamp<int64_t>(query - kKernel / 2, 0, extent - kKernel);
    };
    const int64_t y = begin(at.i / kWidth, height), x = begin(at.i % kWidth, kWidth);
    for (int64_t dy = 0; dy < kKernel; ++dy) {
      for (int64_t dx = 0; dx < kKernel; ++dx) {
        if (at.j == (y + dy) * kWidth + x + dx) return true;
      }
    }
    return false;
  };
  return example;
}

}  // namespace tilewright::examples

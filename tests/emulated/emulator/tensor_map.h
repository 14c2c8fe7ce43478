// What a tensor map of the emulator holds, in place of the 128 bytes that the driver makes.
#ifndef TILEWRIGHT_TESTS_EMULATED_TENSOR_MAP_H_
#define TILEWRIGHT_TESTS_EMULATED_TENSOR_MAP_H_

#include <cstdint>

namespace cuda_on_host {

inline constexpr uint32_t kTensorMapMark = 0x70616d74;
inline constexpr int kMaxDimensions = 5;

struct HostTensorMap {
  uint32_t mark = kTensorMapMark;
  uint8_t dimensions = 0;
  uint8_t element_bytes = 0;
  uint8_t swizzle =
      0;  // log2 of the 16-byte chunks that change places: 0 for none, 3 for 128 bytes
  uint64_t base = 0;
  uint64_t extents[kMaxDimensions] = {};      // elements
  uint64_t strides[kMaxDimensions - 1] = {};  // bytes; the first dimension is contiguous
  uint32_t box[kMaxDimensions] = {};          // elements
};
static_assert(sizeof(HostTensorMap) <= 128);

// Where the byte at `address` of shared memory lies under a swizzle.
inline uint32_t Swizzled(uint32_t address, int swizzle) {
  return address ^ (address >> 7 & ((1u << swizzle) - 1)) << 4;
}

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_TENSOR_MAP_H_

// Descriptions of tensors for bulk copies (TMA). Free of <cuda.h>.
#ifndef TILEWRIGHT_DEVICE_TENSOR_MAP_H_
#define TILEWRIGHT_DEVICE_TENSOR_MAP_H_

#include <array>
#include <cstdint>

#include "abi/tensor_map.h"
#include "device/device.h"

namespace tilewright::device {

// A tensor with contiguous rows: dimensions column, row, head, batch.
struct TensorMapRequest {
  enum class Element { kFp16, kBf16, kByte };
  const void* base = nullptr;
  Element element = Element::kBf16;
  std::array<int64_t, 4> extents = {};  // elements
  std::array<int64_t, 3> strides = {};  // of row, head and batch, in elements
  int box_rows = 0;                     // of a copy, under the 128-byte swizzle
  // Multiples of 16 bytes, at most 128 of them. Fewer leave the rest of the 128 bytes of a row in
  // shared memory as they are (seen on an H200).
  int box_columns = 64;
};

// False where no map describes the tensor: a base or a stride that is no multiple of 16 bytes,
// extents of 0, or what else the driver refuses. `map` is then unspecified. No allocation, no lock.
bool EncodeTensorMap(const DriverApi& api, const TensorMapRequest& request, abi::TensorMap* map);

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_TENSOR_MAP_H_

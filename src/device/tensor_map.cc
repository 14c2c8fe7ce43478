#include "device/tensor_map.h"

#include <cstring>

#include "device/driver_api.h"

namespace tilewright::device {
namespace {

constexpr int64_t kAlignment = 16;  // of the base and of strides, in bytes
constexpr int64_t kMaxExtent = int64_t{1} << 32;
constexpr int64_t kMaxStride = int64_t{1} << 40;  // bytes, exclusive

CUtensorMapDataType TypeOf(TensorMapRequest::Element element) {
  switch (element) {
    case TensorMapRequest::Element::kFp16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case TensorMapRequest::Element::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case TensorMapRequest::Element::kByte:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

bool EncodeTensorMap(const DriverApi& api, const TensorMapRequest& request, abi::TensorMap* map) {
  if (reinterpret_cast<uintptr_t>(request.base) % kAlignment != 0) return false;
  const int64_t element_bytes = request.element == TensorMapRequest::Element::kByte ? 1 : 2;
  cuuint64_t extents[4];
  for (int n = 0; n < 4; ++n) {
    if (request.extents[n] < 1 || request.extents[n] > kMaxExtent) return false;
    extents[n] = static_cast<cuuint64_t>(request.extents[n]);
  }
  cuuint64_t strides[3];
  for (int n = 0; n < 3; ++n) {
    // Nobody goes along a dimension of one.
    const int64_t stride =
        request.extents[n + 1] == 1 ? kAlignment / element_bytes : request.strides[n];
    if (stride >= kMaxStride / element_bytes || stride * element_bytes % kAlignment != 0) {
      return false;
    }
    strides[n] = static_cast<cuuint64_t>(stride * element_bytes);
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(request.box_columns),
                             static_cast<cuuint32_t>(request.box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  // The header aligns the type to more than the device needs.
  CUtensorMap encoded;
  const CUresult result = api.cuTensorMapEncodeTiled(
      &encoded, TypeOf(request.element), 4, const_cast<void*>(request.base), extents, strides, box,
      element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  static_assert(sizeof(*map) == sizeof(encoded));
  std::memcpy(map, &encoded, sizeof(*map));
  return result == CUDA_SUCCESS;
}

}  // namespace tilewright::device

#include "reference/element.h"

#include <algorithm>

#include "reference/reference.h"

namespace tilewright::reference {
namespace {

template <typename Integer>
Integer EncodeInteger(double value) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  const double lowest = std::numeric_limits<Integer>::lowest();
  const double highest = std::numeric_limits<Integer>::max();
  return static_cast<Integer>(std::clamp(rounded, lowest, highest));
}

template <typename T>
void StoreUnaligned(T value, void* address) {
  std::memcpy(address, &value, sizeof(T));
}

}  // namespace

double ToDouble(ElementType type, const void* element) {
  double value = 0;
  DecodeRow<double>(type, element, 1, 1, 1.0, &value);
  return value;
}

void FromDouble(ElementType type, double value, void* element) {
  switch (type) {
    case ElementType::kFp16:
      StoreUnaligned(static_cast<uint16_t>(EncodeFloat(kFp16Format, value)), element);
      return;
    case ElementType::kBf16:
      StoreUnaligned(static_cast<uint16_t>(EncodeFloat(kBf16Format, value)), element);
      return;
    case ElementType::kFp32:
      StoreUnaligned(static_cast<float>(value), element);
      return;
    case ElementType::kFp8E4m3:
      StoreUnaligned(static_cast<uint8_t>(EncodeFloat(kE4m3Format, value)), element);
      return;
    case ElementType::kFp8E5m2:
      StoreUnaligned(static_cast<uint8_t>(EncodeFloat(kE5m2Format, value)), element);
      return;
    case ElementType::kInt8:
      StoreUnaligned(EncodeInteger<int8_t>(value), element);
      return;
    case ElementType::kBool:
      StoreUnaligned(static_cast<uint8_t>(value != 0), element);
      return;
    case ElementType::kInt32:
      StoreUnaligned(EncodeInteger<int32_t>(value), element);
      return;
  }
}

}  // namespace tilewright::reference

#include "emit/device_types.h"

namespace tilewright::emit {

std::string_view DeviceTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFp16:
      return "Fp16";
    case ElementType::kBf16:
      return "Bf16";
    case ElementType::kFp32:
      return "float";
    case ElementType::kFp8E4m3:
      return "Fp8E4m3";
    case ElementType::kFp8E5m2:
      return "Fp8E5m2";
    case ElementType::kInt8:
      return "Int8";
    case ElementType::kBool:
      return "Bool8";
    case ElementType::kInt32:
      return "i32";
  }
  return "void";
}

std::string_view SnippetTypeName(ElementType type) {
  return type == ElementType::kInt8 ? "signed char" : DeviceTypeName(type);
}

std::string_view SnippetTypeName(ScalarType type) {
  return type == ScalarType::kFloat ? "float" : "i64";
}

}  // namespace tilewright::emit

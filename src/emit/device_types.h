// Host enums as the names that kernel_templates/core/types.cuh gives them.
#ifndef TILEWRIGHT_EMIT_DEVICE_TYPES_H_
#define TILEWRIGHT_EMIT_DEVICE_TYPES_H_

#include <string_view>

#include "tilewright/attention.h"

namespace tilewright::emit {

// "Bf16": what a tensor is made of.
std::string_view DeviceTypeName(ElementType type);

// What a snippet reads through `const T* name`: as DeviceTypeName, but int8 is a plain integer
// there, not a stored number with a scale.
std::string_view SnippetTypeName(ElementType type);
std::string_view SnippetTypeName(ScalarType type);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_DEVICE_TYPES_H_

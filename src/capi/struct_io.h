// Reading and filling structs whose size the caller states, so that callers and libraries of
// different age understand each other (tilewright_c.h, "Growth").
#ifndef TILEWRIGHT_CAPI_STRUCT_IO_H_
#define TILEWRIGHT_CAPI_STRUCT_IO_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tilewright::capi {

// A first field and something else: what no caller's struct is smaller than.
inline constexpr size_t kMinStructBytes = 2 * sizeof(size_t);

// Larger than any struct will ever be; a size above it is a forgotten initialisation.
inline constexpr size_t kMaxStructBytes = 1 << 16;

inline absl::Status NullError(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " = null: must point to something"));
}

inline absl::Status CheckStructSize(const char* name, size_t size) {
  if (size >= kMinStructBytes && size <= kMaxStructBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".size = ", size, ": must be sizeof(", name,
                                                 "), as its _init function sets it"));
}

// `out` becomes `defaults` overwritten by what the caller's struct at `in` holds.
template <typename Struct>
absl::Status ReadStruct(const char* name, const void* in, const Struct& defaults, Struct* out) {
  if (in == nullptr) return NullError(name);
  size_t size = 0;
  std::memcpy(&size, in, sizeof(size));
  if (absl::Status status = CheckStructSize(name, size); !status.ok()) return status;
  const auto* bytes = static_cast<const unsigned char*>(in);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".size = ", size, ": this library knows ", sizeof(Struct),
                       " bytes of it, and a field beyond them is set"));
    }
  }
  *out = defaults;
  std::memcpy(out, in, std::min(size, sizeof(Struct)));
  return absl::OkStatus();
}

// Fills the caller's struct of `size` bytes from `value`; bytes that this library does not know
// become 0.
template <typename Struct>
absl::Status WriteStruct(const char* name, void* out, size_t size, const Struct& value) {
  if (out == nullptr) return NullError(name);
  if (absl::Status status = CheckStructSize(name, size); !status.ok()) return status;
  std::memset(out, 0, size);
  std::memcpy(out, &value, std::min(size, sizeof(Struct)));
  std::memcpy(out, &size, sizeof(size));
  return absl::OkStatus();
}

}  // namespace tilewright::capi

#endif  // TILEWRIGHT_CAPI_STRUCT_IO_H_

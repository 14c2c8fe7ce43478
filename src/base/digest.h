// SHA-256 by libcrypto.
#ifndef TILEWRIGHT_BASE_DIGEST_H_
#define TILEWRIGHT_BASE_DIGEST_H_

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tilewright {

struct Digest {
  std::array<uint8_t, 32> bytes = {};
  // clang-tidy 14 takes the zero inside the defaulted operator for a null pointer.
  auto operator<=>(const Digest&) const = default;  // NOLINT(modernize-use-nullptr)

  std::string ToHex() const;  // 64 lower-case hex digits
  static std::optional<Digest> FromHex(std::string_view hex);

  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.bytes);
  }
};

Digest Sha256(std::string_view data);

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_DIGEST_H_

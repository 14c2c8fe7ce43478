#include "base/digest.h"

// The functions of this file use SHA-256 itself and not EVP_Digest: libcrypto frees what EVP needs
// when the process exits, while a thread of ours may still be publishing. They are deprecated in
// favour of EVP.
#define OPENSSL_SUPPRESS_DEPRECATED  // NOLINT(readability-identifier-naming)
#include <openssl/sha.h>

#include "base/check.h"

namespace tilewright {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

// Value of a lower-case hex digit, or -1. Upper case is refused so that one digest has one name.
int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string Digest::ToHex() const {
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    hex.push_back(kHexDigits[byte >> 4]);
    hex.push_back(kHexDigits[byte & 15]);
  }
  return hex;
}

std::optional<Digest> Digest::FromHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return digest;
}

Digest Sha256(std::string_view data) {
  Digest digest;
  SHA256_CTX state;
  // Fails only when libcrypto was built without SHA-256; then no key and no entry can be trusted
  // and going on would be wrong.
  TILEWRIGHT_CHECK(SHA256_Init(&state) == 1);
  TILEWRIGHT_CHECK(SHA256_Update(&state, data.data(), data.size()) == 1);
  TILEWRIGHT_CHECK(SHA256_Final(digest.bytes.data(), &state) == 1);
  return digest;
}

}  // namespace tilewright

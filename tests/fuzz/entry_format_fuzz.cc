// libFuzzer target of the entry parser (R13). Each input is parsed as it is, and once more with its
// length and its digest put right, as random bytes would never get past these.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/labelled_hash.h"
#include "cache/entry_format.h"

namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// What is accepted has one spelling only.
void Check(std::string_view file) {
  const auto entry = tilewright::cache::ParseEntry(file);
  if (!entry.ok()) {
    Require(entry.status().code() == absl::StatusCode::kDataLoss, "the code of a refusal");
    return;
  }
  const auto again = tilewright::cache::SerializeEntry(*entry);
  Require(again.ok() && *again == file, "an accepted file is what the writer writes");
  (void)tilewright::ParseManifest(entry->manifest);
}

std::string Sealed(std::string file) {
  constexpr size_t kLengthAt = 8;
  constexpr size_t kDigestBytes = 32;
  if (file.size() < kLengthAt + 8 + kDigestBytes) return file;
  for (size_t i = 0; i < 8; ++i) {
    file[kLengthAt + i] = static_cast<char>(uint64_t{file.size()} >> (8 * i) & 0xff);
  }
  const size_t hashed = file.size() - kDigestBytes;
  const tilewright::Digest digest = tilewright::Sha256(std::string_view(file).substr(0, hashed));
  file.replace(hashed, kDigestBytes, reinterpret_cast<const char*>(digest.bytes.data()),
               kDigestBytes);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  Check(file);
  Check(Sealed(std::string(file)));
  (void)tilewright::ParseManifest(file);
  (void)tilewright::cache::ParseEntryFileName(file);
  return 0;
}

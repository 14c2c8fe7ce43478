// Builds the manifest that a key is the digest of: a list of (label, bytes), length-prefixed so
// that no two lists serialise alike, and readable again so that two keys can be compared field by
// field (`cache explain`).
//
//   manifest = { field }
//   field    = label " " length "\n" bytes "\n"      label: [a-z0-9_.]+, length: decimal
#ifndef TILEWRIGHT_BASE_LABELLED_HASH_H_
#define TILEWRIGHT_BASE_LABELLED_HASH_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"

namespace tilewright {

class LabelledHash {
 public:
  LabelledHash& Add(std::string_view label, std::string_view bytes);

  const std::string& manifest() const { return manifest_; }
  Digest digest() const { return Sha256(manifest_); }

 private:
  std::string manifest_;
};

using ManifestFields = std::vector<std::pair<std::string, std::string>>;

// The fields of a manifest; DataLoss when it is not one.
absl::StatusOr<ManifestFields> ParseManifest(std::string_view manifest);

// Labels whose bytes differ between two manifests, or that only one of them has.
std::vector<std::string> DifferingFields(const ManifestFields& a, const ManifestFields& b);

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_LABELLED_HASH_H_

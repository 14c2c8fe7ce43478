// What the builder keeps in a store entry.
//
//   section   bytes
//   facts     JSON object: see EncodeEntry
//   source    the translation unit
//   headers   generated headers: a manifest (base/labelled_hash.h) with the fields "name" and
//             "text" for each in turn; absent when there are none
//   log       of the compiler; absent when empty
//   cubin     ELF bytes
#ifndef TILEWRIGHT_BUILD_ENTRY_CODEC_H_
#define TILEWRIGHT_BUILD_ENTRY_CODEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "artifact/kernel_binary.h"
#include "artifact/kernel_source.h"
#include "cache/artifact_store.h"

namespace tilewright::build {

struct EntryContext {
  std::string manifest;
  std::string variant;
  std::string spec_text;
  std::string plan_text;
};

cache::Entry EncodeEntry(const EntryContext& context, const artifact::KernelSource& source,
                         const artifact::KernelBinary& binary);

// The binary of an entry. DataLoss when a section is missing, the facts do not parse, or the cubin
// is not one for the target and entry name that were asked for.
absl::StatusOr<artifact::KernelBinary> DecodeEntry(const cache::Entry& entry,
                                                   const std::string& entry_name,
                                                   const std::string& target);

// What the compiler received for an entry.
struct StoredRequest {
  artifact::KernelSource source;
  std::string target;
  std::vector<std::string> options;
  std::string templates;  // digest of the bundle, in hex
};

// From an entry's manifest and sections. DataLoss when one is missing, or when a text is not the
// one that the manifest names.
absl::StatusOr<StoredRequest> DecodeRequest(const cache::Entry& entry);

// OK when an entry holds what its manifest says: the texts and a cubin for its target. DataLoss
// otherwise.
absl::Status CheckEntry(const cache::Entry& entry);

}  // namespace tilewright::build

#endif  // TILEWRIGHT_BUILD_ENTRY_CODEC_H_

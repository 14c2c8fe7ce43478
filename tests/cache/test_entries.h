// Entries for tests of stores.
#ifndef TILEWRIGHT_TESTS_CACHE_TEST_ENTRIES_H_
#define TILEWRIGHT_TESTS_CACHE_TEST_ENTRIES_H_

#include <string>

#include "base/labelled_hash.h"
#include "cache/artifact_store.h"

namespace tilewright::cache {

inline Entry SmallEntry() {
  return {.manifest = "a 1\nx\n", .variant = "v", .sections = {{"s", "b"}}};
}

// The entry number `index`: the same manifest, variant and bytes whoever asks. `size` bytes of
// content that depend on the index.
inline Entry NumberedEntry(int index, size_t size = 100, const std::string& variant = "nvrtc 1") {
  Entry entry;
  entry.manifest = LabelledHash().Add("number", std::to_string(index)).manifest();
  entry.variant = variant;
  std::string content;
  for (size_t i = 0; i < size; ++i) {
    content.push_back(static_cast<char>(static_cast<size_t>(index) * 31 + i * 7 + i / 251));
  }
  entry.sections = {{"cubin", content}, {"source", "kernel " + std::to_string(index)}};
  return entry;
}

inline EntryKey KeyOf(const Entry& entry) {
  return {.digest = Sha256(entry.manifest), .variant = entry.variant};
}

inline bool SameEntry(const Entry& a, const Entry& b) {
  if (a.manifest != b.manifest || a.variant != b.variant) return false;
  if (a.sections.size() != b.sections.size()) return false;
  for (size_t i = 0; i < a.sections.size(); ++i) {
    if (a.sections[i].name != b.sections[i].name || a.sections[i].bytes != b.sections[i].bytes) {
      return false;
    }
  }
  return true;
}

// Whether the store serves exactly this entry.
inline bool Serves(ArtifactStore& store, const Entry& entry) {
  const absl::StatusOr<EntryPtr> found = store.Get(KeyOf(entry), entry.manifest);
  return found.ok() && SameEntry(**found, entry);
}

// Why it does not; "hit" when it does.
inline std::string MissOf(ArtifactStore& store, const Entry& entry) {
  const absl::StatusOr<EntryPtr> found = store.Get(KeyOf(entry), entry.manifest);
  if (found.ok()) return SameEntry(**found, entry) ? "hit" : "wrong entry";
  if (found.status().code() != absl::StatusCode::kNotFound) return "wrong status code";
  return std::string(found.status().message());
}

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_TESTS_CACHE_TEST_ENTRIES_H_

// Says in which field a kernel that is wanted differs from one that is stored (R10): what a miss
// is due to.
#ifndef TILEWRIGHT_BUILD_MISS_EXPLAINER_H_
#define TILEWRIGHT_BUILD_MISS_EXPLAINER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"

namespace tilewright::build {

// What identifies a kernel: the fields of its manifest, and the compiler.
struct KernelIdentity {
  std::string manifest = {};
  std::optional<std::string> variant = {};  // absent: any compiler will do
  std::string source = {};                  // the translation unit; empty: unknown
};

KernelIdentity IdentityOf(const cache::Entry& entry);

struct FieldDifference {
  // A label of the manifest ("options", "templates", "target", "product", "unit_sha256", ...), or
  // "compiler" for the variant.
  std::string field;
  // The values, or what only one of them has: of options those that differ, of the translation unit
  // the first line that differs, where both texts are known.
  std::string wanted;
  std::string stored;
};

// In the order of the wanted manifest, the compiler last; empty when one serves for the other.
// DataLoss when a manifest does not parse.
absl::StatusOr<std::vector<FieldDifference>> Differences(const KernelIdentity& wanted,
                                                         const KernelIdentity& stored);

// "options (wanted -a, stored -b), templates (wanted 0123456789ab, stored ba9876543210)"
std::string DescribeDifferences(absl::Span<const FieldDifference> differences);

struct NearestEntry {
  cache::EntryInfo info;
  cache::Entry entry;
  std::vector<FieldDifference> differences;
};

// The entry that differs in the fewest fields, where another kernel ("entry", "family") weighs more
// than another target, and that more than any other field; of equal ones the first in order of
// keys. Looks at the `limit` entries used last (0: all) and passes over what cannot be read and
// over entries that do not differ. nullopt when there is none.
std::optional<NearestEntry> FindNearest(cache::ArtifactStore& store, const KernelIdentity& wanted,
                                        size_t limit = 0);

// "entry 0123456789ab differs in ..." of the nearest entry of the same kernel and target; empty
// when there is none.
std::string DescribeNearest(cache::ArtifactStore& store, const KernelIdentity& wanted,
                            size_t limit = 0);

// Whether two kernels of this difference have the same name and differ in how they are made only.
bool IsSameKernel(absl::Span<const FieldDifference> differences);

}  // namespace tilewright::build

#endif  // TILEWRIGHT_BUILD_MISS_EXPLAINER_H_

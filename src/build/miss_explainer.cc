#include "build/miss_explainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/labelled_hash.h"
#include "base/status_macros.h"

namespace tilewright::build {
namespace {

constexpr char kCompiler[] = "compiler";

// All values of a label; the manifest repeats some.
std::string ValueOf(const ManifestFields& fields, const std::string& label) {
  std::vector<std::string> values;
  for (const auto& [name, bytes] : fields) {
    if (name == label) values.push_back(bytes);
  }
  return absl::StrJoin(values, "\n");
}

// The lines of `text` that `other` does not have, in order.
std::string LinesOnlyIn(const std::string& text, const std::string& other) {
  const std::vector<std::string> others = absl::StrSplit(other, '\n');
  std::vector<std::string> only;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (std::find(others.begin(), others.end(), line) == others.end()) only.emplace_back(line);
  }
  return absl::StrJoin(only, " ");
}

// The first line in which two texts differ, of each. Comments, which tell what follows in other
// words, count only where nothing else differs.
std::pair<std::string, std::string> FirstDifferentLine(const std::string& a, const std::string& b) {
  const std::vector<std::string> lines_a = absl::StrSplit(a, '\n');
  const std::vector<std::string> lines_b = absl::StrSplit(b, '\n');
  const size_t common = std::min(lines_a.size(), lines_b.size());
  size_t line = std::mismatch(lines_a.begin(), lines_a.begin() + common, lines_b.begin()).first -
                lines_a.begin();
  for (size_t i = line; i < common; ++i) {
    if (lines_a[i] == lines_b[i] || absl::StartsWith(lines_a[i], "//")) continue;
    line = i;
    break;
  }
  const auto text = [&](const std::vector<std::string>& lines) {
    return line < lines.size() ? absl::StrCat("line ", line + 1, ": ", lines[line])
                               : absl::StrCat("no line ", line + 1);
  };
  return {text(lines_a), text(lines_b)};
}

int Weight(absl::Span<const FieldDifference> differences) {
  int weight = 0;
  for (const FieldDifference& difference : differences) {
    const bool other_kernel = difference.field == "entry" || difference.field == "family";
    weight += other_kernel ? 100 : difference.field == "target" ? 10 : 1;
  }
  return weight;
}

// Short enough for a line of a log.
std::string Shortened(const std::string& text) {
  constexpr size_t kShown = 120;
  // A digest says as much by its beginning.
  constexpr size_t kDigestShown = 12;
  if (Digest::FromHex(text).has_value()) return text.substr(0, kDigestShown);
  if (text.empty()) return "nothing";
  return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "...");
}

}  // namespace

KernelIdentity IdentityOf(const cache::Entry& entry) {
  const std::string* source = entry.Find("source");
  return {entry.manifest, entry.variant, source == nullptr ? "" : *source};
}

absl::StatusOr<std::vector<FieldDifference>> Differences(const KernelIdentity& wanted,
                                                         const KernelIdentity& stored) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const ManifestFields wanted_fields, ParseManifest(wanted.manifest));
  TILEWRIGHT_ASSIGN_OR_RETURN(const ManifestFields stored_fields, ParseManifest(stored.manifest));
  std::vector<FieldDifference> differences;
  for (const std::string& field : DifferingFields(wanted_fields, stored_fields)) {
    FieldDifference difference = {field, ValueOf(wanted_fields, field),
                                  ValueOf(stored_fields, field)};
    if (field == "options") {
      const std::string all = difference.wanted;
      difference.wanted = LinesOnlyIn(all, difference.stored);
      difference.stored = LinesOnlyIn(difference.stored, all);
      // The same ones in another order make another key as well.
      if (difference.wanted.empty() && difference.stored.empty()) difference.wanted = "their order";
    } else if (field == "unit_sha256" && !wanted.source.empty() && !stored.source.empty()) {
      std::tie(difference.wanted, difference.stored) =
          FirstDifferentLine(wanted.source, stored.source);
    }
    differences.push_back(std::move(difference));
  }
  if (wanted.variant.has_value() && stored.variant.has_value() &&
      *wanted.variant != *stored.variant) {
    differences.push_back({kCompiler, *wanted.variant, *stored.variant});
  }
  return differences;
}

std::string DescribeDifferences(absl::Span<const FieldDifference> differences) {
  std::vector<std::string> texts;
  for (const FieldDifference& difference : differences) {
    texts.push_back(absl::StrCat(difference.field, " (wanted ", Shortened(difference.wanted),
                                 ", stored ", Shortened(difference.stored), ")"));
  }
  return absl::StrJoin(texts, ", ");
}

std::optional<NearestEntry> FindNearest(cache::ArtifactStore& store, const KernelIdentity& wanted,
                                        size_t limit) {
  absl::StatusOr<std::vector<cache::EntryInfo>> infos = store.List();
  if (!infos.ok()) return std::nullopt;
  if (limit > 0 && infos->size() > limit) {
    std::stable_sort(
        infos->begin(), infos->end(),
        [](const cache::EntryInfo& a, const cache::EntryInfo& b) { return a.mtime_s > b.mtime_s; });
    infos->resize(limit);
  }
  std::optional<NearestEntry> nearest;
  int least = 0;
  for (cache::EntryInfo& info : *infos) {
    absl::StatusOr<cache::Entry> entry = store.Read(info);
    if (!entry.ok()) continue;
    absl::StatusOr<std::vector<FieldDifference>> differences =
        Differences(wanted, IdentityOf(*entry));
    if (!differences.ok() || differences->empty()) continue;
    const int weight = Weight(*differences);
    if (nearest.has_value() && weight >= least) continue;
    least = weight;
    nearest = NearestEntry{std::move(info), *std::move(entry), *std::move(differences)};
  }
  return nearest;
}

bool IsSameKernel(absl::Span<const FieldDifference> differences) {
  return std::none_of(differences.begin(), differences.end(),
                      [](const FieldDifference& difference) {
                        return difference.field == "entry" || difference.field == "family" ||
                               difference.field == "target";
                      });
}

std::string DescribeNearest(cache::ArtifactStore& store, const KernelIdentity& wanted,
                            size_t limit) {
  const std::optional<NearestEntry> nearest = FindNearest(store, wanted, limit);
  if (!nearest.has_value() || !IsSameKernel(nearest->differences)) return "";
  constexpr size_t kKeyDigits = 12;
  return absl::StrCat("entry ", nearest->info.digest.ToHex().substr(0, kKeyDigits), " differs in ",
                      DescribeDifferences(nearest->differences));
}

}  // namespace tilewright::build

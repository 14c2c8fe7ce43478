#include "tune/code_digest.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/labelled_hash.h"
#include "emit/emit_kernel.h"

namespace tilewright::tune {
namespace {

constexpr size_t kDigits = 16;

std::vector<std::string> Includes(const std::string& text) {
  std::vector<std::string> names;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "#include \"")) continue;
    names.emplace_back(line.substr(0, line.find('"')));
  }
  return names;
}

std::string Digest(const emit::TemplateBundle& bundle, const std::set<std::string_view>& roots) {
  std::map<std::string, const std::string*> texts;
  for (const artifact::SourceFile& file : bundle.files) texts.emplace(file.name, &file.text);
  std::set<std::string> seen;
  std::vector<std::string> open(roots.begin(), roots.end());
  while (!open.empty()) {
    std::string name = std::move(open.back());
    open.pop_back();
    const auto found = texts.find(name);
    if (found == texts.end() || !seen.insert(name).second) continue;
    for (std::string& include : Includes(*found->second)) open.push_back(std::move(include));
  }
  LabelledHash hash;
  for (const std::string& name : seen) hash.Add("name", name).Add("text", *texts[name]);
  return hash.digest().ToHex().substr(0, kDigits);
}

}  // namespace

std::string CodeDigests::Of(absl::Span<const plan::KernelPlan> candidates) {
  std::set<std::string_view> roots;
  for (const plan::KernelPlan& candidate : candidates) {
    for (const plan::KernelPlan& kernel : candidate.Kernels()) {
      roots.insert(emit::TemplateFileOf(kernel));
    }
  }
  MutexLock lock(&mutex_);
  std::string& digest = known_[roots];
  if (digest.empty()) digest = Digest(*bundle_, roots);
  return digest;
}

}  // namespace tilewright::tune

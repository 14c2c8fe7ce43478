#include "tune/code_digest.h"

#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/labelled_hash.h"
#include "base/text.h"

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

}  // namespace

std::string CodeDigest(const emit::TemplateBundle& bundle, plan::Family family) {
  std::map<std::string, const std::string*> texts;
  for (const artifact::SourceFile& file : bundle.files) texts.emplace(file.name, &file.text);
  std::set<std::string> seen;
  std::vector<std::string> open = {
      absl::StrCat("family/", AbslView(plan::FamilyName(family)), ".cuh")};
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

}  // namespace tilewright::tune

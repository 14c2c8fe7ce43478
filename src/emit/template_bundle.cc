#include "emit/template_bundle.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/labelled_hash.h"
#include "emit/template_bundle_data.h"

namespace tilewright::emit {
namespace {

TemplateBundle MakeBundle(std::vector<artifact::SourceFile> files) {
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  LabelledHash hash;
  for (const artifact::SourceFile& file : files) hash.Add("name", file.name).Add("text", file.text);
  return {.files = std::move(files), .digest = hash.digest()};
}

}  // namespace

const TemplateBundle& EmbeddedTemplates() {
  static const TemplateBundle& bundle = *new TemplateBundle([] {
    std::vector<artifact::SourceFile> files;
    for (int i = 0; i < kNumEmbeddedFiles; ++i) {
      files.push_back({.name = kEmbeddedFiles[i].name, .text = kEmbeddedFiles[i].text});
    }
    return MakeBundle(std::move(files));
  }());
  return bundle;
}

absl::StatusOr<TemplateBundle> ReadTemplates(const std::string& directory) {
  namespace fs = std::filesystem;
  std::vector<artifact::SourceFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& path = it->path();
    if (path.extension() != ".h" && path.extension() != ".cuh") continue;
    std::ifstream stream(path, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    if (!stream) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
    files.push_back({.name = path.lexically_relative(directory).generic_string(),
                     .text = std::move(text).str()});
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("template_dir = ", directory, ": cannot be read: ", error.message()));
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("template_dir = ", directory, ": holds no .h and no .cuh file"));
  }
  return MakeBundle(std::move(files));
}

}  // namespace tilewright::emit

// The files of kernel_templates/, embedded in the library at build time, or read from a directory
// for work on them.
#ifndef TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_H_
#define TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "artifact/kernel_source.h"
#include "base/digest.h"

namespace tilewright::emit {

struct TemplateBundle {
  std::vector<artifact::SourceFile> files;  // sorted by name, relative to kernel_templates/
  Digest digest;                            // of names and texts
};

// The bundle built into the library.
const TemplateBundle& EmbeddedTemplates();

// Every .h and .cuh below `directory`. NotFound when it holds none.
absl::StatusOr<TemplateBundle> ReadTemplates(const std::string& directory);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_H_

// The table that embed_templates.cmake fills.
#ifndef TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_DATA_H_
#define TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_DATA_H_

namespace tilewright::emit {

struct EmbeddedFile {
  const char* name;
  const char* text;
};

extern const EmbeddedFile kEmbeddedFiles[];
extern const int kNumEmbeddedFiles;

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_TEMPLATE_BUNDLE_DATA_H_

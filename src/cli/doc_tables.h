// The tables of the README, made from the code that they describe. `tilewright doctor --env-table`
// and `--word-table` print them; a test compares the README with them.
#ifndef TILEWRIGHT_CLI_DOC_TABLES_H_
#define TILEWRIGHT_CLI_DOC_TABLES_H_

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace tilewright::cli {

// What one word of a spec means. There is a row for every word of spec::SpecWords(), in its order.
struct WordDoc {
  std::string_view key;
  std::string_view form;     // "window=LEFT,RIGHT"
  std::string_view meaning;  // one line
  std::string_view example;  // a whole spec that uses it, or empty for words that name files
};
absl::Span<const WordDoc> WordDocs();

// Markdown tables, ending in a newline.
std::string WordTable();
std::string EnvironmentTable();

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_DOC_TABLES_H_

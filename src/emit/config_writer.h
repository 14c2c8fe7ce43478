// Writes the members of an emitted struct, in the order of the calls.
#ifndef TILEWRIGHT_EMIT_CONFIG_WRITER_H_
#define TILEWRIGHT_EMIT_CONFIG_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tilewright::emit {

class ConfigWriter {
 public:
  // "  // <text>"
  ConfigWriter& Section(std::string_view text);
  // "  using <name> = <type>;"
  ConfigWriter& Using(std::string_view name, std::string_view type);
  // As Using, for a template over a list of types: "  using <name> = <chain><<links>>;"
  ConfigWriter& Chain(std::string_view name, std::string_view chain,
                      absl::Span<const std::string> links);
  // "  static constexpr <type> <name> = <value>;"
  ConfigWriter& Int(std::string_view name, int64_t value);    // type int
  ConfigWriter& Int64(std::string_view name, int64_t value);  // type i64
  ConfigWriter& Bool(std::string_view name, bool value);

  // "struct <name> {\n<members>};\n"
  std::string Finish(std::string_view name) const;

 private:
  ConfigWriter& Constant(std::string_view type, std::string_view name, std::string_view value);
  std::string members_;
};

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_CONFIG_WRITER_H_

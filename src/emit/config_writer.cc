#include "emit/config_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tilewright::emit {
namespace {

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

ConfigWriter& ConfigWriter::Section(std::string_view text) {
  absl::StrAppend(&members_, "  // ", Piece(text), "\n");
  return *this;
}

ConfigWriter& ConfigWriter::Using(std::string_view name, std::string_view type) {
  absl::StrAppend(&members_, "  using ", Piece(name), " = ", Piece(type), ";\n");
  return *this;
}

ConfigWriter& ConfigWriter::Chain(std::string_view name, std::string_view chain,
                                  absl::Span<const std::string> links) {
  return Using(name, absl::StrCat(Piece(chain), "<", absl::StrJoin(links, ", "), ">"));
}

ConfigWriter& ConfigWriter::Int(std::string_view name, int64_t value) {
  return Constant("int", name, std::to_string(value));
}

ConfigWriter& ConfigWriter::Int64(std::string_view name, int64_t value) {
  return Constant("i64", name, std::to_string(value));
}

ConfigWriter& ConfigWriter::Bool(std::string_view name, bool value) {
  return Constant("bool", name, value ? "true" : "false");
}

ConfigWriter& ConfigWriter::Constant(std::string_view type, std::string_view name,
                                     std::string_view value) {
  absl::StrAppend(&members_, "  static constexpr ", Piece(type), " ", Piece(name), " = ",
                  Piece(value), ";\n");
  return *this;
}

std::string ConfigWriter::Finish(std::string_view name) const {
  return absl::StrCat("struct ", Piece(name), " {\n", members_, "};\n");
}

}  // namespace tilewright::emit

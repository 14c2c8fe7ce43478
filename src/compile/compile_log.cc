#include "compile/compile_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tilewright::compile {
namespace {

std::vector<std::string_view> Lines(std::string_view log) {
  std::vector<std::string_view> lines;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    lines.push_back(log.substr(0, end));
    log.remove_prefix(std::min(end + 1, log.size()));
  }
  return lines;
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The number that stands before `unit`: 12 in "Used 12 registers, 1024 bytes smem" for
// " registers". 0 when the line has no such unit, as ptxas leaves out what is zero.
int NumberBefore(std::string_view line, std::string_view unit) {
  const size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

// The end of the place in "core/types.cuh(12): error: ..." and "a.cu(3): error #20-D: ...", or npos
// for a line that is no error.
size_t ErrorMark(std::string_view line) {
  constexpr std::array<std::string_view, 3> kMarks = {"): error", "): catastrophic error",
                                                      "): internal error"};
  size_t first = std::string_view::npos;
  for (const std::string_view mark : kMarks) first = std::min(first, line.find(mark));
  return first;
}

std::string JoinLines(const std::vector<std::string_view>& lines, size_t begin, size_t end) {
  std::string joined;
  for (size_t i = begin; i < end; ++i) absl::StrAppend(&joined, AbslView(lines[i]), "\n");
  return joined;
}

}  // namespace

std::optional<artifact::ResourceUsage> ParsePtxasReport(std::string_view log,
                                                        std::string_view entry_name) {
  const std::string compiling =
      absl::StrCat("Compiling entry function '", AbslView(entry_name), "'");
  const std::string properties = absl::StrCat("Function properties for ", AbslView(entry_name));
  artifact::ResourceUsage usage;
  bool in_entry = false;
  bool of_entry_itself = false;
  bool found = false;
  for (const std::string_view line : Lines(log)) {
    if (Contains(line, "Compiling entry function '")) {
      in_entry = Contains(line, compiling);
    } else if (!in_entry) {
      continue;
    } else if (Contains(line, "Function properties for ")) {
      of_entry_itself = line.size() >= properties.size() &&
                        line.substr(line.size() - properties.size()) == properties;
    } else if (Contains(line, " bytes stack frame")) {
      if (of_entry_itself) usage.stack_bytes = NumberBefore(line, " bytes stack frame");
      usage.spill_store_bytes += NumberBefore(line, " bytes spill stores");
      usage.spill_load_bytes += NumberBefore(line, " bytes spill loads");
    } else if (Contains(line, " registers") && Contains(line, "Used ")) {
      usage.registers = NumberBefore(line, " registers");
      usage.static_smem_bytes = NumberBefore(line, " bytes smem");
      usage.stack_bytes =
          std::max(usage.stack_bytes, NumberBefore(line, " bytes cumulative stack size"));
      found = true;
    }
  }
  if (!found) return std::nullopt;
  return usage;
}

std::optional<ErrorPlace> FirstErrorPlace(std::string_view log) {
  for (const std::string_view line : Lines(log)) {
    const size_t mark = ErrorMark(line);
    if (mark == std::string_view::npos) continue;
    const size_t open = line.rfind('(', mark);
    if (open == std::string_view::npos) continue;
    ErrorPlace place;
    const char* const end = line.data() + mark;
    const auto [rest, error] = std::from_chars(line.data() + open + 1, end, place.line);
    if (error != std::errc() || rest != end) continue;
    place.file = std::string(line.substr(0, open));
    return place;
  }
  return std::nullopt;
}

std::string ErrorExcerpt(std::string_view log, int max_lines) {
  const std::vector<std::string_view> lines = Lines(log);
  const auto first = std::find_if(lines.begin(), lines.end(), [](std::string_view line) {
    return ErrorMark(line) != std::string_view::npos || Contains(line, "error   :") ||
           Contains(line, "ptxas fatal");
  });
  const size_t begin = first == lines.end() ? 0 : static_cast<size_t>(first - lines.begin());
  const size_t end = std::min(lines.size(), begin + static_cast<size_t>(max_lines));
  std::string excerpt = JoinLines(lines, begin, end);
  while (!excerpt.empty() && excerpt.back() == '\n') excerpt.pop_back();
  return excerpt;
}

std::string WithoutTimings(std::string_view log) {
  std::vector<std::string_view> lines = Lines(log);
  lines.erase(
      std::remove_if(lines.begin(), lines.end(),
                     [](std::string_view line) { return Contains(line, "Compile time = "); }),
      lines.end());
  return JoinLines(lines, 0, lines.size());
}

}  // namespace tilewright::compile

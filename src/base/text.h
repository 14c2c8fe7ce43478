// Bridges between text of the standard library and of Abseil: the distribution's Abseil has a
// string_view of its own, which neither StrCat nor the other functions of absl/strings take a
// std::string_view for. And numbers as text.
#ifndef TILEWRIGHT_BASE_TEXT_H_
#define TILEWRIGHT_BASE_TEXT_H_

#include <charconv>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace tilewright {

// The same characters, for functions of absl/strings.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// The same characters, for everything else.
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

// The shortest text that reads back as the same float or double.
template <typename Float>
std::string ShortestText(Float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_TEXT_H_

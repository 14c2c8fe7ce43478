// The distribution's Abseil has a string_view of its own, which neither StrCat nor the other
// functions of absl/strings take a std::string_view for; this is the bridge.
#ifndef TILEWRIGHT_BASE_TEXT_H_
#define TILEWRIGHT_BASE_TEXT_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace tilewright {

// The same characters, for functions of absl/strings.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// The same characters, for everything else.
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_TEXT_H_

// Reads what NVRTC and ptxas write into the log.
#ifndef TILEWRIGHT_COMPILE_COMPILE_LOG_H_
#define TILEWRIGHT_COMPILE_COMPILE_LOG_H_

#include <optional>
#include <string>
#include <string_view>

#include "artifact/kernel_binary.h"

namespace tilewright::compile {

// The report of ptxas -v on kernel `entry_name`; nullopt when the log has none. Spills are summed
// over the kernel and the functions that it calls, since a spill in any of them is paid for.
std::optional<artifact::ResourceUsage> ParsePtxasReport(std::string_view log,
                                                        std::string_view entry_name);

// The place that the first error of a log points at: "core/types.cuh", 12.
struct ErrorPlace {
  std::string file;
  int line = 0;
};
// nullopt when no error line names a place (errors of the command line, of ptxas).
std::optional<ErrorPlace> FirstErrorPlace(std::string_view log);

// The log from its first error on, at most `max_lines` lines of it; the whole log's first lines
// when no line reads as an error.
std::string ErrorExcerpt(std::string_view log, int max_lines);

// The log without the lines that differ from one compile of the same source to the next.
std::string WithoutTimings(std::string_view log);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_COMPILE_LOG_H_

// What `tilewright tune` shows: a line while it runs, a page afterwards.
#ifndef TILEWRIGHT_CLI_TUNE_REPORT_H_
#define TILEWRIGHT_CLI_TUNE_REPORT_H_

#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "tilewright/options.h"
#include "tune/record.h"

namespace tilewright::cli {

// "[2/8] ########------------ 5/12 candidates, 14 rounds, 2.1 s left, best m128n64 w4 ... at 0.93"
std::string ProgressLine(const TuneProgress& progress, size_t number, size_t of);

// A page that needs nothing beside it (no script, no font, no picture from elsewhere): of each
// record a map of tile sizes with times, the noise band, where the roofline is, and what was
// rejected and why. Times are of the records; `traits` and `board` are for the roofline only.
std::string TuneReportHtml(absl::Span<const tune::TuningRecord> records,
                           const arch::ArchTraits& traits, const arch::BoardProfile& board);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_TUNE_REPORT_H_

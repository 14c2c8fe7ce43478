// The tuning records of cache/tuned/, embedded at build time.
#ifndef TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_
#define TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_

#include <string_view>

#include "absl/types/span.h"

namespace tilewright::tune {

// Whole files, sealed (cache/record_files.h).
absl::Span<const std::string_view> ShippedRecords();

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_

// The tuning records of cache/tuned/, embedded at build time.
#ifndef TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_
#define TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_

#include <string_view>

#include "absl/types/span.h"

namespace tilewright::tune {

struct ShippedRecord {
  std::string_view key;   // RecordKey in 64 hex digits: the name of the file
  std::string_view file;  // all of it, sealed (cache/record_files.h)
};
absl::Span<const ShippedRecord> ShippedRecords();

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_SHIPPED_RECORDS_H_

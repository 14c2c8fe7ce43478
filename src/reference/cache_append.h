// Appending to a cache (tilewright/cache_append.h) in fp64: the oracle of the kernel cache_append.
#ifndef TILEWRIGHT_REFERENCE_CACHE_APPEND_H_
#define TILEWRIGHT_REFERENCE_CACHE_APPEND_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tilewright/cache_append.h"

namespace tilewright::reference {

// What one head of one new token becomes.
struct AppendedRow {
  enum class Tensor { kQ, kK, kV };
  Tensor tensor = Tensor::kQ;
  int64_t offset = 0;          // of its first element in q_out, k_cache or v_cache
  int64_t scale_offset = 0;    // of its scale in k_scale or v_scale; 0 without scales
  std::vector<double> values;  // real ones: not rounded, not divided by a scale
};

struct AppendResult {
  std::vector<AppendedRow> rows;     // nothing else is written
  std::vector<int32_t> new_lengths;  // of each sequence
};

// All pointers of `args` are host pointers; outputs may be null and are not looked at.
absl::StatusOr<AppendResult> Append(const CacheAppendSpec& spec, const CacheAppendArgs& args);

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_CACHE_APPEND_H_

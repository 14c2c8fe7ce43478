// The figures that the program writes to bench/results: how many specs were checked, how many
// failed, and how near the worst one came to its bar.
#ifndef TILEWRIGHT_TESTS_GPU_SUMMARY_H_
#define TILEWRIGHT_TESTS_GPU_SUMMARY_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/accuracy.h"
#include "nlohmann/json.hpp"

namespace tilewright::gpu_tests {

// Thread-safe.
class Summary {
 public:
  static Summary& Get();

  void Record(const std::string& spec, const cli::Accuracy& accuracy, bool passed);
  // A spec that gave no result.
  void RecordFailure(const std::string& spec);

  // Rows in the shape of bench/result_file.h. `tests_failed` is GoogleTest's count.
  std::vector<nlohmann::ordered_json> Rows(int tests_run, int tests_failed,
                                           int tests_skipped) const;

 private:
  struct Worst {
    double share = 0;
    std::string spec;
  };
  static void Update(Worst& worst, double share, const std::string& spec);

  mutable std::mutex mutex_;
  int64_t specs_ = 0;
  int64_t failures_ = 0;
  std::string first_failure_;
  Worst relative_;  // of O, as a share of its bar
  Worst max_abs_;
  Worst lse_;
};

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_SUMMARY_H_

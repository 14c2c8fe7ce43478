// Writes the files of bench/results/<device>/<topic>.json. Programs write them, nobody edits them
// by hand, and the README's tables are made from them. bench/compare.py writes the same shape.
//
//   {"topic", "commit", "date", "device", "driver", "nvrtc", "command", "rows": [ ... ]}
//   row: {"name", "spec", "value", "unit", "peer", "peer_value", "ratio", "must", "aim", "holds",
//         "plan"}; a row that could not be run has "holds": false and "why".
//
// `ratio` is better-than: for times and counts it is peer_value / value, so that 2 is twice as good
// in every row. A bound that is no peer's figure has the peer "limit".
#ifndef TILEWRIGHT_BENCH_RESULT_FILE_H_
#define TILEWRIGHT_BENCH_RESULT_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tilewright::bench {

struct ResultHeader {
  std::string topic;
  std::string commit;   // hash of the tree that was measured
  std::string device;   // as the driver names it: "NVIDIA H200"
  std::string driver;   // "580.159.04"
  std::string nvrtc;    // "13.0.88"
  std::string command;  // how to make the file again
};

// A figure that must not exceed `limit`; `holds` follows from the two.
nlohmann::ordered_json AtMostRow(const std::string& name, double value, const std::string& unit,
                                 double limit);
// A figure that must reach `limit`.
nlohmann::ordered_json AtLeastRow(const std::string& name, double value, const std::string& unit,
                                  double limit);
// A row that could not be run.
nlohmann::ordered_json FailedRow(const std::string& name, const std::string& why);

// Replaces the file, date of today (UTC) included, and creates its folder. Unavailable names the
// path and the error.
absl::Status WriteResultFile(const std::string& path, const ResultHeader& header,
                             const std::vector<nlohmann::ordered_json>& rows);

// The version of the kernel driver, as nvidia-smi shows it ("580.159.04"): from
// /proc/driver/nvidia/version, else from the management library; "unknown" where neither is there.
std::string InstalledDriverVersion();

}  // namespace tilewright::bench

#endif  // TILEWRIGHT_BENCH_RESULT_FILE_H_

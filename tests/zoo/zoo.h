// tests/data/zoo.jsonl: attention workloads of real models, one JSON object a line, as specs.
#ifndef TILEWRIGHT_TESTS_ZOO_ZOO_H_
#define TILEWRIGHT_TESTS_ZOO_ZOO_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tilewright/attention.h"

namespace tilewright {

struct ZooEntry {
  std::string name;
  AttentionSpec spec;   // valid, not canonical; training entries as the forward that keeps its LSE
  std::string out;      // not empty: why no spec expresses the entry, in one line
  std::string remodel;  // what a caller does outside of the kernel, where there is such a thing
};

// Every entry, in the order of the file. InvalidArgument names the entry and the field that has no
// rule here: a new kind of entry must be given one.
absl::StatusOr<std::vector<ZooEntry>> ReadZoo(const std::string& path);

}  // namespace tilewright

#endif  // TILEWRIGHT_TESTS_ZOO_ZOO_H_

// A forward problem that kernels compute on the CPU, held against the fp64 reference.
#ifndef TILEWRIGHT_TESTS_EMULATED_CASE_H_
#define TILEWRIGHT_TESTS_EMULATED_CASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/kernel_plan.h"
#include "reference/reference.h"
#include "tests/emulated/emulator/launch.h"
#include "tests/reference/host_case.h"
#include "tilewright/attention.h"

namespace tilewright::emulated {

struct Scenario {
  std::string spec;
  std::vector<int32_t> lengths_q = {};
  std::vector<int32_t> lengths_kv = {};
  std::function<void(reference::HostCase&)> change = nullptr;  // of the random problem
  std::string score_snippet = "";
  std::string mask_snippet = "";
  std::string mask_tile_snippet = "";
  reference::Callables rules = {};  // what the snippets say
  // What `change` lets the arguments point to, beyond the arrays of the case.
  std::vector<cuda_on_host::MemoryRange> memory = {};
};

// A scenario as one family computes it, by one of the plans that the family offers for it.
struct Emulation {
  Scenario scenario;
  plan::Family family;
  std::string plan = "";  // of this text, if it is not empty
};
void PrintTo(const Emulation& emulation, std::ostream* out);

// Those of `scenarios` and `families` that a family serves.
std::vector<Emulation> Served(const std::vector<Scenario>& scenarios,
                              const std::vector<plan::Family>& families);

// Runs emulation `index` of `all` and compares: O, LSE, that nothing else was written, and that the
// emulator finds no fault. Failures are the current test's. The kernels of the emulations behind
// it are compiled meanwhile, on another core.
void CheckEmulation(const std::vector<Emulation>& all, size_t index);

}  // namespace tilewright::emulated

#endif  // TILEWRIGHT_TESTS_EMULATED_CASE_H_

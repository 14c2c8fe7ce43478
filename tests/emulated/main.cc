// Runs the tests of this folder, or with --spec one spec that is given:
//
//   emulated_test --spec 'fwd bf16 b=1 h=2/1 s=70/130 d=64 causal lse'
//       [--family attn_fwd_sm80] [--plan 'attn_fwd_sm80 sm_90a ...'] [--lengths-q 40,0,7]
//       [--lengths-kv 50,3,9]
//
// Without a plan or a family every family is tried, each with one of its plans.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "plan/kernel_plan.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright::emulated {
namespace {

std::vector<int32_t> Lengths(const std::string& text) {
  std::vector<int32_t> lengths;
  for (const auto piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(piece, &lengths.emplace_back())) std::exit(2);
  }
  return lengths;
}

class GivenSpecTest : public testing::Test {
 public:
  explicit GivenSpecTest(Emulation emulation) : all_{std::move(emulation)} {}
  void TestBody() override { CheckEmulation(all_, 0); }

 private:
  std::vector<Emulation> all_;
};

void Register(const Emulation& emulation) {
  const std::string family(plan::FamilyName(emulation.family));
  testing::RegisterTest("GivenSpecTest", family.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [emulation] { return new GivenSpecTest(emulation); });
}

// False when the flags ask for what there is not.
bool RegisterGiven(const std::map<std::string, std::string>& flags) {
  const auto flag = [&](const char* name) {
    const auto found = flags.find(name);
    return found == flags.end() ? std::string() : found->second;
  };
  const Scenario scenario = {.spec = flag("--spec"),
                             .lengths_q = Lengths(flag("--lengths-q")),
                             .lengths_kv = Lengths(flag("--lengths-kv"))};
  if (!flag("--plan").empty()) {
    const auto plan = plan::ParsePlan(flag("--plan"));
    if (!plan.ok()) {
      std::cerr << plan.status() << "\n";
      return false;
    }
    Register({scenario, plan->family, flag("--plan")});
    return true;
  }
  const auto family = plan::ParseFamily(flag("--family"));
  if (!family.ok()) {
    std::cerr << family.status() << "\n";
    return false;
  }
  std::vector<plan::Family> families = ForwardFamilies();
  if (family->has_value()) families = {**family};
  const std::vector<Emulation> served = Served({scenario}, families);
  for (const Emulation& emulation : served) Register(emulation);
  if (served.empty()) std::cerr << "no family serves " << scenario.spec << "\n";
  return !served.empty();
}

}  // namespace
}  // namespace tilewright::emulated

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int n = 1; n + 1 < argc; n += 2) {
    if (std::string(argv[n]).rfind("--gtest", 0) == 0) break;
    flags[argv[n]] = argv[n + 1];
  }
  if (flags.count("--spec") != 0) {
    testing::InitGoogleTest();
    if (!tilewright::emulated::RegisterGiven(flags)) return 2;
    GTEST_FLAG_SET(filter, "GivenSpecTest.*");
  } else {
    testing::InitGoogleTest(&argc, argv);
  }
  return RUN_ALL_TESTS();
}

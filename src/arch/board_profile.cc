#include "arch/board_profile.h"

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "base/status_macros.h"

namespace tilewright::arch {
namespace {

constexpr int64_t kMb = int64_t{1} << 20;
constexpr int64_t kGb = int64_t{1} << 30;

struct Row {
  std::string_view target;
  std::string_view name;
  int num_sms;
  int64_t l2_bytes;
  int64_t memory_bytes;
  int sm_clock_khz;      // boost
  int memory_clock_khz;  // two transfers a cycle, as the driver counts
  int memory_bus_bits;
};

// One common board of each architecture, from its data sheet; for planning only, where no device
// is at hand to ask.
constexpr Row kRows[] = {
    {"sm_75", "Tesla T4", 40, 4 * kMb, 16 * kGb, 1590000, 5001000, 256},
    {"sm_80", "NVIDIA A100-SXM4-80GB", 108, 40 * kMb, 80 * kGb, 1410000, 1593000, 5120},
    {"sm_86", "NVIDIA A10", 72, 6 * kMb, 24 * kGb, 1695000, 6251000, 384},
    {"sm_87", "Jetson AGX Orin 64GB", 16, 4 * kMb, 64 * kGb, 1300000, 3200000, 256},
    {"sm_89", "NVIDIA L40S", 142, 96 * kMb, 48 * kGb, 2520000, 9001000, 384},
    // The bus as its driver (580) reports it: tuning records are compared with that.
    {"sm_90a", "NVIDIA H200", 132, 60 * kMb, 141 * kGb, 1980000, 3201000, 6016},
    {"sm_100a", "NVIDIA B200", 148, 126 * kMb, 180 * kGb, 1965000, 3996000, 8192},
    {"sm_103a", "NVIDIA B300", 148, 126 * kMb, 288 * kGb, 1920000, 3996000, 8192},
    {"sm_110a", "Jetson AGX Thor", 20, 32 * kMb, 128 * kGb, 1575000, 4266000, 256},
    {"sm_120a", "NVIDIA GeForce RTX 5090", 170, 96 * kMb, 32 * kGb, 2407000, 14001000, 512},
    {"sm_121a", "NVIDIA GB10", 48, 24 * kMb, 128 * kGb, 2418000, 4266000, 256},
};

}  // namespace

absl::StatusOr<BoardProfile> DefaultBoardProfile(std::string_view target) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const ArchTraits traits, FindArchTraits(target));
  for (const Row& row : kRows) {
    if (row.target != traits.target) continue;
    return BoardProfile{.name = std::string(row.name),
                        .num_sms = row.num_sms,
                        .l2_bytes = row.l2_bytes,
                        .memory_bytes = row.memory_bytes,
                        .sm_clock_khz = row.sm_clock_khz,
                        .memory_clock_khz = row.memory_clock_khz,
                        .memory_bus_bits = row.memory_bus_bits};
  }
  return absl::NotFoundError(absl::StrCat("target ", std::string(target), " has no board profile"));
}

}  // namespace tilewright::arch

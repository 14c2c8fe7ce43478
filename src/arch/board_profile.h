// Numbers that differ between boards of one architecture: read from the driver by src/device, or a
// named profile when compiling for a machine that is elsewhere.
#ifndef TILEWRIGHT_ARCH_BOARD_PROFILE_H_
#define TILEWRIGHT_ARCH_BOARD_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tilewright::arch {

struct BoardProfile {
  std::string name;  // as the driver says it: "NVIDIA H200"
  int num_sms = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int sm_clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
};

// The profile assumed for a target when no device is at hand ("sm_90a": NVIDIA H200). NotFound for
// unknown targets.
absl::StatusOr<BoardProfile> DefaultBoardProfile(std::string_view target);

}  // namespace tilewright::arch

#endif  // TILEWRIGHT_ARCH_BOARD_PROFILE_H_

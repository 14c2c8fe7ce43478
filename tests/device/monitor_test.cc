#include "device/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tilewright::device {
namespace {

using ::testing::HasSubstr;

constexpr char kRest[] = "00112233445566778899aabb";

std::string Uuid(const std::string& first) { return first + kRest; }

TEST(DeviceMonitorTest, TellsClocksAndWhatHoldsThemDown) {
  const auto monitor = DeviceMonitor::Open(Uuid("00000000"), TILEWRIGHT_STANDIN_NVML);
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  const auto now = (*monitor)->Read();
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->sm_clock_mhz, 1980);
  EXPECT_EQ(now->memory_clock_mhz, 3201);
  EXPECT_EQ(now->temperature_c, 45);
  EXPECT_FALSE(now->throttled);
  EXPECT_EQ(now->limits, "");
}

TEST(DeviceMonitorTest, HeatThrottlesAndALimitOfPowerDoesNot) {
  const struct {
    const char* reasons;
    bool throttled;
    const char* limits;
  } cases[] = {{"00000400", false, "sw_power_cap"},
               {"00000100", false, ""},  // idle
               {"00002400", true, "sw_power_cap sw_thermal"},
               {"00004800", true, "hw_slowdown hw_thermal"},
               {"00008000", true, "hw_power_brake"}};
  for (const auto& one : cases) {
    const auto monitor = DeviceMonitor::Open(Uuid(one.reasons), TILEWRIGHT_STANDIN_NVML);
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    const auto now = (*monitor)->Read();
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(now->throttled, one.throttled) << one.reasons;
    EXPECT_EQ(now->limits, one.limits);
  }
}

TEST(DeviceMonitorTest, SaysWhyItCannotTell) {
  EXPECT_THAT(
      std::string(DeviceMonitor::Open(Uuid("00000000"), "no_such_library.so").status().message()),
      HasSubstr("no_such_library.so cannot be opened"));
  EXPECT_THAT(
      std::string(DeviceMonitor::Open("MIG-1234", TILEWRIGHT_STANDIN_NVML).status().message()),
      HasSubstr("does not know the device MIG-1234"));
  const absl::Status silent =
      DeviceMonitor::Open(Uuid("00000001"), TILEWRIGHT_STANDIN_NVML).status();
  EXPECT_EQ(silent.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(silent.message()), HasSubstr("error 3"));
}

}  // namespace
}  // namespace tilewright::device

// What the driver's management library (NVML) says of a device while it works: clocks, heat, and
// what holds the clocks down. It is not needed for anything else, and absent in many containers.
#ifndef TILEWRIGHT_DEVICE_MONITOR_H_
#define TILEWRIGHT_DEVICE_MONITOR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tilewright::device {

struct DeviceConditions {
  int sm_clock_mhz = 0;
  int memory_clock_mhz = 0;
  int temperature_c = 0;
  // By heat or by a failing supply: the device is slower than it will be. Its limit of power is
  // none of these: under heavy load that is how it always runs.
  bool throttled = false;
  std::string limits = {};  // of the clocks: "sw_power_cap sync_boost"; empty: none
};

// Used by one thread at a time.
class DeviceMonitor {
 public:
  // Of the device with that UUID, in hex. Unavailable without the library, or where it does not
  // know the device (a MIG slice): the message says which.
  static absl::StatusOr<std::unique_ptr<DeviceMonitor>> Open(
      const std::string& uuid, const char* library = "libnvidia-ml.so.1");
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  // Now, or a few milliseconds ago: takes some microseconds. Unavailable when the library fails.
  absl::StatusOr<DeviceConditions> Read() const;

 private:
  struct Api;
  DeviceMonitor();
  std::unique_ptr<Api> api_;
};

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_MONITOR_H_

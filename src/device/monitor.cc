#include "device/monitor.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tilewright::device {
namespace {

// Of nvml.h, whose functions keep their signatures under these names.
constexpr unsigned kClockSm = 1;
constexpr unsigned kClockMemory = 2;
constexpr unsigned kTemperatureGpu = 0;

struct Limit {
  uint64_t bit;
  const char* name;
  bool throttles;
};
constexpr Limit kLimits[] = {
    {0x2, "applications_clocks", false}, {0x4, "sw_power_cap", false},
    {0x8, "hw_slowdown", true},          {0x10, "sync_boost", false},
    {0x20, "sw_thermal", true},          {0x40, "hw_thermal", true},
    {0x80, "hw_power_brake", true},      {0x100, "display_clock", false},
};

// 8-4-4-4-12 digits behind "GPU-".
std::string NvmlUuid(const std::string& hex) {
  if (hex.size() != 32) return hex;
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

}  // namespace

struct DeviceMonitor::Api {
  void* library = nullptr;
  bool started = false;
  void* device = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*handle_by_uuid)(const char*, void**) = nullptr;
  int (*clock)(void*, unsigned, unsigned*) = nullptr;
  int (*temperature)(void*, unsigned, unsigned*) = nullptr;
  int (*limits)(void*, unsigned long long*) = nullptr;

  template <typename Function>
  absl::Status Resolve(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function != nullptr) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the NVML found has no ", name));
  }
};

DeviceMonitor::DeviceMonitor() : api_(std::make_unique<Api>()) {}

DeviceMonitor::~DeviceMonitor() {
  if (api_->started) api_->shutdown();
  if (api_->library != nullptr) dlclose(api_->library);
}

absl::StatusOr<std::unique_ptr<DeviceMonitor>> DeviceMonitor::Open(const std::string& uuid,
                                                                   const char* library) {
  std::unique_ptr<DeviceMonitor> monitor(new DeviceMonitor());
  Api& api = *monitor->api_;
  api.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (api.library == nullptr) {
    return absl::UnavailableError(absl::StrCat("no NVML: ", library, " cannot be opened"));
  }
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlInit_v2", &api.init));
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlShutdown", &api.shutdown));
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlDeviceGetHandleByUUID", &api.handle_by_uuid));
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlDeviceGetClockInfo", &api.clock));
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlDeviceGetTemperature", &api.temperature));
  // The name that every driver has; since 535 there is another one for the same.
  TILEWRIGHT_RETURN_IF_ERROR(api.Resolve("nvmlDeviceGetCurrentClocksThrottleReasons", &api.limits));
  if (const int error = api.init(); error != 0) {
    return absl::UnavailableError(absl::StrCat("NVML does not start: error ", error));
  }
  api.started = true;
  if (const int error = api.handle_by_uuid(NvmlUuid(uuid).c_str(), &api.device); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("NVML does not know the device ", NvmlUuid(uuid), ": error ", error));
  }
  TILEWRIGHT_RETURN_IF_ERROR(monitor->Read().status());
  return monitor;
}

absl::StatusOr<DeviceConditions> DeviceMonitor::Read() const {
  unsigned sm = 0;
  unsigned memory = 0;
  unsigned degrees = 0;
  unsigned long long bits = 0;
  const int errors[] = {api_->clock(api_->device, kClockSm, &sm),
                        api_->clock(api_->device, kClockMemory, &memory),
                        api_->temperature(api_->device, kTemperatureGpu, &degrees),
                        api_->limits(api_->device, &bits)};
  for (const int error : errors) {
    if (error != 0) {
      return absl::UnavailableError(
          absl::StrCat("NVML does not tell clocks, temperature and their limits: error ", error));
    }
  }
  DeviceConditions conditions = {.sm_clock_mhz = static_cast<int>(sm),
                                 .memory_clock_mhz = static_cast<int>(memory),
                                 .temperature_c = static_cast<int>(degrees)};
  for (const Limit& limit : kLimits) {
    if ((bits & limit.bit) == 0) continue;
    conditions.throttled = conditions.throttled || limit.throttles;
    absl::StrAppend(&conditions.limits, conditions.limits.empty() ? "" : " ", limit.name);
  }
  return conditions;
}

}  // namespace tilewright::device

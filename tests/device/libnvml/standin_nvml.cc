// Stands in for NVML: one device, whose state the UUID that is asked for encodes.
#include <cstring>

namespace {
// Of the first 8 digits of the UUID: throttle reasons, then whether reading fails.
unsigned long long reasons = 0;
bool fails = false;
}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strncmp(uuid, "GPU-", 4) != 0 || std::strlen(uuid) != 40 || uuid[12] != '-') return 6;
  reasons = 0;
  for (int n = 4; n < 10; ++n) {
    const char digit = uuid[n];
    reasons = reasons * 16 + static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  fails = uuid[11] == '1';
  *device = &reasons;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 3201;
  return fails ? 3 : 0;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* degrees) {
  *degrees = 45;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = reasons;
  return 0;
}

}  // extern "C"

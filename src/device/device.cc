#include "device/device.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "device/driver_api.h"

namespace tilewright::device {
namespace {

constexpr size_t kNameBytes = 256;

absl::StatusOr<DeviceInfo> Describe(const DriverApi& api, int ordinal, int driver_version) {
  CUdevice device = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGet, &device, ordinal);
  DeviceInfo info;
  info.ordinal = ordinal;
  info.driver_version = driver_version;
  int l2_bytes = 0;
  const std::pair<CUdevice_attribute, int*> attributes[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info.compute_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info.compute_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info.board.num_sms},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2_bytes},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &info.board.sm_clock_khz},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &info.board.memory_clock_khz},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &info.board.memory_bus_bits},
  };
  for (const auto& [attribute, value] : attributes) {
    TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGetAttribute, value, attribute, device);
  }
  info.board.l2_bytes = l2_bytes;
  char name[kNameBytes] = {};
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGetName, name, kNameBytes - 1, device);
  info.board.name = name;
  size_t memory_bytes = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceTotalMem, &memory_bytes, device);
  info.board.memory_bytes = static_cast<int64_t>(memory_bytes);
  CUuuid uuid = {};
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGetUuid, &uuid, device);
  info.uuid = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  absl::StatusOr<arch::ArchTraits> traits =
      arch::ArchTraitsForDevice(info.compute_major, info.compute_minor);
  if (traits.ok()) {
    info.traits = *traits;
  } else {
    info.unserved = std::string(traits.status().message());
  }
  return info;
}

}  // namespace

struct DeviceManager::State {
  explicit State(size_t devices) : primary(devices, nullptr) {}
  Mutex mutex;
  std::vector<ContextHandle> primary ABSL_GUARDED_BY(mutex);  // by ordinal, nullptr: not retained
};

absl::StatusOr<std::shared_ptr<DeviceManager>> DeviceManager::Create() {
  TILEWRIGHT_ASSIGN_OR_RETURN(const DriverApi* api, LoadDriver());
  return Create(api);
}

absl::StatusOr<std::shared_ptr<DeviceManager>> DeviceManager::Create(const DriverApi* api) {
  int count = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api, cuDeviceGetCount, &count);
  if (count == 0) {
    return absl::FailedPreconditionError(
        "the CUDA driver finds no device; see CUDA_VISIBLE_DEVICES, and whether the container was "
        "started with a GPU");
  }
  int driver_version = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api, cuDriverGetVersion, &driver_version);
  std::shared_ptr<DeviceManager> manager(new DeviceManager());
  manager->api_ = api;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TILEWRIGHT_ASSIGN_OR_RETURN(DeviceInfo info, Describe(*api, ordinal, driver_version));
    manager->devices_.push_back(std::move(info));
  }
  manager->state_ = std::make_unique<State>(manager->devices_.size());
  return manager;
}

DeviceManager::DeviceManager() = default;
DeviceManager::~DeviceManager() = default;

absl::StatusOr<DeviceManager::Current> DeviceManager::CurrentOrPrimary(int default_ordinal) {
  Current current;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuCtxGetCurrent, &current.context);
  int ordinal = default_ordinal;
  if (current.context != nullptr) {
    CUdevice device = 0;
    TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuCtxGetDevice, &device);
    // A CUdevice is the ordinal that cuDeviceGet was given.
    ordinal = static_cast<int>(device);
  }
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("device_ordinal is ", ordinal, "; there are ",
                                                   devices_.size(), " devices, counted from 0"));
  }
  current.device = &devices_[static_cast<size_t>(ordinal)];
  if (!current.device->unserved.empty()) {
    return absl::UnimplementedError(absl::StrCat("device ", ordinal, " (",
                                                 current.device->board.name,
                                                 ") cannot be served: ", current.device->unserved));
  }
  if (current.context == nullptr) {
    MutexLock lock(&state_->mutex);
    ContextHandle& primary = state_->primary[static_cast<size_t>(ordinal)];
    if (primary == nullptr) {
      CUdevice device = 0;
      TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuDeviceGet, &device, ordinal);
      TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuDevicePrimaryCtxRetain, &primary, device);
    }
    current.context = primary;
  }
  unsigned long long id = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuCtxGetId, current.context, &id);
  current.context_id = id;
  return current;
}

ContextHandle DeviceManager::CurrentContext() const {
  ContextHandle context = nullptr;
  return api_->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

absl::StatusOr<bool> DeviceManager::IsCapturing(StreamHandle stream) const {
  constexpr StreamHandle kLegacyStream = nullptr;
  for (const StreamHandle asked : {stream, kLegacyStream}) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = api_->cuStreamIsCapturing(asked, &status);
    // The legacy stream's answer while a stream that it waits for is being captured.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    // A thread without a context has no legacy stream.
    if (result == CUDA_ERROR_INVALID_CONTEXT && asked == kLegacyStream) return false;
    TILEWRIGHT_RETURN_IF_ERROR(api_->Check(result, "cuStreamIsCapturing", __FILE__, __LINE__));
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return true;
  }
  return false;
}

RelaxedCaptureMode::RelaxedCaptureMode(const DriverApi& api) : api_(api) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  mode_ = mode;
}

RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (!exchanged_) return;
  auto mode = static_cast<CUstreamCaptureMode>(mode_);
  api_.cuThreadExchangeStreamCaptureMode(&mode);
}

absl::StatusOr<ScopedContext> ScopedContext::Push(const DriverApi& api, ContextHandle context) {
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuCtxPushCurrent, context);
  return ScopedContext(&api);
}

ScopedContext::ScopedContext(ScopedContext&& other) noexcept
    : api_(std::exchange(other.api_, nullptr)) {}

ScopedContext::~ScopedContext() {
  if (api_ == nullptr) return;
  // A failure means that the context or the driver is gone, and with them what was to be restored.
  ContextHandle popped = nullptr;
  api_->cuCtxPopCurrent(&popped);
}

}  // namespace tilewright::device

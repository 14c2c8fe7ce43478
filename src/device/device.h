// A device and the context to use on it, free of <cuda.h> so that the layers above need no CUDA
// header.
#ifndef TILEWRIGHT_DEVICE_DEVICE_H_
#define TILEWRIGHT_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"

struct CUctx_st;
struct CUstream_st;

namespace tilewright::device {

struct DriverApi;

using ContextHandle = CUctx_st*;
using StreamHandle = CUstream_st*;

// One GPU as the driver describes it.
struct DeviceInfo {
  int ordinal = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int driver_version = 0;  // as CUDA_VERSION: 13000
  std::string uuid;        // hex
  arch::BoardProfile board;
  arch::ArchTraits traits;  // the row that serves it
  std::string unserved;     // why no row does, and `traits` says nothing; empty otherwise
};

// The driver, its devices and their primary contexts. Thread-safe. Primary contexts retained here
// are never released: at process exit the driver may be gone before us.
class DeviceManager {
 public:
  // Loads the driver. Unavailable without one, FailedPrecondition without a device.
  static absl::StatusOr<std::shared_ptr<DeviceManager>> Create();
  // On a given table, which outlives the manager (tests).
  static absl::StatusOr<std::shared_ptr<DeviceManager>> Create(const DriverApi* api);

  struct Current {
    ContextHandle context = nullptr;
    // Of this context alone: another one may come to lie at the address of a destroyed one.
    uint64_t context_id = 0;
    const DeviceInfo* device = nullptr;  // lives as long as the manager
  };
  // The calling thread's current context and its device. Where there is none: the primary context
  // of `default_ordinal`, which is not made current. InvalidArgument for an ordinal that no device
  // has, Unimplemented for a device that no architecture row serves.
  absl::StatusOr<Current> CurrentOrPrimary(int default_ordinal);

  // The calling thread's current context, nullptr when none.
  ContextHandle CurrentContext() const;

  // Whether the given stream is being captured, or one that the legacy default stream waits for.
  // Leaves a capture as it is.
  absl::StatusOr<bool> IsCapturing(StreamHandle stream) const;

  absl::Span<const DeviceInfo> devices() const { return devices_; }
  const DriverApi& api() const { return *api_; }

  ~DeviceManager();

 private:
  struct State;
  DeviceManager();
  const DriverApi* api_ = nullptr;
  std::vector<DeviceInfo> devices_;
  std::unique_ptr<State> state_;
};

// While some thread captures in global mode, allocating, loading and waiting on any other is
// forbidden and spoils that capture. What does not enqueue anything that a capture could miss lifts
// the rule for its scope, in its own thread.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const DriverApi& api);
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;
  ~RelaxedCaptureMode();

 private:
  const DriverApi& api_;
  int mode_;  // that was
  bool exchanged_;
};

// Makes a context current for a scope and restores the caller's.
class ScopedContext {
 public:
  static absl::StatusOr<ScopedContext> Push(const DriverApi& api, ContextHandle context);
  ScopedContext(ScopedContext&& other) noexcept;
  ScopedContext& operator=(ScopedContext&&) = delete;
  ~ScopedContext();

 private:
  explicit ScopedContext(const DriverApi* api) : api_(api) {}
  const DriverApi* api_;
};

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_DEVICE_H_

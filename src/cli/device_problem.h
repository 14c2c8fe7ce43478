// A HostProblem on a device.
#ifndef TILEWRIGHT_CLI_DEVICE_PROBLEM_H_
#define TILEWRIGHT_CLI_DEVICE_PROBLEM_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/random_problem.h"
#include "device/device.h"
#include "device/memory.h"

namespace tilewright::cli {

// Belongs to the context that was current when it was made.
class DeviceProblem {
 public:
  // Allocates and copies every buffer of `problem`, outputs (poison) included, on `stream`.
  static absl::StatusOr<DeviceProblem> Upload(const device::DriverApi& api,
                                              const HostProblem& problem,
                                              device::StreamHandle stream);

  // Device pointers; the caller adds the workspace.
  const AttentionArgs& args() const { return args_; }

  // Copies o and lse back into the host problem it was made from; synchronises the stream.
  absl::Status Download(HostProblem& problem, device::StreamHandle stream) const;

 private:
  std::vector<device::DeviceBuffer> buffers_;
  AttentionArgs args_;
};

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_DEVICE_PROBLEM_H_

#include "cli/device_problem.h"

#include "base/status_macros.h"

namespace tilewright::cli {

absl::StatusOr<DeviceProblem> DeviceProblem::Upload(const device::DriverApi& api,
                                                    const HostProblem& problem,
                                                    device::StreamHandle stream) {
  DeviceProblem uploaded;
  std::vector<void*> bases;
  for (const HostBuffer& buffer : problem.buffers()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer copy,
                                device::DeviceBuffer::Allocate(api, buffer.size));
    TILEWRIGHT_RETURN_IF_ERROR(copy.CopyFromHost(buffer.base(), buffer.size, stream));
    bases.push_back(copy.data());
    uploaded.buffers_.push_back(std::move(copy));
  }
  uploaded.args_ = problem.ArgsAt(bases);
  return uploaded;
}

absl::Status DeviceProblem::Download(HostProblem& problem, device::StreamHandle stream) const {
  absl::Span<HostBuffer> host = problem.buffers();
  for (size_t n = 0; n < buffers_.size(); ++n) {
    if (!host[n].output) continue;
    TILEWRIGHT_RETURN_IF_ERROR(buffers_[n].CopyToHost(host[n].base(), host[n].size, stream));
  }
  return absl::OkStatus();
}

}  // namespace tilewright::cli

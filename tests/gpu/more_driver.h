// Driver functions that only the tests call: stream capture, graphs, and contexts beside the
// primary one.
#ifndef TILEWRIGHT_TESTS_GPU_MORE_DRIVER_H_
#define TILEWRIGHT_TESTS_GPU_MORE_DRIVER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/driver_api.h"

namespace tilewright::gpu_tests {

struct MoreDriver {
  decltype(&::cuStreamBeginCapture) begin_capture = nullptr;
  decltype(&::cuStreamEndCapture) end_capture = nullptr;
  decltype(&::cuGraphInstantiateWithFlags) instantiate = nullptr;
  decltype(&::cuGraphLaunch) launch = nullptr;
  decltype(&::cuGraphDestroy) destroy_graph = nullptr;
  decltype(&::cuGraphExecDestroy) destroy_executable = nullptr;
  // The form of CUDA 11, which every driver still has.
  CUresult (*create_context)(CUcontext*, unsigned int, CUdevice) = nullptr;
  decltype(&::cuCtxDestroy) destroy_context = nullptr;
  decltype(&::cuDevicePrimaryCtxReset) reset_primary_context = nullptr;

  // Needs a driver; aborts when a function is missing, which no driver that serves 12.4 does.
  static const MoreDriver& Get();
};

// A stream that synchronises with the legacy default stream, unlike device::OwnedStream.
class BlockingStream {
 public:
  explicit BlockingStream(const device::DriverApi& api);
  ~BlockingStream();
  BlockingStream(const BlockingStream&) = delete;
  BlockingStream& operator=(const BlockingStream&) = delete;
  CUstream get() const { return stream_; }

 private:
  const device::DriverApi& api_;
  CUstream stream_ = nullptr;
};

// What a capture recorded, ready to launch.
class Graph {
 public:
  // Ends the capture that is active on `stream`.
  static absl::StatusOr<Graph> End(const device::DriverApi& api, CUstream stream);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&&) = delete;
  ~Graph();
  absl::Status Launch(CUstream stream) const;

 private:
  explicit Graph(const device::DriverApi& api) : api_(&api) {}
  const device::DriverApi* api_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_MORE_DRIVER_H_

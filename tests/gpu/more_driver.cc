#include "tests/gpu/more_driver.h"

#include <dlfcn.h>

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace tilewright::gpu_tests {
namespace {

template <typename Function>
void Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TILEWRIGHT_CHECK(function != nullptr);
}

// cuda.h renames functions by macros: the name to look up is what the macro makes of it.
#define TILEWRIGHT_NAME_INNER(name) #name
#define TILEWRIGHT_NAME(name) TILEWRIGHT_NAME_INNER(name)

}  // namespace

const MoreDriver& MoreDriver::Get() {
  static const auto* functions = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    TILEWRIGHT_CHECK(library != nullptr);
    auto* all = new MoreDriver;
    Resolve(library, TILEWRIGHT_NAME(cuStreamBeginCapture), all->begin_capture);
    Resolve(library, TILEWRIGHT_NAME(cuStreamEndCapture), all->end_capture);
    Resolve(library, TILEWRIGHT_NAME(cuGraphInstantiateWithFlags), all->instantiate);
    Resolve(library, TILEWRIGHT_NAME(cuGraphLaunch), all->launch);
    Resolve(library, TILEWRIGHT_NAME(cuGraphDestroy), all->destroy_graph);
    Resolve(library, TILEWRIGHT_NAME(cuGraphExecDestroy), all->destroy_executable);
    Resolve(library, "cuCtxCreate_v2", all->create_context);
    Resolve(library, TILEWRIGHT_NAME(cuCtxDestroy), all->destroy_context);
    Resolve(library, TILEWRIGHT_NAME(cuDevicePrimaryCtxReset), all->reset_primary_context);
    return all;
  }();
  return *functions;
}

BlockingStream::BlockingStream(const device::DriverApi& api) : api_(api) {
  TILEWRIGHT_CHECK(api_.cuStreamCreate(&stream_, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
}

BlockingStream::~BlockingStream() { api_.cuStreamDestroy(stream_); }

absl::StatusOr<Graph> Graph::End(const device::DriverApi& api, CUstream stream) {
  const MoreDriver& driver = MoreDriver::Get();
  Graph graph(api);
  TILEWRIGHT_RETURN_IF_ERROR(api.Check(driver.end_capture(stream, &graph.graph_),
                                       "cuStreamEndCapture", __FILE__, __LINE__));
  TILEWRIGHT_RETURN_IF_ERROR(api.Check(driver.instantiate(&graph.executable_, graph.graph_, 0),
                                       "cuGraphInstantiateWithFlags", __FILE__, __LINE__));
  return graph;
}

Graph::Graph(Graph&& other) noexcept
    : api_(other.api_),
      graph_(std::exchange(other.graph_, nullptr)),
      executable_(std::exchange(other.executable_, nullptr)) {}

Graph::~Graph() {
  if (executable_ != nullptr) MoreDriver::Get().destroy_executable(executable_);
  if (graph_ != nullptr) MoreDriver::Get().destroy_graph(graph_);
}

absl::Status Graph::Launch(CUstream stream) const {
  return api_->Check(MoreDriver::Get().launch(executable_, stream), "cuGraphLaunch", __FILE__,
                     __LINE__);
}

}  // namespace tilewright::gpu_tests

// An emitted kernel as a library of the host, to be launched on the CPU.
#ifndef TILEWRIGHT_TESTS_EMULATED_KERNEL_H_
#define TILEWRIGHT_TESTS_EMULATED_KERNEL_H_

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "artifact/kernel_source.h"
#include "tests/emulated/emulator/launch.h"

namespace tilewright::emulated {

// Compiled by the compiler that built this program, with cuda_on_host.h in CUDA's place.
// Different kernels may be made by different threads.
class Kernel {
 public:
  explicit Kernel(const artifact::KernelSource& source);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Why there is no kernel; empty when there is one.
  const std::string& error() const { return error_; }

  // Runs `grid` blocks of `threads` threads, in clusters of `cluster`, with `smem_bytes` of shared
  // memory each. `params` points to
  // the kernel's parameters, `memory` is what they point to. Returns what was found wrong, with
  // the line of the kernel where there is one.
  std::vector<std::string> Launch(const void* params, size_t param_bytes, unsigned grid,
                                  int threads, int cluster, size_t smem_bytes,
                                  std::vector<cuda_on_host::MemoryRange> memory) const;

 private:
  bool Compile(const std::string& flags, const std::string& output) const;
  std::string LineOf(uintptr_t code) const;

  std::filesystem::path folder_;
  std::string error_;
  void* library_ = nullptr;
};

}  // namespace tilewright::emulated

#endif  // TILEWRIGHT_TESTS_EMULATED_KERNEL_H_

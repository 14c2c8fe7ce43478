// A compiled kernel.
#ifndef TILEWRIGHT_ARTIFACT_KERNEL_BINARY_H_
#define TILEWRIGHT_ARTIFACT_KERNEL_BINARY_H_

#include <string>

namespace tilewright::artifact {

// What ptxas reported.
struct ResourceUsage {
  int registers = 0;          // per thread
  int static_smem_bytes = 0;  // per block
  int stack_bytes = 0;        // per thread
  int spill_store_bytes = 0;  // per thread
  int spill_load_bytes = 0;
};

struct KernelBinary {
  std::string entry_name;
  std::string target;  // "sm_90a"
  std::string cubin;   // ELF bytes
  std::string log;     // of the compiler, warnings and ptxas report
  ResourceUsage usage;
  double compile_ms = 0;
  std::string compiler;  // "nvrtc 13.0.88"
};

}  // namespace tilewright::artifact

#endif  // TILEWRIGHT_ARTIFACT_KERNEL_BINARY_H_

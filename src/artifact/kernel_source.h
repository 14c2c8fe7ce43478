// The text of one kernel, complete: what NVRTC receives and the key is made of.
#ifndef TILEWRIGHT_ARTIFACT_KERNEL_SOURCE_H_
#define TILEWRIGHT_ARTIFACT_KERNEL_SOURCE_H_

#include <string>
#include <vector>

namespace tilewright::artifact {

struct SourceFile {
  std::string name;  // as included: "policy/mask_window.cuh"
  std::string text;
};

struct KernelSource {
  std::string entry_name;  // extern "C" name of the kernel
  std::string unit_name;   // file name of the translation unit in compile errors: "<entry>.cu"
  std::string text;        // the translation unit
  std::vector<SourceFile>
      generated_headers;  // beside the template bundle; user snippets among them
};

}  // namespace tilewright::artifact

#endif  // TILEWRIGHT_ARTIFACT_KERNEL_SOURCE_H_

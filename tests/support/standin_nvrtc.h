// The stand-in for NVRTC (tests/compile/libnvrtc/misbehaving_libnvrtc.cc), and kernels that ask it
// to misbehave.
#ifndef TILEWRIGHT_TESTS_SUPPORT_STANDIN_NVRTC_H_
#define TILEWRIGHT_TESTS_SUPPORT_STANDIN_NVRTC_H_

#include <filesystem>
#include <string>

#include "compile/nvrtc_compiler.h"

namespace tilewright::testing {

inline compile::NvrtcCompiler StandInCompiler() {
  return compile::NvrtcCompiler({.nvrtc_path = TILEWRIGHT_MISBEHAVING_LIBNVRTC});
}

// The program of these tests, which is its own helper process where its main() says so.
inline std::string ThisProgram() { return std::filesystem::read_symlink("/proc/self/exe"); }

// `word` is what the stand-in is to do.
inline artifact::KernelSource AskFor(const std::string& word) {
  return {
      .entry_name = "k", .unit_name = "k.cu", .text = "// ask:" + word, .generated_headers = {}};
}

inline compile::CompileRequest RequestOf(const artifact::KernelSource& source) {
  return {source, {}, "sm_90a", compile::CompileOptions("sm_90a", false)};
}

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_STANDIN_NVRTC_H_

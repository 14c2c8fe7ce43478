// A look at the ELF header of a cubin before its bytes reach the driver.
#ifndef TILEWRIGHT_BUILD_CUBIN_CHECK_H_
#define TILEWRIGHT_BUILD_CUBIN_CHECK_H_

#include <string_view>

#include "absl/status/status.h"

namespace tilewright::build {

// OK when `cubin` is a whole 64-bit little-endian CUDA ELF file for the SM of `target` ("sm_90a").
// DataLoss says what is wrong. The tables that the header names must lie inside the bytes; what
// they hold is not looked at.
absl::Status CheckCubin(std::string_view cubin, std::string_view target);

}  // namespace tilewright::build

#endif  // TILEWRIGHT_BUILD_CUBIN_CHECK_H_

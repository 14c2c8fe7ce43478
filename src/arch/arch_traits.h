// What a GPU architecture has: one constexpr row per target, no code. Facts that differ between
// boards of one architecture are in board_profile.h. Planners ask the row, never the SM number.
#ifndef TILEWRIGHT_ARCH_ARCH_TRAITS_H_
#define TILEWRIGHT_ARCH_ARCH_TRAITS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tilewright::arch {

enum class MmaKind { kNone, kM16n8k8, kM16n8k16 };  // the widest mma.sync for 16-bit types

struct ArchTraits {
  std::string_view target;   // as NVRTC takes it: "sm_90a"
  int sm;                    // 90
  int smem_per_block_optin;  // bytes
  int smem_per_sm;
  int smem_reserved_per_block;
  int regs_per_sm;
  int max_regs_per_thread;
  int max_warps_per_sm;
  int max_blocks_per_sm;
  MmaKind mma;
  bool has_cp_async;
  bool has_ldmatrix;
  bool has_bf16_mma;
  bool has_tf32_mma;
  bool has_tma;
  bool has_wgmma;
  bool has_setmaxnreg;
  bool has_cluster;
  bool has_pdl;
  bool has_tcgen05;
  int min_nvrtc;  // major * 1000 + minor * 10, as CUDA_VERSION
};

// Every target that the compile matrix covers, ascending.
absl::Span<const ArchTraits> AllArchTraits();

// The row for a target name ("sm_90a", or "sm_90" for the row of that SM). NotFound lists the known
// ones.
absl::StatusOr<ArchTraits> FindArchTraits(std::string_view target);

// The row that serves a device of this compute capability: its own SM, else the newest of the same
// major version that is not newer and whose cubins load there (those of "a" targets load on their
// own SM only). NotFound names the capability and the known targets.
absl::StatusOr<ArchTraits> ArchTraitsForDevice(int major, int minor);

}  // namespace tilewright::arch

#endif  // TILEWRIGHT_ARCH_ARCH_TRAITS_H_

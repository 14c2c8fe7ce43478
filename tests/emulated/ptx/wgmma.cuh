// kernel_templates/ptx/wgmma.cuh on the host. The emitted products keep their text: see
// emulator/wgmma.cc.
#ifndef TILEWRIGHT_PTX_WGMMA_CUH_
#define TILEWRIGHT_PTX_WGMMA_CUH_

#include "core/types.cuh"

namespace cuda_on_host {

// Runs the text of an asm statement: %0 to %n are the `outputs`, then the 32-bit `inputs`, then the
// `wide` ones. Text as emitted by src/emit/wgmma_wrapper.cc.
void RunProducts(const char* text, float* const* outputs, int output_count,
                 const unsigned* const* inputs, int input_count, const unsigned long long* wide,
                 int wide_count);
void FenceProducts();
void CommitProducts();
void WaitForProducts(int pending);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void wgmma_fence() { cuda_on_host::FenceProducts(); }
inline void wgmma_commit_group() { cuda_on_host::CommitProducts(); }

template <int kPending>
void wgmma_wait_group() {
  cuda_on_host::WaitForProducts(kPending);
}

template <int kCount>
void AccumulatorsReady(float (&)[kCount]) {}

inline u64 SwizzledDescriptor(u32 address, u32 leading_bytes) {
  return u64{(address & 0x3ffff) >> 4} | u64{leading_bytes >> 4} << 16 | u64{1024 >> 4} << 32 |
         u64{1} << 62;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_WGMMA_CUH_

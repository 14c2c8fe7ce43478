// kernel_templates/ptx/cp_async.cuh on the host.
#ifndef TILEWRIGHT_PTX_CP_ASYNC_CUH_
#define TILEWRIGHT_PTX_CP_ASYNC_CUH_

namespace cuda_on_host {

// Reads `source_bytes` at once and writes `bytes` when the group that the next CommitCopies closes
// is waited for.
void StartCopy(unsigned destination, const void* source, int bytes, int source_bytes);
void CommitCopies();
// Until at most `pending` groups of this thread are left.
void WaitForCopies(int pending);
// Arrives at an mbarrier, once all copies of this thread are done, which is at once.
void ArriveBehindCopies(unsigned barrier);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline unsigned SharedAddress(const void* pointer) { return cuda_on_host::SharedOffset(pointer); }

inline void cp_async_cg_16(unsigned destination, const void* source, int source_bytes) {
  cuda_on_host::StartCopy(destination, source, 16, source_bytes);
}

template <int kBytes>
void cp_async_ca(unsigned destination, const void* source, int source_bytes) {
  static_assert(kBytes == 4 || kBytes == 8);
  cuda_on_host::StartCopy(destination, source, kBytes, source_bytes);
}

inline void cp_async_commit_group() { cuda_on_host::CommitCopies(); }

template <int kPending>
void cp_async_wait_group() {
  cuda_on_host::WaitForCopies(kPending);
}

inline void cp_async_mbarrier_arrive(unsigned barrier) {
  cuda_on_host::ArriveBehindCopies(barrier);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CP_ASYNC_CUH_

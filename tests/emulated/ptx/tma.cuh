// kernel_templates/ptx/tma.cuh on the host.
#ifndef TILEWRIGHT_PTX_TMA_CUH_
#define TILEWRIGHT_PTX_TMA_CUH_

#include "abi/tensor_map.h"
#include "core/types.cuh"
#include "emulator/bulk_copy.h"

namespace tilewright {
namespace ptx {

inline void prefetch_tensormap(const abi::TensorMap* map) { cuda_on_host::PrefetchMap(map); }

inline void cp_async_bulk_tensor_4d_load(u32 destination, const abi::TensorMap* map, u32 barrier,
                                         int x, int y, int z, int w) {
  const int at[4] = {x, y, z, w};
  cuda_on_host::StartBulkLoad(destination, map, barrier, at, 4, cuda_on_host::OwnBlock());
}

inline void cp_async_bulk_tensor_4d_load_evict_first(u32 destination, const abi::TensorMap* map,
                                                     u32 barrier, int x, int y, int z, int w) {
  cp_async_bulk_tensor_4d_load(destination, map, barrier, x, y, z, w);
}

inline void cp_async_bulk_tensor_4d_load_multicast(u32 destination, const abi::TensorMap* map,
                                                   u32 barrier, int x, int y, int z, int w,
                                                   u16 blocks) {
  const int at[4] = {x, y, z, w};
  cuda_on_host::StartBulkLoad(destination, map, barrier, at, 4, blocks);
}

inline void cp_async_bulk_tensor_4d_store(const abi::TensorMap* map, u32 source, int x, int y,
                                          int z, int w) {
  const int at[4] = {x, y, z, w};
  cuda_on_host::StartBulkStore(map, source, at, 4);
}

inline void cp_reduce_async_bulk_add_f32(float* at, u32 source, u32 bytes) {
  cuda_on_host::StartBulkAdd(at, source, bytes);
}

inline void cp_async_bulk_commit_group() { cuda_on_host::CommitBulkStores(); }
inline void cp_async_bulk_wait_group_read_0() { cuda_on_host::WaitForBulkStores(0); }
inline void cp_async_bulk_wait_group_0() { cuda_on_host::WaitForBulkStores(0); }
inline void fence_proxy_async_shared() { cuda_on_host::FenceProxyAsync(); }

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_TMA_CUH_

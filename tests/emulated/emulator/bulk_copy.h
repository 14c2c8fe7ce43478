// TMA, as kernels see it: included by ptx/tma.cuh, and so includes nothing.
#ifndef TILEWRIGHT_TESTS_EMULATED_BULK_COPY_H_
#define TILEWRIGHT_TESTS_EMULATED_BULK_COPY_H_

namespace cuda_on_host {

// `map` holds the bytes of a HostTensorMap (tensor_map.h).
void PrefetchMap(const void* map);
// To every block of the cluster that `blocks` has a bit for.
void StartBulkLoad(unsigned destination, const void* map, unsigned barrier, const int* coordinates,
                   int dimensions, unsigned blocks);
// From this block's shared memory to that of a block of the cluster.
void StartClusterCopy(unsigned cluster_destination, unsigned source, unsigned bytes,
                      unsigned cluster_barrier);
void StartBulkStore(const void* map, unsigned source, const int* coordinates, int dimensions);
// Adds floats to global memory; counts among the stores.
void StartBulkAdd(float* at, unsigned source, unsigned bytes);
void CommitBulkStores();
void WaitForBulkStores(int pending);
void FenceProxyAsync();
unsigned OwnBlock();  // its bit

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_BULK_COPY_H_

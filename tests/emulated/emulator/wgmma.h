// Products under way.
#ifndef TILEWRIGHT_TESTS_EMULATED_WGMMA_H_
#define TILEWRIGHT_TESTS_EMULATED_WGMMA_H_

namespace cuda_on_host {

// Before each cluster.
void ForgetProducts(int warps);

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_WGMMA_H_

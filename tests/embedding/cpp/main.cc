#include <cuda.h>
#include <tilewright/runtime.h>

#include <iostream>
#include <vector>

int main() {
  CUcontext context;  // your program has one: the CUDA runtime's or PyTorch's serve as well
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  // 2 sequences of 1000 tokens, 8 heads of 72; Q, K and V are the same here.
  std::vector<float> host(2 * 1000 * 8 * 72, 0.5f);
  CUdeviceptr in, out;
  cuMemAlloc(&in, host.size() * sizeof(float));
  cuMemAlloc(&out, host.size() * sizeof(float));
  cuMemcpyHtoD(in, host.data(), host.size() * sizeof(float));

  auto spec = tilewright::ParseSpec("fwd fp32 b=2 h=8 s=1000 d=72 causal");
  auto runtime = tilewright::Runtime::Create({});
  auto attention = (*runtime)->Prepare(*spec);  // compiled once, then kept in memory and on disk
  if (!attention.ok()) return std::cerr << attention.status() << "\n", 1;
  tilewright::AttentionArgs args = {.batch = 2, .seqlen_q = 1000, .seqlen_kv = 1000};
  const tilewright::Strides strides = DenseStrides(spec->layout, 2, 1000, 8, 72);
  args.q = args.k = args.v = {reinterpret_cast<float*>(in), strides};
  args.o = {reinterpret_cast<float*>(out), strides};
  std::cout << (*runtime)->Run(*attention, args, nullptr) << "\n";  // launches and returns
  cuMemcpyDtoH(host.data(), out, host.size() * sizeof(float));
  std::cout << host[0] << "\n" << attention->Explain();
}

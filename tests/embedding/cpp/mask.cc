// SNIPPET is a file with the statements that README.md shows for a mask of one's own.
#include <cuda.h>
#include <tilewright/runtime.h>

#include <iostream>

int main() {
  CUcontext context;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
#include SNIPPET
  auto runtime = tilewright::Runtime::Create({});
  auto attention = (*runtime)->Prepare(spec);
  if (!attention.ok()) return std::cerr << attention.status() << "\n", 1;
  std::cout << attention->Explain();
}

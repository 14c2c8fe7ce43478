// Storage types of tensor elements, and the few names that every other header needs. Compiles with
// NVRTC, nvcc and a host compiler; includes nothing from outside this folder.
#ifndef TILEWRIGHT_CORE_TYPES_CUH_
#define TILEWRIGHT_CORE_TYPES_CUH_

#include "abi/fixed_width.h"

// On functions that run in kernels and, compiled by a host compiler, in the unit tests. A CUDA
// compiler sees device functions only: nothing here is called by host code of a CUDA program.
#ifdef __CUDACC__
#define TILEWRIGHT_HOST_DEVICE __device__ __forceinline__
#else
#define TILEWRIGHT_HOST_DEVICE inline
#endif

// Before a loop over an array that has to stay in registers.
#ifdef __CUDACC__
#define TILEWRIGHT_UNROLL _Pragma("unroll")
#else
#define TILEWRIGHT_UNROLL
#endif

// offsetof. NVRTC has neither <cstddef> nor the builtin behind it, only what its front end makes of
// that builtin.
#ifdef __CUDACC_RTC__
#define TILEWRIGHT_OFFSETOF(type, member) __INTADDR__(&((type*)0)->member)
#else
#define TILEWRIGHT_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif

namespace tilewright {

using abi::i32;
using abi::i64;
using abi::u32;
using abi::u64;
using abi::u8;
using u16 = unsigned short;
static_assert(sizeof(u16) == 2);

// One element as it lies in memory. The conversion to float is exact and implicit, so that a
// snippet can write `score + table[h]` whatever the table's type; see core/convert.cuh for its
// definition and for FromFloat, the way back.
struct Fp16 {
  u16 bits;
  TILEWRIGHT_HOST_DEVICE operator float() const;
};
struct Bf16 {
  u16 bits;
  TILEWRIGHT_HOST_DEVICE operator float() const;
};
struct Fp8E4m3 {
  u8 bits;
  TILEWRIGHT_HOST_DEVICE operator float() const;
};
struct Fp8E5m2 {
  u8 bits;
  TILEWRIGHT_HOST_DEVICE operator float() const;
};
struct Int8 {
  signed char value;
  TILEWRIGHT_HOST_DEVICE operator float() const { return static_cast<float>(value); }
};
// One byte, zero or not zero. Not `bool`: other values than 0 and 1 are legal here.
struct Bool8 {
  u8 byte;
  TILEWRIGHT_HOST_DEVICE operator bool() const { return byte != 0; }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_TYPES_CUH_

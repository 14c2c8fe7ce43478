// What a kernel finds in CUDA's place when a C++ compiler compiles it for the emulator: included
// before the kernel's source. The headers of ptx/ beside this file stand in for those of
// kernel_templates/ptx. Everything else of a kernel is compiled as it is.
//
// Includes nothing, for the sake of compile time: what is declared here is defined in emulator/.
#ifndef TILEWRIGHT_TESTS_CUDA_ON_HOST_H_
#define TILEWRIGHT_TESTS_CUDA_ON_HOST_H_

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace cuda_on_host {

struct Dim {
  unsigned x = 0, y = 0, z = 0;
};
struct Indices {
  Dim thread, block, block_size, grid;
};
extern Indices indices;

// ---- addresses

// Offset in the block's shared memory; a fault when `pointer` lies elsewhere.
unsigned SharedOffset(const void* pointer);

// ---- what the threads of a warp do together

// Which instruction it is: the lanes of a warp must meet at the same one.
enum class Operation {
  kShuffle,
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,
  kSyncWarp,
  kLdmatrix,
  kMovmatrix,
  kStmatrix,
  kMma,
  kWgmma,
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait,
};

// Returns when the lanes of `mask` have all called it. The last of them has called
// run(arguments of each lane, null for lanes outside the mask) before any returns.
void MeetInWarp(Operation operation, unsigned mask, void* arguments,
                void (*run)(void* const (&arguments)[32], unsigned mask));

int Lane();

// The 32 bits of `value` in the lane that `operation` and `by` lead to from this one.
unsigned Shuffle(Operation operation, unsigned mask, unsigned value, int by, int width);
unsigned Ballot(unsigned mask, bool vote);

// ---- what the threads of a block do together

enum class Votes { kNone, kAnd, kOr, kCount };
int WaitForBlock(Votes votes, int vote);

// ---- memory

// Adds to what lies at `address`, as one indivisible step, and returns what was there. Integers are
// taken for flags and locks: one block's addition is ordered before what another does after its own
// (release and acquire; whether the fences for it are there is not checked).
float AtomicAdd(float* address, float value);
int AtomicAdd(int* address, int value);
unsigned AtomicAdd(unsigned* address, unsigned value);
unsigned long long AtomicAdd(unsigned long long* address, unsigned long long value);
unsigned long long AtomicCas(unsigned long long* address, unsigned long long expected,
                             unsigned long long value);
int AtomicMin(int* address, int value);
int AtomicMax(int* address, int value);

}  // namespace cuda_on_host

#define threadIdx cuda_on_host::indices.thread
#define blockIdx cuda_on_host::indices.block
#define blockDim cuda_on_host::indices.block_size
#define gridDim cuda_on_host::indices.grid

extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float tanhf(float) noexcept;
float sqrtf(float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float powf(float, float) noexcept;
float fabsf(float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float fmaf(float, float, float) noexcept;
float floorf(float) noexcept;
}

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
// The bytes of (y, x) that the four hexadecimal digits of `selector` number.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned word = 0;
  for (int n = 3; n >= 0; --n) {
    word = word << 8 | static_cast<unsigned>(both >> (selector >> 4 * n & 7) * 8 & 0xff);
  }
  return word;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}

inline void __syncthreads() { cuda_on_host::WaitForBlock(cuda_on_host::Votes::kNone, 0); }
inline int __syncthreads_and(int vote) {
  return cuda_on_host::WaitForBlock(cuda_on_host::Votes::kAnd, vote);
}
inline int __syncthreads_or(int vote) {
  return cuda_on_host::WaitForBlock(cuda_on_host::Votes::kOr, vote);
}
inline int __syncthreads_count(int vote) {
  return cuda_on_host::WaitForBlock(cuda_on_host::Votes::kCount, vote);
}
void __syncwarp(unsigned mask = 0xffffffffu);
// Blocks run one after the other, and the threads of a block in turns: memory is in order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return __builtin_bit_cast(
      T, cuda_on_host::Shuffle(cuda_on_host::Operation::kShuffle, mask,
                               __builtin_bit_cast(unsigned, value), lane, width));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return __builtin_bit_cast(
      T, cuda_on_host::Shuffle(cuda_on_host::Operation::kShuffleXor, mask,
                               __builtin_bit_cast(unsigned, value), lane_mask, width));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return __builtin_bit_cast(T, cuda_on_host::Shuffle(cuda_on_host::Operation::kShuffleUp, mask,
                                                     __builtin_bit_cast(unsigned, value),
                                                     static_cast<int>(delta), width));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return __builtin_bit_cast(T, cuda_on_host::Shuffle(cuda_on_host::Operation::kShuffleDown, mask,
                                                     __builtin_bit_cast(unsigned, value),
                                                     static_cast<int>(delta), width));
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  return cuda_on_host::Ballot(mask, vote != 0);
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }

template <typename T>
T atomicAdd(T* address, T value) {
  return cuda_on_host::AtomicAdd(address, value);
}

inline unsigned long long atomicCAS(unsigned long long* address, unsigned long long expected,
                                    unsigned long long value) {
  return cuda_on_host::AtomicCas(address, expected, value);
}
inline int atomicMin(int* address, int value) { return cuda_on_host::AtomicMin(address, value); }
inline int atomicMax(int* address, int value) { return cuda_on_host::AtomicMax(address, value); }

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }

#endif  // TILEWRIGHT_TESTS_CUDA_ON_HOST_H_

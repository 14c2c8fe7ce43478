// Arguments of the Hopper families besides AttnFwdParams.
#ifndef TILEWRIGHT_ABI_TENSOR_MAP_H_
#define TILEWRIGHT_ABI_TENSOR_MAP_H_

#include "abi/fixed_width.h"

namespace tilewright {
namespace abi {

// The bytes of a CUtensorMap. Dimensions of all our maps: column, row, head, batch.
struct alignas(64) TensorMap {
  u64 words[16];
};

// Bits of by_threads: tensors that no map can describe, because of their alignment or
// strides, and that threads copy element by element.
inline constexpr u32 kQByThreads = 1;
inline constexpr u32 kKvByThreads = 2;
inline constexpr u32 kOByThreads = 4;
// Of a backward kernel: kQByThreads stands for Q and dO, and this for dK and dV.
inline constexpr u32 kGradientsByThreads = 8;
// Of a forward kernel: bias terms that pass through shared memory.
inline constexpr u32 kBiasByThreads = 16;

// Tiles are numbered within sections of heads, in a section by rows from the last to the first,
// then by head: under a causal mask long tiles come first, and the K and V of the heads of a
// section stay in L2. Or those of the first heads are taken in pairs, the n-th from the end of a
// head with its n-th, which together are as long as any other pair; then head by head. The other
// heads are one section, whose tiles of falling length fill up what whole rounds of pairs leave.
struct alignas(64) FwdSm90Args {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap v_tail;  // boxes of the columns that V has in its last panel of 64
  TensorMap o;
  u32 row_tiles;      // of a head; a tile has the rows of all blocks of a cluster
  u32 tiles;          // of all heads
  u32 heads;          // batch * heads_q; each part of the keys counts as a head
  u32 section_heads;  // 0: pairs
  u32 paired_heads;   // with pairs; the others are those of the last section
  u32 by_threads;     // k*ByThreads
  u32 padding_[10];
};
static_assert(sizeof(TensorMap) == 128, "host and device must agree");
static_assert(sizeof(FwdSm90Args) == 704, "host and device must agree");

// Tiles of keys are numbered within sections of heads, in a section by keys from the first to the
// last, then by head: under a causal mask the tiles with most rows come first, and the Q, dO and dQ
// of the heads of a section stay in L2.
struct alignas(64) BwdSm90Args {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap d_o;
  TensorMap d_k;
  TensorMap d_v;
  u32 key_tiles;      // of a head
  u32 tiles;          // of all heads
  u32 heads;          // batch * heads_kv
  u32 section_heads;  // at least 1
  u32 by_threads;     // k*ByThreads
  // The keys that some row sees, as far as a window says. The map `k` begins and ends with them:
  // dQ would make a NaN of 0 times others'.
  u32 first_key;
  u32 end_key;
  u32 padding_[9];
};
static_assert(sizeof(BwdSm90Args) == 832, "host and device must agree");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_TENSOR_MAP_H_

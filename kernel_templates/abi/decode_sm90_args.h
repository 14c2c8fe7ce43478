// Arguments of attn_decode_sm90 besides AttnFwdParams.
#ifndef TILEWRIGHT_ABI_DECODE_SM90_ARGS_H_
#define TILEWRIGHT_ABI_DECODE_SM90_ARGS_H_

#include "abi/tensor_map.h"

namespace tilewright {
namespace abi {

struct alignas(64) DecodeSm90Args {
  TensorMap k;
  TensorMap v;     // unused where V is part of K
  u32 by_threads;  // kKvByThreads
  u32 v_in_k;      // 1: V is the first columns of K, in the same memory
  u32 padding_[14];
};
static_assert(sizeof(DecodeSm90Args) == 320, "host and device must agree");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_DECODE_SM90_ARGS_H_

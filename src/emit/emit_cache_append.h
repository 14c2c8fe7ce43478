// (CacheAppendSpec, plan) to the translation unit of cache_append.
#ifndef TILEWRIGHT_EMIT_EMIT_CACHE_APPEND_H_
#define TILEWRIGHT_EMIT_EMIT_CACHE_APPEND_H_

#include "artifact/kernel_source.h"
#include "plan/kernel_plan.h"
#include "tilewright/cache_append.h"

namespace tilewright::emit {

// `spec` is canonical. Equal sources for equal specs and plans; the base of the rotary embedding is
// a parameter and not part of it.
artifact::KernelSource EmitCacheAppend(const CacheAppendSpec& spec, const plan::KernelPlan& plan);

// Bytes of struct Params: abi::CacheAppendParams, then the frequencies.
int CacheAppendParamBytes(const CacheAppendSpec& spec);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_EMIT_CACHE_APPEND_H_

// A call of Runtime::Append (tilewright/cache_append.h) as the kernel cache_append.
#ifndef TILEWRIGHT_RUNTIME_CACHE_APPEND_H_
#define TILEWRIGHT_RUNTIME_CACHE_APPEND_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tilewright/cache_append.h"

namespace tilewright {

// Of each pair of a rotary embedding without a table, in 2^-64 turns a position.
std::vector<uint64_t> RotaryFrequencies(const CacheAppendSpec& spec);

// Writes emit::CacheAppendParamBytes(spec) bytes. `spec` is canonical.
void PackAppendArgs(const CacheAppendSpec& spec, const std::vector<uint64_t>& frequencies,
                    const CacheAppendArgs& args, int tile_tokens, std::byte* params);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_CACHE_APPEND_H_

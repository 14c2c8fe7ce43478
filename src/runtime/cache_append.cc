#include "runtime/cache_append.h"

#include <cmath>
#include <cstring>

#include "abi/cache_append_params.h"
#include "runtime/abi_args.h"
#include "spec/cache_append.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

// Whether every row starts on a multiple of `bytes`.
bool RowsFit(const void* data, const Strides& s, int element_bytes, int bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return (address | static_cast<uintptr_t>((s.batch | s.seq | s.head) * element_bytes)) %
             static_cast<uintptr_t>(bytes) ==
         0;
}

bool IsWide(const CacheAppendSpec& spec, const CacheAppendArgs& args) {
  const int size = spec::ElementBytes(spec.type);
  const int cache_size = spec::ElementBytes(spec::CacheType(spec));
  const int cache_bytes = 16 / size * cache_size;  // a chunk of new elements, stored
  bool wide = true;
  if (spec.heads_q > 0) {
    wide = RowsFit(args.q.data, args.q.strides, size, 16) &&
           RowsFit(args.q_out.data, args.q_out.strides, size, 16);
  }
  if (spec.heads_kv > 0) {
    wide = wide && RowsFit(args.k.data, args.k.strides, size, 16) &&
           RowsFit(args.k_cache.data, args.k_cache.strides, cache_size, cache_bytes);
    if (spec.dim_v > 0) {
      wide = wide && RowsFit(args.v.data, args.v.strides, size, 16) &&
             RowsFit(args.v_cache.data, args.v_cache.strides, cache_size, cache_bytes);
    }
  }
  return wide;
}

}  // namespace

std::vector<uint64_t> RotaryFrequencies(const CacheAppendSpec& spec) {
  std::vector<uint64_t> frequencies;
  if (spec.rotary_table.has_value()) return frequencies;
  const int64_t pairs = spec::RotaryPairs(spec);
  constexpr long double kTwoPi = 6.283185307179586476925286766559L;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const long double turns = std::pow(static_cast<long double>(spec.rotary_base),
                                       -static_cast<long double>(pair) / pairs) /
                              kTwoPi;
    // Below a sixth of a turn, so that it fits.
    frequencies.push_back(static_cast<uint64_t>(std::llround(std::ldexp(turns, 62))) << 2);
  }
  return frequencies;
}

void PackAppendArgs(const CacheAppendSpec& spec, const std::vector<uint64_t>& frequencies,
                    const CacheAppendArgs& args, int tile_tokens, std::byte* params) {
  abi::CacheAppendParams core = {};
  core.q = args.q.data;
  core.k = args.k.data;
  core.v = args.v.data;
  core.q_out = args.q_out.data;
  core.k_cache = args.k_cache.data;
  core.v_cache = args.v_cache.data;
  core.q_strides = ToAbi(args.q.strides);
  core.k_strides = ToAbi(args.k.strides);
  core.v_strides = ToAbi(args.v.strides);
  core.q_out_strides = ToAbi(args.q_out.strides);
  core.k_cache_strides = ToAbi(args.k_cache.strides);
  core.v_cache_strides = ToAbi(args.v_cache.strides);
  core.k_scale =
      ScaleToAbi<abi::StoredScaleArgs>(spec.cache_scale, args.k_scale, args.k_scale_strides);
  core.v_scale =
      ScaleToAbi<abi::StoredScaleArgs>(spec.cache_scale, args.v_scale, args.v_scale_strides);
  core.page_table = args.page_table;
  core.page_table_stride = args.page_table_stride;
  core.cu_seqlens = args.cu_seqlens;
  core.seqused = args.seqused;
  core.lengths = args.seqused_kv;
  core.cache_batch_idx = args.cache_batch_idx;
  core.positions = args.positions;
  core.new_lengths = args.new_seqused_kv;
  core.ticket = args.ticket;
  core.cos = args.cos;
  core.sin = args.sin;
  core.table_stride = args.rotary_stride != 0 ? args.rotary_stride : spec::RotaryPairs(spec);
  core.batch = args.batch;
  core.seqlen = args.seqlen;
  core.tokens = spec::TokensOf(args);
  core.capacity = args.capacity;
  core.tile_tokens = tile_tokens;
  core.wide = IsWide(spec, args) ? 1 : 0;
  std::memcpy(params, &core, sizeof(core));
  if (!frequencies.empty()) {
    std::memcpy(params + sizeof(core), frequencies.data(), 8 * frequencies.size());
  }
}

}  // namespace tilewright

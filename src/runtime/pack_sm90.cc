#include "runtime/pack_sm90.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "abi/decode_sm90_args.h"
#include "abi/policy_args.h"
#include "abi/tensor_map.h"
#include "absl/strings/str_cat.h"
#include "device/tensor_map.h"
#include "plan/family_planner.h"
#include "plan/launch_shape.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kBoxBytes = 128;
constexpr int kWarpgroupRows = 64;  // of a box of Q or O of attn_fwd_sm90

// K and V of a section of heads stay in L2 while its tiles run: 32 MB of the 50 to 60 MB of Hopper
// boards, as FlashAttention-3 has it.
constexpr int64_t kSectionBytes = int64_t{32} << 20;

// The order of tiles, as abi::FwdSm90Args has it.
struct TileOrder {
  int64_t section_heads;
  int64_t paired_heads = 0;
};

// Without a causal mask tiles are equally long, and one head after the other is best for L2; but
// batches that have one bias read it side by side. Blocks that walk series of tiles need equal
// shares: of one section with all heads where their K and V fit L2, else of pairs and of a section
// that does.
TileOrder OrderTiles(const plan::KernelPlan& plan, const AttentionSpec& spec,
                     const AttentionArgs& args, int64_t heads) {
  const int64_t group = spec::GroupSize(spec);
  const int64_t bytes_per_kv_head = std::max<int64_t>(args.seqlen_kv, 1) *
                                    (spec.dim_qk + spec.dim_v) * spec::ElementBytes(spec.type);
  const int64_t kv_heads = std::max<int64_t>(kSectionBytes / bytes_per_kv_head, 1);
  if (spec::EffectiveWindowRight(spec) < 0) {
    const bool shares_bias = plan.staged_terms > 0 && spec.bias[0].batch == 1;
    return {shares_bias ? std::clamp<int64_t>(args.batch, 1, kv_heads) : 1};
  }
  if (plan.max_grid != 0 && kv_heads * group < heads) return {0, heads - kv_heads * group};
  return {std::clamp<int64_t>(kv_heads * group, 1, std::max<int64_t>(heads, 1))};
}

device::TensorMapRequest::Element ElementOf(ElementType type) {
  using Element = device::TensorMapRequest::Element;
  if (type == ElementType::kBf16) return Element::kBf16;
  return type == ElementType::kFp16 ? Element::kFp16 : Element::kByte;
}

// Whether rows of all heads of `dim` columns can be described as one, of which copies take a head's
// columns and those around them from a multiple of 16 bytes on.
template <typename TensorType>
bool DescribesHeadsTogether(const TensorType& tensor, int64_t dim, int64_t heads) {
  const int64_t head = tensor.strides.head;
  return heads == 1 || (head >= 0 && head % (dim & -dim) == 0 &&
                        (heads - 1) <= (kMax - dim) / std::max<int64_t>(head, 1));
}

// Boxes of 128 bytes unless `box_columns` says less.
template <typename TensorType>
bool Encode(const device::DriverApi& api, ElementType type, const TensorType& tensor, int64_t dim,
            int64_t rows, int64_t heads, int64_t batch, int box_rows, abi::TensorMap* map,
            int box_columns = 0) {
  return device::EncodeTensorMap(
      api,
      {.base = tensor.data,
       .element = ElementOf(type),
       .extents = {dim, rows, heads, batch},
       .strides = {tensor.strides.seq, tensor.strides.head, tensor.strides.batch},
       .box_rows = box_rows,
       .box_columns =
           box_columns != 0 ? box_columns : static_cast<int>(kBoxBytes / spec::ElementBytes(type))},
      map);
}

// Of a section of heads Q, dO and the fp32 sums of dQ stay in L2 while its tiles run.
constexpr int64_t kBwdSectionBytes = int64_t{40} << 20;

// Heads of keys whose tiles are walked together, those with most rows first. Without a causal mask
// tiles are equally long, and one head after the other is best for L2. Otherwise as many as L2
// takes, or so many that every block of the board has a tile; and where blocks add to dQ in turns,
// since tiles of one head that begin together would wait for one another.
int64_t BwdSectionHeads(const plan::KernelPlan& plan, const AttentionSpec& spec,
                        const AttentionArgs& args, int64_t key_tiles, int64_t heads) {
  if (spec::EffectiveWindowRight(spec) < 0 && !spec.deterministic) return 1;
  const int64_t bytes_per_head = spec::GroupSize(spec) * std::max<int64_t>(args.seqlen_q, 1) *
                                 (spec.dim_qk * 6 + spec.dim_v * 2);
  heads = std::max<int64_t>(heads, 1);
  const int64_t busy = plan.max_grid / std::max<int64_t>(key_tiles, 1);
  const int64_t most =
      std::clamp<int64_t>(std::max(kBwdSectionBytes / bytes_per_head, busy), 1, heads);
  // The first tiles of a short last section would be the last to end: the number with the fewest
  // heads missing there, and of those the largest.
  int64_t best = most;
  const auto missing = [heads](int64_t section) { return (section - heads % section) % section; };
  for (int64_t section = most - 1; 2 * section > most; --section) {
    if (missing(section) * best < missing(best) * section) best = section;
  }
  return best;
}

absl::Status PackBwd(const device::DriverApi& api, const plan::KernelPlan& plan,
                     const AttentionSpec& spec, const AttentionArgs& args, std::byte* slot) {
  const int64_t tile_keys = int64_t{plan.block_n} * std::max(plan.cluster, 1);
  const int64_t key_tiles = (args.seqlen_kv + tile_keys - 1) / tile_keys;
  int64_t heads = 0, tiles = 0;
  if (args.seqlen_q > kMax - 2 * plan.block_m || args.seqlen_kv > kMax - 2 * tile_keys ||
      __builtin_mul_overflow(args.batch, spec.heads_kv, &heads) ||
      __builtin_mul_overflow(heads, key_tiles, &tiles) || tiles > kMax) {
    return absl::UnimplementedError(absl::StrCat(
        "batch = ", args.batch, ", seqlen_q = ", args.seqlen_q, ", seqlen_kv = ", args.seqlen_kv,
        ": rows and tiles of attn_bwd_sm90 are counted with 31 bits"));
  }
  abi::BwdSm90Args out = {};
  const auto of_rows = [&](const auto& tensor, int64_t dim, abi::TensorMap* map) {
    return Encode(api, spec.type, tensor, dim, args.seqlen_q, spec.heads_q, args.batch,
                  plan.block_m, map);
  };
  const auto of_keys = [&](const auto& tensor, int64_t dim, int box_rows, abi::TensorMap* map) {
    return Encode(api, spec.type, tensor, dim, args.seqlen_kv, spec.heads_kv, args.batch, box_rows,
                  map);
  };
  const bool q = of_rows(args.q, spec.dim_qk, &out.q) && of_rows(args.d_o, spec.dim_v, &out.d_o);
  spec::KeyBounds seen = spec::KeysInWindow(spec, args.seqlen_q, args.seqlen_kv);
  // Of keys that nobody sees nothing is loaded, and a map has rows.
  if (seen.begin >= seen.end) seen = {0, args.seqlen_kv};
  Tensor seen_k = args.k;
  seen_k.data = static_cast<const std::byte*>(args.k.data) +
                seen.begin * args.k.strides.seq * spec::ElementBytes(spec.type);
  const bool kv = Encode(api, spec.type, seen_k, spec.dim_qk, seen.end - seen.begin, spec.heads_kv,
                         args.batch, plan.block_n, &out.k) &&
                  of_keys(args.v, spec.dim_v, plan.block_n, &out.v);
  // A warpgroup stores its own 64 rows.
  const bool gradients = of_keys(args.d_k, spec.dim_qk, /*box_rows=*/64, &out.d_k) &&
                         of_keys(args.d_v, spec.dim_v, /*box_rows=*/64, &out.d_v);
  out.key_tiles = static_cast<uint32_t>(key_tiles);
  out.tiles = static_cast<uint32_t>(tiles);
  out.heads = static_cast<uint32_t>(heads);
  out.section_heads = static_cast<uint32_t>(BwdSectionHeads(plan, spec, args, key_tiles, heads));
  out.by_threads = (q ? 0 : abi::kQByThreads) | (kv ? 0 : abi::kKvByThreads) |
                   (gradients ? 0 : abi::kGradientsByThreads);
  out.first_key = static_cast<uint32_t>(seen.begin);
  out.end_key = static_cast<uint32_t>(seen.end);
  std::memcpy(slot, &out, sizeof(out));
  return absl::OkStatus();
}

// Of a term that differs from row to row and from key to key, in boxes of a computing warpgroup's
// 64 rows and of at most 64 keys. A dimension that is broadcast has one place.
bool EncodeBias(const device::DriverApi& api, const plan::KernelPlan& plan, ElementType type,
                const abi::BiasArgs& bias, const AttentionArgs& args, int64_t heads_q,
                abi::TensorMap* map) {
  constexpr int kBoxRows = 64, kBoxColumns = 64;
  if (bias.stride_kv != 1) return false;
  return device::EncodeTensorMap(
      api,
      {.base = bias.data,
       .element = ElementOf(type),
       .extents = {args.seqlen_kv, args.seqlen_q, bias.stride_head != 0 ? heads_q : 1,
                   bias.stride_batch != 0 ? bias.batch_mod : 1},
       .strides = {bias.stride_q, bias.stride_head, bias.stride_batch},
       .box_rows = kBoxRows,
       .box_columns = std::min(plan.block_n / plan.column_warps, kBoxColumns)},
      map);
}

absl::Status PackFwd(const device::DriverApi& api, const plan::KernelPlan& plan,
                     const AttentionSpec& spec, const emit::ParamLayout& layout,
                     const AttentionArgs& args, std::byte* params) {
  const bool packed_q = spec.varlen && args.cu_seqlens_q != nullptr;
  const bool packed_kv = spec.varlen && args.cu_seqlens_kv != nullptr;
  const int64_t q_rows = packed_q ? args.total_q : args.seqlen_q;
  const bool paged = spec.page_size != 0;
  const int64_t kv_rows = paged ? spec.page_size : packed_kv ? args.total_kv : args.seqlen_kv;
  const int64_t q_batch = packed_q ? 1 : args.batch;
  // Nobody says how many pages or slots there are; only those of the tables are read.
  const int64_t kv_batch = paged || spec.cache_batch_idx ? kMax : packed_kv ? 1 : args.batch;
  const int64_t block_rows = plan.block_n / plan.cluster;
  const int box_rows = static_cast<int>(paged ? std::min(spec.page_size, block_rows) : block_rows);
  const int64_t tile_rows = int64_t{plan.block_m} * plan.cluster;
  const int64_t row_tiles = (args.seqlen_q + tile_rows - 1) / tile_rows;
  // A tile beyond the end may still be asked for.
  const int64_t most_rows = kMax - 2 * tile_rows;
  const int64_t parts = plan::PlanCall(plan, spec, args).parts;
  int64_t heads = 0, tiles = 0;
  if (q_rows > most_rows || kv_rows > most_rows ||
      __builtin_mul_overflow(args.batch, spec.heads_q, &heads) ||
      __builtin_mul_overflow(heads, parts, &heads) ||
      __builtin_mul_overflow(heads, row_tiles, &tiles) || tiles > kMax) {
    return absl::UnimplementedError(absl::StrCat(
        "batch = ", args.batch, ", seqlen_q = ", args.seqlen_q, ", seqlen_kv = ", args.seqlen_kv,
        ": rows and tiles of attn_fwd_sm90 are counted with 31 bits"));
  }
  abi::FwdSm90Args out = {};
  const bool narrow = plan.narrow_rows;
  const plan::StoredDims dims = plan::StoredDimsOf(narrow, spec.dim_qk, spec.dim_v);
  const auto encode = [&](const auto& tensor, int64_t dim, int64_t rows, int64_t heads_of,
                          int64_t batch, int rows_of_box, abi::TensorMap* map, int columns) {
    if (!narrow) {
      return Encode(api, spec.type, tensor, dim, rows, heads_of, batch, rows_of_box, map, columns);
    }
    return DescribesHeadsTogether(tensor, dim, heads_of) &&
           Encode(api, spec.type, tensor, (heads_of - 1) * tensor.strides.head + dim, rows,
                  /*heads=*/1, batch, rows_of_box, map, columns);
  };
  // No more than must be, where rows have one panel.
  const int64_t copied_qk = plan::RoundUp(spec.dim_qk + plan::MostShift(spec.dim_qk), 8);
  const int qk_columns = narrow ? static_cast<int>(std::min<int64_t>(copied_qk, 64)) : 0;
  const bool q = encode(args.q, spec.dim_qk, q_rows, spec.heads_q, q_batch, kWarpgroupRows, &out.q,
                        qk_columns);
  const bool k =
      encode(args.k, spec.dim_qk, kv_rows, spec.heads_kv, kv_batch, box_rows, &out.k, qk_columns);
  const bool v = encode(args.v, spec.dim_v, kv_rows, spec.heads_kv, kv_batch, box_rows, &out.v, 0);
  const auto tail_columns = static_cast<int>(dims.v % 64);
  const bool v_tail = !plan.ones || tail_columns == 0 ||
                      encode(args.v, spec.dim_v, kv_rows, spec.heads_kv, kv_batch, box_rows,
                             &out.v_tail, tail_columns);
  // Threads store narrow rows.
  const bool o = narrow || Encode(api, spec::OutType(spec), args.o, spec.dim_v, q_rows,
                                  spec.heads_q, q_batch, kWarpgroupRows, &out.o);
  if (spec::ElementBytes(spec.type) == 1 && !(q && k && v)) {
    const auto& [name, wrong] = !q   ? std::pair<const char*, const Tensor&>("q", args.q)
                                : !k ? std::pair<const char*, const Tensor&>("k", args.k)
                                     : std::pair<const char*, const Tensor&>("v", args.v);
    const Strides& s = wrong.strides;
    return absl::InvalidArgumentError(absl::StrCat(
        name, ".data = 0x", absl::Hex(reinterpret_cast<uintptr_t>(wrong.data)),
        ", strides = ", s.batch, ",", s.seq, ",", s.head,
        ": must be multiples of 16: attn_fwd_sm90 copies 8-bit elements in no other way. A spec "
        "whose strides say so is served by another family"));
  }
  out.row_tiles = static_cast<uint32_t>(row_tiles);
  out.tiles = static_cast<uint32_t>(tiles);
  out.heads = static_cast<uint32_t>(heads);
  const TileOrder order = OrderTiles(plan, spec, args, heads / parts);
  out.section_heads = static_cast<uint32_t>(order.section_heads * parts);
  out.paired_heads = static_cast<uint32_t>(order.paired_heads * parts);
  bool biases = true;
  for (const emit::ParamSlot& slot : layout.slots) {
    if (slot.kind != emit::ParamSlotKind::kBiasMap) continue;
    abi::BiasArgs bias = {};
    for (const emit::ParamSlot& other : layout.slots) {
      if (other.kind == emit::ParamSlotKind::kBias && other.index == slot.index) {
        std::memcpy(&bias, params + other.offset, sizeof(bias));
      }
    }
    abi::TensorMap map = {};
    biases &= EncodeBias(api, plan, spec.bias[slot.index].type, bias, args, spec.heads_q, &map);
    std::memcpy(params + slot.offset, &map, sizeof(map));
  }
  out.by_threads = (q ? 0 : abi::kQByThreads) | (k && v && v_tail ? 0 : abi::kKvByThreads) |
                   (o ? 0 : abi::kOByThreads) | (biases ? 0 : abi::kBiasByThreads);
  std::memcpy(params + layout.slots.back().offset, &out, sizeof(out));
  return absl::OkStatus();
}

absl::Status PackDecode(const device::DriverApi& api, const plan::KernelPlan& plan,
                        const AttentionSpec& spec, const AttentionArgs& args, std::byte* slot) {
  const bool packed_kv = spec.varlen && args.cu_seqlens_kv != nullptr;
  const bool paged = spec.page_size != 0;
  const int64_t kv_rows = paged ? spec.page_size : packed_kv ? args.total_kv : args.seqlen_kv;
  // Nobody says how many pages or slots there are; only those of the tables are read.
  const int64_t kv_batch = paged || spec.cache_batch_idx ? kMax : packed_kv ? 1 : args.batch;
  const int64_t part_rows = plan.block_n / plan::BlocksOfShare(plan);
  const int box_rows = static_cast<int>(paged ? std::min(spec.page_size, part_rows) : part_rows);
  // A block of keys that ends behind the last one is still asked for.
  if (kv_rows > kMax - 2 * plan.block_n) {
    return absl::UnimplementedError(absl::StrCat(
        "rows of K = ", kv_rows, ": those of attn_decode_sm90 are counted with 31 bits"));
  }
  abi::DecodeSm90Args out = {};
  const auto& ks = args.k.strides;
  const auto& vs = args.v.strides;
  out.v_in_k = spec.dim_v < spec.dim_qk && args.k.data == args.v.data && ks.batch == vs.batch &&
                       ks.seq == vs.seq && ks.head == vs.head
                   ? 1
                   : 0;
  const bool k = Encode(api, spec.type, args.k, spec.dim_qk, kv_rows, spec.heads_kv, kv_batch,
                        box_rows, &out.k);
  const bool v = Encode(api, spec.type, args.v, spec.dim_v, kv_rows, spec.heads_kv, kv_batch,
                        box_rows, &out.v);
  out.by_threads = k && v ? 0 : abi::kKvByThreads;
  std::memcpy(slot, &out, sizeof(out));
  return absl::OkStatus();
}

}  // namespace

absl::Status PackSm90(const device::DriverApi& api, const plan::KernelPlan& plan,
                      const AttentionSpec& spec, const emit::ParamLayout& layout,
                      const AttentionArgs& args, std::byte* params) {
  const emit::ParamSlot& slot = layout.slots.back();
  if (slot.kind == emit::ParamSlotKind::kFwdSm90) {
    return PackFwd(api, plan, spec, layout, args, params);
  }
  if (slot.kind == emit::ParamSlotKind::kBwdSm90) {
    return PackBwd(api, plan, spec, args, params + slot.offset);
  }
  if (slot.kind == emit::ParamSlotKind::kDecodeSm90) {
    return PackDecode(api, plan, spec, args, params + slot.offset);
  }
  return absl::OkStatus();
}

}  // namespace tilewright

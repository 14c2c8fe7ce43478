#include "reference/cache_append.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "reference/reference.h"
#include "spec/cache_append.h"
#include "spec/validate.h"

namespace tilewright::reference {
namespace {

double ElementAt(const void* data, ElementType type, int64_t offset) {
  return ToDouble(type, static_cast<const std::byte*>(data) + offset * spec::ElementBytes(type));
}

// A new token of sequence b.
struct NewToken {
  int64_t b;
  int64_t i;      // within its sequence's new tokens
  int64_t index;  // of `positions`
  int64_t place;  // in its sequence
};

class Appender {
 public:
  Appender(const CacheAppendSpec& spec, const CacheAppendArgs& args) : spec_(spec), args_(args) {}

  AppendResult Run() {
    for (int64_t b = 0; b < args_.batch; ++b) AppendSequence(b);
    return std::move(result_);
  }

 private:
  void AppendSequence(int64_t b) {
    const bool packed = args_.cu_seqlens != nullptr;
    int64_t count = packed ? args_.cu_seqlens[b + 1] - args_.cu_seqlens[b] : args_.seqlen;
    if (args_.seqused != nullptr) count = std::min<int64_t>(count, args_.seqused[b]);
    const int64_t before = args_.seqused_kv != nullptr ? args_.seqused_kv[b] : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = packed ? args_.cu_seqlens[b] + i : b * args_.seqlen + i;
      AppendToken({b, i, index, before + i});
    }
    result_.new_lengths.push_back(
        static_cast<int32_t>(std::max(before, std::min<int64_t>(before + count, args_.capacity))));
  }

  void AppendToken(const NewToken& token) {
    using Tensor = AppendedRow::Tensor;
    for (int64_t h = 0; h < spec_.heads_q; ++h) {
      AppendedRow row;
      row.tensor = Tensor::kQ;
      row.offset = NewOffset(args_.q_out.strides, token, h);
      row.values = Rotated(args_.q, token, h);
      result_.rows.push_back(std::move(row));
    }
    if (token.place >= args_.capacity) return;
    int64_t block = args_.cache_batch_idx != nullptr ? args_.cache_batch_idx[token.b] : token.b;
    int64_t block_row = token.place;
    if (spec_.page_size > 0) {
      block = args_.page_table[block * args_.page_table_stride + token.place / spec_.page_size];
      block_row = token.place % spec_.page_size;
    }
    if (block < 0) return;
    for (int64_t h = 0; h < spec_.heads_kv; ++h) {
      const auto add = [&](Tensor tensor, const Strides& strides,
                           const std::array<int64_t, 3>& scale, std::vector<double> values) {
        AppendedRow row;
        row.tensor = tensor;
        row.offset = block * strides.batch + block_row * strides.seq + h * strides.head;
        if (spec_.cache_scale == ScaleKind::kPerHead) row.scale_offset = h;
        if (spec_.cache_scale == ScaleKind::kPerToken) {
          row.scale_offset = block * scale[0] + h * scale[1] + block_row * scale[2];
        }
        row.values = std::move(values);
        result_.rows.push_back(std::move(row));
      };
      add(Tensor::kK, args_.k_cache.strides, args_.k_scale_strides, Rotated(args_.k, token, h));
      if (spec_.dim_v > 0) {
        add(Tensor::kV, args_.v_cache.strides, args_.v_scale_strides,
            Read(args_.v, token, h, spec_.dim_v));
      }
    }
  }

  int64_t NewOffset(const Strides& strides, const NewToken& token, int64_t h) const {
    if (args_.cu_seqlens != nullptr) {
      return (args_.cu_seqlens[token.b] + token.i) * strides.seq + h * strides.head;
    }
    return token.b * strides.batch + token.i * strides.seq + h * strides.head;
  }

  std::vector<double> Read(const Tensor& tensor, const NewToken& token, int64_t h,
                           int64_t dim) const {
    std::vector<double> values(dim);
    const int64_t first = NewOffset(tensor.strides, token, h);
    for (int64_t d = 0; d < dim; ++d) values[d] = ElementAt(tensor.data, spec_.type, first + d);
    return values;
  }

  std::vector<double> Rotated(const Tensor& tensor, const NewToken& token, int64_t h) const {
    std::vector<double> values = Read(tensor, token, h, spec_.dim_qk);
    const int64_t pairs = spec::RotaryPairs(spec_);
    const int64_t position =
        args_.positions != nullptr ? args_.positions[token.index] : token.place;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      double sine, cosine;
      if (spec_.rotary_table.has_value()) {
        const int64_t stride = args_.rotary_stride != 0 ? args_.rotary_stride : pairs;
        sine = ElementAt(args_.sin, *spec_.rotary_table, position * stride + pair);
        cosine = ElementAt(args_.cos, *spec_.rotary_table, position * stride + pair);
      } else {
        const double angle =
            static_cast<double>(position) *
            std::pow(spec_.rotary_base, -static_cast<double>(pair) / static_cast<double>(pairs));
        sine = std::sin(angle);
        cosine = std::cos(angle);
      }
      const bool half_split = spec_.rotary == Rotary::kHalfSplit;
      double& x = values[spec_.rotary_begin + (half_split ? pair : 2 * pair)];
      double& y = values[spec_.rotary_begin + (half_split ? pair + pairs : 2 * pair + 1)];
      const double rotated_x = x * cosine - y * sine;
      y = y * cosine + x * sine;
      x = rotated_x;
    }
    return values;
  }

  const CacheAppendSpec& spec_;
  const CacheAppendArgs& args_;
  AppendResult result_;
};

}  // namespace

absl::StatusOr<AppendResult> Append(const CacheAppendSpec& spec, const CacheAppendArgs& args) {
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  if (args.batch < 0 || args.seqlen < 0 || args.total < 0 || args.capacity < 0) {
    return absl::InvalidArgumentError("batch, seqlen, total and capacity must be >= 0");
  }
  return Appender(spec, args).Run();
}

}  // namespace tilewright::reference

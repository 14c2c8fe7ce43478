#include "tests/emulated/case_changes.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>

#include "spec/validate.h"

namespace tilewright::emulated {

using reference::HostCase;

void SetLengths(HostCase& c, std::vector<int32_t> lengths) {
  c.seqused_kv = std::move(lengths);
  c.args.seqused_kv = c.seqused_kv.data();
}

void Misalign(HostCase& c, int64_t pad) {
  const auto relay = [&](reference::Array& array, Tensor& tensor, ElementType type, int64_t dim) {
    const int64_t rows = array.count() / dim;
    reference::Array wider(type, pad + rows * (dim + pad));
    for (int64_t n = 0; n < wider.count(); ++n)
      wider.Set(n, std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t d = 0; d < dim; ++d) {
        wider.Set(pad + row * (dim + pad) + d, array.Get(row * dim + d));
      }
    }
    array = std::move(wider);
    tensor.data = static_cast<const std::byte*>(array.data()) + pad * spec::ElementBytes(type);
    for (int64_t* stride : {&tensor.strides.batch, &tensor.strides.seq, &tensor.strides.head}) {
      *stride = *stride / dim * (dim + pad);
    }
  };
  relay(c.q, c.args.q, c.spec.type, c.spec.dim_qk);
  relay(c.k, c.args.k, spec::KvType(c.spec), c.spec.dim_qk);
  relay(c.v, c.args.v, spec::KvType(c.spec), c.spec.dim_v);
  for (int64_t* stride : {&c.d_o_strides.batch, &c.d_o_strides.seq, &c.d_o_strides.head}) {
    *stride = *stride / c.spec.dim_v * (c.spec.dim_v + pad);
  }
}

void ShareKeys(reference::HostCase& c) { c.args.v = c.args.k; }

namespace {

void PoisonKeys(HostCase& c, int64_t first, int64_t end) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    for (int64_t j = first; j < end; ++j) {
      for (int64_t h = 0; h < c.spec.heads_kv; ++h) {
        for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(b, j, h, d), kNaN);
        for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(b, j, h, d), kNaN);
      }
    }
  }
}

}  // namespace

void PoisonKeysFrom(HostCase& c, int64_t first) { PoisonKeys(c, first, c.spec.seqlen_kv); }
void PoisonKeysBefore(HostCase& c, int64_t end) { PoisonKeys(c, 0, end); }

void MakeLongPaged(HostCase& c) {
  SetLengths(c, {900, 0, 130});
  const int64_t size = c.spec.page_size, most = (900 + size - 1) / size;
  c.page_table.assign(3 * most, 12345);
  std::vector<int32_t> pages(2 * most);
  for (size_t n = 0; n < pages.size(); ++n) pages[n] = static_cast<int32_t>(n);
  std::mt19937_64 random(5);
  std::shuffle(pages.begin(), pages.end(), random);
  for (int64_t b = 0, next = 0; b < 3; ++b) {
    for (int64_t p = 0; p * size < c.seqused_kv[b]; ++p) c.page_table[b * most + p] = pages[next++];
  }
  c.page_table[300 / size] = -1;
  c.args.page_table = c.page_table.data();
  c.args.page_table_stride = most;
  const int64_t heads = c.spec.heads_kv;
  const auto fill = [&](reference::Array& array, Tensor& tensor, int64_t dim) {
    array = reference::Array(spec::KvType(c.spec), 2 * most * size * heads * dim);
    array.Fill(random, 2);
    tensor = {array.data(), {.batch = size * heads * dim, .seq = heads * dim, .head = dim}};
  };
  fill(c.k, c.args.k, c.spec.dim_qk);
  fill(c.v, c.args.v, c.spec.dim_v);
}

}  // namespace tilewright::emulated

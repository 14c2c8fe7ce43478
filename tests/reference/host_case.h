// A small problem in host memory for the tests of this folder: arrays in the spec's types, filled
// from a seed with multiples of 1/256, so that sums and finite differences in fp32 are exact.
#ifndef TILEWRIGHT_TESTS_REFERENCE_HOST_CASE_H_
#define TILEWRIGHT_TESTS_REFERENCE_HOST_CASE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "reference/reference.h"
#include "tilewright/attention.h"

namespace tilewright::reference {

// Elements of one type.
class Array {
 public:
  Array() = default;
  Array(ElementType type, int64_t count);

  double Get(int64_t n) const { return ToDouble(type_, bytes_.data() + n * size_); }
  void Set(int64_t n, double value) { FromDouble(type_, value, bytes_.data() + n * size_); }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * size_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  // Multiples of 1/256 in [-range, range]; bool: about three quarters set.
  void Fill(std::mt19937_64& random, double range);

 private:
  ElementType type_ = ElementType::kFp32;
  int64_t size_ = 4;
  int64_t count_ = 0;
  std::vector<std::byte> bytes_;
};

// The arrays of one call and the args that point at them. Movable, not copyable.
class HostCase {
 public:
  // Every array that the spec names, dense in its layout, with seqlens as in the spec. Dropout has
  // seed 42 and offset 7. For varlen: the lengths become cu_seqlens_q and cu_seqlens_kv, and Q, K
  // and V are packed. Sequence b has 5 b keys of left padding, slots in reverse order.
  explicit HostCase(AttentionSpec spec, uint64_t seed = 1, std::vector<int32_t> lengths_q = {},
                    std::vector<int32_t> lengths_kv = {});
  HostCase(HostCase&&) = default;
  HostCase& operator=(HostCase&&) = default;

  // Offset of element d of row (b, h, s) of a tensor with `strides`.
  static int64_t Offset(const Strides& strides, int64_t b, int64_t s, int64_t h, int64_t d) {
    return b * strides.batch + s * strides.seq + h * strides.head + d * strides.dim;
  }
  int64_t QAt(int64_t b, int64_t i, int64_t h, int64_t d) const {
    return Offset(args.q.strides, b, i, h, d);
  }
  int64_t KAt(int64_t b, int64_t j, int64_t h, int64_t d) const {
    return Offset(args.k.strides, b, j, h, d);
  }
  int64_t VAt(int64_t b, int64_t j, int64_t h, int64_t d) const {
    return Offset(args.v.strides, b, j, h, d);
  }
  Tensor DOut() { return {d_o.data(), d_o_strides}; }

  // All rows; a failure of the call fails the test.
  ForwardResult Run(const Options& options = {}) const;
  ForwardResult RunStraightforward(const Options& options = {}) const;
  BackwardResult RunBackward(const Options& options = {});

  AttentionSpec spec;
  AttentionArgs args;
  Array q, k, v, d_o;
  Strides d_o_strides;
  std::array<Array, 4> bias;
  std::vector<float> sinks, slopes, q_scale, k_scale, v_scale;
  std::vector<uint8_t> block_mask;
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, page_table;
  std::vector<int32_t> left_padding, cache_batch_idx;
};

// fp32, one head of one batch, `seqlen_q` rows and `seqlen_kv` keys.
AttentionSpec SmallSpec(int64_t seqlen_q, int64_t seqlen_kv, int64_t dim_qk = 4, int64_t dim_v = 3);

// NaN in rows [first, end) of K and V of a batch.
void PoisonRows(HostCase& c, int64_t b, int64_t first, int64_t end);
// A change to a case: NaN in all keys of all batches but [first, end).
std::function<void(HostCase&)> PoisonAllBut(int64_t first, int64_t end);

// Both hold the same numbers, to `tolerance`; NaN equals NaN.
void ExpectSame(const std::vector<double>& actual, const std::vector<double>& expected,
                double tolerance = 0);
void ExpectSame(const ForwardResult& actual, const ForwardResult& expected, double tolerance = 0);

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_TESTS_REFERENCE_HOST_CASE_H_

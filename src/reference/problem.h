// Where everything of a call lies: lengths of sequences, addresses of rows, scales, bias terms and
// masks. Shared by the forward and the backward; internal to this folder.
#ifndef TILEWRIGHT_REFERENCE_PROBLEM_H_
#define TILEWRIGHT_REFERENCE_PROBLEM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reference/philox.h"
#include "reference/reference.h"
#include "tilewright/attention.h"

namespace tilewright::reference {

// The lengths of one sequence and where its rows begin in packed tensors (0 where not packed).
struct Sequence {
  int64_t b = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_kv = 0;
  int64_t first_q = 0;
  int64_t first_kv = 0;
  // Added to a query row to get the key on its diagonal.
  int64_t diagonal = 0;
  int64_t left_padding = 0;  // keys that are masked in front
  int64_t slot = 0;          // batch of K and V, or row of the page table
};

// A key's place in K, V and their per-token scales.
struct KeySlot {
  bool present = true;  // false: its page is missing
  int64_t outer = 0;    // multiplies the batch (or page) stride
  int64_t inner = 0;    // multiplies the sequence stride
};

struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

// Whether cu_seqlens_q / cu_seqlens_kv apply.
bool HasPackedQ(const AttentionSpec& spec, const AttentionArgs& args);
bool HasCumulativeKv(const AttentionSpec& spec, const AttentionArgs& args);
Sequence SequenceOf(const AttentionSpec& spec, const AttentionArgs& args, int64_t b);

// The sizes that a bias term of this call has: 1 where it broadcasts. An extent other than 1 is the
// problem's, which may differ from the typical size in the spec; a batch that is neither 1 nor the
// spec's batch is the term's own.
struct BiasExtents {
  int64_t batch, heads, seqlen_q, seqlen_kv;
};
BiasExtents ExtentsOf(const AttentionSpec& spec, const AttentionArgs& args, const BiasTerm& term);
// The term's batch for batch b.
int64_t BiasBatch(const BiasTerm& term, const BiasExtents& extents, int64_t batch, int64_t b);

// A checked call. Views the spec, the args and the options that it is made from.
class Problem {
 public:
  // InvalidArgument names the field. `needs_derivative`: a score callable must come with its
  // derivative.
  static absl::StatusOr<Problem> Create(const AttentionSpec& spec, const AttentionArgs& args,
                                        const Options& options, bool needs_derivative);

  const AttentionSpec& spec() const { return *spec_; }
  const AttentionArgs& args() const { return *args_; }
  const Callables& callables() const { return options_->callables; }
  int threads() const { return options_->threads; }
  const DropoutRule& dropout() const { return dropout_; }
  int64_t group() const { return group_; }
  int64_t window_right() const { return window_right_; }
  ElementType kv_type() const { return kv_type_; }
  ElementType out_type() const { return out_type_; }

  Sequence SequenceAt(int64_t b) const { return SequenceOf(*spec_, *args_, b); }

  // Keys that window, causal mask and length leave for query row i.
  KeyRange VisibleKeys(const Sequence& sequence, int64_t i) const;
  KeySlot Locate(const Sequence& sequence, int64_t j) const;

  // Row i of Q, and of a tensor that lies like Q or O, decoded: `count` values.
  template <typename Real>
  void LoadQuery(const Sequence& sequence, int64_t h, int64_t i, Real* out) const;
  template <typename Real>
  void LoadLikeOutput(const Tensor& tensor, const Sequence& sequence, int64_t h, int64_t i,
                      Real* out) const;

  // Keys [keys.begin, keys.end) of one key/value head, decoded and scaled. Value d of key j goes to
  // out[(j - keys.begin) * key_stride + d * dim_stride]. Keys of missing pages become 0; nothing
  // may use them.
  template <typename Real>
  void LoadKeys(const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
                int64_t key_stride, int64_t dim_stride) const;
  template <typename Real>
  void LoadValues(const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
                  int64_t key_stride, int64_t dim_stride) const;

 private:
  Problem(const AttentionSpec& spec, const AttentionArgs& args, const Options& options);

  template <typename Real>
  void LoadKv(const Tensor& tensor, const float* scale, const std::array<int64_t, 3>& scale_strides,
              int64_t dim, const Sequence& sequence, int64_t h_kv, KeyRange keys, Real* out,
              int64_t key_stride, int64_t dim_stride) const;

  const AttentionSpec* spec_;
  const AttentionArgs* args_;
  const Options* options_;
  DropoutRule dropout_;
  int64_t group_;
  int64_t window_right_;
  ElementType kv_type_;
  ElementType out_type_;
};

// How a score depends on what went into it.
template <typename Real>
struct ScoreSlopes {
  Real by_dot;   // d score / d (scale * dot)
  Real by_bias;  // d score / d (sum of bias terms and ALiBi)
};

// Scores and masks of one query row.
template <typename Real>
class RowScorer {
 public:
  RowScorer(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i);

  int64_t h() const { return h_; }
  int64_t i() const { return i_; }
  // Outside of it no key is visible.
  KeyRange keys() const { return keys_; }
  // Whether key j of keys() is visible.
  bool Keeps(int64_t j) const;
  // The final score of key j from the dot product of q_i and k_j.
  Real Score(int64_t j, Real dot) const { return Evaluate(j, dot, nullptr); }
  Real Score(int64_t j, Real dot, ScoreSlopes<Real>* slopes) const {
    return Evaluate(j, dot, slopes);
  }
  // What the dot products are multiplied by.
  Real scale() const { return scale_; }
  // -|i + off - j|.
  Real AlibiDistance(int64_t j) const;

 private:
  struct Term {
    ElementType type;
    const std::byte* row;
    int64_t stride_kv;
  };

  Real Evaluate(int64_t j, Real dot, ScoreSlopes<Real>* slopes) const;

  const Problem& problem_;
  const Sequence& sequence_;
  int64_t h_;
  int64_t i_;
  KeyRange keys_;
  int additive_count_ = 0;
  int bool_count_ = 0;
  std::array<Term, 4> additive_;
  std::array<Term, 4> bool_;
  Real scale_;
  Real slope_ = 0;
  const uint8_t* block_mask_ = nullptr;  // of the row's query block
};

// Weights of one row from its scores.
template <typename Real>
struct RowSoftmax {
  Real max = 0;
  Real sum = 0;           // of exp(score - max), sink included
  Real sink_weight = 0;   // exp(sink - max)
  bool any_key = false;   // some visible key has a score other than -inf
  bool any_term = false;  // any_key, or a sink that counts
};

// scores[n] of keys with keep[n] become exp(score - max), the others 0. `sink` may be null. A NaN
// or +inf among the kept scores or in the sink makes the sum NaN.
template <typename Real>
RowSoftmax<Real> SoftmaxInPlace(const uint8_t* keep, int64_t count, const float* sink,
                                Real* scores);

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_PROBLEM_H_

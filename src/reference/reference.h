// Exact attention on the CPU in fp64, forward and backward: the oracle of tests, benchmarks and
// `verify`. It follows the definition in tilewright/attention.h literally (row by row, no tiles, no
// online rescaling) and shares no code with the kernels. Multi-threaded.
#ifndef TILEWRIGHT_REFERENCE_REFERENCE_H_
#define TILEWRIGHT_REFERENCE_REFERENCE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tilewright/attention.h"

namespace tilewright::reference {

// A query row: batch, query head, row within the sequence.
struct Row {
  int64_t b = 0;
  int64_t h = 0;
  int64_t i = 0;
  bool operator==(const Row&) const = default;
};

// What a snippet sees, for rules given as C++ (a CUDA snippet cannot run here). They are called
// from several threads at once, for keys that no other mask excludes.
struct Where {
  int64_t b, h, i, j, seqlen_q, seqlen_kv;
};
struct Callables {
  std::function<double(double score, const Where&)> score;  // empty: none
  std::function<double(double score, const Where&)>
      score_derivative;  // d new / d old, for Backward
  std::function<bool(const Where&)> mask;
};

struct Options {
  Callables callables;
  int threads = 0;  // 0: all
};

// Rows that exist: every (b, h, i) with i below the length of sequence b. For packed Q the lengths
// are read from args.cu_seqlens_q.
std::vector<Row> AllRows(const AttentionSpec& spec, const AttentionArgs& args);

// At most about `limit` rows for large problems: for each of a spread of (b, h) the first and the
// last row, rows at both sides of multiples of 64, and random ones drawn from `seed`. All rows when
// there are no more than `limit`.
std::vector<Row> SampleRows(const AttentionSpec& spec, const AttentionArgs& args, int64_t limit,
                            uint64_t seed);

struct ForwardResult {
  std::vector<double> o;    // [rows, dim_v]
  std::vector<double> lse;  // [rows], in the spec's base and with its value for empty rows
};

// `args` holds HOST pointers; args.o and args.lse are not written and may be null. InvalidArgument
// as spec::Validate and ValidateArgs, and for lengths that contradict one another; a spec with a
// snippet needs the callable for it, and one without must not have it. Bias terms whose batch is
// the spec's follow the batch of the call. A row's result depends neither on the other rows asked
// for nor on the number of threads.
absl::StatusOr<ForwardResult> Forward(const AttentionSpec& spec, const AttentionArgs& args,
                                      absl::Span<const Row> rows, const Options& options = {});

// The straightforward computation in the spec's own types that the accuracy bar is set by: scores
// in fp32, softmax in fp32, P = exp(s - max) rounded once to the 16-bit element type (fp8 queries:
// scaled by 256 and rounded to e4m3; fp32: not rounded), sums in fp32, O rounded once to the output
// type. Same shape of result; lse in fp32.
absl::StatusOr<ForwardResult> StraightforwardForward(const AttentionSpec& spec,
                                                     const AttentionArgs& args,
                                                     absl::Span<const Row> rows,
                                                     const Options& options = {});

// Gradients of sum(dO * O). Dense fp64, in the order [batch, seq, head, dim] whatever the layout of
// the inputs (with cu_seqlens: [total, head, dim]). Paged K and V: in the order of the keys of each
// sequence, not of the pages. Keys beyond seqused_kv, masked keys, and rows that see no key get
// exactly 0. Of scaled inputs (fp8, int8): the gradients of the real values, stored * scale.
struct BackwardResult {
  std::vector<double> dq, dk, dv;
  // Of additive terms, summed over what they broadcast: [batch, heads, seqlen_q, seqlen_kv] of the
  // term, where an extent other than 1 is the call's (a batch: see Forward). Empty for bool terms.
  std::array<std::vector<double>, 4> dbias;
  std::vector<double> dsinks;  // [heads_q]
  std::vector<double> dalibi;  // [heads_q], or [batch, heads_q] with alibi_stride_batch != 0
};
// `d_o` has the type and the layout rules of args.o (HOST pointer). Errors as Forward; a score
// callable needs its derivative, at the score that the callable is given. The sums have one order
// for every number of threads.
absl::StatusOr<BackwardResult> Backward(const AttentionSpec& spec, const AttentionArgs& args,
                                        const Tensor& d_o, const Options& options = {});

// The straightforward computation in the spec's own type, by which the accuracy of a backward pass
// is judged: fp32 arithmetic, delta = dot(dO, O) with O rounded to its type, P and dS rounded once
// to the element type where they are operands of a product, every gradient of Q, K and V rounded
// once. InvalidArgument for types that differ or have 8 bits.
absl::StatusOr<BackwardResult> StraightforwardBackward(const AttentionSpec& spec,
                                                       const AttentionArgs& args, const Tensor& d_o,
                                                       const Options& options = {});

// Host arithmetic of the element types: exact widening and round-to-nearest-even narrowing. What is
// too large becomes infinity (fp16, bf16, fp32, e5m2) or the largest value (e4m3: 448; int8,
// int32); NaN stays NaN (integers: 0). `element` may have any alignment.
double ToDouble(ElementType type, const void* element);
void FromDouble(ElementType type, double value, void* element);

// Philox4x32-10 and the dropout rule: whether weight (b, h, i, j) is kept.
bool DropoutKeeps(float p, uint64_t seed, uint64_t offset, int64_t heads_q, int64_t b, int64_t h,
                  int64_t i, int64_t j);

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_REFERENCE_H_

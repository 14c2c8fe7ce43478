// A problem in host memory: the arrays of one call and the AttentionArgs that point at
// them. MakeRandomProblem fills one for any spec from a seed; the program, `verify` and the GPU
// tests share it.
//
// To run a problem on a device, allocate one device buffer per entry of buffers(), copy the bytes,
// and call ArgsAt with the device addresses (src/cli/device_problem.h does this).
#ifndef TILEWRIGHT_CLI_RANDOM_PROBLEM_H_
#define TILEWRIGHT_CLI_RANDOM_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

// Bytes of one array. The array's first element lies `start` bytes into `bytes`, whose data is
// 64-byte aligned on the host and may be assumed 256-byte aligned on a device.
struct HostBuffer {
  std::string name;  // "q", "bias0", "page_table", ...
  std::vector<std::byte> storage;
  size_t align_skip = 0;  // storage.data() + align_skip is the aligned base
  size_t size = 0;        // bytes from the base
  size_t start = 0;       // bytes from the base to the first element
  bool output = false;    // "o" and "lse"; of a backward also "d_q", "d_k", ...

  std::byte* base() { return storage.data() + align_skip; }
  const std::byte* base() const { return storage.data() + align_skip; }
};

// Movable, not copyable (args() points into the buffers). Not thread-safe while being built.
class HostProblem {
 public:
  explicit HostProblem(AttentionSpec spec) : spec_(std::move(spec)) {}
  HostProblem(HostProblem&&) = default;
  HostProblem& operator=(HostProblem&&) = default;
  HostProblem(const HostProblem&) = delete;
  HostProblem& operator=(const HostProblem&) = delete;

  // An array of `size` bytes whose first element is `start` bytes after an aligned base, filled
  // with `fill`. The pointer is that of the first element and stays valid with the problem.
  void* AddBuffer(std::string name, size_t size, size_t start = 0, bool output = false,
                  std::byte fill = std::byte{0});

  const AttentionSpec& spec() const { return spec_; }
  AttentionSpec& spec() { return spec_; }
  const AttentionArgs& args() const { return args_; }
  AttentionArgs& args() { return args_; }
  absl::Span<const HostBuffer> buffers() const { return buffers_; }
  absl::Span<HostBuffer> buffers() { return absl::MakeSpan(buffers_); }
  const HostBuffer* FindBuffer(std::string_view name) const;
  // Bytes of all buffers.
  size_t total_bytes() const;

  // args() with every pointer into buffers()[n] moved to the same place relative to bases[n].
  // `bases` has one address per buffer.
  AttentionArgs ArgsAt(absl::Span<void* const> bases) const;

  // The lengths of sequence `b`, read from the host arrays where the spec has varlen.
  int64_t LengthQ(int64_t b) const;
  int64_t LengthKv(int64_t b) const;

  // Adds "o" (and "lse", if the spec wants it) in `o_strides`, filled with `poison`, for the sizes
  // that args() holds.
  void AddOutputs(const Strides& o_strides, size_t start_elements, std::byte poison);

 private:
  AttentionSpec spec_;
  AttentionArgs args_;
  std::vector<HostBuffer> buffers_;
};

// Which of the arrays of lengths a varlen problem carries.
struct VarlenArrays {
  bool cu_seqlens_q = false;
  bool cu_seqlens_kv = false;
  bool seqused_q = false;
  bool seqused_kv = false;
};

struct RandomProblemOptions {
  uint64_t seed = 1;

  // Rows, heads and batches padded to strides that no wide copy fits, first elements aligned to
  // their own size only; the innermost stride 2 where spec.strided_innermost allows it; strides of
  // broadcast extents filled with nonsense. Without it: spec.strides, or dense in spec.layout.
  bool odd_strides = false;

  // NaN in every K and V row that no query may see because it lies beyond a length (padding of
  // seqused_kv, left padding, tails of pages, pages and slots that no sequence uses). The result
  // must not notice.
  bool poison_unused_kv = true;
  // And in those that the window hides from all queries of their sequence.
  bool poison_hidden_kv = false;

  // Paged: some entries inside the lengths are negative (masked pages).
  bool negative_pages = false;

  // Dropout seed and offset in memory rather than by value.
  bool dropout_by_pointer = false;

  // Absent: layout=thd gets cu_seqlens_q and cu_seqlens_kv (seqused_kv where paged), other layouts
  // seqused_kv only.
  std::optional<VarlenArrays> varlen_arrays;
  // Absent: random, at least one sequence as long as the spec says, sometimes one that is empty.
  std::vector<int64_t> lengths_q;
  std::vector<int64_t> lengths_kv;

  // Standard deviation of Q, K and V, and of additive bias terms.
  double amplitude = 1;
  double bias_amplitude = 1;
  // Probability that a bool term or block mask keeps a pair. One row in 16 of a bool term that has
  // rows keeps nothing.
  double keep_probability = 0.75;

  // What the snippets read, by name: arrays as raw bytes in the type the spec says.
  std::map<std::string, std::vector<std::byte>> snippet_arrays;
  std::map<std::string, double> snippet_scalars;

  // Byte that o and lse are filled with before the call.
  std::byte poison = std::byte{0xff};
};

// Random arrays for one call of `spec` (valid): equal seeds give equal bytes on every
// machine. Q and K have unit variance, so that scores under the default scale do too; fp8 and int8
// values use their range, with scales that bring them back to unit variance.
// The O and LSE that a backward reads hold poison: a forward of the same spec fills them.
//   InvalidArgument  a snippet's array or scalar is missing; lengths do not fit the spec
absl::StatusOr<HostProblem> MakeRandomProblem(const AttentionSpec& spec,
                                              const RandomProblemOptions& options = {});

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_RANDOM_PROBLEM_H_

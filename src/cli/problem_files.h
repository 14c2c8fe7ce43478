// A problem whose arrays come from files.
#ifndef TILEWRIGHT_CLI_PROBLEM_FILES_H_
#define TILEWRIGHT_CLI_PROBLEM_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/array_files.h"
#include "cli/random_problem.h"
#include "cli/spec_arguments.h"

namespace tilewright::cli {

// Paths of a call's arrays; empty: not given. Shapes, with the dimensions of Q and K in the order
// of the word layout= (bshd unless it says otherwise, thd with cu_seqlens_q):
struct ProblemFiles {
  std::string q;  // [batch, seqlen_q, heads_q, dim_qk], packed: [total_q, heads_q, dim_qk]
  std::string k;  // [batch, seqlen_kv, heads_kv, dim_qk], packed likewise, paged: [pages,
                  // page_size, heads_kv, dim_qk]
  std::string v;  // as k with dim_v
  // Masks are bool, biases fp16, bf16 or fp32, all [1 or batch, 1 or heads_q, 1 or seqlen_q, 1 or
  // seqlen_kv]; "FILE:div" reads a batch of a divisor by division (batch_map).
  std::vector<std::string> masks;
  std::vector<std::string> biases;
  std::string alibi;            // fp32 [heads_q] or [batch, heads_q]
  std::string sinks;            // fp32 [heads_q]
  std::string cu_seqlens_q;     // int32 [batch + 1]
  std::string cu_seqlens_kv;    // int32 [batch + 1]
  std::string seqused_q;        // int32 [batch]
  std::string seqused_kv;       // int32 [batch]
  std::string page_table;       // int32 [batch, max_pages]; with cache_batch_idx [slots, max_pages]
  std::string left_padding;     // int32 [batch]
  std::string cache_batch_idx;  // int32 [batch]; k and v are then [slots, ...]
  std::string q_scale;          // fp32 [1] or [heads_q]
  std::string k_scale;          // fp32 [1] or [heads_kv]
  std::string v_scale;          // as k_scale
};

// `words` are those of a spec beyond types, sizes, masks and biases, which the files tell:
// "causal", "scale=0.125", "lse", "layout=bhsd", score=@FILE, ... The spec of the result is
// canonical; o is dense in the layout of q. InvalidArgument names the file, dtype and shape that do
// not fit.
absl::StatusOr<HostProblem> ProblemFromFiles(const ProblemFiles& files, const std::string& words,
                                             const SnippetInputs& inputs);

// The result of a problem made by ProblemFromFiles as arrays for WriteArray: o in the shape of q
// with dim_v; lse fp32 [batch, heads_q, seqlen_q], packed [heads_q, total_q].
Array OutputArray(const HostProblem& problem);
Array LseArray(const HostProblem& problem);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_PROBLEM_FILES_H_

#include "cli/doc_tables.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/env.h"
#include "base/text.h"

namespace tilewright::cli {
namespace {

constexpr WordDoc kWords[] = {
    {"b", "b=N", "batch", "fwd bf16 b=2 h=4 s=64 d=64"},
    {"h", "h=Q/KV", "query heads and key/value heads, a divisor of them",
     "fwd bf16 b=1 h=8/2 s=64 d=64"},
    {"s", "s=Q/KV", "sequence lengths; with `varlen` the longest", "fwd bf16 b=1 h=4 s=1/512 d=64"},
    {"d", "d=QK/V", "head dims", "fwd bf16 b=1 h=4 s=64 d=192/128"},
    {"layout", "layout=L", "`bshd` (default), `bhsd`, `sbhd`, or `thd` for packed tokens",
     "fwd bf16 b=1 h=4 s=64 d=64 layout=bhsd"},
    {"strides", "strides=Q;K;V;O", "typical strides in elements, each `batch,seq,head,dim`",
     "fwd bf16 b=1 h=4 s=64 d=64 "
     "strides=32768,512,128,1;32768,512,128,1;32768,512,128,1;16384,256,64,1"},
    {"strided_innermost", "strided_innermost", "the head dim may have a stride other than 1",
     "fwd bf16 b=1 h=4 s=64 d=64 strided_innermost"},
    {"kv", "kv=TYPE", "type of K and V, where it is not that of Q",
     "fwd bf16 b=1 h=4 s=64 d=64 kv=e4m3 kv_scale=tensor"},
    {"out", "out=TYPE", "type of O, where it is not that of Q",
     "fwd bf16 b=1 h=4 s=64 d=64 out=fp32"},
    {"causal", "causal", "row i sees keys up to i + Skv - Sq; `causal=top_left`: up to i",
     "fwd bf16 b=1 h=4 s=64/128 d=64 causal"},
    {"align", "align=A", "`bottom_right` (default) or `top_left`: where diagonals lie",
     "fwd bf16 b=1 h=4 s=64/128 d=64 window=8,8 align=top_left"},
    {"window", "window=LEFT,RIGHT", "keys that stay visible beside the diagonal; -1: all",
     "fwd bf16 b=1 h=4 s=512 d=64 window=127,0"},
    {"block_mask", "block_mask=Q,K", "a mask of blocks of Q rows and K keys",
     "fwd bf16 b=1 h=4 s=512 d=64 block_mask=128,64"},
    {"scale", "scale=X", "factor of the scores, by default 1/sqrt(d)",
     "fwd bf16 b=1 h=4 s=64 d=64 scale=0.25"},
    {"softcap", "softcap=X", "scores become X tanh(score / X)",
     "fwd bf16 b=1 h=4 s=64 d=64 softcap=30"},
    {"softcap_before_bias", "softcap_before_bias", "softcap first, then the bias terms",
     "fwd bf16 b=1 h=4 s=64 d=64 softcap=30 softcap_before_bias bias=fp32:1,4,64,64"},
    {"alibi", "alibi", "a slope per head times the distance from the diagonal",
     "fwd bf16 b=1 h=4 s=64 d=64 alibi"},
    {"alibi_grad", "alibi_grad", "backward: the gradient of the slopes too",
     "bwd bf16 b=1 h=4 s=64 d=64 alibi alibi_grad"},
    {"bias", "bias=TYPE:b,h,q,k",
     "an additive term, 1 broadcasts; up to four terms; `:div` maps a batch that is a divisor by "
     "division instead of `:mod`; `:grad` at the end asks a backward for its gradient",
     "fwd fp16 b=64 h=4 s=49 d=32 bias=fp16:1,4,49,49"},
    {"mask", "mask=bool:b,h,q,k", "a term that keeps where it is true; `mask=@FILE`: a snippet",
     "fwd fp16 b=2 h=4 s=64 d=32 mask=bool:2,1,1,64"},
    {"sinks", "sinks", "a logit per head that takes weight and has no value",
     "fwd bf16 b=1 h=4 s=64 d=64 sinks"},
    {"sinks_grad", "sinks_grad", "backward: the gradient of the sinks too",
     "bwd bf16 b=1 h=4 s=64 d=64 sinks sinks_grad"},
    {"dropout", "dropout=P", "probability of dropping a weight",
     "fwd bf16 b=1 h=4 s=64 d=64 dropout=0.1"},
    {"q_scale", "q_scale=KIND", "scale of fp8 Q: `tensor` or `head`",
     "fwd e4m3 b=1 h=4 s=64 d=64 out=bf16 q_scale=tensor kv_scale=tensor"},
    {"kv_scale", "kv_scale=KIND", "scales of fp8 or int8 K and V: `tensor`, `head` or `token`",
     "fwd bf16 b=1 h=4 s=64 d=64 kv=int8 kv_scale=token"},
    {"score", "score=@FILE", "CUDA text that maps each score to a new one", ""},
    {"score_grad", "score_grad=@FILE",
     "backward: CUDA text for the gradient of `score=`; without it the derivative is generated",
     ""},
    {"mask_tile", "mask_tile=@FILE",
     "CUDA text that says of a tile what `mask=@FILE` keeps: `none`, `some` or `all`", ""},
    {"array", "array=NAME:TYPE",
     "a device array that snippets read; `:grad`: the gradient snippet adds to its gradient", ""},
    {"scalar", "scalar=NAME:TYPE", "a `float` or `int64` that snippets read", ""},
    {"varlen", "varlen", "each sequence has its own lengths, given on the device",
     "fwd bf16 b=4 h=4 s=64 d=64 layout=thd varlen"},
    {"paged", "paged=N", "K and V lie in pages of N tokens",
     "fwd bf16 b=4 h=4 s=1/512 d=64 paged=16 varlen"},
    {"left_padding", "left_padding", "keys before a sequence's first valid one are masked",
     "fwd bf16 b=4 h=4 s=1/512 d=64 varlen left_padding"},
    {"cache_batch_idx", "cache_batch_idx",
     "a sequence's keys lie in the slot of a cache that an index names",
     "fwd bf16 b=4 h=4 s=1/512 d=64 varlen cache_batch_idx"},
    {"lse", "lse", "also return the logarithm of the sum of exponentials",
     "fwd bf16 b=1 h=4 s=64 d=64 lse"},
    {"lse_base", "lse_base=B", "its base: `e` (default) or `2`",
     "fwd bf16 b=1 h=4 s=64 d=64 lse lse_base=2"},
    {"empty_lse", "empty_lse=X", "its value for rows that see no key: `-inf` (default) or `+inf`",
     "fwd bf16 b=1 h=4 s=64 d=64 lse empty_lse=+inf"},
    {"allow_tf32", "allow_tf32", "fp32 may be computed with TF32 accuracy",
     "fwd fp32 b=1 h=4 s=64 d=64 allow_tf32"},
    {"deterministic", "deterministic", "backward: equal bytes between runs",
     "bwd bf16 b=1 h=4 s=64 d=64 deterministic"},
    {"batch_invariant", "batch_invariant",
     "a sequence's result does not depend on its neighbours in the batch",
     "fwd bf16 b=4 h=4 s=64 d=64 batch_invariant"},
    {"exact", "exact", "bake batch and lengths into the kernel",
     "fwd bf16 b=1 h=4 s=64 d=64 exact"},
};

std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(AbslView(text), {{"|", "\\|"}});
}

}  // namespace

absl::Span<const WordDoc> WordDocs() { return kWords; }

std::string WordTable() {
  std::string table = "| word | meaning |\n|---|---|\n";
  for (const WordDoc& word : kWords) {
    absl::StrAppend(&table, "| `", Cell(word.form), "` | ", Cell(word.meaning), " |\n");
  }
  return table;
}

std::string EnvironmentTable() {
  std::string table = "| variable | option | values | meaning |\n|---|---|---|---|\n";
  for (const EnvVariable& variable : EnvVariables()) {
    absl::StrAppend(&table, "| `", Cell(variable.name), "` | `", Cell(variable.option), "` | ",
                    Cell(variable.values), " | ", Cell(variable.doc), " |\n");
  }
  return table;
}

}  // namespace tilewright::cli

"""Attention kernels written for your shape, when you know it.

    import torch, tilewright.torch
    q, k, v = (torch.randn(2, 1000, 8, 72, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = tilewright.torch.attention(q, k, v, causal=True)

`tilewright.torch.attention` differentiates, compiles and captures; `tilewright.torch.register()` makes Tilewright an
attention implementation of Hugging Face transformers. `tilewright.attention` takes the arrays of any library that
speaks DLPack. What is computed, and in which order, is in tilewright/attention.h.

Threads: everything here may be called from any thread.
"""

import sys

from . import _arrays, _call, _driver
from ._c import (
    FailedPreconditionError,
    InvalidArgumentError,
    TilewrightError,
    UnavailableError,
    UnimplementedError,
    library,
    use_library,
)
from ._cache import append, merge
from ._call import Options
from ._runtime import Prepared, Runtime, default_runtime, set_default_runtime

__all__ = [
    "FailedPreconditionError",
    "InvalidArgumentError",
    "Options",
    "Prepared",
    "Runtime",
    "TilewrightError",
    "UnavailableError",
    "UnimplementedError",
    "append",
    "attention",
    "default_runtime",
    "explain",
    "library",
    "merge",
    "set_default_runtime",
    "use_library",
    "version",
]


def version():
    """Of the library, "0.1.0"."""
    return library().version().decode()


# Arrays that `attention` takes by name beside q, k, v and out, with their shapes in its documentation.
_OPTIONAL = (
    *_call.LENGTHS,
    "alibi_slopes",
    "sinks",
    "block_mask",
    "q_scale",
    "k_scale",
    "v_scale",
)


def _namespace(q):
    """The module that makes arrays like q, and what it wants to be told of the device."""
    package = _arrays.package_of(q)
    if package == "cupy":  # on its current device
        return sys.modules["cupy"], {}
    if package == "torch":
        return sys.modules["torch"], {"device": q.device}
    if hasattr(q, "__array_namespace__"):
        return q.__array_namespace__(), {"device": q.device}
    raise InvalidArgumentError(
        f"out is missing: {type(q).__name__} has no __array_namespace__ to make one with"
    )


def _empty(q, shape, dtype):
    namespace, device = _namespace(q)
    return namespace.empty(shape, dtype=dtype, **device)


def attention(
    q,
    k,
    v,
    *,
    out=None,
    lse=None,
    terms=(),
    arrays=None,
    scalars=None,
    stream=None,
    runtime=None,
    block_mask_size=(0, 0),
    **options,
):
    """Softmax attention of arrays on a CUDA device, without copies and without gradients.

    q        [batch, sequence, heads, dim] in the order of `layout` ("bshd", "bhsd", "sbhd"), any strides; with
             cu_seqlens_q [tokens, heads, dim]
    k, v     likewise, heads a divisor of those of q; with cu_seqlens_kv [tokens, heads, dim]; with page_table
             [pages, tokens of a page, heads, dim]
    out      as q with the head dim of v; made by q's library if absent
    lse      True to get (out, lse), or the fp32 array [batch, heads, sequence] ([heads, tokens]) to write
    terms    up to four arrays [batch, heads, queries, keys] of which each dimension may be 1: fp16, bf16 and fp32 are
             added to the scores, bool ones keep where they are true
    causal, align, window=(left, right), scale, softcap, softcap_before_bias, dropout, dropout_seed, dropout_offset,
    max_seqlen_q, max_seqlen_kv, lse_base, empty_lse, allow_tf32, batch_invariant, exact
             as in AttentionSpec and AttentionArgs (tilewright/attention.h)
    cu_seqlens_q, cu_seqlens_kv [batch + 1], seqused_q, seqused_kv [batch], page_table [batch, pages]
             int32: lengths of packed sequences and pages. Packed arrays want max_seqlen_q and max_seqlen_kv
    left_padding, cache_batch_idx [batch]
             int32: keys of each sequence before its first valid one; its slot in k and v (or in page_table), of
             which there may be more or fewer than sequences
    alibi_slopes [heads] or [batch, heads], sinks [heads], block_mask [batch, heads, query blocks, key blocks] with
    block_mask_size=(queries, keys), q_scale, k_scale, v_scale
             fp32, but for the bool block_mask
    score, mask_rule
             CUDA text that maps `score` to a new one, and that keeps where it is true; it may read `arrays` and
             `scalars` ({name: value}) by name
    stream   the handle of a CUDA stream; by default the current one of q's library. JAX has none: the call then
             waits for the result

    Runs on the current device, which must be that of the arrays. Raises InvalidArgumentError, which names the field,
    UnimplementedError, UnavailableError (no driver, no NVRTC) or FailedPreconditionError.
    """
    if stream is None:
        stream = _arrays.current_stream(q)
    optional = {name: options.pop(name) for name in _OPTIONAL if options.get(name) is not None}
    wants_lse = lse is not None and lse is not False
    try:
        chosen = Options(
            lse=wants_lse,
            window=tuple(options.pop("window", (-1, -1))),
            scalars=tuple((scalars or {}).items()),
            block_mask=tuple(block_mask_size),
            **{name: value for name, value in options.items() if value is not None},
        )
    except TypeError:
        unknown = sorted(set(options) - set(Options.__dataclass_fields__) - set(_OPTIONAL))
        raise TypeError(f"attention() has no argument {', '.join(unknown)}") from None
    if out is None:
        out = _empty(q, (*q.shape[:-1], v.shape[-1]), q.dtype)
    if lse is True:
        axes = {"bshd": (0, 2, 1), "bhsd": (0, 1, 2), "sbhd": (1, 2, 0)}[chosen.layout]
        shape = (q.shape[1], q.shape[0]) if len(q.shape) == 3 else tuple(q.shape[n] for n in axes)
        lse = _empty(q, shape, _namespace(q)[0].float32)

    def described(name, array):
        return _arrays.from_dlpack(name, array, stream)

    given = {"q": q, "k": k, "v": v, "o": out, **optional}
    if wants_lse:
        given["lse"] = lse
    operands = {name: described(name, array) for name, array in given.items()}
    term_operands = [described(f"terms[{n}]", term) for n, term in enumerate(terms)]
    snippet_arrays = [(name, described(name, array)) for name, array in (arrays or {}).items()]
    _driver.ensure_context(operands["q"].device)
    scratch = []

    def workspace(size):
        scratch.append(_empty(q, (size,), _namespace(q)[0].int8))
        return described("workspace", scratch[0]).data

    call = _call.find(chosen, operands, term_operands, snippet_arrays, stream, runtime)
    addressed = (*operands.values(), *term_operands, *(array for _, array in snippet_arrays))
    call.launch([array.data for array in addressed], stream, workspace)
    if _arrays.package_of(q) == "jax" or _arrays.package_of(q) == "jaxlib":
        _driver.synchronize(stream)  # JAX orders nothing after work that it does not know
    return (out, lse) if wants_lse else out


def explain(spec, runtime=None):
    """How a spec in words would run on the current device: plan, reasons, resources."""
    return (runtime or default_runtime()).prepare(spec).explain()

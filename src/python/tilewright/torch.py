"""Tilewright in PyTorch: an operator that differentiates, compiles and captures, and what puts it into models.

o = tilewright.torch.attention(q, k, v, causal=True)
tilewright.torch.register()              # attn_implementation="tilewright" in transformers
tilewright.torch.register(sdpa=True)     # and in the place of scaled_dot_product_attention
"""

import functools

import torch

from . import _arrays, _call
from ._c import InvalidArgumentError
from ._call import Options

# The optional tensors of the operator, in the order of its arguments.
_OPTIONAL = (
    "alibi_slopes",
    "sinks",
    *_call.LENGTHS,
    "block_mask",
    "q_scale",
    "k_scale",
    "v_scale",
    "dropout_seed",
    "dropout_offset",
)

_SETTINGS = (
    "str layout, bool causal, bool top_left, int window_left, int window_right, float? scale, float softcap,"
    " bool softcap_before_bias, float dropout, int block_mask_q, int block_mask_kv, SymInt max_seqlen_q,"
    " SymInt max_seqlen_kv, str score, str mask_rule, bool allow_tf32, bool batch_invariant"
)
_SETTING_NAMES = [argument.split()[-1] for argument in _SETTINGS.split(",")]
_OPTIONAL_ARGUMENTS = "".join(f"Tensor? {name}, " for name in _OPTIONAL)

_operators = torch.library.Library("tilewright", "DEF")
_operators.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor[] terms, "
    + _OPTIONAL_ARGUMENTS
    + _SETTINGS
    + ", bool lse, ScalarType? out_dtype) -> (Tensor, Tensor)"
)
# Gradients of Q, K, V, the chosen terms, and the ALiBi slopes and sinks (of no elements where they
# are not wanted).
_operators.define(
    "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse,"
    " Tensor[] terms, "
    + _OPTIONAL_ARGUMENTS
    + _SETTINGS
    + ", bool deterministic, int[] term_gradients, bool alibi_gradient, bool sinks_gradient)"
    " -> (Tensor, Tensor, Tensor, Tensor[], Tensor, Tensor)"
)


@functools.lru_cache(maxsize=4096)
def _options(
    layout,
    causal,
    top_left,
    window_left,
    window_right,
    scale,
    softcap,
    softcap_before_bias,
    dropout,
    block_mask_q,
    block_mask_kv,
    max_seqlen_q,
    max_seqlen_kv,
    score,
    mask_rule,
    allow_tf32,
    batch_invariant,
    lse,
    **backward,
):
    return Options(
        layout=layout,
        causal=causal,
        align="top_left" if top_left else "bottom_right",
        window=(window_left, window_right),
        scale=scale,
        softcap=softcap,
        softcap_before_bias=softcap_before_bias,
        dropout=dropout,
        block_mask=(block_mask_q, block_mask_kv),
        max_seqlen_q=max_seqlen_q,
        max_seqlen_kv=max_seqlen_kv,
        score=score or None,
        mask_rule=mask_rule or None,
        allow_tf32=allow_tf32,
        batch_invariant=batch_invariant,
        lse=lse,
        **backward,
    )


def _output_shapes(q, v, layout):
    """(shape of O, its strides, shape of LSE); the memory of O is [batch, sequence, heads, dim] in every layout."""
    dim = v.shape[-1]
    if q.dim() == 3:
        tokens, heads, _ = q.shape
        return (tokens, heads, dim), (heads * dim, dim, 1), (heads, tokens)
    if layout == "bhsd":
        batch, heads, length, _ = q.shape
        strides = (length * heads * dim, dim, heads * dim, 1)
        return (batch, heads, length, dim), strides, (batch, heads, length)
    first, second, heads, _ = q.shape
    batch, length = (first, second) if layout == "bshd" else (second, first)
    strides = (second * heads * dim, heads * dim, dim, 1)
    return (first, second, heads, dim), strides, (batch, heads, length)


# PyTorch's own generated code asks for the stream's handle by this name; where it is absent, in more steps.
_raw_stream = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)


def _scratch_on(device):
    """(a function that gives the address of scratch memory, a list that keeps the memory)"""
    kept = []

    def workspace(size):
        kept.append(torch.empty(size, dtype=torch.uint8, device=device))
        return kept[0].data_ptr()

    return workspace, kept


def _find(options, tensors, terms, stream):
    """The Call for tensors by name, all there, and the addresses that its launch wants."""
    arrays = {name: _arrays.from_torch(tensor) for name, tensor in tensors.items()}
    term_arrays = [_arrays.from_torch(term) for term in terms]
    call = _call.find(options, arrays, term_arrays, (), stream)
    return call, [array.data for array in (*arrays.values(), *term_arrays)]


def _given(optional):
    """The optional tensors that are there, by name."""
    return {name: tensor for name, tensor in zip(_OPTIONAL, optional) if tensor is not None}


def _compute(q, k, v, terms, optional, settings):
    """(O, LSE or None). `optional`: the tensors that are there, by name; `settings`: the operator's arguments after
    those. What a known form of call costs is little more than its key, which says all of it but addresses."""
    index = q.get_device()
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return _compute(q, k, v, terms, optional, settings)
    more = (*optional.values(), *terms)
    key = (
        *(index, q.dtype, q.shape, q.stride(), k.get_device(), k.dtype, k.shape, k.stride()),
        *(v.get_device(), v.dtype, v.shape, v.stride(), settings),
        *((*optional, *[(t.get_device(), t.dtype, t.shape, t.stride()) for t in more]) if more else ()),
    )
    form = _call.forms.get(key)
    if form is not None and form[0].runtime is _call.default_runtime():
        call, shape, strides, lse_shape = form
    else:
        call, (shape, strides, lse_shape) = None, _output_shapes(q, v, settings[0])
    *_, lse, out_dtype = settings
    device = q.device
    o = torch.empty_strided(shape, strides, dtype=out_dtype or q.dtype, device=device)
    lse_out = torch.empty(lse_shape, dtype=torch.float32, device=device) if lse else None
    stream = _raw_stream(index)
    if call is None:
        tensors = {"q": q, "k": k, "v": v, "o": o, **({"lse": lse_out} if lse else {}), **optional}
        call, addresses = _find(_options(*settings[:-1]), tensors, terms, stream)
        if len(_call.forms) >= _call.MAX_CALLS:
            _call.forms.clear()
        _call.forms[key] = (call, shape, strides, lse_shape)
    else:
        addresses = [q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()]
        if lse:
            addresses.append(lse_out.data_ptr())
        for tensor in more:
            addresses.append(tensor.data_ptr())
    workspace, kept = _scratch_on(device) if call.workspace_bytes else (None, None)
    call.launch(addresses, stream, workspace)
    del kept  # not before the launch
    return o, lse_out


def _with_lse(q, o, lse):
    """An operator always returns both: a tensor of no elements stands for an LSE that is not wanted."""
    return o, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _attention_cuda(q, k, v, terms, *rest):
    count = len(_OPTIONAL)
    return _with_lse(q, *_compute(q, k, v, terms, _given(rest[:count]), rest[count:]))


def _attention_meta(q, k, v, terms, *rest):
    layout, *_, lse, out_dtype = rest[len(_OPTIONAL) :]
    shape, strides, lse_shape = _output_shapes(q, v, layout)
    o = q.new_empty_strided(shape, strides, dtype=out_dtype or q.dtype)
    return _with_lse(q, o, q.new_empty(lse_shape, dtype=torch.float32) if lse else None)


_operators.impl("attention", _attention_cuda, "CUDA")
torch.library.register_fake("tilewright::attention", _attention_meta, lib=_operators)


def _new_gradients(q, k, v, terms, alibi_slopes, sinks, term_gradients, alibi_wanted, sinks_wanted):
    def like(tensor, wanted):
        return q.new_empty(tensor.shape if wanted else (0,), dtype=torch.float32)

    # What a term broadcasts by a stride of 0 has one element here, as in the kernel.
    shapes = [
        [1 if stride == 0 else size for size, stride in zip(terms[n].shape, terms[n].stride())]
        for n in term_gradients
    ]
    return (
        *(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)),
        [q.new_empty(shape, dtype=torch.float32) for shape in shapes],
        like(alibi_slopes, alibi_wanted),
        like(sinks, sinks_wanted),
    )


def _split_backward(rest):
    """(optional tensors by name, settings, what follows them) of the backward operator's arguments."""
    optional = dict(zip(_OPTIONAL, rest))
    rest = rest[len(_OPTIONAL) :]
    return optional, rest[: len(_SETTING_NAMES)], rest[len(_SETTING_NAMES) :]


def _backward_cuda(d_o, q, k, v, o, lse, terms, *rest):
    optional, settings, (deterministic, *wanted) = _split_backward(rest)
    slopes, sinks = optional["alibi_slopes"], optional["sinks"]
    outputs = _new_gradients(q, k, v, terms, slopes, sinks, *wanted)
    d_q, d_k, d_v, d_terms, d_slopes, d_sinks = outputs
    if q.numel() == 0:  # without rows nothing is launched, and nothing would be written
        for gradient in (d_q, d_k, d_v, *d_terms, d_slopes, d_sinks):
            gradient.zero_()
        return outputs
    term_gradients, alibi_wanted, sinks_wanted = wanted
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, **_given(optional.values())}
    tensors.update(d_q=d_q, d_k=d_k, d_v=d_v, d_o=d_o if d_o.stride(-1) == 1 else d_o.contiguous())
    if alibi_wanted:
        tensors["d_alibi_slopes"] = d_slopes
    if sinks_wanted:
        tensors["d_sinks"] = d_sinks
    options = _options(
        *settings,
        False,
        backward=True,
        deterministic=deterministic,
        term_gradients=tuple(term_gradients),
        alibi_gradient=alibi_wanted,
        sinks_gradient=sinks_wanted,
    )
    with torch.cuda.device(q.device):
        stream = _raw_stream(q.get_device())
        call, addresses = _find(options, tensors, terms, stream)
        gradients = [(n, _arrays.from_torch(d)) for n, d in zip(term_gradients, d_terms)]
        workspace, kept = _scratch_on(q.device)
        call.launch(addresses, stream, workspace, gradients)
        del kept  # not before the launch
    return outputs


def _backward_meta(d_o, q, k, v, o, lse, terms, *rest):
    optional, _, (_, *wanted) = _split_backward(rest)
    return _new_gradients(q, k, v, terms, optional["alibi_slopes"], optional["sinks"], *wanted)


_operators.impl("attention_backward", _backward_cuda, "CUDA")
torch.library.register_fake("tilewright::attention_backward", _backward_meta, lib=_operators)


def _save_for_backward(ctx, inputs, output):
    q, k, v, terms = inputs[:4]
    optional, settings, (lse, _) = _split_backward(inputs[4:])
    if not lse:
        raise InvalidArgumentError("lse = False: must be True where a gradient is wanted")
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, *terms, *optional.values())
    ctx.num_terms = len(terms)
    ctx.settings = settings


def _attention_backward(ctx, d_o, _):
    q, k, v, o, lse, *rest = ctx.saved_tensors
    terms, optional = rest[: ctx.num_terms], rest[ctx.num_terms :]
    needed = ctx.needs_input_grad
    term_needs = needed[3] if isinstance(needed[3], (list, tuple)) else [needed[3]] * len(terms)
    term_gradients = [
        n for n, term in enumerate(terms) if term_needs[n] and term.is_floating_point()
    ]
    alibi_wanted, sinks_wanted = needed[4], needed[5]
    d_q, d_k, d_v, d_terms, d_slopes, d_sinks = torch.ops.tilewright.attention_backward(
        d_o,
        q,
        k,
        v,
        o,
        lse,
        terms,
        *optional,
        *ctx.settings,
        torch.are_deterministic_algorithms_enabled(),
        term_gradients,
        alibi_wanted,
        sinks_wanted,
    )
    of_terms = [None] * len(terms)
    for n, gradient in zip(term_gradients, d_terms):
        # Whoever expanded the term sums over what it expanded: share the sum out among the copies.
        copies = terms[n].numel() // max(1, gradient.numel())
        of_terms[n] = (gradient / copies).expand_as(terms[n]).to(terms[n].dtype)
    rest_of_inputs = [None] * (len(_OPTIONAL) - 2 + len(_SETTING_NAMES) + 2)
    return (
        d_q,
        d_k,
        d_v,
        of_terms,
        d_slopes if alibi_wanted else None,
        d_sinks if sinks_wanted else None,
        *rest_of_inputs,
    )


torch.library.register_autograd(
    "tilewright::attention", _attention_backward, setup_context=_save_for_backward, lib=_operators
)


def _needs_no_dispatch(q, k, v, terms, optional):
    """Whether a call may go past PyTorch's dispatcher, which takes as long as all else on the host: nothing is being
    traced, differentiated or watched."""
    if (
        torch.compiler.is_compiling()
        or type(q) not in _PLAIN_TENSORS
        or not q.is_cuda
        or _dispatch_modes()
    ):
        return False
    if not torch.is_grad_enabled():
        return True
    return not any(t.requires_grad for t in (q, k, v, *terms, *optional.values()) if t is not None)


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Absent from some version of PyTorch: all calls are dispatched.
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def attention(
    q,
    k,
    v,
    *,
    layout="bshd",
    causal=False,
    align="bottom_right",
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    softcap_before_bias=False,
    terms=(),
    dropout=0.0,
    lse=False,
    block_mask_size=(0, 0),
    max_seqlen_q=0,
    max_seqlen_kv=0,
    score="",
    mask_rule="",
    allow_tf32=False,
    batch_invariant=False,
    out_dtype=None,
    **optional,
):
    """Softmax attention of CUDA tensors, on the current stream.

    q        [batch, sequence, heads, dim] in the order of `layout` ("bshd", "bhsd", "sbhd"), any strides; with
             cu_seqlens_q [tokens, heads, dim]
    k, v     likewise, heads a divisor of those of q; with cu_seqlens_kv [tokens, heads, dim]; with page_table
             [pages, tokens of a page, heads, dim]
    terms    up to four tensors [batch, heads, queries, keys] of which each dimension may be 1: floating ones are added
             to the scores, bool ones keep where they are true
    dropout  draws its seed from PyTorch's generator of the device; dropout_seed and dropout_offset, int64 tensors of
             one element, say it instead
    others   as of tilewright.attention

    Gradients reach q, k, v, floating terms, alibi_slopes and sinks, with
    torch.use_deterministic_algorithms bitwise equal between runs.

    Returns O, or with lse=True (O, LSE). Raises tilewright.InvalidArgumentError, which names the field, and the
    other errors of tilewright.attention.
    """
    unknown = [name for name in optional if name not in _OPTIONAL]
    if unknown:
        raise TypeError(f"attention() has no argument {', '.join(sorted(unknown))}")
    if dropout and optional.get("dropout_seed") is None:
        drawn = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=q.device)
        optional["dropout_seed"], optional["dropout_offset"] = drawn[:1], drawn[1:]
    if align not in ("bottom_right", "top_left"):
        raise InvalidArgumentError(f"align = {align!r}: must be one of bottom_right, top_left")
    settings = (
        layout,
        causal,
        align == "top_left",
        window[0],
        window[1],
        scale,
        softcap,
        softcap_before_bias,
        dropout,
        block_mask_size[0],
        block_mask_size[1],
        max_seqlen_q,
        max_seqlen_kv,
        score,
        mask_rule,
        allow_tf32,
        batch_invariant,
    )
    if _needs_no_dispatch(q, k, v, terms, optional):
        given = {name: tensor for name, tensor in optional.items() if tensor is not None}
        o, lse_out = _compute(q, k, v, terms, given, (*settings, lse, out_dtype))
    else:
        tensors = [optional.get(name) for name in _OPTIONAL]
        # A backward pass reads the LSE.
        o, lse_out = torch.ops.tilewright.attention(
            q, k, v, list(terms), *tensors, *settings, True, out_dtype
        )
    return (o, lse_out) if lse else o


# ---- scaled_dot_product_attention ----------------------------------------------------------------

_torch_sdpa = torch.nn.functional.scaled_dot_product_attention
_SDPA_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def sdpa_serves(query, key, value, attn_mask=None):
    """Whether `scaled_dot_product_attention` here computes these tensors itself, rather than PyTorch."""
    return (
        query.is_cuda
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype in _SDPA_TYPES
        and query.dtype == key.dtype == value.dtype
        and query.shape[1] % key.shape[1] == 0
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
        and (attn_mask is None or (attn_mask.dim() in (2, 3, 4) and not attn_mask.requires_grad))
    )


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch.nn.functional.scaled_dot_product_attention; what `sdpa_serves` refuses goes to PyTorch's."""
    if not sdpa_serves(query, key, value, attn_mask):
        return _torch_sdpa(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgumentError(
            f"key has {key.shape[1]} heads: must have those of query, {query.shape[1]}, without enable_gqa"
        )
    terms = ()
    if attn_mask is not None:
        terms = (attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape)),)
    return attention(
        query,
        key,
        value,
        layout="bhsd",
        causal=is_causal,
        align="top_left",
        scale=scale,
        terms=terms,
        dropout=dropout_p,
    )


# ---- Hugging Face transformers -------------------------------------------------------------------


def _transformers_mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    attention_mask=None,
    allow_is_causal_skip=True,
    allow_is_bidirectional_skip=False,
    **kwargs,
):
    """The mask of a model's layers: None where causal, window and full attention need none, a [batch, 1, 1, keys]
    tensor with the attribute `tilewright_padding` where only keys are padded, else the whole bool mask.
    """
    from transformers.masking_utils import is_tracing, prepare_padding_mask, sdpa_mask

    # Both are off where a model or its user adds a rule of its own.
    plain = allow_is_bidirectional_skip or (
        # Row i of the kernel's bottom-right diagonal sees keys up to i + kv_length - q_length.
        allow_is_causal_skip
        and not isinstance(q_offset, torch.Tensor)
        and q_offset - kv_offset == kv_length - q_length
    )
    if plain:
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        if padding is None:
            return None
        if not is_tracing(padding):
            padding = padding[:, kv_offset : kv_offset + kv_length]
            if bool(padding.all()):
                return None
            padding = padding[:, None, None, :]
            padding.tilewright_padding = True
            return padding
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        **kwargs,
    )


def _transformers_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    position_bias=None,
    **kwargs,
):
    if kwargs.get("output_attentions"):
        raise InvalidArgumentError(
            "output_attentions = True: must be False, the weights are never in memory"
        )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    terms = [] if position_bias is None else [position_bias]
    structure = attention_mask is None or hasattr(attention_mask, "tilewright_padding")
    if attention_mask is not None:
        terms.append(attention_mask)
    window = (-1, -1)
    if structure and sliding_window is not None:
        # A causal window counts the row's own key, one of both sides counts distances.
        window = (sliding_window - 1, 0) if is_causal else (sliding_window, sliding_window)
    o = attention(
        query,
        key,
        value,
        layout="bhsd",
        causal=bool(structure and is_causal),
        window=window,
        scale=scaling,
        softcap=softcap or 0.0,
        softcap_before_bias=True,
        terms=terms,
        sinks=None if s_aux is None else s_aux.float(),
        dropout=dropout if module.training else 0.0,
    )
    return o.transpose(1, 2), None


def register(name="tilewright", *, transformers=True, sdpa=False):
    """Makes Tilewright the attention implementation `name` of transformers, when it is installed, and with sdpa=True
    replaces torch.nn.functional.scaled_dot_product_attention (of tensors that `sdpa_serves`) until `unregister`.
    """
    if transformers:
        try:
            from transformers import AttentionInterface, AttentionMaskInterface
        except ImportError:
            if not sdpa:
                raise
        else:
            AttentionInterface.register(name, _transformers_attention)
            AttentionMaskInterface.register(name, _transformers_mask)
    if sdpa:
        torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def unregister():
    """Gives PyTorch its own scaled_dot_product_attention back."""
    torch.nn.functional.scaled_dot_product_attention = _torch_sdpa

"""What goes with attention over a cache: writing new tokens into it, and merging results over parts of the keys."""

import ctypes

from . import _arrays, _c, _driver
from ._runtime import default_runtime

_prepared = {}  # by runtime, device and the bytes of the spec
_ROTARY = {"half_split": 1, "interleaved": 2}


def _prepare(runtime, kind, device, spec, stream):
    key = (id(runtime), kind, device, bytes(spec))
    found = _prepared.get(key)
    if found is None:
        found = getattr(runtime, f"prepare_{kind}")(spec, stream)
        # With the runtime, whose address would otherwise name another one some day.
        _prepared[key] = found = (runtime, found)
    return found[1]


def _described(name, array, stream):
    if _arrays.package_of(array) == "torch":
        return _arrays.from_torch(array)
    return _arrays.from_dlpack(name, array, stream)


def _tensor(name, array, packed=False):
    """[batch, tokens, heads, dim], or packed [tokens, heads, dim], as a tensor of the C interface."""
    if len(array.shape) != (3 if packed else 4):
        wanted = "[tokens, heads, dim]" if packed else "[batch, tokens, heads, dim]"
        raise _c.InvalidArgumentError(f"{name} has shape {tuple(array.shape)}: must be {wanted}")
    strides = (0, *array.strides) if packed else array.strides
    return _c.Tensor(array.data, _c.Strides(*strides))


def _need(name, array, *types):
    if array.type not in types:
        raise _c.InvalidArgumentError(
            f"{name} has elements of another type than {', '.join(_c.ELEMENT_NAMES[t] for t in types)}"
        )


def _check_append(given, packed):
    """Raises where the arrays do not fit one another: the kernels go by the shapes of k and k_cache."""
    new, cache = given["k"], given["k_cache"]

    def like(name, wanted, kind):
        if name not in given:
            return
        if tuple(given[name].shape) != tuple(wanted):
            raise _c.InvalidArgumentError(
                f"{name} has shape {tuple(given[name].shape)}: must be {tuple(wanted)}"
            )
        _need(name, given[name], kind)

    dim_v = given["v"].shape[-1] if "v" in given else 0
    heads_q = given["q"].shape[-2] if "q" in given else 0
    like("v", (*new.shape[:-1], dim_v), new.type)
    for name in ("q", "q_out"):
        like(name, (*new.shape[:-2], heads_q, new.shape[-1]), new.type)
    like("k_cache", (*cache.shape[:2], *new.shape[-2:]), cache.type)
    like("v_cache", (*cache.shape[:2], new.shape[-2], dim_v), cache.type)
    for name in ("k", "v", "q", "q_out", "k_cache", "v_cache"):
        if name in given and given[name].shape[-1] > 1 and given[name].strides[-1] != 1:
            raise _c.InvalidArgumentError(
                f"{name} has strides {tuple(given[name].strides)}: must have 1 for the head dim"
            )

    batch = given["cu_seqlens"].shape[0] - 1 if packed else new.shape[0]
    slots = "cache_batch_idx" in given  # of more or fewer sequences
    for name in ("seqused_kv", "new_seqused_kv", "cache_batch_idx", "seqused"):
        if name in given:
            _arrays.need_dense(name, given[name], (batch,))
    if packed:
        _arrays.need_dense("cu_seqlens", given["cu_seqlens"], (batch + 1,))
    if "positions" in given:
        tokens = tuple(new.shape[:-2])
        shapes = (tokens,) if packed or tokens[0] != 1 else (tokens, tokens[1:])
        _arrays.need_dense("positions", given["positions"], *shapes)
    if "ticket" in given:
        _arrays.need_dense("ticket", given["ticket"], (), (1,))
    if "page_table" in given:
        _arrays.need_page_table(given["page_table"], batch, slots)
    elif not slots and cache.shape[0] < batch:
        raise _c.InvalidArgumentError(
            f"k_cache has {cache.shape[0]} sequences: must have {batch}"
        )
    if "cos" in given and "sin" in given:
        tables = given["cos"], given["sin"]
        if tables[0].signature != tables[1].signature or len(tables[0].shape) != 2:
            raise _c.InvalidArgumentError(
                "cos and sin differ in shape, strides or type: must be [positions, pairs], both alike"
            )
        if tables[0].shape[1] > 1 and tables[0].strides[1] != 1:
            raise _c.InvalidArgumentError("cos and sin: the pairs of a position must be side by side")


def append(
    k,
    v,
    k_cache,
    v_cache,
    *,
    q=None,
    q_out=None,
    rotary=None,
    rotary_begin=0,
    rotary_dim=0,
    rotary_base=10000.0,
    stream=None,
    runtime=None,
    **arrays,
):
    """Writes the keys and values of new tokens into a cache, in one launch that a CUDA graph may hold.

    k, v     [batch, tokens, heads, dim] of the new tokens; with cu_seqlens [tokens, heads, dim]. v and v_cache may be
             None: there are no values apart from the keys (latent attention)
    k_cache, v_cache
             [batch or slots, tokens, heads, dim]; with page_table [pages, tokens of a page, heads, dim]. Of the type
             of k, or e4m3, e5m2, int8
    q, q_out the queries of the new tokens, to be rotated, and where to; q_out is q if absent
    rotary   "half_split", "interleaved" or None; with rotary_begin, rotary_dim, rotary_base, or the arrays cos and sin
             [positions, pairs]
    seqused_kv [batch]
             int32: tokens in the cache before; absent: none
    new_seqused_kv [batch]
             int32, written: tokens in it after; may be seqused_kv, which wants `ticket`, an int32 that is 0
    page_table [batch or slots, pages], cache_batch_idx [batch], positions [batch, tokens] or [tokens],
    cu_seqlens [batch + 1], seqused [batch]
             int32: as in CacheAppendArgs (tilewright/cache_append.h)
    k_scale, v_scale
             fp32, of an 8-bit cache: [1], [heads], or [batch or page, head, token], which is written

    Raises as tilewright.attention.
    """
    names = (
        "seqused_kv new_seqused_kv ticket page_table cache_batch_idx positions cu_seqlens seqused"
        " cos sin k_scale v_scale"
    ).split()
    unknown = sorted(set(arrays) - set(names))
    if unknown:
        raise TypeError(f"append() has no argument {', '.join(unknown)}")
    if rotary is not None and rotary not in _ROTARY:
        raise _c.InvalidArgumentError(
            f"rotary = {rotary!r}: must be one of {', '.join(_ROTARY)}, or None"
        )
    if stream is None:
        stream = _arrays.current_stream(k)
    given = dict(k=k, v=v, k_cache=k_cache, v_cache=v_cache, q=q, **arrays)
    given["q_out"] = q_out if q_out is not None else q
    given = {
        name: _described(name, array, stream)
        for name, array in given.items()
        if array is not None
    }
    runtime = runtime or default_runtime()
    library = _c.library()
    spec = library.new(_c.AppendSpec, library.append_spec_init)
    args = library.new(_c.AppendArgs, library.append_args_init)
    packed = "cu_seqlens" in given
    for name in ("k", "v", "q", "q_out"):
        if name in given:
            setattr(args, name, _tensor(name, given[name], packed))
    for name in ("k_cache", "v_cache"):
        if name in given:
            setattr(args, name, _tensor(name, given[name]))
    new, cache = given["k"], given["k_cache"]
    _check_append(given, packed)
    spec.type, spec.cache_type = new.type, cache.type
    spec.heads_kv, spec.dim_qk = new.shape[-2:]
    spec.heads_q = given["q"].shape[-2] if "q" in given else 0
    spec.dim_v = given["v"].shape[-1] if "v" in given else 0
    spec.rotary = _ROTARY.get(rotary, 0)
    spec.rotary_begin, spec.rotary_dim = rotary_begin, rotary_dim
    spec.rotary_base = rotary_base
    if packed:
        args.batch, args.total = given["cu_seqlens"].shape[0] - 1, new.shape[0]
    else:
        args.batch, args.seqlen = new.shape[:2]
    args.capacity = cache.shape[1]
    if "page_table" in given:
        table = given["page_table"]
        spec.page_size = cache.shape[1]
        args.capacity = cache.shape[1] * table.shape[1]
        args.page_table_stride = table.strides[0]
    if "cos" in given:
        spec.rotary_table = given["cos"].type
        args.rotary_stride = given["cos"].strides[0]
    scales = {name: given[name] for name in ("k_scale", "v_scale") if name in given}
    for name, scale in scales.items():
        _need(name, scale, _c.FP32)
    kind = _arrays.kv_scale_kind(scales, *cache.shape[:3])
    if kind is not None:
        spec.cache_scale = kind
    if kind == _c.SCALE_PER_TOKEN:
        for name, scale in scales.items():
            for axis in range(3):
                getattr(args, f"{name}_strides")[axis] = scale.strides[axis]
    for name in names:
        if name not in given:
            continue
        if name not in ("cos", "sin", "k_scale", "v_scale"):
            _need(name, given[name], _c.INT32)
        setattr(args, name, given[name].data)
    _driver.ensure_context(new.device)
    runtime.append(_prepare(runtime, "append", new.device, spec, stream), args, stream)


def merge(o_parts, lse_parts, out, lse=None, *, lse_base="e", empty_lse="-inf", stream=None, runtime=None):
    """Attention over all keys from results over parts of them, exactly.

    o_parts  [parts, batch, sequence, heads, dim], fp32, fp16 or bf16, as tilewright.attention writes O
    lse_parts [parts, batch, heads, sequence], fp32; "-inf" (or "+inf" with empty_lse="+inf") where a row saw no key
    out      [batch, sequence, heads, dim], written
    lse      None, or fp32 [batch, heads, sequence], written

    Packed sequences are a batch of one. Raises as tilewright.attention.
    """
    if stream is None:
        stream = _arrays.current_stream(o_parts)
    given = dict(o_parts=o_parts, lse_parts=lse_parts, out=out, lse=lse)
    given = {
        name: _described(name, array, stream)
        for name, array in given.items()
        if array is not None
    }
    parts, part_lse, result = given["o_parts"], given["lse_parts"], given["out"]
    for name, array, dims in (("o_parts", parts, 5), ("lse_parts", part_lse, 4), ("out", result, 4)):
        if len(array.shape) != dims:
            raise _c.InvalidArgumentError(
                f"{name} has shape {tuple(array.shape)}: must have {dims} dimensions"
            )
    if tuple(parts.shape[1:]) != tuple(result.shape):
        raise _c.InvalidArgumentError(
            f"out has shape {tuple(result.shape)}: must be that of one part, {tuple(parts.shape[1:])}"
        )
    if tuple(part_lse.shape) != tuple(parts.shape[n] for n in (0, 1, 3, 2)):
        raise _c.InvalidArgumentError(
            f"lse_parts has shape {tuple(part_lse.shape)}: must be [parts, batch, heads, sequence]"
        )
    if part_lse.strides[3] != 1 and part_lse.shape[3] > 1:
        raise _c.InvalidArgumentError("lse_parts: rows of a head must be adjacent")
    _need("lse_parts", part_lse, _c.FP32)
    runtime = runtime or default_runtime()
    library = _c.library()
    spec = library.new(_c.MergeSpec, library.merge_spec_init)
    args = library.new(_c.MergeArgs, library.merge_args_init)
    spec.part_type, spec.out_type = parts.type, result.type
    spec.heads, spec.dim_v = parts.shape[3:]
    spec.lse = "lse" in given
    spec.lse_base, spec.empty_lse = lse_base == "2", empty_lse == "+inf"
    args.parts, args.batch, args.seqlen_q = parts.shape[:3]
    args.o_parts = _c.Tensor(parts.data, _c.Strides(*parts.strides[1:]))
    args.o_stride_part = parts.strides[0]
    args.lse_parts = part_lse.data
    args.lse_stride_part, args.lse_stride_batch, args.lse_stride_head = part_lse.strides[:3]
    args.o = _tensor("out", result)
    if "lse" in given:
        _need("lse", given["lse"], _c.FP32)
        wanted = tuple(part_lse.shape[1:])
        if tuple(given["lse"].shape) != wanted or (wanted[2] > 1 and given["lse"].strides[2] != 1):
            raise _c.InvalidArgumentError(
                f"lse has shape {tuple(given['lse'].shape)}: must be {wanted}, rows of a head side by side"
            )
        args.lse = given["lse"].data
        args.lse_out_stride_batch, args.lse_out_stride_head = given["lse"].strides[:2]
    _driver.ensure_context(parts.device)
    runtime.merge(_prepare(runtime, "merge", parts.device, spec, stream), args, stream)

"""From arrays and options to a prepared operation and its arguments."""

import atexit
import ctypes
import dataclasses

from . import _c
from ._arrays import INT64, kv_scale_kind, need_dense, need_page_table
from ._runtime import default_runtime

_ORDERS = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}
_LAYOUTS = {"bshd": _c.BSHD, "bhsd": _c.BHSD, "sbhd": _c.SBHD}
# Arrays of int32 that say where each sequence is and how long.
LENGTHS = (
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "seqused_q",
    "seqused_kv",
    "page_table",
    "left_padding",
    "cache_batch_idx",
)
MAX_CALLS = 2048  # combinations of shapes, strides and options that are remembered


@dataclasses.dataclass(frozen=True)
class Options:
    """What AttentionSpec (tilewright/attention.h) says beside types and sizes; the same names and defaults."""

    layout: str = "bshd"
    causal: bool = False
    align: str = "bottom_right"
    window: tuple = (-1, -1)
    scale: float = None
    softcap: float = 0.0
    softcap_before_bias: bool = False
    dropout: float = 0.0
    dropout_seed: int = 0
    dropout_offset: int = 0
    block_mask: tuple = (0, 0)
    max_seqlen_q: int = 0
    max_seqlen_kv: int = 0
    score: str = None
    mask_rule: str = None
    scalars: tuple = ()
    lse: bool = False
    lse_base: str = "e"
    empty_lse: str = "-inf"
    allow_tf32: bool = False
    batch_invariant: bool = False
    exact: bool = False
    # Backward: the gradients of K, Q and V, and of these.
    backward: bool = False
    deterministic: bool = False
    term_gradients: tuple = ()
    alibi_gradient: bool = False
    sinks_gradient: bool = False

    def __post_init__(self):
        for field, values in (
            ("layout", tuple(_ORDERS)),
            ("align", ("bottom_right", "top_left")),
            ("lse_base", ("e", "2")),
            ("empty_lse", ("-inf", "+inf")),
        ):
            if getattr(self, field) not in values:
                raise _c.InvalidArgumentError(
                    f"{field} = {getattr(self, field)!r}: must be one of {', '.join(values)}"
                )
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        object.__setattr__(self, "_hash", hash(tuple(values)))

    def __hash__(self):  # asked for on each call
        return self._hash


def typical(length, exact=False):
    """The length that a spec states for planning: lengths up to 64 as they are, others rounded up by at most an
    eighth, so that sequences that grow token by token share their plans."""
    if exact or length <= 64:
        return length
    step = 1 << (length.bit_length() - 4)
    return -(-length // step) * step


def _ordered(name, array, order):
    """Shape and strides as (batch, sequence, head, dim)."""
    if len(array.shape) != 4:
        raise _c.InvalidArgumentError(f"{name} has shape {array.shape}: must have 4 dimensions")
    return tuple(array.shape[n] for n in order), tuple(array.strides[n] for n in order)


def _packed(name, array):
    """A [tokens, heads, dim] array as a batch of one."""
    if len(array.shape) != 3:
        raise _c.InvalidArgumentError(
            f"{name} has shape {array.shape}: must be [tokens, heads, dim]"
        )
    return (1, *array.shape), (0, *array.strides)


def _memory_order(shape, strides):
    """The layout in which the array is dense, or None."""
    for name, order in _ORDERS.items():
        expected = 1
        for n in reversed(order):
            if shape[n] != 1 and strides[n] != expected:
                break
            expected *= shape[n]
        else:
            return name
    return None


def _dense_strides(order, shape):
    strides, step = [0, 0, 0, 0], 1
    for n in reversed(_ORDERS[order]):
        strides[n] = step
        step *= shape[n]
    return tuple(strides)


def _need(name, array, *types):
    if array.type not in types:
        raise _c.InvalidArgumentError(
            f"{name} has elements of another type than {', '.join(_c.ELEMENT_NAMES[t] for t in types)}"
        )


def _extent(array, axis):
    """1 for an axis that is broadcast, by its size or by a stride of 0."""
    return 1 if array.strides[axis] == 0 else array.shape[axis]


class Call:
    """A prepared operation with the arguments that do not change between calls of equal shapes and strides."""

    def __init__(self, runtime, options, arrays, terms, snippet_arrays, stream):
        self._library = runtime._library
        self.runtime = runtime
        self.spec = self._library.new(_c.Spec, self._library.spec_init)
        self.args = self._library.new(_c.Args, self._library.args_init)
        self._kept = []  # what the spec points to
        self._idle = []  # _Launch objects between launches
        self._devices(arrays, terms, snippet_arrays)
        self._sizes(options, arrays)
        self._options(options, arrays)
        self._terms(options, terms)
        self._optional(options, arrays)
        self._snippets(options, snippet_arrays)
        self.prepared = runtime.prepare_struct(self.spec, stream)
        self.workspace_bytes = self.prepared.workspace_bytes(self.args)
        # What a launch would look up each time.
        self._run = self._library.run
        self._runtime_handle, self._prepared_handle = runtime.handle, self.prepared.handle
        self._words = (
            *(_WORDS[name] for name in arrays),
            *(_BIAS_WORD + n * _BIAS_WORDS for n in range(len(terms))),
            *(_SNIPPET_WORD + n for n in range(len(snippet_arrays))),
        )

    def _devices(self, arrays, terms, snippet_arrays):
        device = arrays["q"].device
        named = [(f"terms[{n}]", term) for n, term in enumerate(terms)]
        for name, array in (*arrays.items(), *named, *snippet_arrays):
            if array.device != device:
                where = f"device {array.device}" if array.device >= 0 else "no CUDA device"
                raise _c.InvalidArgumentError(
                    f"{name} lies on {where}: must lie on that of q, device {device}"
                )

    def _sizes(self, options, arrays):
        spec, args = self.spec, self.args
        order = _ORDERS[options.layout]
        q, k, v, o = (arrays[name] for name in "qkvo")
        cu_q, cu_kv, pages = (
            arrays.get(name) for name in ("cu_seqlens_q", "cu_seqlens_kv", "page_table")
        )
        spec.type, spec.kv_type, spec.out_type = q.type, k.type, o.type
        if v.type != k.type:
            raise _c.InvalidArgumentError("k and v have elements of different types")
        placed = {}
        for name, array in (("q", q), ("o", o)):
            placed[name] = _packed(name, array) if cu_q else _ordered(name, array, order)
        for name, array in (("k", k), ("v", v)):
            if (
                pages is not None
            ):  # [pages, tokens of a page, heads, dim] in the order of the layout
                placed[name] = _ordered(name, array, order)
            else:
                placed[name] = _packed(name, array) if cu_kv else _ordered(name, array, order)
        (q_shape, _), (k_shape, _), (v_shape, _), (o_shape, _) = (placed[name] for name in "qkvo")
        self._kv_shape = k_shape  # (batch or pages, tokens, heads, dim)
        if v_shape[:3] != k_shape[:3]:
            raise _c.InvalidArgumentError(
                f"v has shape {v.shape}: must be that of k, {k.shape}, but for the head dim"
            )
        if o_shape != (*q_shape[:3], v_shape[3]):
            raise _c.InvalidArgumentError(
                f"out has shape {o.shape}: must be that of q with the head dim of v"
            )
        if k_shape[3] != q_shape[3]:
            raise _c.InvalidArgumentError(
                f"k has head dim {k_shape[3]}: must be that of q, {q_shape[3]}"
            )
        lengths = cu_q or cu_kv
        args.batch = lengths.shape[0] - 1 if lengths else q_shape[0]
        args.seqlen_q = options.max_seqlen_q or q_shape[1]
        args.seqlen_kv = options.max_seqlen_kv or k_shape[1]
        if cu_q:
            args.total_q = q_shape[1]
        elif q_shape[0] != args.batch:
            raise _c.InvalidArgumentError(f"q has {q_shape[0]} sequences: must have {args.batch}")
        if pages is not None:
            spec.page_size = k_shape[1]
            args.seqlen_kv = options.max_seqlen_kv or pages.shape[1] * k_shape[1]
        elif cu_kv:
            args.total_kv = k_shape[1]
        elif k_shape[0] != args.batch and arrays.get("cache_batch_idx") is None:
            raise _c.InvalidArgumentError(f"k has {k_shape[0]} sequences: must have {args.batch}")
        spec.left_padding = arrays.get("left_padding") is not None
        spec.cache_batch_idx = arrays.get("cache_batch_idx") is not None
        spec.varlen = any(
            arrays.get(name) is not None
            for name in (
                "cu_seqlens_q",
                "cu_seqlens_kv",
                "seqused_q",
                "seqused_kv",
                "left_padding",
            )
        )
        spec.heads_q, spec.heads_kv = q_shape[2], k_shape[2]
        spec.dim_qk, spec.dim_v = q_shape[3], v_shape[3]
        spec.seqlen_q = typical(args.seqlen_q, options.exact)
        spec.seqlen_kv = typical(args.seqlen_kv, options.exact)
        spec.batch = args.batch
        for name in "qkvo":
            strides = placed[name][1]
            getattr(args, name).strides = _c.Strides(*strides)
            if strides[3] != 1 and placed[name][0][3] != 1:
                spec.strided_innermost = 1
        if options.backward:
            for name in "qkvo":
                gradient = arrays[f"d_{name}"]
                if len(gradient.shape) == 3:
                    _, strides = _packed(f"d_{name}", gradient)
                else:
                    _, strides = _ordered(f"d_{name}", gradient, order)
                getattr(args, f"d_{name}").strides = _c.Strides(*strides)
        self._typical_strides(placed, packed=bool(lengths or pages is not None))

    def _typical_strides(self, placed, packed):
        """How the arrays lie: one layout for all, or strides of each that do not change as sequences grow."""
        spec = self.spec
        orders = {name: _memory_order(*placed[name]) for name in "qkvo"}
        if not packed and len(set(orders.values())) == 1 and orders["q"]:
            spec.layout = _LAYOUTS[orders["q"]]
            return
        strides = (_c.Strides * 4)()
        for n, name in enumerate("qkvo"):
            shape, actual = placed[name]
            if orders[name] and not packed:
                length = spec.seqlen_q if name in "qo" else spec.seqlen_kv
                actual = _dense_strides(orders[name], (spec.batch, length, *shape[2:]))
            strides[n] = _c.Strides(*actual)
        spec.strides = strides
        self._kept.append(strides)

    def _options(self, options, arrays):
        spec, args = self.spec, self.args
        spec.causal = options.causal
        spec.align = options.align == "top_left"
        spec.window_left, spec.window_right = options.window
        if options.scale is not None:
            spec.has_scale, spec.scale = 1, options.scale
        spec.softcap, spec.softcap_before_bias = options.softcap, options.softcap_before_bias
        spec.dropout = options.dropout
        args.dropout_seed, args.dropout_offset = options.dropout_seed, options.dropout_offset
        spec.lse, spec.lse_base, spec.empty_lse = (
            options.lse,
            options.lse_base == "2",
            options.empty_lse == "+inf",
        )
        for name in ("allow_tf32", "batch_invariant", "exact", "deterministic"):
            setattr(spec, name, getattr(options, name))
        spec.operation = options.backward
        spec.alibi_gradient, spec.sinks_gradient = options.alibi_gradient, options.sinks_gradient
        lse = arrays.get("lse")
        if lse is not None:
            _need("lse", lse, _c.FP32)
            packed = arrays.get("cu_seqlens_q") is not None
            rows = (spec.heads_q, args.total_q if packed else args.seqlen_q)
            wanted = rows if packed else (args.batch, *rows)
            if tuple(lse.shape) != wanted or (rows[1] > 1 and lse.strides[-1] != 1):
                raise _c.InvalidArgumentError(
                    f"lse has shape {tuple(lse.shape)} and strides {tuple(lse.strides)}: must be {wanted} with rows of a"
                    " head side by side"
                )
            args.lse_stride_head = lse.strides[-2]
            args.lse_stride_batch = lse.strides[0] if len(lse.shape) == 3 else 0

    def _terms(self, options, terms):
        """Additive and bool terms: [batch, heads, queries, keys], where 1 or a stride of 0 broadcasts."""
        spec, args = self.spec, self.args
        if not terms:
            return
        structs = (_c.BiasTerm * len(terms))()
        for n, term in enumerate(terms):
            if len(term.shape) != 4:
                raise _c.InvalidArgumentError(
                    f"terms[{n}] has shape {term.shape}: must have 4 dimensions"
                )
            for axis, actual in ((2, args.seqlen_q), (3, args.seqlen_kv)):
                if _extent(term, axis) not in (1, actual):
                    raise _c.InvalidArgumentError(
                        f"terms[{n}] has shape {term.shape}: dimension {axis} must be 1 or {actual}"
                    )
            structs[n] = _c.BiasTerm(
                size=ctypes.sizeof(_c.BiasTerm),
                type=term.type,
                batch=_extent(term, 0),
                heads=_extent(term, 1),
                seqlen_q=1 if _extent(term, 2) == 1 else spec.seqlen_q,
                seqlen_kv=1 if _extent(term, 3) == 1 else spec.seqlen_kv,
                gradient=n in options.term_gradients,
            )
            args.bias[n] = _c.BiasTensor(None, *term.strides)
        spec.bias, spec.num_bias = structs, len(terms)
        self._kept.append(structs)

    def _optional(self, options, arrays):
        spec, args = self.spec, self.args
        batch, heads = args.batch, spec.heads_q
        slopes = arrays.get("alibi_slopes")
        if slopes is not None:
            _need("alibi_slopes", slopes, _c.FP32)
            need_dense("alibi_slopes", slopes, (heads,), (batch, heads))
            spec.alibi = 1
            args.alibi_stride_batch = slopes.strides[0] if len(slopes.shape) == 2 else 0
        if arrays.get("sinks") is not None:
            _need("sinks", arrays["sinks"], _c.FP32)
            need_dense("sinks", arrays["sinks"], (heads,))
            spec.sinks = 1
        for name in LENGTHS:
            if arrays.get(name) is None:
                continue
            _need(name, arrays[name], _c.INT32)
            if name != "page_table":
                sums = name.startswith("cu_seqlens")
                need_dense(name, arrays[name], (batch + 1 if sums else batch,))
        self._page_table(arrays)
        self._block_mask(options, arrays)
        if arrays.get("q_scale") is not None:
            scale = arrays["q_scale"]
            _need("q_scale", scale, _c.FP32)
            need_dense("q_scale", scale, (), (1,), (heads,))
            spec.q_scale = (
                _c.SCALE_PER_TENSOR if scale.shape in ((), (1,)) else _c.SCALE_PER_HEAD
            )
        self._kv_scales(arrays)
        for name in ("dropout_seed", "dropout_offset"):
            if arrays.get(name) is not None:
                _need(name, arrays[name], INT64)
                need_dense(name, arrays[name], (), (1,))

    def _page_table(self, arrays):
        table = arrays.get("page_table")
        if table is None:
            return
        slots = arrays.get("cache_batch_idx") is not None
        need_page_table(table, self.args.batch, slots)
        if self.args.seqlen_kv > table.shape[1] * self.spec.page_size:
            raise _c.InvalidArgumentError(
                f"max_seqlen_kv = {self.args.seqlen_kv}: must be at most {table.shape[1] * self.spec.page_size}, which"
                f" page_table has room for"
            )
        self.args.page_table_stride = table.strides[0]

    def _block_mask(self, options, arrays):
        spec, args = self.spec, self.args
        spec.block_mask_q, spec.block_mask_kv = options.block_mask
        blocks = arrays.get("block_mask")
        if blocks is None:
            return
        _need("block_mask", blocks, _c.BOOL)
        if not all(size > 0 for size in options.block_mask):
            raise _c.InvalidArgumentError(
                f"block_mask_size = {options.block_mask}: must be the rows and keys of a block, with block_mask"
            )
        wanted = (
            args.batch,
            spec.heads_q,
            -(-args.seqlen_q // spec.block_mask_q),
            -(-args.seqlen_kv // spec.block_mask_kv),
        )
        ok = len(blocks.shape) == 4 and blocks.shape[3] == wanted[3]
        if (
            not ok
            or any(blocks.shape[n] not in (1, wanted[n]) for n in range(3))
            or (wanted[3] > 1 and blocks.strides[3] != 1)
        ):
            raise _c.InvalidArgumentError(
                f"block_mask has shape {tuple(blocks.shape)} and strides {tuple(blocks.strides)}: must be {wanted}, of"
                " which the first three may be 1, with the blocks of a row side by side"
            )
        for axis in range(3):
            args.block_mask_strides[axis] = 0 if blocks.shape[axis] == 1 else blocks.strides[axis]

    def _kv_scales(self, arrays):
        names = ("k_scale", "v_scale")
        scales = {name: arrays[name] for name in names if arrays.get(name) is not None}
        for name, scale in scales.items():
            _need(name, scale, _c.FP32)
        kind = kv_scale_kind(scales, *self._kv_shape[:3])
        if kind is None:
            return
        self.spec.kv_scale = kind
        if kind != _c.SCALE_PER_TOKEN:
            return
        for name, scale in scales.items():
            for axis in range(3):
                getattr(self.args, f"{name}_strides")[axis] = 0 if scale.shape[axis] == 1 else scale.strides[axis]

    def _snippets(self, options, snippet_arrays):
        spec = self.spec
        if options.score:
            spec.score_snippet = options.score.encode()
        if options.mask_rule:
            spec.mask_snippet = options.mask_rule.encode()
        if snippet_arrays:
            structs = (_c.SnippetArray * len(snippet_arrays))()
            for n, (name, array) in enumerate(snippet_arrays):
                need_dense(f"arrays[{name!r}]", array)
                structs[n] = _c.SnippetArray(
                    ctypes.sizeof(_c.SnippetArray), name.encode(), array.type, 0
                )
            spec.snippet_arrays, spec.num_snippet_arrays = structs, len(snippet_arrays)
        if options.scalars:
            structs = (_c.SnippetScalar * len(options.scalars))()
            for n, (name, value) in enumerate(options.scalars):
                integral = isinstance(value, int)
                structs[n] = _c.SnippetScalar(
                    ctypes.sizeof(_c.SnippetScalar), name.encode(), integral, 0
                )
                setattr(self.args.snippet_scalars[n], "i" if integral else "f", value)
            spec.snippet_scalars, spec.num_snippet_scalars = structs, len(options.scalars)

    def launch(self, addresses, stream, workspace, term_gradients=()):
        """`addresses` of the arrays, the terms and the snippets' arrays that this was made for, in that order.
        `workspace(bytes)` gives the address of scratch memory, which is asked for only when it is needed. Backward:
        `term_gradients` are (index of the term, array) pairs."""
        try:
            launch = self._idle.pop()
        except IndexError:
            launch = _Launch(self.args)
        words = launch.words
        for word, address in zip(self._words, addresses):
            words[word] = address
        for n, gradient in term_gradients:
            launch.args.d_bias[n] = _c.BiasGradient(gradient.data, *gradient.strides)
        if self.workspace_bytes:
            words[_WORKSPACE_WORD] = workspace(self.workspace_bytes)
        self._run(self._runtime_handle, self._prepared_handle, launch.reference, stream or None)
        self._idle.append(launch)


class _Launch:
    """The arguments of one launch, also as an array of words of 8 bytes: quicker to write pointers to than ctypes'
    fields are. A thread takes one for itself; every launch of a Call writes the same words."""

    def __init__(self, args):
        self.args = _c.Args.from_buffer_copy(args)
        self.reference = ctypes.byref(self.args)
        self.words = (ctypes.c_uint64 * (ctypes.sizeof(_c.Args) // 8)).from_buffer(self.args)


def _word(field):
    """The word that a field begins with; the pointer of a tensor comes first in its struct."""
    return getattr(_c.Args, field).offset // 8


# The words of arrays by name, of the first bias term, the terms' distance, and so on.
_WORDS = {
    name: _word(name)
    for name in (
        *LENGTHS,
        *"q k v o lse alibi_slopes sinks block_mask q_scale k_scale v_scale".split(),
        *"d_q d_k d_v d_o d_alibi_slopes d_sinks".split(),
    )
}
_WORDS["dropout_seed"] = _word("dropout_seed_ptr")
_WORDS["dropout_offset"] = _word("dropout_offset_ptr")
_BIAS_WORD, _BIAS_WORDS = _word("bias"), ctypes.sizeof(_c.BiasTensor) // 8
_SNIPPET_WORD, _WORKSPACE_WORD = _word("snippet_arrays"), _word("workspace")


_calls = {}
forms = {}  # tilewright.torch: (Call, shapes of the outputs) by a key that is quicker to make


def forget():
    """Drops what is remembered of calls."""
    forms.clear()
    _calls.clear()


atexit.register(forget)  # they hold runtimes


def find(options, arrays, terms, snippet_arrays, stream, runtime=None):
    """The Call for these arrays: remembered, or prepared now."""
    runtime = runtime or default_runtime()
    key = (
        id(runtime),
        options,
        tuple(arrays),
        tuple([array.signature for array in arrays.values()]),
        tuple([term.signature for term in terms]),
        tuple([(name, array.type, array.device) for name, array in snippet_arrays]),
    )
    call = _calls.get(key)
    if call is None:
        call = Call(runtime, options, arrays, terms, snippet_arrays, stream)
        if len(_calls) >= MAX_CALLS:
            _calls.clear()
        _calls[key] = call
    return call

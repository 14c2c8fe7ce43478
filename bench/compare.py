#!/usr/bin/env python3
"""Measures Tilewright beside PyTorch's attention back ends on one GPU, and checks the answers.

    compare.py                                  every row of bench/peers.json
    compare.py --rows 'd128_*' sam_d80_4096     rows by name
    compare.py --spec 'fwd bf16 b=2 h=16 s=2048 d=128 causal'
    compare.py --zoo 'sam*' 'swin*'             workloads of tests/data/zoo.jsonl by name
    compare.py --topic forward --results bench/results --commit HASH --html page.html

Tilewright runs through its C interface (libtilewright.so), the peers through PyTorch: `cudnn`,
`flash` (FlashAttention-2), `efficient` (memory-efficient), `flex` (FlexAttention, compiled); and, if
installed, `fa2`, `fa3`, `fa4` (flash-attn's own packages) and `xformers`. A peer that refuses a row
is left out of it; one whose answer is wrong is left out as well, and named. Rows of e4m3 are judged
by `own_bf16`, which is Tilewright in bf16 on random normal values of its own, as in any row of bf16.
Values that were rounded to e4m3 would have three bits after the first: their products take less
power, the chip clocks higher, and bf16 on them is some 5 % faster than its users ever see it.

Protocol (a power-limited chip gives 5 to 18 % to whatever runs first): all kernels of a row are
loaded and checked, then all of them together heat the chip for at least 0.6 s, then at least three
rounds in random order, each the median of triton.testing.do_bench; the median of the rounds
counts, and figures are compared only within one such run, as a ratio. A call of 10 ms or more is
made as often as do_bench's warming up and repeating have time for, once at least. With --together N rows are
taken N at a time: their kernels heat the chip together and share the rounds, in one random order, and
do_bench warms up for less, since the chip does not cool down in between.

Inputs are random normal, stored [batch, sequence, heads, dim]. TFLOP/s count exactly the pairs that
masks and windows allow (bench/flops.h has the same rule). Answers are compared on sampled rows with
fp64, by the bar of the tests: 1.5 times the error of the straightforward computation in the same
types, 5e-6 for fp32.

Exits with 1 when a row does not hold, 2 for wrong usage.
"""

import argparse
import ctypes
import dataclasses
import datetime
import fnmatch
import importlib.util
import itertools
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src/python"))

from tilewright import _c  # noqa: E402

PEERS = ("cudnn", "flash", "efficient", "flex")
PACKAGES = {
    "fa2": "flash_attn",
    "fa3": "flash_attn_interface",
    "fa4": "flash_attn.cute",
    "xformers": "xformers.ops",
}
ZOO = HERE.parent / "tests/data/zoo.jsonl"
HEAT_SECONDS = 0.6
WARMUP_MS = 110
WARMUP_TOGETHER_MS = 30
REP_MS = 70
LONG_MS = 10
FLUSH_BYTES = 256 << 20
SAMPLED_HEADS = 4
SAMPLED_ROWS = 64


# The callers' own rules that rows have, by the names of their C++ texts below bench/scores: a
# score, its batch and head, its query and key to the new score.
SCORES = {"decay.txt": lambda score, b, h, i, j: score - (i - j) * ((h + 1) * 2.0**-10)}


# ---- specs ---------------------------------------------------------------------------------------


class SpecError(ValueError):
    """A spec that this program cannot read or has no inputs for."""


@dataclasses.dataclass
class Term:
    """A bias term (additive) or a mask term (bool, nonzero keeps), as [batch, heads, q, kv]."""

    type: str
    shape: tuple


@dataclasses.dataclass
class Spec:
    text: str
    type: str = "bf16"
    batch: int = 1
    heads_q: int = 1
    heads_kv: int = 1
    seqlen_q: int = 1
    seqlen_kv: int = 1
    dim_qk: int = 64
    dim_v: int = 64
    causal: bool = False
    top_left: bool = False
    window_left: int = -1
    window_right: int = -1
    scale: float = None
    softcap: float = 0.0
    softcap_before_bias: bool = False
    alibi: bool = False
    out: str = None  # e4m3: the type of O
    lse: bool = False
    backward: bool = False
    score: str = None  # one of SCORES
    sinks: bool = False
    lengths: list = None  # (queries, keys) of each sequence of a packed batch
    terms: list = dataclasses.field(default_factory=list)

    def effective_scale(self):
        return 1 / math.sqrt(self.dim_qk) if self.scale is None else self.scale

    def offset(self):
        """Where the diagonal lies: key i + offset stands before query i."""
        return 0 if self.top_left else self.seqlen_kv - self.seqlen_q

    def out_type(self):
        return self.out or self.type

    def right(self):
        return 0 if self.causal else self.window_right

    def sequence(self, n):
        """Sequence n of a packed batch alone."""
        queries, keys = self.lengths[n]
        return dataclasses.replace(
            self, batch=1, seqlen_q=queries, seqlen_kv=keys, lengths=None
        )

    def rows(self):
        """Queries and keys of all sequences."""
        if self.lengths is None:
            return self.batch * self.seqlen_q, self.batch * self.seqlen_kv
        return tuple(map(sum, zip(*self.lengths)))


def _pair(value, word):
    parts = value.split("/")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise SpecError(f"{word}={value}: expected NUMBER or NUMBER/NUMBER")
    return int(parts[0]), int(parts[-1])


def _lengths(value, word):
    both = [[int(n) for n in part.split(",")] for part in value.split("/")]
    if len(both) != 2 or len(both[0]) != len(both[1]):
        raise SpecError(f"{word}: expected as many lengths of queries as of keys")
    return list(zip(*both))


def _term(value, word):
    match = re.fullmatch(r"(fp16|bf16|fp32|bool):(\d+),(\d+),(\d+),(\d+)", value)
    if not match:
        raise SpecError(f"{word}={value}: expected TYPE:BATCH,HEADS,QUERIES,KEYS")
    if (match[1] == "bool") != (word == "mask"):
        raise SpecError(f"{word}={value}: bool terms are mask=, the others bias=")
    return Term(match[1], tuple(int(n) for n in match.groups()[1:]))


def parse_spec(text):
    """The part of the text form (src/spec/canonical.h) for which this program makes inputs."""
    words = text.split()
    if len(words) < 2 or words[0] not in ("fwd", "bwd"):
        raise SpecError(f"{text!r}: expected `fwd TYPE words...`")
    if words[1] not in ("fp16", "bf16", "fp32", "e4m3"):
        raise SpecError(f"{words[1]}: expected fp16, bf16, fp32 or e4m3")
    spec = Spec(text=text, type=words[1], backward=words[0] == "bwd")
    for whole in words[2:]:
        word, _, value = whole.partition("=")
        if word == "b" and value.isdigit():
            spec.batch = int(value)
        elif word == "h":
            spec.heads_q, spec.heads_kv = _pair(value, word)
        elif word == "s":
            spec.seqlen_q, spec.seqlen_kv = _pair(value, word)
        elif word == "d":
            spec.dim_qk, spec.dim_v = _pair(value, word)
        elif word == "causal" and value in ("", "top_left", "bottom_right"):
            spec.causal = True
            spec.top_left = value == "top_left"
        elif word == "window" and re.fullmatch(r"-?\d+,-?\d+", value):
            spec.window_left, spec.window_right = (int(n) for n in value.split(","))
        elif word == "scale":
            spec.scale = float(value)
        elif word == "softcap":
            spec.softcap = float(value)
        elif word == "out" and value in ("fp16", "bf16"):
            spec.out = value
        elif word == "lengths" and re.fullmatch(r"\d+(,\d+)*/\d+(,\d+)*", value):
            spec.lengths = _lengths(value, word)
        elif whole in ("softcap_before_bias", "alibi", "lse", "sinks"):
            setattr(spec, word, True)
        elif word == "score" and value[:1] == "@" and value[1:] in SCORES:
            spec.score = value[1:]
        elif word in ("bias", "mask"):
            spec.terms.append(_term(value, word))
        elif whole not in ("layout=bshd", "layout=thd", "varlen"):
            raise SpecError(f"{whole}: compare.py makes no inputs for this word")
    packed = spec.lengths is not None
    if packed != ("varlen" in words) or packed != ("layout=thd" in words):
        raise SpecError("packed sequences are `varlen layout=thd lengths=QUERIES,.../KEYS,...`")
    if packed and (len(spec.lengths) != spec.batch or spec.terms or spec.score or spec.backward):
        raise SpecError("lengths: one of each of `b` sequences, without bias terms and rules")
    if spec.heads_kv == 0 or spec.heads_q % spec.heads_kv:
        raise SpecError(f"h={spec.heads_q}/{spec.heads_kv}: not a multiple")
    return spec


def library_text(text):
    """With the paths of rules, for the library reads files; without lengths, which are arguments."""
    text = re.sub(r" lengths=\S+", "", text)
    return text.replace("score=@", f"score=@{os.path.relpath(HERE / 'scores')}/")


def allowed_pairs(spec):
    """(query, key) pairs that causal masks and windows allow; mirrors bench/flops.h."""
    pairs = 0
    last_key = spec.seqlen_kv - 1
    right = spec.right()
    for i in range(spec.seqlen_q):
        diagonal = i + spec.offset()
        first = 0 if spec.window_left < 0 else max(0, diagonal - spec.window_left)
        last = last_key if right < 0 else min(last_key, diagonal + right)
        pairs += max(0, last - first + 1)
    return pairs


def flops(spec):
    if spec.lengths is not None:
        return sum(flops(spec.sequence(n)) for n in range(spec.batch))
    forward = 2 * allowed_pairs(spec) * spec.heads_q * spec.batch * (spec.dim_qk + spec.dim_v)
    return forward * 2.5 if spec.backward else float(forward)


def alibi_slopes(heads):
    """2^(-8 (h + 1) / heads), as in arXiv 2108.12409."""
    return [2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]


# ---- the C interface -----------------------------------------------------------------------------

TilewrightError = _c.TilewrightError


class Library:
    """libtilewright.so with one runtime; `c` has its functions, which raise TilewrightError."""

    def __init__(self, path):
        # A bare name would be looked for in the places of the system.
        self.c = _c.Library(os.path.abspath(path))
        # What a first call measures is no part of the comparison; a plan that was tuned before is
        # compared by saying so in the environment.
        os.environ.setdefault("TILEWRIGHT_TUNE_POLICY", "off")
        self.runtime = self.new_runtime()

    def new_runtime(self):
        """With the options of the environment."""
        runtime = ctypes.c_void_p()
        self.c.runtime_create(None, ctypes.byref(runtime))
        return runtime

    def prepare(self, text):
        attention = ctypes.c_void_p()
        self.c.prepare_text(self.runtime, text.encode(), None, ctypes.byref(attention))
        return attention

    def explain(self, attention):
        return self.c.explain(attention).decode()

    def new_args(self):
        return self.c.new(_c.Args, self.c.args_init)

    def workspace_bytes(self, attention, args):
        size = ctypes.c_size_t()
        self.c.workspace_bytes(attention, ctypes.byref(args), ctypes.byref(size))
        return size.value


def find_library(given):
    if given:
        return pathlib.Path(given)
    places = sorted(HERE.parent.glob("build/**/libtilewright.so")) + sorted(
        HERE.parent.glob("build*/libtilewright.so")
    )
    if not places:
        raise SpecError("no libtilewright.so below build/; name it with --library")
    return places[0]


# ---- inputs and the answer -----------------------------------------------------------------------


def torch_type(name):
    import torch

    return {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
        "e4m3": torch.float8_e4m3fn,
        "bool": torch.bool,
    }[name]


class Inputs:
    """The tensors of a spec on the device, stored [batch, sequence, heads, dim]; packed sequences
    are one batch."""

    def __init__(self, spec, seed=1):
        import torch

        self.spec = spec
        generator = torch.Generator("cuda").manual_seed(seed)

        def normal(*shape, kind=spec.type):
            full = torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32)
            return full.to(torch_type(kind))

        packed = spec.lengths is not None
        batch = 1 if packed else spec.batch
        rows_q, rows_kv = (rows // batch for rows in spec.rows())
        self.q = normal(batch, rows_q, spec.heads_q, spec.dim_qk)
        self.k = normal(batch, rows_kv, spec.heads_kv, spec.dim_qk)
        self.v = normal(batch, rows_kv, spec.heads_kv, spec.dim_v)
        if packed:
            self.cu_seqlens = [
                torch.tensor(
                    [0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda"
                )
                for lengths in zip(*spec.lengths)
            ]
        if spec.sinks:
            self.sinks = normal(spec.heads_q, kind="fp32")
        self.terms = []
        for term in spec.terms:
            if term.type == "bool":
                tensor = torch.rand(*term.shape, generator=generator, device="cuda") < 0.9
            else:
                tensor = normal(*term.shape, kind=term.type)
            self.terms.append(tensor)
        self.slopes = torch.tensor(alibi_slopes(spec.heads_q), device="cuda")

    def sequence(self, n):
        """(Inputs of sequence n of a packed batch alone, its first query)."""
        first_q, first_kv = (sum(of[:n]) for of in zip(*self.spec.lengths))
        alone = Inputs.__new__(Inputs)
        alone.__dict__.update(self.__dict__, spec=self.spec.sequence(n))
        queries, keys = self.spec.lengths[n]
        alone.q = self.q[:, first_q : first_q + queries]
        alone.k, alone.v = (t[:, first_kv : first_kv + keys] for t in (self.k, self.v))
        return alone, first_q

    def term_at(self, n, b):
        """Term n for batch b, as [heads or 1, queries or 1, keys or 1]; batch maps by modulo."""
        return self.terms[n][b % self.terms[n].shape[0]]


def sampled_rows(seqlen, count=SAMPLED_ROWS):
    """The first and the last query, those around multiples of 64, and an even spread."""
    rows = {0, seqlen - 1}
    for edge in range(64, seqlen, max(64, seqlen // 8 // 64 * 64)):
        rows |= {edge - 1, edge}
    step = max(1, seqlen // max(1, count - len(rows)))
    rows |= set(range(step // 2, seqlen, step))
    return sorted(row for row in rows if 0 <= row < seqlen)


def sampled_heads(spec, count=SAMPLED_HEADS):
    """(batch, head) pairs: the corners, then a spread."""
    pairs = [(0, 0), (spec.batch - 1, spec.heads_q - 1)]
    for n in range(1, count - 1):
        pairs.append((n * 7 % spec.batch, n * 5 % spec.heads_q))
    return sorted(set(pairs))


def scores_of(inputs, b, h, rows, compute):
    """Masked scores of some rows in the type `compute`, in the order that semantics ask for."""
    import torch

    spec = inputs.spec
    kv_head = h // (spec.heads_q // spec.heads_kv)
    index = torch.tensor(rows, device="cuda")
    q = inputs.q[b, :, h].to(compute)[index]
    scores = spec.effective_scale() * (q @ inputs.k[b, :, kv_head].to(compute).T)
    i = index[:, None]
    j = torch.arange(spec.seqlen_kv, device="cuda")[None, :]
    keep = torch.ones_like(scores, dtype=torch.bool)
    added = torch.zeros_like(scores)
    for n, term in enumerate(spec.terms):
        values = inputs.term_at(n, b)
        values = values[h if values.shape[0] > 1 else 0]
        values = values[index] if values.shape[0] > 1 else values
        if term.type == "bool":
            keep &= values
        else:
            added += values.to(compute)
    if spec.alibi:
        added -= inputs.slopes[h].to(compute) * (i + spec.offset() - j).abs()
    if spec.softcap and spec.softcap_before_bias:
        scores = spec.softcap * torch.tanh(scores / spec.softcap) + added
    else:
        scores = scores + added
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if spec.score:
        scores = SCORES[spec.score](scores, b, h, i, j)
    diagonal = i + spec.offset()
    if spec.right() >= 0:
        keep &= j <= diagonal + spec.right()
    if spec.window_left >= 0:
        keep &= j >= diagonal - spec.window_left
    return scores.masked_fill(~keep, -math.inf)


def rows_of(inputs, b, h, rows, straightforward):
    """Outputs of some rows: exact in fp64, or the straightforward computation in the spec's types."""
    import torch

    spec = inputs.spec
    compute = torch.float32 if straightforward else torch.float64
    scores = scores_of(inputs, b, h, rows, compute)
    top = scores.max(dim=-1, keepdim=True).values
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    if spec.sinks:
        total += torch.exp(inputs.sinks[h].to(compute) - top)
    if straightforward:
        # e4m3 has few small values: weights are scaled by 256 (design's semantics).
        scale = 256 if spec.type == "e4m3" else 1
        weights = (weights * scale).to(torch_type(spec.type)).to(compute) / scale
    v = inputs.v[b, :, h // (spec.heads_q // spec.heads_kv)].to(compute)
    out = (weights @ v) / torch.where(total == 0, torch.ones_like(total), total)
    return out.to(torch_type(spec.out_type())).double() if straightforward else out


class Checker:
    """Exact answers on sampled rows, and how far the straightforward computation is from them."""

    def __init__(self, inputs):
        import torch

        torch.set_float32_matmul_precision("highest")
        spec = inputs.spec
        self.spec = spec
        # (inputs, batch and head among them, rows among them; batch and first row in an answer)
        self.samples = []
        for b, h in sampled_heads(spec):
            if spec.lengths is None:
                self.samples.append((inputs, b, h, sampled_rows(spec.seqlen_q), b, 0))
            else:
                alone, first = inputs.sequence(b)
                self.samples.append((alone, 0, h, sampled_rows(alone.spec.seqlen_q), 0, first))
        self.exact = [rows_of(*sample[:4], False) for sample in self.samples]
        plain = [rows_of(*sample[:4], True) for sample in self.samples]
        self.norm = math.sqrt(sum(float(x.square().sum()) for x in self.exact))
        error = math.sqrt(sum(float((p - x).square().sum()) for p, x in zip(plain, self.exact)))
        self.straightforward = error / self.norm if self.norm else error
        if spec.type == "fp32":
            self.bar = 5e-6
        else:
            self.bar = (1.2 if spec.type == "e4m3" else 1.5) * self.straightforward

    def error(self, out):
        """Relative error of `out`, [batch, sequence, heads, dim]; NaN counts as infinite."""
        import torch

        total = 0.0
        for (_, _, h, rows, batch, first), exact in zip(self.samples, self.exact):
            index = first + torch.tensor(rows, device="cuda")
            total += float((out[batch, index, h].double() - exact).square().sum())
        error = math.sqrt(total) / self.norm if self.norm else math.sqrt(total)
        return math.inf if math.isnan(error) else error


# ---- runners: what is timed ----------------------------------------------------------------------


class Tilewright:
    """One row through the C interface; call() launches, `out` holds the answer."""

    def __init__(self, library, inputs, text=None):
        import torch

        spec = inputs.spec
        self.library = library
        self.inputs = inputs
        self.attention = library.prepare(library_text(text or spec.text))
        self.out = torch.full(
            (*inputs.q.shape[:3], spec.dim_v),
            math.nan,
            dtype=torch_type(spec.out_type()),
            device="cuda",
        )
        args = self.args = library.new_args()
        args.batch, args.seqlen_q, args.seqlen_kv = spec.batch, spec.seqlen_q, spec.seqlen_kv
        for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v), ("o", self.out)):
            field = getattr(args, name)
            field.data = tensor.data_ptr()
            field.strides = _c.Strides(*tensor.stride())
        if spec.lse:
            self.lse = torch.empty(
                spec.batch, spec.heads_q, spec.seqlen_q, dtype=torch.float32, device="cuda"
            )
            args.lse = self.lse.data_ptr()
            args.lse_stride_batch, args.lse_stride_head, _ = self.lse.stride()
        if spec.lengths is not None:
            args.cu_seqlens_q, args.cu_seqlens_kv = (t.data_ptr() for t in inputs.cu_seqlens)
            args.total_q, args.total_kv = spec.rows()
        if spec.sinks:
            args.sinks = inputs.sinks.data_ptr()
        if spec.alibi:
            args.alibi_slopes = inputs.slopes.data_ptr()
        for n, tensor in enumerate(inputs.terms):
            args.bias[n] = _c.BiasTensor(tensor.data_ptr(), *tensor.stride())
        scratch = library.workspace_bytes(self.attention, args)
        if scratch:
            self.workspace = torch.empty(scratch, dtype=torch.uint8, device="cuda")
            args.workspace = self.workspace.data_ptr()
        self.arguments = (library.runtime, self.attention, ctypes.byref(args))
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def __call__(self):
        self.library.c.run(*self.arguments, self.stream)
        return self.out

    def plan(self):
        return self.library.explain(self.attention)

    def close(self):
        self.library.c.attention_destroy(self.attention)
        self.attention = None


def spec_in_bf16(spec):
    """The same operation."""
    text = re.sub(r" out=\w+", "", spec.text.replace(" e4m3 ", " bf16 "))
    return parse_spec(text)


def dense_term(inputs):
    """All terms, ALiBi and the window as one additive [B or 1, H or 1, Sq, Skv] tensor."""
    import torch

    spec = inputs.spec
    i = torch.arange(spec.seqlen_q, device="cuda")[:, None]
    j = torch.arange(spec.seqlen_kv, device="cuda")[None, :]
    total = torch.zeros(1, 1, spec.seqlen_q, spec.seqlen_kv, device="cuda")
    for term, tensor in zip(spec.terms, inputs.terms):
        batches = tensor.shape[0]
        if batches not in (1, spec.batch):
            tensor = tensor.repeat(spec.batch // batches, 1, 1, 1)
        if term.type == "bool":
            tensor = torch.zeros_like(tensor, dtype=torch.float32).masked_fill(~tensor, -math.inf)
        total = total + tensor.float()
    if spec.alibi:
        distance = (i + spec.offset() - j).abs().float()
        total = total - inputs.slopes[None, :, None, None] * distance
    keep = torch.ones(spec.seqlen_q, spec.seqlen_kv, dtype=torch.bool, device="cuda")
    diagonal = i + spec.offset()
    if spec.right() >= 0:
        keep &= j <= diagonal + spec.right()
    if spec.window_left >= 0:
        keep &= j >= diagonal - spec.window_left
    return total.masked_fill(~keep, -math.inf).to(torch_type(spec.type))


def sdpa_mask(inputs):
    """(attn_mask, is_causal) for scaled_dot_product_attention."""
    from torch.nn.attention.bias import causal_lower_right

    spec = inputs.spec
    window = spec.window_left >= 0 or (spec.window_right >= 0 and not spec.causal)
    if spec.terms or spec.alibi or window:
        return dense_term(inputs), False
    if not spec.causal:
        return None, False
    if spec.seqlen_q == spec.seqlen_kv or spec.top_left:
        return None, True
    if spec.seqlen_q == 1:  # the only query sees every key
        return None, False
    return causal_lower_right(spec.seqlen_q, spec.seqlen_kv), False


def make_sdpa(inputs, backend):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    spec = inputs.spec
    if spec.softcap or spec.score:
        raise TilewrightError("scaled_dot_product_attention has neither softcap nor rules")
    kind = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }[backend]
    mask, is_causal = sdpa_mask(inputs)
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    group = spec.heads_q // spec.heads_kv

    def runner(k, v, grouped):
        def call():
            with sdpa_kernel(kind):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q,
                    k,
                    v,
                    attn_mask=mask,
                    is_causal=is_causal,
                    scale=spec.effective_scale(),
                    enable_gqa=grouped,
                )
            return out.transpose(1, 2)

        return call

    if group == 1:
        return runner(k, v, False), ""
    try:
        call = runner(k, v, True)
        call()
        return call, ""
    except RuntimeError:
        # Kinder to the peer than leaving it out: the copies are made outside the measurement.
        wide = (t.repeat_interleave(group, dim=1) for t in (k, v))
        return runner(*wide, False), "keys and values expanded beforehand"


def flash_forward(spec, tensors, cu_seqlens, longest, causal):
    """FlashAttention-2 with all that PyTorch's own operator for it takes."""
    import torch

    return torch.ops.aten._flash_attention_forward(
        *tensors,
        *cu_seqlens,
        *longest,
        0.0,
        causal,
        False,
        scale=spec.effective_scale(),
        window_size_left=spec.window_left,
        window_size_right=spec.right(),
    )[0]


def make_flash_with_window(inputs):
    """FlashAttention-2 has windows that scaled_dot_product_attention does not pass on."""
    spec = inputs.spec
    if spec.terms or spec.alibi or spec.softcap or spec.score or spec.top_left:
        raise TilewrightError("PyTorch's FlashAttention-2 has no such operation")

    def call():
        tensors, longest = (inputs.q, inputs.k, inputs.v), (spec.seqlen_q, spec.seqlen_kv)
        return flash_forward(spec, tensors, (None, None), longest, causal=False)

    return call, ""


def make_flex(inputs):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    spec = inputs.spec
    if spec.softcap_before_bias:
        raise TilewrightError("not built for FlexAttention here")
    offset, right, left = spec.offset(), spec.right(), spec.window_left
    slopes, terms, softcap = inputs.slopes, inputs.terms, spec.softcap
    additive = [t for term, t in zip(spec.terms, terms) if term.type != "bool"]
    boolean = [t for term, t in zip(spec.terms, terms) if term.type == "bool"]

    def at(tensor, b, h, i, j):
        sizes = tensor.shape
        return tensor[
            b % sizes[0] if sizes[0] > 1 else 0,
            h if sizes[1] > 1 else 0,
            i if sizes[2] > 1 else 0,
            j if sizes[3] > 1 else 0,
        ]

    def score_mod(score, b, h, i, j):
        for tensor in additive:
            score = score + at(tensor, b, h, i, j)
        if spec.alibi:
            score = score - slopes[h] * (i + offset - j).abs()
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if spec.score:
            score = SCORES[spec.score](score, b, h, i, j)
        return score

    def mask_mod(b, h, i, j):
        keep = j >= 0
        if right >= 0:
            keep = keep & (j <= i + offset + right)
        if left >= 0:
            keep = keep & (j >= i + offset - left)
        for tensor in boolean:
            keep = keep & at(tensor, b, h, i, j)
        return keep

    block_mask = None
    if right >= 0 or left >= 0 or boolean:
        block_mask = create_block_mask(
            mask_mod,
            spec.batch if any(t.shape[0] > 1 for t in boolean) else None,
            spec.heads_q if any(t.shape[1] > 1 for t in boolean) else None,
            spec.seqlen_q,
            spec.seqlen_kv,
            device="cuda",
        )
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    modifies = bool(additive) or spec.alibi or softcap or spec.score

    def call():
        out = compiled(
            q,
            k,
            v,
            score_mod=score_mod if modifies else None,
            block_mask=block_mask,
            scale=spec.effective_scale(),
            enable_gqa=spec.heads_q != spec.heads_kv,
        )
        return out.transpose(1, 2)

    return call, ""


def make_package(name, inputs):
    """flash-attn's and xFormers' own functions, where they are installed."""
    import importlib

    spec = inputs.spec
    if spec.terms or spec.score or spec.top_left or (name != "fa2" and spec.alibi):
        raise TilewrightError(f"not built for {name} here")
    module = importlib.import_module(PACKAGES[name])
    if name == "xformers":
        if spec.softcap or spec.window_left >= 0 or spec.right() > 0:
            raise TilewrightError("not built for xformers here")
        group = spec.heads_q // spec.heads_kv
        k, v = (t.repeat_interleave(group, dim=2) for t in (inputs.k, inputs.v))
        mask = module.fmha.attn_bias.LowerTriangularFromBottomRightMask() if spec.causal else None
        note = "keys and values expanded beforehand" if group > 1 else ""

        def attend():
            return module.memory_efficient_attention(
                inputs.q, k, v, attn_bias=mask, scale=spec.effective_scale()
            )

        return attend, note
    unbounded = None if name == "fa4" else -1
    window = tuple(unbounded if n < 0 else n for n in (spec.window_left, spec.window_right))
    options = {
        "softmax_scale": spec.effective_scale(),
        "causal": spec.causal,
        "window_size": window,
    }
    if spec.softcap:
        options["softcap"] = spec.softcap
    if spec.alibi:
        options["alibi_slopes"] = inputs.slopes

    def call():
        out = module.flash_attn_func(inputs.q, inputs.k, inputs.v, **options)
        return out[0] if isinstance(out, tuple) else out

    return call, ""


def make_packed(name, inputs):
    """Kernels for packed sequences that scaled_dot_product_attention has for nested tensors only."""
    import torch

    spec = inputs.spec
    if name == "cudnn" or spec.alibi or spec.softcap or spec.top_left or spec.sinks:
        raise TilewrightError("PyTorch has no such operation on packed sequences")
    longest = [max(lengths) for lengths in zip(*spec.lengths)]
    if name == "flash":

        def call():
            tensors = (t[0] for t in (inputs.q, inputs.k, inputs.v))
            return flash_forward(spec, tensors, inputs.cu_seqlens, longest, spec.causal)[None]

        return call, ""
    if spec.window_left >= 0 or spec.window_right >= 0 or spec.heads_q != spec.heads_kv:
        raise TilewrightError("the memory-efficient kernel has no windows and no groups")

    def call():
        return torch.ops.aten._efficient_attention_forward(
            inputs.q,
            inputs.k,
            inputs.v,
            None,
            *inputs.cu_seqlens,
            *longest,
            0.0,
            2 if spec.causal else 0,  # the diagonal at the bottom right
            scale=spec.effective_scale(),
        )[0]

    return call, ""


def make_peer(name, inputs):
    """(callable that returns [batch, sequence, heads, dim], note)."""
    if inputs.spec.lengths is not None:
        return make_packed(name, inputs)
    if inputs.spec.sinks:
        raise TilewrightError("PyTorch has no sinks")
    if name == "flex":
        return make_flex(inputs)
    if name in PACKAGES:
        return make_package(name, inputs)
    windowed = inputs.spec.window_left >= 0 or (
        inputs.spec.window_right >= 0 and not inputs.spec.causal
    )
    if name == "flash" and windowed:
        return make_flash_with_window(inputs)
    return make_sdpa(inputs, name)


# ---- measuring -----------------------------------------------------------------------------------


def timed_once(call):
    """Milliseconds of one call, with a cold L2."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda").zero_()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def time_long(once, first, warmup, rep):
    """The median of the calls that end behind `warmup` ms, until `rep` more are over: at least one.
    `first` is how long one took just now."""
    spent, times = first, [first] if first > warmup else []
    while not times or spent < warmup + rep:
        took = once()
        spent += took
        if spent > warmup:
            times.append(took)
    return statistics.median(times)


def do_bench(call, warmup=WARMUP_MS):
    """Milliseconds of one call, with a cold L2."""
    from triton.testing import do_bench as bench

    # Triton's begins with six calls to find out how long one takes.
    first = timed_once(call)
    if first >= LONG_MS:
        return time_long(lambda: timed_once(call), first, warmup, REP_MS)
    return bench(call, warmup=warmup, rep=REP_MS, return_mode="median")


def do_bench_together(call):
    return do_bench(call, warmup=WARMUP_TOGETHER_MS)


def heat(runners, synchronise, seconds=HEAT_SECONDS, clock=time.monotonic):
    """Runs all of them in turn for at least `seconds`."""
    start = clock()
    passes = 1
    while clock() - start < seconds:
        for _ in range(passes):
            for call in runners.values():
                call()
        synchronise()
        passes = 4  # so that the chip hardly idles at the synchronisation


def measure(runners, rounds, bench=do_bench, synchronise=None, shuffle=None, clock=time.monotonic):
    """{name: [milliseconds of each round]}, in a fresh random order each round."""
    if synchronise is None:
        import torch

        synchronise = torch.cuda.synchronize
    shuffle = shuffle or random.shuffle
    heat(runners, synchronise, clock=clock)
    times = {name: [] for name in runners}
    for _ in range(rounds):
        order = list(runners)
        shuffle(order)
        for name in order:
            times[name].append(bench(runners[name]))
    return times


def measured_limits():
    """TFLOP/s of large matrix products and TB/s of a large copy, of this GPU as it is now."""
    import torch

    limits = {}
    for kind, size in (("bf16", 8192), ("fp32", 4096)):
        a, b = (torch.randn(size, size, device="cuda").to(torch_type(kind)) for _ in range(2))
        limits[f"{kind} TFLOP/s"] = round(2 * size**3 / do_bench(lambda: a @ b) * 1e-9, 1)
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    limits["TB/s"] = round(
        2 * 4 * source.numel() / do_bench(lambda: target.copy_(source)) * 1e-9, 2
    )
    return limits


def bytes_moved(spec):
    """Of Q, K, V and O, each once, and of the terms as they are stored."""
    element = {"fp32": 4, "e4m3": 1}.get(spec.type, 2)
    rows_q, rows_kv = spec.rows()
    dims = spec.dim_qk + spec.dim_v
    total = element * dims * (rows_q * spec.heads_q + rows_kv * spec.heads_kv)
    for term in spec.terms:
        total += math.prod(term.shape) * {"bool": 1, "fp32": 4}.get(term.type, 2)
    return total


def limit_of(spec, limits):
    """TFLOP/s that arithmetic or memory allows, whichever is less."""
    arithmetic = limits["fp32 TFLOP/s" if spec.type == "fp32" else "bf16 TFLOP/s"]
    memory = flops(spec) / bytes_moved(spec) * limits["TB/s"]
    return min(arithmetic, memory)


def timed_first_call(call, clock=time.perf_counter):
    """(milliseconds until the first answer is complete, the answer)."""
    import torch

    start = clock()
    answer = call()
    torch.cuda.synchronize()
    return round((clock() - start) * 1e3, 1), answer


def tera(spec, milliseconds):
    return flops(spec) / milliseconds * 1e-9


def choose_peer(versus, rates):
    """The peer that a row is judged by, or None: `best` is the fastest that answered."""
    if versus == "best":
        peers = {name: rate for name, rate in rates.items() if "@" not in name}
        return max(peers, key=peers.get) if peers else None
    return versus if versus in rates else None


def build_row(entry, spec, times, peers_specs, error, bar, notes, plan):
    """The result row (design section 15) from medians of rounds. `times` has "tilewright" and the
    peers that answered; `peers_specs` the spec that each peer computed."""
    medians = {name: statistics.median(rounds) for name, rounds in times.items()}
    rates = {name: tera(peers_specs.get(name, spec), ms) for name, ms in medians.items()}
    ours = rates.pop("tilewright")
    row = {
        "name": entry["name"],
        "spec": spec.text,
        "value": round(ours, 2),
        "unit": "TFLOP/s",
    }
    peer = choose_peer(entry["versus"], rates)
    right = error <= bar
    if peer is None and entry["must"] is None:
        row["holds"] = right
    elif peer is None:
        row["holds"] = False
        row["why"] = f"the peer {entry['versus']} gave no figure: {notes or 'not asked for'}"
    else:
        ratio = ours / rates[peer]
        row["peer"] = peer
        row["peer_value"] = round(rates[peer], 2)
        row["ratio"] = round(ratio, 4)
        row["holds"] = right and (entry["must"] is None or ratio >= entry["must"])
    row["must"] = entry["must"]
    row["aim"] = entry["aim"]
    if not right:
        row["holds"] = False
        row["why"] = f"the answer is wrong: relative error {error:.2e}, bar {bar:.2e}"
    row["ms"] = round(medians["tilewright"], 5)
    row["error"] = float(f"{error:.3e}")
    row["error_bar"] = float(f"{bar:.3e}")
    row["peers"] = {
        name: {"value": round(rates[name], 2), "ms": round(medians[name], 5)} for name in rates
    }
    if notes:
        row["notes"] = notes
    row["spread"] = round(max((max(r) - min(r)) / statistics.median(r) for r in times.values()), 4)
    row["plan"] = plan
    return row


def row_peers(entry, wanted):
    """Peers to load for a row: those asked for and the one it is judged by."""
    names = [name for name in (*PEERS, *PACKAGES) if name in wanted]
    versus = entry["versus"]
    if versus in PEERS and versus not in names:
        names.append(versus)
    return names


class LoadedRow:
    """A row whose kernels are loaded and checked: `runners` is what is to be timed."""

    def __init__(self, entry, spec, ours, error, bar):
        self.entry = entry
        self.spec = spec
        self.ours = ours
        self.error = error
        self.bar = bar
        self.plan = ours.plan()
        self.runners = {"tilewright": ours}
        self.peers_specs = {}
        self.notes = {}
        self.first_calls = {}

    def checked(self):
        return {
            "name": self.entry["name"],
            "spec": self.spec.text,
            "value": self.error,
            "unit": "relative error",
            "peer": "limit",
            "peer_value": self.bar,
            "holds": self.error <= self.bar,
            "plan": self.plan,
        }

    def measured(self, times, limits):
        self.ours.close()
        row = build_row(
            self.entry,
            self.spec,
            times,
            self.peers_specs,
            self.error,
            self.bar,
            self.notes,
            self.plan,
        )
        row["first_call_ms"] = self.first_calls["tilewright"]
        for name, peer in row["peers"].items():
            if name in self.first_calls:
                peer["first_call_ms"] = self.first_calls[name]
        if limits:
            row["limit"] = round(limit_of(self.spec, limits), 2)
        return row


def load_row(entry, entries, library, wanted):
    import torch

    spec = parse_spec(entry["spec"])
    if spec.backward:
        raise SpecError("this program measures the forward only")
    inputs = Inputs(spec)
    checker = Checker(inputs)
    torch.cuda.synchronize()
    start = time.perf_counter()
    ours = Tilewright(library, inputs)
    ours()
    torch.cuda.synchronize()
    first_call = round((time.perf_counter() - start) * 1e3, 1)
    loaded = LoadedRow(entry, spec, ours, checker.error(ours.out), checker.bar)
    loaded.first_calls["tilewright"] = first_call
    for name in row_peers(entry, wanted):
        try:
            call, note = make_peer(name, inputs)
            loaded.first_calls[name], answer = timed_first_call(call)
            peer_error = checker.error(answer)
        except Exception as refusal:  # whatever a peer raises, it has no figure
            text = str(refusal).strip()
            loaded.notes[name] = text.splitlines()[0][:160] if text else type(refusal).__name__
            continue
        if peer_error > 3 * checker.bar:
            loaded.notes[name] = (
                f"wrong answer: relative error {peer_error:.1e}, bar {checker.bar:.1e}"
            )
            continue
        loaded.runners[name] = call
        if note:
            loaded.notes[name] = note
    versus = entry["versus"]
    if versus == "own_bf16":
        own_inputs = Inputs(spec_in_bf16(spec), seed=2)
        own_checker = Checker(own_inputs)
        own = Tilewright(library, own_inputs)
        own_error = own_checker.error(own())
        if own_error <= own_checker.bar:
            loaded.runners[versus] = own
        else:
            loaded.notes[versus] = (
                f"wrong answer: relative error {own_error:.1e}, bar {own_checker.bar:.1e}"
            )
    if "@" in versus:
        name, _, other = versus.partition("@")
        other_spec = parse_spec(next(e["spec"] for e in entries if e["name"] == other))
        loaded.runners[versus], _ = make_peer(name, Inputs(other_spec, seed=2))
        loaded.peers_specs[versus] = other_spec
    return loaded


def run_rows(group, entries, library, wanted, rounds, check_only, limits=None):
    """Result rows of some entries, whose kernels are heated and timed together."""
    import torch

    rows, loaded = {}, {}
    for entry in group:
        name = entry["name"]
        try:
            loaded[name] = load_row(entry, entries, library, wanted)
            if check_only:
                rows[name] = loaded[name].checked()
        except (TilewrightError, SpecError, torch.OutOfMemoryError) as failure:
            rows[name] = {"name": name, "spec": entry["spec"], "holds": False, "why": str(failure)}
    if not check_only and loaded:
        runners = {
            (name, peer): call for name, row in loaded.items() for peer, call in row.runners.items()
        }
        bench = do_bench if len(group) == 1 else do_bench_together
        times = measure(runners, rounds, bench)
        for name, row in loaded.items():
            own = {peer: ms for (of, peer), ms in times.items() if of == name}
            rows[name] = row.measured(own, limits)
    return [rows[entry["name"]] for entry in group]


# ---- results -------------------------------------------------------------------------------------


def device_folder(device_name):
    """ "NVIDIA H200" -> "h200"."""
    return re.sub(r"[^a-z0-9]+", "_", device_name.lower().replace("nvidia", "")).strip("_")


def shown_arguments(argv):
    """What a file of results says it was made with: the folder of the repository, whichever it was written to."""
    return " ".join(
        "bench/results" if n and argv[n - 1] == "--results" else word for n, word in enumerate(argv)
    )


def driver_version():
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"\s(\d{3}\.\d+(\.\d+)?)\s", text)
        if match:
            return match[1]
    except OSError:
        pass
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def nvrtc_version(plans):
    """The compiler as tw_explain names it."""
    for plan in plans:
        match = re.search(r"nvrtc (\d+\.\d+(\.\d+)?)", plan, re.IGNORECASE)
        if match:
            return match[1]
    return "unknown"


def commit_hash(given):
    if given:
        return given
    try:
        head = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
        return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def merge_rows(old, new):
    """Rows of an earlier file of the same commit, with those measured again replaced."""
    by_name = {row["name"]: row for row in new}
    kept = [by_name.pop(row["name"], row) for row in old]
    return kept + list(by_name.values())


def results_header(topic, commit, command, device):
    """What every file of results begins with; without a commit, git's HEAD."""
    return {
        "topic": topic,
        "commit": commit_hash(commit),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": device,
        "driver": driver_version(),
        "command": command,
    }


def write_results(path, header, rows, append=False):
    if append and path.exists():
        before = json.loads(path.read_text())
        if before["commit"] != header["commit"]:
            raise SpecError(f"{path} is of commit {before['commit']}, not {header['commit']}")
        rows = merge_rows(before["rows"], rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**header, "rows": rows}, indent=1) + "\n")


def print_row(row):
    if "value" not in row:
        print(f"{row['name']:<28} FAILED: {row['why']}", flush=True)
        return
    verdict = "ok" if row["holds"] else "DOES NOT HOLD"
    if row["unit"] == "relative error":
        print(
            f"{row['name']:<28} error {row['value']:.2e} (bar {row['peer_value']:.2e})  {verdict}"
        )
        return
    must = "-" if row["must"] is None else f"{row['must']:.2f}"
    ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
    peers = "  ".join(f"{name} {peer['value']:.1f}" for name, peer in row["peers"].items())
    print(
        f"{row['name']:<28} {row['value']:>8.1f} TFLOP/s {row['ms']:>9.4f} ms  ratio {ratio:>6}"
        f" (must {must})  {verdict}  [{peers}]" + (f"  {row['why']}" if "why" in row else ""),
        flush=True,
    )


# ---- the program ---------------------------------------------------------------------------------


def load_entries(path=HERE / "peers.json"):
    return json.loads(path.read_text())


def select(entries, patterns):
    if not patterns:
        return entries
    chosen = [e for e in entries if any(fnmatch.fnmatch(e["name"], p) for p in patterns)]
    for pattern in patterns:
        if not any(fnmatch.fnmatch(e["name"], pattern) for e in entries):
            raise SpecError(f"nothing to measure is called {pattern}")
    return chosen


def zoo_terms(workload):
    """Words for the bias of a workload, or None where it is looked up rather than laid out
    [batch, heads, queries, keys]. The same rules as in tests/zoo/zoo.cc."""
    kind = workload["bias"]
    if kind is None:
        return []
    if kind == "alibi":
        return ["alibi"]
    sizes = [workload[field] for field in ("batch", "heads_q", "seqlen_q", "seqlen_kv")]
    words = []
    for n, shape in enumerate(workload["bias_shape"]):
        fits = len(shape) == 4 and all(
            have in (1, size) for have, size in zip(shape[1:], sizes[1:])
        )
        if not fits or sizes[0] % shape[0] != 0:
            return None
        masks = kind in ("key_mask", "bool_mask") or (kind == "pair+key_mask" and n == 1)
        word = "mask=bool" if masks else f"bias={workload['dtype']}"
        words.append(f"{word}:{','.join(map(str, shape))}")
    return words


def zoo_obstacle(workload):
    """Why this program makes no inputs for a workload of the zoo, or None."""
    if workload["paged"]:
        return "pages"
    if workload.get("kv_dtype"):
        return "keys and values of 8 bits, which decode.py times"
    if workload.get("left_padding") or workload.get("cache_batch_idx"):
        return "left padding or slots"
    if workload["mask_kind"] not in ("dense", "causal", "window"):
        return f"a mask of kind {workload['mask_kind']}"
    if zoo_terms(workload) is None:
        return f"a bias of kind {workload['bias']}, which is looked up"
    if workload["dtype"] not in ("fp16", "bf16", "fp32"):
        return f"elements of type {workload['dtype']}"
    return None


def zoo_workloads(patterns, path=ZOO):
    workloads = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        workload
        for workload in workloads
        if any(fnmatch.fnmatch(workload["name"], pattern) for pattern in patterns)
    ]


def zoo_entries(patterns, path=ZOO):
    """Workloads of the zoo whose inputs this program can make, as rows without a bar."""
    entries = []
    for workload in zoo_workloads(patterns, path):
        if zoo_obstacle(workload) is not None:
            continue
        words = [
            f"fwd {workload['dtype']} b={workload['batch']} h={workload['heads_q']}/{workload['heads_kv']}",
            f"s={workload['seqlen_q']}/{workload['seqlen_kv']} d={workload['dim_qk']}/{workload['dim_v']}",
        ]
        if workload["causal"]:
            words.append("causal=top_left" if workload["causal_align"] == "top_left" else "causal")
        left, right = (workload[f"window_{side}"] for side in ("left", "right"))
        if left is not None or right is not None:
            words.append(f"window={-1 if left is None else left},{-1 if right is None else right}")
        for field in ("scale", "softcap"):
            if workload[field] is not None:
                words.append(f"{field}={workload[field]}")
        if workload["sinks"]:
            words.append("sinks")
        if workload["varlen"]:
            # Also those that are stored with places for more tokens.
            lengths = "/".join(
                ",".join(map(str, workload[field])) for field in ("seqlens", "seqlens_kv")
            )
            words.append(f"varlen layout=thd lengths={lengths}")
        spec = " ".join(words + zoo_terms(workload))
        entries.append(
            {"name": workload["name"], "spec": spec, "versus": "best", "must": None, "aim": None}
        )
    if not entries:
        raise SpecError(f"no workload of {path.name} that compare.py can run is called {patterns}")
    return entries


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # of the parent of a submodule
        return False


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=[], help="names in peers.json, or patterns")
    parser.add_argument("--spec", action="append", default=[], help="a spec that is no row")
    parser.add_argument("--zoo", nargs="+", default=[], help="names in zoo.jsonl, or patterns")
    parser.add_argument(
        "--peers", help="comma separated; '' for none (default: all that are found)"
    )
    parser.add_argument("--html", help="file for a page with the results")
    parser.add_argument("--library", help="libtilewright.so (default: below build/)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--together", type=int, default=1, help="rows whose kernels share rounds")
    parser.add_argument("--check-only", action="store_true", help="answers, no times")
    parser.add_argument("--topic", default="forward")
    parser.add_argument("--results", help="folder to write DEVICE/TOPIC.json into")
    parser.add_argument("--append", action="store_true", help="keep rows of the same commit")
    parser.add_argument("--commit", help="of the tree that is measured (default: git's HEAD)")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    arguments = parser.parse_args(argv)
    if arguments.peers is None:
        found = [name for name, package in PACKAGES.items() if is_installed(package)]
        arguments.peers = [*PEERS, *found]
    else:
        arguments.peers = [name for name in arguments.peers.split(",") if name]
    unknown = set(arguments.peers) - set(PEERS) - set(PACKAGES)
    if unknown:
        known = ", ".join((*PEERS, *PACKAGES))
        parser.error(f"unknown peers {sorted(unknown)}; known are {known}")
    if arguments.together < 1:
        parser.error("--together must be at least 1")
    if arguments.rounds < 3:
        parser.error("--rounds must be at least 3: fewer say nothing")
    return arguments


def main(argv):
    arguments = parse_arguments(argv)
    entries = load_entries()
    named = arguments.spec or arguments.zoo
    chosen = [] if named and not arguments.rows else select(entries, arguments.rows)
    if arguments.zoo:
        chosen += zoo_entries(arguments.zoo)
    for text in arguments.spec:
        parse_spec(text)
        chosen.append({"name": text, "spec": text, "versus": "best", "must": None, "aim": None})
    if arguments.list:
        for entry in chosen:
            print(f"{entry['name']:<28} {entry['spec']}")
        return 0
    import torch

    if not torch.cuda.is_available():
        raise SpecError("no GPU that PyTorch sees")
    torch.zeros(1, device="cuda")  # the primary context, current on this thread
    library = Library(find_library(arguments.library))
    limits = None if arguments.check_only else measured_limits()
    rows = []
    for first in range(0, len(chosen), arguments.together):
        group = run_rows(
            chosen[first : first + arguments.together],
            entries,
            library,
            arguments.peers,
            arguments.rounds,
            arguments.check_only,
            limits,
        )
        for row in group:
            rows.append(row)
            print_row(row)
        torch.cuda.empty_cache()
        torch.compiler.reset()
        # Each time, so that a run that ends early has not been for nothing.
        command = "bench/compare.py " + shown_arguments(argv)
        header = results_header(
            arguments.topic, arguments.commit, command, torch.cuda.get_device_name()
        )
        header["nvrtc"] = nvrtc_version(row.get("plan", "") for row in rows)
        header["limits"] = limits
        if arguments.results:
            folder = pathlib.Path(arguments.results) / device_folder(header["device"])
            path = folder / f"{arguments.topic}.json"
            write_results(path, header, rows, arguments.append)
        if arguments.html:
            import report

            pathlib.Path(arguments.html).write_text(report.page([{**header, "rows": rows}]))
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SpecError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(2)

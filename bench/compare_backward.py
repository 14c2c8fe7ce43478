#!/usr/bin/env python3
"""Times backward passes against PyTorch's, row by row, and writes a results file.

  python3 bench/compare_backward.py --library build/release/libtilewright.so.0 --commit HASH \\
      --results bench/results/h200/backward.json [--rows NAME...] [--rounds 3]

Rows are those of peers_backward.json: a spec, the peer that judges it and the ratio it must reach. A
row's `family` forces one of ours; `versus: tilewright` compares with the same spec without
`deterministic`. The time is that of one call with everything it needs (for us: all kernels of the
plan). Before a row is timed every gradient is held against fp64 on some heads: an error of at most
1.5 times that of the straightforward computation. Inputs, order of rounds and the cold L2 are those
of compare.py. A peer's backward is torch.autograd.grad of its forward, which includes the autograd
engine's dispatch (tens of microseconds of host time, hidden behind the device on these sizes).
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import statistics
import sys

import compare
from compare import _c

HERE = pathlib.Path(__file__).resolve().parent
CHECKED_HEADS = 2


def plain_text(text):
    """The spec without the words that only a backward has, for compare.parse_spec."""
    words = [word.removesuffix(":grad") for word in text.split() if word != "deterministic"]
    return " ".join(words)


class Backward:
    """One backward through the C interface; calling it launches."""

    def __init__(self, library, inputs, text, d_o):
        import torch

        spec = inputs.spec
        forward_text = "fwd " + plain_text(text).split(" ", 1)[1] + " lse"
        forward = compare.Tilewright(
            library,
            ForwardInputs(inputs, compare.parse_spec(forward_text)),
        )
        forward()
        torch.cuda.synchronize()
        self.out, self.lse = forward.out, forward.lse
        self.library = library
        self.attention = library.prepare(text)
        self.gradients = {
            "q": torch.full_like(inputs.q, math.nan),
            "k": torch.full_like(inputs.k, math.nan),
            "v": torch.full_like(inputs.v, math.nan),
        }
        args = self.args = library.new_args()
        args.batch, args.seqlen_q, args.seqlen_kv = spec.batch, spec.seqlen_q, spec.seqlen_kv
        tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": self.out, "d_o": d_o}
        tensors.update({f"d_{name}": tensor for name, tensor in self.gradients.items()})
        for name, tensor in tensors.items():
            field = getattr(args, name)
            field.data = tensor.data_ptr()
            field.strides = _c.Strides(*tensor.stride())
        args.lse = self.lse.data_ptr()
        args.lse_stride_batch, args.lse_stride_head, _ = self.lse.stride()
        self.d_bias = []
        for n, tensor in enumerate(inputs.terms):
            args.bias[n] = _c.BiasTensor(tensor.data_ptr(), *tensor.stride())
            gradient = torch.full(tensor.shape, math.nan, dtype=torch.float32, device="cuda")
            self.d_bias.append(gradient)
            args.d_bias[n] = _c.BiasGradient(gradient.data_ptr(), *gradient.stride())
        scratch = max(library.workspace_bytes(self.attention, args), 1)
        self.workspace = torch.empty(scratch, dtype=torch.uint8, device="cuda")
        args.workspace = self.workspace.data_ptr()
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def __call__(self):
        self.library.c.run(
            self.library.runtime, self.attention, ctypes.byref(self.args), self.stream
        )

    def plan(self):
        return self.library.explain(self.attention)


class ForwardInputs:
    """The same tensors under a forward spec."""

    def __init__(self, inputs, spec):
        self.__dict__.update(inputs.__dict__)
        self.spec = spec


def make_peer(name, inputs, d_o):
    """The backward of scaled_dot_product_attention with one back end."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }[name]
    spec = inputs.spec
    group = spec.heads_q // spec.heads_kv
    q, k, v = (t.transpose(1, 2).detach().requires_grad_(True) for t in
               (inputs.q, inputs.k, inputs.v))
    wanted = [q, k, v]
    mask = None
    if inputs.terms:
        # What a caller of these kernels does: a dense bias, whose gradient has its size.
        dense = torch.stack([inputs.term_at(0, b) for b in range(spec.batch)])
        mask = dense.expand(spec.batch, spec.heads_q, spec.seqlen_q, spec.seqlen_kv).contiguous()
        mask.requires_grad_(True)
        wanted.append(mask)
    with sdpa_kernel(kind):
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=spec.causal, scale=spec.effective_scale(),
            enable_gqa=group != 1,
        )
    upstream = d_o.transpose(1, 2)

    def call():
        return torch.autograd.grad(out, wanted, upstream, retain_graph=True)

    return call


def gradients_of(inputs, d_o, b, h_kv, compute):
    """Gradients of one batch and key/value head: exact in fp64, or the straightforward computation."""
    import torch

    spec = inputs.spec
    straightforward = compute == torch.float32
    kind = compare.torch_type(spec.type)
    group = spec.heads_q // spec.heads_kv

    def rounded(x):
        return x.to(kind).to(compute) if straightforward else x

    k, v = inputs.k[b, :, h_kv].to(compute), inputs.v[b, :, h_kv].to(compute)
    result = {"k": torch.zeros_like(k), "v": torch.zeros_like(v), "q": []}
    rows = list(range(spec.seqlen_q))
    for h in range(h_kv * group, (h_kv + 1) * group):
        q, upstream = inputs.q[b, :, h].to(compute), d_o[b, :, h].to(compute)
        weights = torch.softmax(compare.scores_of(inputs, b, h, rows, compute), dim=-1)
        out = rounded(weights @ v)
        delta = (out * upstream).sum(-1, keepdim=True)
        d_scores = rounded(weights * (upstream @ v.T - delta))
        result["v"] += rounded(weights).T @ upstream
        result["k"] += spec.effective_scale() * (d_scores.T @ q)
        result["q"].append(spec.effective_scale() * (d_scores @ k))
    result["q"] = torch.stack(result["q"], dim=1)
    return {name: rounded(tensor).double() for name, tensor in result.items()}


def check(inputs, d_o, ours):
    """Relative errors of our gradients and what they may be."""
    import torch

    torch.set_float32_matmul_precision("highest")
    spec = inputs.spec
    group = spec.heads_q // spec.heads_kv
    squares = {name: [0.0, 0.0, 0.0] for name in ("q", "k", "v")}  # ours, straightforward, norm
    for n in range(CHECKED_HEADS):
        b, h_kv = n * 7 % spec.batch, n * 5 % spec.heads_kv
        exact = gradients_of(inputs, d_o, b, h_kv, torch.float64)
        plain = gradients_of(inputs, d_o, b, h_kv, torch.float32)
        heads = slice(h_kv * group, (h_kv + 1) * group)
        actual = {
            "q": ours.gradients["q"][b, :, heads].double(),
            "k": ours.gradients["k"][b, :, h_kv].double(),
            "v": ours.gradients["v"][b, :, h_kv].double(),
        }
        for name, sums in squares.items():
            sums[0] += float((actual[name] - exact[name]).square().sum())
            sums[1] += float((plain[name] - exact[name]).square().sum())
            sums[2] += float(exact[name].square().sum())
    errors = {f"d{n}": math.sqrt(s[0] / s[2]) for n, s in squares.items()}
    bars = {f"d{n}": 1.5 * math.sqrt(s[1] / s[2]) for n, s in squares.items()}
    good = all(errors[name] <= bars[name] for name in errors)  # NaN is not
    return errors, bars, good


def run_row(entry, library_path, rounds):
    import torch

    text = entry["spec"]
    row = {"name": entry["name"], "spec": text, "unit": "TFLOP/s", "must": entry["must"],
           "aim": entry["aim"], "holds": False}
    os.environ.pop("TILEWRIGHT_FAMILY", None)
    if "family" in entry:
        os.environ["TILEWRIGHT_FAMILY"] = entry["family"]
    try:
        spec = compare.parse_spec(plain_text(text))
        inputs = compare.Inputs(spec)
        generator = torch.Generator("cuda").manual_seed(2)
        d_o = torch.randn(inputs.q.shape[:3] + (spec.dim_v,), generator=generator, device="cuda")
        d_o = d_o.to(inputs.q.dtype)
        os.environ.pop("TILEWRIGHT_FAMILY", None)
        library = compare.Library(library_path)
        if "family" in entry:
            library = FamilyLibrary(library_path, entry["family"])
        ours = Backward(library, inputs, text, d_o)
        ours()
        torch.cuda.synchronize()
        errors, bars, good = check(inputs, d_o, ours)
        row["errors"] = {name: float(f"{value:.3g}") for name, value in errors.items()}
        row["error_bars"] = {name: float(f"{value:.3g}") for name, value in bars.items()}
        if not good:
            row["why"] = "the gradients are not accurate"
            return row
        runners = {"tilewright": ours}
        if entry["versus"] == "tilewright":
            runners["peer"] = Backward(library, inputs, text.replace(" deterministic", ""), d_o)
        else:
            runners["peer"] = make_peer(entry["versus"], inputs, d_o)
        runners["peer"]()
        times = compare.measure(runners, rounds)
    except (compare.TilewrightError, compare.SpecError, RuntimeError) as error:
        row["why"] = str(error).split("\n")[0][:300]
        return row
    medians = {name: statistics.median(values) for name, values in times.items()}
    rates = {name: compare.tera(spec, ms) for name, ms in medians.items()}
    ratio = rates["tilewright"] / rates["peer"]
    row.update(
        value=round(rates["tilewright"], 1), ms=round(medians["tilewright"], 4),
        peer=entry["versus"], peer_value=round(rates["peer"], 1), ratio=round(ratio, 3),
        holds=ratio >= entry["must"], plan=ours.plan().split("\n")[1].removeprefix("plan").strip(),
    )
    return row


class FamilyLibrary(compare.Library):
    """A runtime whose forward may be any family and whose backward is one of ours by name."""

    def __init__(self, path, family):
        super().__init__(path)
        self.family = family
        forced = os.environ.get("TILEWRIGHT_FAMILY")
        os.environ["TILEWRIGHT_FAMILY"] = family
        self.backward_runtime = self.new_runtime()
        if forced is None:
            del os.environ["TILEWRIGHT_FAMILY"]

    def prepare(self, text):
        if not text.startswith("bwd"):
            return super().prepare(text)
        saved, self.runtime = self.runtime, self.backward_runtime
        try:
            return super().prepare(text)
        finally:
            self.runtime = saved


def chosen(entries, words):
    """The rows of these names, or with these parts of names, in the order of the words."""
    names = {entry["name"] for entry in entries}
    rows = {}
    for word in words:
        for entry in entries:
            name = entry["name"]
            if name == word if word in names else word in name:
                rows[name] = entry
    return list(rows.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--results")
    parser.add_argument("--rows", nargs="*", help="names, or parts of names")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import torch

    entries = json.loads((HERE / "peers_backward.json").read_text())
    if options.rows:
        entries = chosen(entries, options.rows)
    command = "bench/compare_backward.py " + compare.shown_arguments(sys.argv[1:])
    device = torch.cuda.get_device_name()
    header = compare.results_header("backward", options.commit, command, device)
    rows = []
    for entry in entries:
        rows.append(run_row(entry, options.library, options.rounds))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        if options.results:  # after each row: what is measured is kept
            path = pathlib.Path(options.results)
            if path.suffix != ".json":
                path = path / "backward.json"
            compare.write_results(path, header, rows)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times decode: few queries over a long cache, contiguous, paged, of unequal lengths, of 8 bits.

    python3 bench/decode.py --library build/release/libtilewright.so --results bench/results/h200

Every row is timed by replaying a CUDA graph of at least eight calls, which take several copies of
the problem in turn, more of them than the L2 cache holds, so that every call reads its keys and
values from memory and the start of a replay counts little. Ours and the peer (cuDNN through scaled_dot_product_attention, where it can do the row) run
in turns, in random order; the figure is the median over rounds. Answers are checked against fp64 on
sampled heads first. Bytes are those of K and V (with their scales), Q and O, each once.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare  # noqa: E402

L2_BYTES = 60 << 20
ROUNDS = 21
HEAT_SECONDS = 0.1  # of a row's kernels together, before its rounds
CALLS = 8  # of a graph, at least


@dataclasses.dataclass
class Row:
    name: str
    batch: int
    heads_q: int
    heads_kv: int
    dim_qk: int
    dim_v: int
    lengths: list  # of the sequences; one number: all alike, and no device lengths
    page: int = 0
    kv: str = "bf16"
    scale: str = ""  # kind of the scales of 8-bit values
    shared: bool = False  # V is the first dim_v columns of K
    seqlen_q: int = 1
    versus: str = ""  # "cudnn", or the name of another row
    must: float = 0.0  # of `unit`
    aim: float = 0.0
    unit: str = "TB/s"  # or "ratio" (to versus), "TFLOP/s"
    seed: int = 1

    def varlen(self):
        return len(self.lengths) > 1 or self.page != 0

    def length(self, b):
        return self.lengths[b % len(self.lengths)]

    def tokens(self):
        return sum(self.length(b) for b in range(self.batch))

    def spec(self):
        words = [
            f"fwd bf16 b={self.batch} h={self.heads_q}/{self.heads_kv}",
            f"s={self.seqlen_q}/{max(self.lengths)} d={self.dim_qk}/{self.dim_v}",
        ]
        if self.varlen():
            words.append("varlen")
        if self.page:
            words.append(f"paged={self.page}")
        if self.kv != "bf16":
            words.append(f"kv={self.kv}")
        if self.scale:
            words.append(f"kv_scale={self.scale}")
        return " ".join(words)

    def bytes(self):
        size = 2 if self.kv == "bf16" else 1
        columns = self.dim_qk if self.shared else self.dim_qk + self.dim_v
        total = self.tokens() * self.heads_kv * columns * size
        if self.scale == "token":
            total += self.tokens() * self.heads_kv * 8
        return total + self.batch * self.seqlen_q * self.heads_q * (self.dim_qk + self.dim_v) * 2

    def flops(self):
        return 2.0 * self.tokens() * self.seqlen_q * self.heads_q * (self.dim_qk + self.dim_v)


def uneven_lengths():
    """64 lengths from 17 to 65536, spread evenly over their logarithms."""
    return [round(17 * (65536 / 17) ** (n * 37 % 64 / 63)) for n in range(64)]


def rows():
    gqa = dict(heads_q=32, heads_kv=8, dim_qk=128, dim_v=128)
    uneven = uneven_lengths()
    equal = sum(uneven) // len(uneven)
    result = [
        Row("decode_b16_kv8192_gqa32_8", 16, lengths=[8192], versus="cudnn", unit="ratio",
            must=1.0, aim=1.05, **gqa),
        Row("decode_b64_kv4096_mha", 64, 32, 32, 128, 128, [4096], versus="cudnn", unit="ratio",
            must=0.95, aim=1.0),
        Row("decode_b1_kv65536_gqa32_8", 1, lengths=[65536], versus="cudnn", unit="ratio",
            must=1.1, aim=1.2, **gqa),
        Row("decode_b1_kv300", 1, lengths=[300], versus="cudnn", unit="ratio", must=1.2, aim=2.0,
            **gqa),
        Row("equal_b64_paged16", 64, lengths=[equal], page=16, **gqa),
        Row("uneven_b64_paged16", 64, lengths=uneven, page=16, versus="equal_b64_paged16",
            unit="ratio", must=0.9, aim=0.97, **gqa),
    ]
    for page, must, aim in ((1, 0.6, 0.85), (16, 0.95, 0.99), (64, 0.95, 0.99), (256, 0.95, 0.99)):
        result.append(Row(f"page{page}_b16_kv8192", 16, lengths=[8192], page=page,
            versus="decode_b16_kv8192_gqa32_8", unit="ratio", must=must, aim=aim, **gqa))
    for group in (1, 3, 5, 7, 8, 16, 24):
        result.append(Row(f"group{group}_b16_kv16384", 16, 8 * group, 8, 128, 128, [16384],
            must=4.0, aim=4.25))
    for kind in ("e4m3", "e5m2", "int8"):
        for scale in ("tensor", "head", "token"):
            result.append(Row(f"{kind}_{scale}_b16_kv8192", 16, lengths=[8192], kv=kind,
                scale=scale, versus="decode_b16_kv8192_gqa32_8", unit="ratio_tokens", must=1.8,
                aim=1.95, **gqa))
    for group in (71, 128):
        for dim in (64, 128):
            r = Row(f"group{group}_d{dim}_b32_kv32768", 32, group, 1, dim, dim, [32768])
            limit = min(4.27, r.bytes() / (r.flops() / 600e12) / 1e12)
            r.must, r.aim = 0.75 * limit, 0.88 * limit
            result.append(r)
    for heads in (8, 16, 128):
        for batch, length in ((32, 4096), (128, 4096), (32, 32768)):
            r = Row(f"latent_h{heads}_b{batch}_kv{length}", batch, heads, 1, 576, 512, [length],
                page=64, shared=True)
            if heads == 128:
                r.unit, r.must, r.aim = "TFLOP/s", 500, 580
            else:
                r.must, r.aim = 3.6, 4.1
            result.append(r)
    return result


def stored_type(name):
    import torch

    return {
        "bf16": torch.bfloat16,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "int8": torch.int8,
    }[name]


class Problem:
    """One copy of a row's tensors, and a call of ours on them."""

    def __init__(self, row, library, attention, generator):
        import torch

        self.row, self.library, self.attention = row, library, attention
        r = row

        def normal(*shape):
            return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)

        self.q = normal(r.batch, r.seqlen_q, r.heads_q, r.dim_qk)
        if r.page:
            pages = [math.ceil(r.length(b) / r.page) for b in range(r.batch)]
            shape = (sum(pages), r.page, r.heads_kv)
            order = torch.randperm(sum(pages), generator=generator, device="cuda").to(torch.int32)
            self.table = torch.zeros(r.batch, max(pages), dtype=torch.int32, device="cuda")
            at = 0
            for b, count in enumerate(pages):
                self.table[b, :count] = order[at : at + count]
                at += count
        else:
            shape = (r.batch, max(r.lengths), r.heads_kv)
        self.k = self.stored(normal(*shape, r.dim_qk))
        self.v = self.k[..., : r.dim_v] if r.shared else self.stored(normal(*shape, r.dim_v))
        self.out = torch.full(
            (r.batch, r.seqlen_q, r.heads_q, r.dim_v), math.nan, dtype=torch.bfloat16, device="cuda"
        )
        args = self.args = library.new_args()
        args.batch, args.seqlen_q, args.seqlen_kv = r.batch, r.seqlen_q, max(r.lengths)
        for name, tensor in (("q", self.q), ("k", self.k), ("v", self.v), ("o", self.out)):
            field = getattr(args, name)
            field.data = tensor.data_ptr()
            field.strides = compare._c.Strides(*tensor.stride())
        if r.page:
            args.page_table = self.table.data_ptr()
            args.page_table_stride = self.table.stride(0)
        if r.varlen():
            self.lengths = torch.tensor(
                [r.length(b) for b in range(r.batch)], dtype=torch.int32, device="cuda"
            )
            args.seqused_kv = self.lengths.data_ptr()
        if r.scale:
            # Of tokens, those of a head follow one another: blocks of other heads would read the
            # same sectors of L2 for a number each.
            blocks, rows, heads = shape
            count = {"tensor": (1,), "head": (heads,), "token": (blocks, heads, rows)}[r.scale]
            self.k_scale, self.v_scale = (
                0.02 + 0.01 * torch.rand(*count, generator=generator, device="cuda")
                for _ in range(2)
            )
            if r.scale == "token":
                self.k_scale, self.v_scale = (
                    s.transpose(1, 2) for s in (self.k_scale, self.v_scale)
                )
            args.k_scale, args.v_scale = self.k_scale.data_ptr(), self.v_scale.data_ptr()
            if r.scale == "token":
                batch, token, head = self.k_scale.stride()
                strides = (compare.ctypes.c_int64 * 3)(batch, head, token)
                args.k_scale_strides = args.v_scale_strides = strides
        scratch = library.workspace_bytes(attention, args)
        if scratch:
            self.workspace = torch.empty(scratch, dtype=torch.uint8, device="cuda")
            args.workspace = self.workspace.data_ptr()

    def stored(self, values):
        import torch

        if self.row.kv == "int8":
            return (values * 40).round().clamp(-127, 127).to(torch.int8)
        return (values * 8 if self.row.kv != "bf16" else values).to(stored_type(self.row.kv))

    def __call__(self):
        import torch

        stream = compare.ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.library.c.run(
            self.library.runtime, self.attention, compare.ctypes.byref(self.args), stream
        )

    def sequence(self, stored, scales, b, head):
        """Rows of one head of one sequence in fp64, scaled."""
        r = self.row
        length = r.length(b)
        pick = self.table[b, : math.ceil(length / r.page)].long() if r.page else b

        def rows(tensor):
            chosen = tensor[pick]
            return (chosen.flatten(0, 1) if r.page else chosen)[:length]

        values = rows(stored)[:, head].double()
        if r.scale:
            if r.scale == "tensor":
                scale = scales
            elif r.scale == "head":
                scale = scales[head]
            else:
                scale = rows(scales)[:, head, None]
            values = values * scale.double()
        return values

    def error(self):
        """Largest relative error of sampled heads, and that of the straightforward computation."""
        import torch

        r = self.row
        worst = plain_worst = 0.0
        for b in sorted({0, r.batch // 2, r.batch - 1}):
            for h in sorted({0, r.heads_q - 1}):
                head = h // (r.heads_q // r.heads_kv)
                k = self.sequence(self.k, getattr(self, "k_scale", None), b, head)
                v = self.sequence(self.v, getattr(self, "v_scale", None), b, head)
                scores = self.q[b, :, h].double() @ k.T / math.sqrt(r.dim_qk)
                weights = torch.softmax(scores, dim=-1)
                exact = weights @ v
                top = scores.max(dim=-1, keepdim=True).values
                rounded = torch.exp(scores - top)
                plain = (rounded.bfloat16().double() @ v / rounded.sum(-1, keepdim=True)).bfloat16()
                norm = float(exact.norm())
                worst = max(worst, float((self.out[b, :, h].double() - exact).norm()) / norm)
                plain_worst = max(plain_worst, float((plain.double() - exact).norm()) / norm)
        return worst, plain_worst


def graph_of(calls):
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def sdpa_call(problem):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t.transpose(1, 2) for t in (problem.q, problem.k, problem.v))

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return call


def time_graphs(graphs, rounds):
    """Milliseconds of a replay, each graph's median over rounds in random order."""
    import torch

    times = {name: [] for name in graphs}
    heated = time.monotonic() + HEAT_SECONDS
    while time.monotonic() < heated:
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    for n in range(rounds + 1):
        names = list(graphs)
        random.shuffle(names)
        for name in names:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            if n > 0:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def run_row(row, library, rounds):
    import torch

    attention = library.prepare(row.spec())
    generator = torch.Generator("cuda").manual_seed(row.seed)
    copies = max(2, min(64, math.ceil(3 * L2_BYTES / row.bytes())))
    if row.bytes() < 16 << 20:
        copies = 32
    problems = [Problem(row, library, attention, generator) for _ in range(copies)]
    problems[0]()
    torch.cuda.synchronize()
    error, plain = problems[0].error()
    plan = library.explain(attention)
    outcome = {"name": row.name, "spec": row.spec(), "plan": plan.splitlines()[1].split(None,
        1)[1], "error": error, "error_straightforward": plain}
    if not error <= 1.5 * plain + 1e-4:
        outcome.update(holds=False, why=f"relative error {error:.2e}, straightforward {plain:.2e}")
        return outcome
    turns = math.ceil(CALLS / copies)
    graphs = {"tilewright": graph_of(problems * turns)}
    if row.versus == "cudnn":
        graphs["cudnn"] = graph_of([sdpa_call(p) for p in problems] * turns)
    times = {name: ms / (copies * turns) for name, ms in time_graphs(graphs, rounds).items()}
    outcome["ms"] = times["tilewright"]
    outcome["tb_per_s"] = row.bytes() / times["tilewright"] / 1e9
    outcome["tflops"] = row.flops() / times["tilewright"] / 1e9
    if "cudnn" in times:
        outcome["peer"], outcome["peer_ms"] = "cudnn", times["cudnn"]
        outcome["ratio"] = times["cudnn"] / times["tilewright"]
    return outcome


def judge(row, outcome, done):
    """Fills value, unit, must, aim and holds."""
    if "ms" not in outcome:
        return
    if row.unit == "TB/s":
        outcome.update(value=outcome["tb_per_s"], unit="TB/s")
    elif row.unit == "TFLOP/s":
        outcome.update(value=outcome["tflops"], unit="TFLOP/s")
    else:
        outcome.update(value=outcome["tb_per_s"], unit="TB/s")
        other = done.get(row.versus)
        if other is not None and "ms" in other:
            key = "tb_per_s" if row.unit == "ratio" else "ms"
            ratio = outcome[key] / other[key]
            outcome["ratio"] = ratio if row.unit == "ratio" else 1 / ratio
            outcome["peer"], outcome["peer_ms"] = row.versus, other["ms"]
    if row.must:
        judged = outcome.get("ratio") if row.unit.startswith("ratio") else outcome["value"]
        outcome.update(must=row.must, aim=row.aim, holds=judged is not None and judged >= row.must)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library")
    parser.add_argument("--rows", nargs="*", help="names, or parts of names; all without it")
    parser.add_argument("--results", help="folder for decode.json")
    parser.add_argument("--commit", help="recorded; found by git without it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(argv)
    chosen = [r for r in rows() if not options.rows or any(p in r.name for p in options.rows)]
    if options.list:
        for row in chosen:
            print(f"{row.name:32} {row.spec()}")
        return 0
    import torch

    library = compare.Library(compare.find_library(options.library))
    outcomes, done, plans = [], {}, []
    for row in chosen:
        try:
            outcome = run_row(row, library, options.rounds)
        except (RuntimeError, compare.TilewrightError) as failure:
            outcome = {"name": row.name, "spec": row.spec(), "holds": False}
            outcome["why"] = str(failure)[:400]
        judge(row, outcome, done)
        done[row.name] = outcome
        outcomes.append(outcome)
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in outcome.items()}
        del shown["spec"]
        print(json.dumps(shown), flush=True)
        torch.cuda.empty_cache()
    if options.results:
        command = "bench/decode.py " + compare.shown_arguments(argv)
        device = torch.cuda.get_device_name()
        header = compare.results_header("decode", options.commit, command, device)
        compare.write_results(pathlib.Path(options.results) / "decode.json", header, outcomes)
    return 0 if all(o.get("holds", True) for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

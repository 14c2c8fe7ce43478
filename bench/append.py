#!/usr/bin/env python3
"""Times writing new tokens into a cache: prompts and decode steps, with a rotary embedding, of 8 bits.

    python3 bench/append.py --library build/release/libtilewright.so.0 --results bench/results/h200

Every row is timed by replaying a CUDA graph that holds one call for each of several copies of the problem, more of
them than the L2 cache holds. A copy of as many bytes within device memory runs in turns with it: the most that
memory allows. Bytes are those of the new rows, read once, and of what becomes of them, written once. Of each row one
copy is checked against fp64 on sampled tokens first.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src/python")]
import compare  # noqa: E402
import decode  # noqa: E402

L2_BYTES = 60 << 20
BYTES = {"bf16": 2, "e4m3": 1, "int8": 1}


@dataclasses.dataclass
class Row:
    name: str
    batch: int
    tokens: int  # new ones of each sequence
    heads_q: int = 32
    heads_kv: int = 8
    dim: int = 128
    page: int = 16
    cache: str = "bf16"
    rotary: str = "half_split"
    before: int = 4096  # tokens in the cache
    must: float = 0.0  # of the speed of a copy

    def bytes(self):
        new = self.batch * self.tokens * self.dim
        queries = self.heads_q if self.rotary else 0
        stored = 2 * self.heads_kv * BYTES[self.cache]
        scales = 8 * self.batch * self.tokens * self.heads_kv if self.cache != "bf16" else 0
        return new * (queries * 4 + 2 * self.heads_kv * 2 + stored) + scales


def rows():
    return [
        Row("append_b1_s8192", 1, 8192, must=0.85),
        Row("append_b16_s1024", 16, 1024, must=0.85),
        Row("append_b1_s8192_interleaved", 1, 8192, rotary="interleaved", must=0.85),
        Row("append_b1_s8192_plain", 1, 8192, rotary=None, must=0.85),
        Row("append_b1_s8192_e4m3_token", 1, 8192, cache="e4m3", must=0.85),
        Row("append_b1_s8192_int8_token", 1, 8192, cache="int8", must=0.85),
        Row("append_b64_s1", 64, 1),
        Row("append_b1_s1", 1, 1),
    ]


class Problem:
    def __init__(self, row, generator):
        import torch

        def random(*shape):
            return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)

        self.row = row
        stored = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "int8": torch.int8}
        pages = -(-(row.before + row.tokens) // row.page)
        count = row.batch * pages
        ints = dict(device="cuda", dtype=torch.int32)
        self.new = {
            "k": random(row.batch, row.tokens, row.heads_kv, row.dim),
            "v": random(row.batch, row.tokens, row.heads_kv, row.dim),
        }
        if row.rotary:
            self.new["q"] = random(row.batch, row.tokens, row.heads_q, row.dim)
            self.new["q_out"] = torch.empty_like(self.new["q"])
        shape = (count, row.page, row.heads_kv, row.dim)
        self.cache = {
            name: torch.zeros(shape, device="cuda", dtype=torch.int8).view(stored[row.cache])
            if row.cache != "bf16"
            else torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
            for name in ("k_cache", "v_cache")
        }
        order = torch.randperm(count, generator=generator, device="cuda").to(torch.int32)
        self.lengths = {
            "page_table": order.reshape(row.batch, pages),
            "seqused_kv": torch.full((row.batch,), row.before, **ints),
            "new_seqused_kv": torch.empty((row.batch,), **ints),
        }
        if row.cache != "bf16":
            for name in ("k_scale", "v_scale"):
                scales = torch.zeros(count, row.heads_kv, row.page, device="cuda")
                self.lengths[name] = scales

    def __call__(self):
        import tilewright

        tilewright.append(**self.new, **self.cache, **self.lengths, rotary=self.row.rotary)

    def error(self):
        """Largest relative error of sampled heads."""
        import torch

        r, worst = self.row, 0.0
        for b, i in {(0, 0), (r.batch - 1, r.tokens - 1), (r.batch // 2, r.tokens // 2)}:
            place = r.before + i
            page = int(self.lengths["page_table"][b, place // r.page])
            for name in ("q", "k", "v"):
                if name not in self.new:
                    continue
                want = self.new[name][b, i].double()
                if name != "v" and r.rotary:
                    want = rotated(want, place, r.rotary)
                if name == "q":
                    got = self.new["q_out"][b, i].double()
                else:
                    got = self.cache[f"{name}_cache"][page, place % r.page].double()
                    if r.cache != "bf16":
                        scale = self.lengths[f"{name}_scale"][page, :, place % r.page]
                        got = got * scale.double()[:, None]
                worst = max(worst, float((got - want).norm() / want.norm()))
        return worst


def rotated(x, position, kind):
    import torch

    half = x.shape[-1] // 2
    pairs = torch.arange(half, device=x.device, dtype=torch.float64)
    angle = position * 10000.0 ** (-pairs / half)
    cos, sin = angle.cos(), angle.sin()
    first, second = (x[..., :half], x[..., half:])
    if kind == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -1).flatten(-2) if kind == "interleaved" else torch.cat(turned, -1)


def run_row(row, rounds):
    import torch

    generator = torch.Generator("cuda").manual_seed(1)
    copies = max(2, min(32, math.ceil(3 * L2_BYTES / row.bytes())))
    problems = [Problem(row, generator) for _ in range(copies)]
    problems[0]()
    torch.cuda.synchronize()
    outcome = {"name": row.name, "error": problems[0].error()}
    bar = {"bf16": 4e-3, "e4m3": 4e-2, "int8": 1.5e-2}[row.cache]
    if not outcome["error"] <= bar:
        return {**outcome, "holds": False, "why": f"relative error above {bar}"}
    half = row.bytes() // 2
    buffers = [
        [torch.empty(half, dtype=torch.uint8, device="cuda") for _ in range(2)]
        for _ in range(copies)
    ]
    graphs = {
        "tilewright": decode.graph_of(problems),
        "copy": decode.graph_of([lambda to=to, at=at: to.copy_(at) for to, at in buffers]),
    }
    times = {name: ms / copies for name, ms in decode.time_graphs(graphs, rounds).items()}
    ratio = times["copy"] / times["tilewright"]
    outcome.update(
        value=row.bytes() / times["tilewright"] / 1e9,
        unit="TB/s",
        ms=times["tilewright"],
        peer="copy",
        peer_ms=times["copy"],
        ratio=ratio,
    )
    if row.must:
        outcome.update(must=row.must, holds=ratio >= row.must)
    return outcome


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library")
    parser.add_argument("--rows", nargs="*", help="names, or parts of names; all without it")
    parser.add_argument("--results", help="folder for append.json")
    parser.add_argument("--commit", help="recorded; found by git without it")
    parser.add_argument("--rounds", type=int, default=decode.ROUNDS)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(argv)
    chosen = [r for r in rows() if not options.rows or any(p in r.name for p in options.rows)]
    if options.list:
        for row in chosen:
            print(f"{row.name:32} {row.bytes()} bytes")
        return 0
    import tilewright
    import torch

    tilewright.use_library(compare.find_library(options.library))
    outcomes = []
    for row in chosen:
        outcomes.append(run_row(row, options.rounds))
        print(json.dumps(outcomes[-1]), flush=True)
        torch.cuda.empty_cache()
    if options.results:
        command = "bench/append.py " + compare.shown_arguments(argv)
        device = torch.cuda.get_device_name()
        header = compare.results_header("append", options.commit, command, device)
        compare.write_results(pathlib.Path(options.results) / "append.json", header, outcomes)
    return 0 if all(o.get("holds", True) for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

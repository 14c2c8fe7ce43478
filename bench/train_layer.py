#!/usr/bin/env python3
"""Trains a small transformer layer with Tilewright's attention and with PyTorch's, and draws both losses.

    python3 bench/train_layer.py --library build/release/libtilewright.so.0 \\
        --commit HASH --results bench/results/h200

The task is next-token prediction on sequences of a random Markov chain: the loss falls from log(vocabulary)
to the entropy of the chain, which is known and printed. Three runs of 200 steps from the same weights on the
same batches: PyTorch's math attention, the same once more from another seed of the batches (what noise is),
and Tilewright's forward and backward. Writes train_layer.json and the picture train_layer.svg.

Exits with 1 when the mean of the last 20 losses differs by more than the two runs of PyTorch do, times 1.5.
"""

import argparse
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src/python")]
import compare  # noqa: E402

STEPS = 200
BATCH, LENGTH, VOCABULARY = 16, 256, 256
HEADS, DIM = 4, 64
SUCCESSORS = 8  # tokens that may follow a token
LAST = 20


def make_layer(attend, seed):
    import torch
    from torch import nn

    torch.manual_seed(seed)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width = HEADS * DIM
            self.embed = nn.Embedding(VOCABULARY, width)
            self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            self.head = nn.Linear(width, VOCABULARY)

        def forward(self, tokens):
            x = self.embed(tokens) + self.place
            q, k, v = (
                part.unflatten(-1, (HEADS, DIM))
                for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
            )
            x = x + self.out(attend(q, k, v).flatten(2))
            x = x + self.mlp(self.norms[1](x))
            return self.head(self.norms[2](x))

    return Layer().cuda()


def attend_by_torch(q, k, v):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
    return out.transpose(1, 2)


def attend_by_tilewright(q, k, v):
    import tilewright.torch

    return tilewright.torch.attention(q, k, v, causal=True)


class Chain:
    """A random Markov chain; each token has SUCCESSORS followers."""

    def __init__(self):
        import torch

        generator = torch.Generator("cuda").manual_seed(11)
        scores = torch.rand(VOCABULARY, VOCABULARY, generator=generator, device="cuda")
        self.followers = scores.topk(SUCCESSORS, dim=1).indices
        weights = torch.rand(VOCABULARY, SUCCESSORS, generator=generator, device="cuda")
        self.weights = weights / weights.sum(1, keepdim=True)

    def entropy(self):
        return float(-(self.weights * self.weights.log()).sum(1).mean())

    def batch(self, generator):
        import torch

        tokens = torch.randint(VOCABULARY, (BATCH,), generator=generator, device="cuda")
        rows = [tokens]
        for _ in range(LENGTH):
            choice = torch.multinomial(self.weights[tokens], 1, generator=generator)
            tokens = self.followers[tokens].gather(1, choice).squeeze(1)
            rows.append(tokens)
        return torch.stack(rows, dim=1)


def train(attend, chain, seed):
    """The losses of STEPS steps."""
    import torch

    layer = make_layer(attend, seed=3)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    generator = torch.Generator("cuda").manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        tokens = chain.batch(generator)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = layer(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def picture(curves, floor):
    """The losses over the steps as SVG."""
    width, height, left, bottom = 640, 360, 50, 40
    top = math.log(VOCABULARY) * 1.1

    def at(step, loss):
        x = left + step / (STEPS - 1) * (width - left - 10)
        return f"{x:.1f},{(height - bottom) * (1 - loss / top):.1f}"

    colours = {"pytorch": "#888888", "tilewright": "#c03030"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for loss in range(0, int(top) + 1):
        lines.append(
            f'<polyline points="{at(0, loss)} {at(STEPS - 1, loss)}" stroke="#dddddd"/>'
            f'<text x="{left - 20}" y="{at(0, loss).split(",")[1]}">{loss}</text>'
        )
    lines.append(
        f'<polyline points="{at(0, floor)} {at(STEPS - 1, floor)}" stroke="#3060c0" '
        'stroke-dasharray="4"/>'
    )
    for name, losses in curves.items():
        points = " ".join(at(step, loss) for step, loss in enumerate(losses))
        wide = 4 if name == "pytorch" else 1.2
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colours[name]}" '
            f'stroke-width="{wide}"/>'
        )
    lines.append(
        f'<text x="{width - 330}" y="20">loss of {STEPS} steps: PyTorch (grey), Tilewright (red), '
        "entropy (blue)</text></svg>"
    )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--library", help="libtilewright.so (default: the package's)")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    options = parser.parse_args()
    import tilewright
    import torch

    if options.library:
        tilewright.use_library(options.library)
    chain = Chain()
    curves = {
        "pytorch": train(attend_by_torch, chain, seed=5),
        "other batches": train(attend_by_torch, chain, seed=6),
        "tilewright": train(attend_by_tilewright, chain, seed=5),
    }
    ends = {name: sum(losses[-LAST:]) / LAST for name, losses in curves.items()}
    noise = abs(ends["other batches"] - ends["pytorch"])
    apart = abs(ends["tilewright"] - ends["pytorch"])
    holds = apart <= 1.5 * noise
    row = {
        "name": "train_layer_200_steps",
        "value": round(ends["tilewright"], 4),
        "unit": f"loss, mean of the last {LAST} steps",
        "peer": "pytorch math",
        "peer_value": round(ends["pytorch"], 4),
        "noise": round(noise, 4),
        "entropy": round(chain.entropy(), 4),
        "holds": holds,
        "losses": {name: [round(loss, 4) for loss in losses] for name, losses in curves.items()},
    }
    command = "bench/train_layer.py " + compare.shown_arguments(sys.argv[1:])
    device = torch.cuda.get_device_name()
    header = compare.results_header("train_layer", options.commit, command, device)
    compare.write_results(options.results / "train_layer.json", header, [row])
    shown = {name: curves[name] for name in ("pytorch", "tilewright")}
    (options.results / "train_layer.svg").write_text(picture(shown, chain.entropy()))
    print({name: round(end, 4) for name, end in ends.items()}, "holds" if holds else "APART")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
"""Whole models of Hugging Face transformers, with random weights, on each attention implementation.

    clients.py --library build/release/libtilewright.so                 every model
    clients.py --at-once --results bench/results         the same, prepared side by side
    clients.py --models siglip_so400m phi_2

A model is built once; eager, sdpa, flex_attention and tilewright take turns in it on the same inputs. What each gives is
compared with the eager implementation of an fp32 copy of the same weights: the answer is right when its relative error
is at most 1.2 times that of the eager implementation in bf16 (matrix products outside attention make most of either).
An implementation whose error is above 3 times that is wrong and has no figure. Beside that each layer's attention is
compared with the model's own eager function on the same inputs in fp32: the bar is 1.5 times the error of that function
in bf16.
Times are medians of rounds in random order, CUDA events around one forward pass of the whole model (prefill), and the
wall time of a token of `generate` (decode), with the chip heated before.

Exits with 1 when an answer of tilewright is wrong.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src/python")]

import compare  # noqa: E402

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "tilewright")
HEAT_SECONDS = 0.5
RIGHT, WRONG, ATTENTION = 1.2, 3.0, 1.5
DECODED_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class Client:
    """A model of transformers: the prefix of its classes' names, what its config says, the sizes of the inputs."""

    family: str
    model: str
    config: dict
    sizes: dict

    def make_config(self, transformers):
        return getattr(transformers, f"{self.family}Config")(**self.config)

    def make(self, transformers, config, **options):
        return getattr(transformers, self.model)._from_config(config, **options).eval()


def client(family, model, layers, hidden, mlp, heads, inputs, **config):
    """A Client of that many layers and heads, of these widths."""
    config |= {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return Client(family, family + model, config, inputs)


# The published sizes, but for vocabularies (which only cost memory) and, of GPT-OSS, fewer layers and experts.
VOCABULARY = 32000
MODELS = {
    "siglip_so400m": client(
        *("SiglipVision", "Model", 27, 1152, 4304, 16, {"images": 8}), image_size=384, patch_size=14
    ),
    "phi_2": client(
        *("Phi", "ForCausalLM", 32, 2560, 10240, 32, {"batch": 2, "tokens": 2048}),
        vocab_size=51200,
        partial_rotary_factor=0.4,
        max_position_embeddings=4096,
    ),
    "gemma_2_2b": client(
        *("Gemma2", "ForCausalLM", 26, 2304, 9216, 8, {"batch": 1, "tokens": 4096}),
        vocab_size=VOCABULARY,
        num_key_value_heads=4,
        head_dim=256,
        sliding_window=1024,
        attn_logit_softcapping=50.0,
        query_pre_attn_scalar=256,
    ),
    "gpt_oss": client(
        *("GptOss", "ForCausalLM", 12, 2880, 2880, 64, {"batch": 1, "tokens": 4096}),
        vocab_size=VOCABULARY,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen_2_5_05b": client(
        *("Qwen2", "ForCausalLM", 24, 896, 4864, 14, {"batch": 2, "tokens": 4096}),
        vocab_size=VOCABULARY,
        num_key_value_heads=2,
        max_position_embeddings=8192,
    ),
}


def make_inputs(torch, config, sizes):
    if "images" in sizes:
        shape = (sizes["images"], 3, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, device="cuda")}
    return {
        "input_ids": torch.randint(
            0, config.vocab_size, (sizes["batch"], sizes["tokens"]), device="cuda"
        )
    }


def result_of(model, inputs):
    """Logits, or the last hidden state of a tower."""
    floating = next(model.parameters()).dtype
    inputs = {
        name: value.to(floating) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    output = model(**inputs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def relative_error(got, expected):
    total, difference = 0.0, 0.0
    for row, exact in zip(
        got, expected
    ):  # by sequence, so that no fp32 copy of all logits is needed
        difference += (row.float() - exact).square().sum().item()
        total += exact.square().sum().item()
    return (difference / total) ** 0.5


class AttentionCheck:
    """The implementation "tilewright_checked" of transformers: tilewright's, beside the model's own eager function on
    the same queries, keys and values, in fp32 and in their type. What whole models give says little of attention where
    random weights amplify each rounding (a router of experts that decides otherwise)."""

    NAME = "tilewright_checked"

    def __init__(self, transformers):
        from transformers.masking_utils import AttentionMaskInterface

        self.layers, self.error, self.eager_error = 0, 0.0, 0.0
        self._attention = transformers.AttentionInterface()["tilewright"]
        transformers.AttentionInterface.register(self.NAME, self)
        AttentionMaskInterface.register(self.NAME, AttentionMaskInterface()["tilewright"])

    def __call__(self, module, query, key, value, attention_mask, **options):
        import torch

        ours = self._attention(module, query, key, value, attention_mask, **options)
        eager = sys.modules[type(module).__module__].eager_attention_forward
        rows, keys = query.shape[2], key.shape[2]
        diagonal = torch.arange(rows, device="cuda")[:, None] + keys - rows
        distance = diagonal - torch.arange(keys, device="cuda")[None, :]
        keep = torch.ones_like(distance, dtype=torch.bool)
        if options.get("is_causal", getattr(module, "is_causal", True)):
            keep &= distance >= 0
        if options.get("sliding_window"):
            keep &= distance < options["sliding_window"]
        mask = torch.zeros(1, 1, rows, keys, device="cuda").masked_fill(~keep, -1e30)
        exact, _ = eager(module, query.float(), key.float(), value.float(), mask, **options)
        plain, _ = eager(module, query, key, value, mask.to(query.dtype), **options)
        self.layers += 1
        self.error = max(self.error, relative_error(ours[0], exact))
        self.eager_error = max(self.eager_error, relative_error(plain, exact))
        return ours

    def holds(self):
        return self.layers > 0 and self.error <= ATTENTION * self.eager_error

    def to_json(self):
        errors = {"error": self.error, "eager": self.eager_error}
        return {"layers": self.layers, **{name: float(f"{e:.3e}") for name, e in errors.items()}}


def measure_prefill(torch, model, inputs, names, rounds):
    """Median milliseconds of a forward pass, for each implementation."""
    times = {name: [] for name in names}
    model.set_attn_implementation(names[-1])
    start = time.monotonic()
    while time.monotonic() - start < HEAT_SECONDS:
        result_of(model, inputs)
        torch.cuda.synchronize()
    for _ in range(rounds):
        order = list(names)
        random.shuffle(order)
        for name in order:
            model.set_attn_implementation(name)
            result_of(model, inputs)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(3):
                result_of(model, inputs)
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_decode(torch, model, inputs, names, rounds):
    """Median milliseconds of wall time a token of generate, prefill of a short prompt included."""
    prompt = inputs["input_ids"][:, :256]
    times = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            model.set_attn_implementation(name)
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=DECODED_TOKENS,
                min_new_tokens=DECODED_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
            torch.cuda.synchronize()
            if turn:  # the first compiles
                times[name].append((time.perf_counter() - start) * 1e3 / DECODED_TOKENS)
    return {name: statistics.median(values) for name, values in times.items()}


def row_of(name, config, times, errors, check, notes, explain):
    """A result row: our time beside the best of the implementations whose answers are right."""
    ours = times["tilewright"]
    peers = {peer: ms for peer, ms in times.items() if peer != "tilewright"}
    best = min(peers, key=peers.get)
    return {
        "name": name,
        "spec": config,
        "value": round(ours, 3),
        "unit": "ms",
        "peer": best,
        "peer_value": round(peers[best], 3),
        "ratio": round(peers[best] / ours, 3),
        "must": None,
        "aim": None,
        "holds": errors["tilewright"] <= RIGHT * errors["eager"] and check.holds(),
        "peers": {peer: {"ms": round(ms, 3)} for peer, ms in peers.items()},
        "errors": {peer: float(f"{error:.3e}") for peer, error in errors.items()},
        "attention": check.to_json(),
        **({"notes": notes} if notes else {}),
        "plan": explain,
    }


class PreparedModel:
    """A model whose answers on each implementation have been compared, with all compiled that a forward pass needs."""

    def __init__(self, name, implementations):
        import torch
        import transformers

        import tilewright

        torch.manual_seed(0)
        chosen = MODELS[name]
        tilewright._call.forget()
        config = chosen.make_config(transformers)
        with torch.device("cuda"):
            model = chosen.make(
                transformers, config, attn_implementation="eager", dtype=torch.bfloat16
            )
        self.name, self.model = name, model
        self.text = f"{type(config).__name__} {json.dumps(chosen.sizes)}"
        self.inputs = make_inputs(torch, config, chosen.sizes)
        self.errors, self.notes, self.served = {}, {}, []
        with torch.no_grad():
            model.float()
            expected = result_of(model, self.inputs).float()
            model.bfloat16()
            for implementation in implementations:
                self._try(implementation, expected)
            del expected
            calls = {
                call.prepared.spec: call.prepared.explain()
                for call in tilewright._call._calls.values()
            }
            self.plans = "\n".join(calls.values())
            self.check = AttentionCheck(transformers)
            model.set_attn_implementation(self.check.NAME)
            result_of(model, self.inputs)

    def _try(self, implementation, expected):
        """Adds it to those served, or a note of why it is not."""
        try:
            self.model.set_attn_implementation(implementation)
            error = relative_error(result_of(self.model, self.inputs), expected)
        except Exception as refusal:  # whatever an implementation raises, it has no figure
            text = str(refusal).strip().splitlines()[0][:160]
            self.notes[implementation] = f"{type(refusal).__name__}: {text}"
            if implementation == "tilewright":
                raise
            return
        self.errors[implementation] = error
        if (
            implementation not in ("eager", "tilewright")
            and error > WRONG * self.errors["eager"]
        ):
            self.notes[implementation] = f"wrong answer: relative error {error:.1e}"
        else:
            self.served.append(implementation)

    def measure(self, rounds, decode):
        """Rows of the prefill and, of a decoder, of a generated token."""
        import torch

        def row(what, times, plans):
            return row_of(
                f"{self.name}_{what}", self.text, times, self.errors, self.check, self.notes, plans
            )

        with torch.no_grad():
            times = measure_prefill(torch, self.model, self.inputs, self.served, rounds)
            rows = [row("prefill", times, self.plans)]
            if decode and "input_ids" in self.inputs:
                # flex_attention compiles anew for each length.
                served = [peer for peer in self.served if peer != "flex_attention"]
                times = measure_decode(torch, self.model, self.inputs, served, rounds)
                rows.append(row("decode", times, ""))
        return rows


READY, ROWS = "clients.py is ready", "clients.py's rows: "


def run_model(name, arguments, ready=lambda: None):
    """The rows of a model; `ready` is called before anything is timed."""
    try:
        prepared = PreparedModel(name, arguments.implementations.split(","))
    except (RuntimeError, ValueError) as failure:
        ready()
        return [failed_row(name, str(failure)[:400])]
    ready()
    return prepared.measure(arguments.rounds, not arguments.no_decode)


def failed_row(name, why):
    return {"name": f"{name}_prefill", "spec": name, "holds": False, "why": why}


def run_as_child(arguments):
    """Says when the one model is prepared, times it at a line on standard input, and prints its rows."""

    def ready():
        print(READY, flush=True)
        sys.stdin.readline()

    rows = run_model(arguments.models[0], arguments, ready)
    print(ROWS + json.dumps(rows), flush=True)


def line_of(child, beginning):
    """The rest of the first line of a child's output that begins so; None where it ends without one."""
    for line in child.stdout:
        if line.startswith(beginning):
            return line[len(beginning) :]
    return None


def run_at_once(arguments, argv):
    """The rows of each model in turn. All are prepared at once, each in a process of its own, which takes most of the
    time, and timed one after the other, while the others do nothing."""
    children = {
        name: subprocess.Popen(
            [sys.executable, __file__, *argv, "--child", "--models", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in arguments.models
    }
    for child in children.values():
        line_of(child, READY)
    for name, child in children.items():
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write("\n")
            child.stdin.close()
        with child.stdout:
            rows = line_of(child, ROWS)
        code = child.wait()
        yield json.loads(rows) if rows else [failed_row(name, f"its process ended with {code}")]


def table(results):
    """Results as a table in Markdown: milliseconds of each implementation, why where it has none."""
    lines = [
        f"{results['device']}, driver {results['driver']}, {results['date']}, commit {results['commit'][:12]}; milliseconds,"
        " of the whole model's forward pass (`prefill`) or of a generated token (`decode`):",
        "",
        "| model | " + " | ".join(IMPLEMENTATIONS) + " |",
        "|---" * (len(IMPLEMENTATIONS) + 1) + "|",
    ]
    for row in results["rows"]:
        cells = []
        for name in IMPLEMENTATIONS:
            ms = row.get("value") if name == "tilewright" else row.get("peers", {}).get(name, {}).get("ms")
            cells.append("–" if ms is None else f"{ms:.1f}")
        lines.append(f"| {row['name'].replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--library", help="libtilewright.so (default: the package's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument(
        "--at-once", action="store_true", help="prepare all models at once, then time one by one"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--results", help="folder to write DEVICE/clients.json into; rows of other models stay"
    )
    parser.add_argument("--commit", default="unknown", help="of the tree that is measured")
    parser.add_argument(
        "--table", type=pathlib.Path, help="print a file of results as a table, and stop"
    )
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())), end="")
        return 0
    import torch

    import tilewright
    import tilewright.torch

    if not torch.cuda.is_available():
        print("clients.py: no GPU that PyTorch sees", file=sys.stderr)
        return 2
    if arguments.library:
        tilewright.use_library(arguments.library)
    tilewright.torch.register()
    if arguments.child:
        run_as_child(arguments)
        return 0
    turns = (
        run_at_once(arguments, argv)
        if arguments.at_once
        else (run_model(name, arguments) for name in arguments.models)
    )
    rows = []
    for of_model in turns:
        rows += of_model
        torch.cuda.empty_cache()
        for row in of_model:
            shown = {key: value for key, value in row.items() if key != "plan"}
            print(json.dumps(shown), flush=True)
        if arguments.results:
            write_results(arguments, torch.cuda.get_device_name(), argv, rows)
    return 0 if all(row["holds"] for row in rows) else 1


def write_results(arguments, device, argv, rows):
    """Keeps the rows of other models that the file has of the same commit."""
    path = pathlib.Path(arguments.results) / compare.device_folder(device) / "clients.json"
    if path.exists():
        old = json.loads(path.read_text())
        if old["commit"] == arguments.commit:
            rows = compare.merge_rows(old["rows"], rows)
    command = "bench/clients.py " + compare.shown_arguments(argv)
    header = compare.results_header("clients", arguments.commit, command, device)
    compare.write_results(path, header, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

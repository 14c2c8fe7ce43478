#!/usr/bin/env python3
"""Whole models of Hugging Face transformers, with random weights, on each attention implementation.

    clients.py --library build/release/libtilewright.so                 every model
    clients.py --models siglip_so400m phi_2 --results bench/results

A model is built once; eager, sdpa, flex_attention and tilewright take turns in it on the same inputs. What each gives is
compared with the eager implementation of an fp32 copy of the same weights: the answer is right when its relative error
is at most 1.2 times that of the eager implementation in bf16 (matrix products outside attention make most of either).
An implementation whose error is above 3 times that is wrong and has no figure: sdpa leaves out Gemma's softcap, for one.
Times are medians of rounds in random order, CUDA events around one forward pass of the whole model (prefill), and the
wall time of a token of `generate` (decode), with the chip heated before.

Exits with 1 when an answer of tilewright is wrong.
"""

import argparse
import contextlib
import datetime
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src/python"))

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "tilewright")
HEAT_SECONDS = 0.5
RIGHT, WRONG = 1.2, 3.0
DECODED_TOKENS = 24


def siglip_so400m(transformers):
    config = transformers.SiglipVisionConfig(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=27,
        num_attention_heads=16,
        image_size=384,
        patch_size=14,
    )
    return config, transformers.SiglipVisionModel, {"images": 8}


def phi_2(transformers):
    config = transformers.PhiConfig(
        vocab_size=51200,
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=32,
        num_attention_heads=32,
        partial_rotary_factor=0.4,
        max_position_embeddings=4096,
    )
    return config, transformers.PhiForCausalLM, {"batch": 2, "tokens": 2048}


def gemma_2_2b(transformers):
    config = transformers.Gemma2Config(
        vocab_size=32000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        sliding_window=1024,
        attn_logit_softcapping=50.0,
        query_pre_attn_scalar=256,
    )
    return config, transformers.Gemma2ForCausalLM, {"batch": 1, "tokens": 4096}


def gpt_oss(transformers):
    config = transformers.GptOssConfig(
        vocab_size=32000,
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=12,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return config, transformers.GptOssForCausalLM, {"batch": 1, "tokens": 4096}


def qwen_2_5_05b(transformers):
    config = transformers.Qwen2Config(
        vocab_size=32000,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=8192,
    )
    return config, transformers.Qwen2ForCausalLM, {"batch": 2, "tokens": 4096}


MODELS = {f.__name__: f for f in (siglip_so400m, phi_2, gemma_2_2b, gpt_oss, qwen_2_5_05b)}


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


def relative_error(torch, got, expected):
    total, difference = 0.0, 0.0
    for row, exact in zip(
        got, expected
    ):  # by sequence, so that no fp32 copy of all logits is needed
        difference += (row.float() - exact).square().sum().item()
        total += exact.square().sum().item()
    return (difference / total) ** 0.5


def measure_prefill(torch, model, inputs, names, rounds):
    """Median milliseconds of a forward pass, for each implementation."""
    times = {name: [] for name in names}
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


def row_of(name, config, times, errors, notes, explain):
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
        "holds": errors["tilewright"] <= RIGHT * errors["eager"],
        "peers": {peer: {"ms": round(ms, 3)} for peer, ms in peers.items()},
        "errors": {peer: float(f"{error:.3e}") for peer, error in errors.items()},
        **({"notes": notes} if notes else {}),
        "plan": explain,
    }


def run_model(name, implementations, rounds, decode):
    import torch
    import transformers

    import tilewright

    torch.manual_seed(0)
    config, kind, sizes = MODELS[name](transformers)
    with torch.device("cuda"):
        model = kind._from_config(config, attn_implementation="eager", dtype=torch.bfloat16).eval()
    inputs = make_inputs(torch, config, sizes)
    with torch.no_grad():
        model.float()
        expected = result_of(model, inputs).float()
        model.bfloat16()
        errors, notes, served = {}, {}, []
        for implementation in implementations:
            try:
                model.set_attn_implementation(implementation)
                errors[implementation] = relative_error(torch, result_of(model, inputs), expected)
            except Exception as refusal:  # whatever an implementation raises, it has no figure
                notes[implementation] = (
                    f"{type(refusal).__name__}: {str(refusal).strip().splitlines()[0][:160]}"
                )
                if implementation == "tilewright":
                    raise
                continue
            if (
                implementation not in ("eager", "tilewright")
                and errors[implementation] > WRONG * errors["eager"]
            ):
                notes[implementation] = f"wrong answer: relative error {errors[implementation]:.1e}"
                continue
            served.append(implementation)
        del expected
        calls = {
            call.prepared.spec: call.prepared.explain() for call in tilewright._call._calls.values()
        }
        tilewright._call._calls.clear()
        text = f"{type(config).__name__} {json.dumps(sizes)}"
        plans = "\n".join(calls.values())
        times = measure_prefill(torch, model, inputs, served, rounds)
        rows = [row_of(f"{name}_prefill", text, times, errors, notes, plans)]
        if decode and "input_ids" in inputs:
            served = [
                peer for peer in served if peer != "flex_attention"
            ]  # it compiles anew for each length
            times = measure_decode(torch, model, inputs, served, 3)
            rows.append(row_of(f"{name}_decode", text, times, errors, notes, ""))
    return rows


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--library", help="libtilewright.so (default: the package's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument(
        "--results", help="folder to write DEVICE/clients.json into; rows of other models stay"
    )
    parser.add_argument("--commit", default="unknown", help="of the tree that is measured")
    arguments = parser.parse_args(argv)
    import torch

    import tilewright
    import tilewright.torch

    if not torch.cuda.is_available():
        print("clients.py: no GPU that PyTorch sees", file=sys.stderr)
        return 2
    if arguments.library:
        tilewright.use_library(arguments.library)
    tilewright.torch.register()
    rows = []
    for name in arguments.models:
        try:
            rows += run_model(
                name,
                arguments.implementations.split(","),
                arguments.rounds,
                not arguments.no_decode,
            )
        except (RuntimeError, ValueError) as failure:
            rows.append(
                {"name": f"{name}_prefill", "spec": name, "holds": False, "why": str(failure)[:400]}
            )
        torch.cuda.empty_cache()
        for row in rows:
            if row["name"].startswith(name):
                print(
                    json.dumps({key: value for key, value in row.items() if key != "plan"}),
                    flush=True,
                )
    if arguments.results:
        device = torch.cuda.get_device_name()
        folder = pathlib.Path(arguments.results) / re.sub(
            r"[^a-z0-9]+", "_", device.lower().replace("nvidia", "")
        ).strip("_")
        path = folder / "clients.json"
        kept = []
        if path.exists():
            old = json.loads(path.read_text())
            if old["commit"] == arguments.commit:
                new = {row["name"] for row in rows}
                kept = [row for row in old["rows"] if row["name"] not in new]
        driver = "unknown"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            driver = subprocess.run(
                query, capture_output=True, text=True, check=True
            ).stdout.split()[0]
        header = {
            "topic": "clients",
            "commit": arguments.commit,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "device": device,
            "driver": driver,
            "command": "bench/clients.py " + " ".join(argv),
        }
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**header, "rows": kept + rows}, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Times the rows of peers_portable.json and the zoo beside PyTorch's back ends, in pieces.

    portable.py --library build/release/libtilewright.so --results bench/results
    portable.py --budget 60 --resume bench/results/h200/portable.json ...
    portable.py --table bench/results/h200/portable.json    the summary in the README

Rows come first, then workloads, those that take longest last; what RESUME holds of the same commit is
not run again, and no group begins after BUDGET seconds, so that several short runs add up to one
file. It is written after each group. Groups of up to 8 that fit in 16 GB are measured together by the protocol of compare.py
(--together), rows with 40 ms instead of 70 a round, workloads of the zoo with 10 ms and 3 ms of
warming up (`protocol` says which).

`not_timed` says of each other workload of the zoo what compare.py makes no inputs for; the GPU tests run
them (tests/zoo).

A row with a `family` runs on that family, the others on what Prepare picks by default. `value` is in
TFLOP/s, `us` and `gb_s` are the time of a call and the bytes of all tensors over it, `share` is the
part of what arithmetic or memory allows.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import compare

HERE = pathlib.Path(__file__).resolve().parent
TOPIC = "portable"
PEERS = ["cudnn", "flash", "efficient"]
PROTOCOLS = {
    "rows": {"WARMUP_TOGETHER_MS": 30, "REP_MS": 40},
    "zoo": {"WARMUP_TOGETHER_MS": 3, "REP_MS": 10},
}
MOST_TOGETHER = 8
MOST_BYTES = 16e9
USUAL_LIMITS = {"bf16 TFLOP/s": 690, "fp32 TFLOP/s": 50, "TB/s": 4.3}


def is_right(row):
    """Whether the answer of a row that was timed is within its bar; NaN is not."""
    return row["error"] <= row["error_bar"]


def complete(row, entry, limits):
    """Adds time, bandwidth and share of the limit, and judges rows whose bar is a time."""
    if "ms" not in row:
        return row
    spec = compare.parse_spec(entry["spec"])
    row["us"] = round(row["ms"] * 1e3, 2)
    row["gb_s"] = round(compare.bytes_moved(spec) / row["ms"] * 1e-6, 1)
    row["share"] = round(row["value"] / compare.limit_of(spec, limits), 3)
    for bar in ("must_us", "aim_us"):
        if bar in entry:
            row[bar] = entry[bar]
    if "must_us" in entry:
        row["holds"] = is_right(row) and row["us"] <= entry["must_us"]
    return row


def peers_of(entry):
    """What a row is judged by, and the others where the best of them counts."""
    if entry["versus"] == "best":
        return PEERS
    return [] if "@" in entry["versus"] else [entry["versus"]]


def groups_of(chosen):
    """[(kind, family, peers, entries)]: neighbours that have these in common and are run together."""
    groups, size = [], 0
    for kind, entry in chosen:
        of = (kind, entry.get("family", ""), peers_of(entry))
        own = compare.bytes_moved(compare.parse_spec(entry["spec"]))
        size += own
        alike = groups and groups[-1][:3] == of and len(groups[-1][3]) < MOST_TOGETHER
        if not alike or size > MOST_BYTES:
            groups.append((*of, []))
            size = own
        groups[-1][3].append(entry)
    return groups


def set_protocol(kind):
    for name, value in PROTOCOLS[kind].items():
        setattr(compare, name, value)


def summary(rows):
    """How many workloads of the zoo run and are right, and how many are faster than the best peer."""
    zoo = [row for row in rows if row.get("protocol") == "zoo"]
    ran = [row for row in zoo if "ms" in row and is_right(row)]
    judged = [row for row in ran if "ratio" in row]
    return {
        "asked": len(zoo),
        "ran": len(ran),
        "with_a_peer": len(judged),
        "faster": sum(row["ratio"] > 1 for row in judged),
        "median_ratio": round(statistics.median(row["ratio"] for row in judged), 2) if judged else None,
    }


def not_timed():
    """{workload: what of it compare.py makes no inputs for}"""
    obstacles = {
        workload["name"]: compare.zoo_obstacle(workload) for workload in compare.zoo_workloads(["*"])
    }
    return {name: obstacle for name, obstacle in obstacles.items() if obstacle is not None}


def table(results):
    """The summary of a file of results in Markdown: by the length of the queries and the head dim."""
    zoo = [row for row in results["rows"] if row.get("protocol") == "zoo"]
    # Rows of an earlier run name its commit.
    commits = sorted({row.get("commit", results["commit"])[:12] for row in zoo or [{}]})
    lines = [
        f"{results['device']}, driver {results['driver']}, {results['date']}, commit "
        f"{', '.join(commits)}; best peer: the fastest of cuDNN, FlashAttention-2 and the memory-efficient "
        "kernel that runs a workload and is right:",
        "",
        "| workloads with | right and timed | that a peer runs | faster than the best peer | median ratio |",
        "|---|---|---|---|---|",
    ]

    def add(title, chosen):
        of = summary(chosen)
        ratio = "–" if of["median_ratio"] is None else f"{of['median_ratio']:.2f}"
        lines.append(
            f"| {title} | {of['ran']} of {of['asked']} | {of['with_a_peer']} | {of['faster']} | {ratio} |"
        )

    specs = {row["name"]: compare.parse_spec(row["spec"]) for row in zoo}
    groups = {
        "one query": lambda spec: spec.seqlen_q == 1,
        "2 to 256 queries": lambda spec: 1 < spec.seqlen_q <= 256,
        "more, head dim at most 128": lambda spec: spec.seqlen_q > 256 and spec.dim_qk <= 128,
        "more, larger head dims": lambda spec: spec.seqlen_q > 256 and spec.dim_qk > 128,
    }
    for title, belongs in groups.items():
        add(title, [row for row in zoo if belongs(specs[row["name"]])])
    add("all", zoo)
    lines += [
        "",
        f"{len(results['not_timed'])} further workloads (pages, masks and biases by snippets) are "
        "checked by the GPU tests and not timed here.",
    ]
    not_reached = {entry["name"] for entry in compare.zoo_entries(["*"])} - specs.keys()
    if not_reached:
        lines.append(f"The run that this shows did not come to {len(not_reached)} others.")
    return "\n".join(lines) + "\n"


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", help="libtilewright.so (default: below build/)")
    parser.add_argument("--results", help="folder to write DEVICE/portable.json into")
    parser.add_argument(
        "--table", type=pathlib.Path, help="print the summary of a file of results, and stop"
    )
    parser.add_argument("--resume", help="a file of an earlier piece")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--only", choices=("rows", "zoo"), help="one half of the work")
    parser.add_argument("--names", nargs="+", default=["*"], help="patterns of rows and workloads")
    parser.add_argument("--commit", help="of the tree that is measured (default: git's HEAD)")
    parser.add_argument("--list", action="store_true", help="print what is left to do, and stop")
    arguments = parser.parse_args(argv)
    if arguments.results is None and arguments.table is None:
        parser.error("--results or --table must be given")
    return arguments


def least_seconds(entry):
    """Of a call, by what arithmetic and memory allow: what workloads are ordered by."""
    spec = compare.parse_spec(entry["spec"])
    return compare.flops(spec) / (compare.limit_of(spec, USUAL_LIMITS) * 1e12)


def entries_of(arguments):
    both = []
    if arguments.only != "zoo":
        rows = compare.load_entries(HERE / "peers_portable.json")
        both += [{"kind": "rows", **entry} for entry in rows]
    if arguments.only != "rows":
        zoo = sorted(compare.zoo_entries(["*"]), key=least_seconds)
        both += [{"kind": "zoo", **entry} for entry in zoo]
    # A pattern may name rows, workloads or both.
    return [(entry.pop("kind"), entry) for entry in compare.select(both, arguments.names)]


def main(argv):
    arguments = parse_arguments(argv)
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())), end="")
        return 0
    chosen = entries_of(arguments)
    earlier = json.loads(pathlib.Path(arguments.resume).read_text()) if arguments.resume else {}
    commit = compare.commit_hash(arguments.commit)
    rows = earlier.get("rows", []) if earlier.get("commit") == commit else []
    known = {row["name"] for row in rows}
    chosen = [(kind, entry) for kind, entry in chosen if entry["name"] not in known]
    if arguments.list:
        for kind, entry in chosen:
            print("\t".join((kind, entry.get("family", "-"), entry["name"], entry["spec"])))
        return 0
    import torch

    start = time.monotonic()
    torch.zeros(1, device="cuda")  # the primary context, current on this thread
    libraries = {}

    def library(family):
        if family not in libraries:
            os.environ["TILEWRIGHT_FAMILY"] = family
            libraries[family] = compare.Library(compare.find_library(arguments.library))
        return libraries[family]

    command = "bench/portable.py --library build/release/libtilewright.so --results bench/results"
    device = torch.cuda.get_device_name()
    header = compare.results_header(TOPIC, commit, command, device)
    folder = pathlib.Path(arguments.results) / compare.device_folder(device)
    path = folder / f"{TOPIC}.json"
    limits = earlier["limits"] if rows else compare.measured_limits()
    header["limits"] = limits
    header["not_timed"] = not_timed()
    all_rows = compare.load_entries(HERE / "peers_portable.json")
    for kind, family, peers, entries in groups_of(chosen):
        if time.monotonic() - start > arguments.budget:
            print(f"the budget ends before {entries[0]['name']}")
            break
        set_protocol(kind)
        group = compare.run_rows(entries, all_rows, library(family), peers, 3, False, limits)
        for entry, row in zip(entries, group):
            row = complete(row, entry, limits)
            row["protocol"] = kind
            rows.append(row)
            compare.print_row(row)
        header["nvrtc"] = compare.nvrtc_version(row.get("plan", "") for row in rows)
        header["zoo"] = summary(rows)
        compare.write_results(path, header, rows)
        torch.cuda.empty_cache()
        torch.compiler.reset()
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except compare.SpecError as error:
        print(f"portable.py: {error}", file=sys.stderr)
        sys.exit(2)

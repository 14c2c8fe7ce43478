#!/usr/bin/env python3
"""Runs the GPU tests as several processes at once and writes one result file.

    gpu_suite.py --program build/release/gpu_test --shards 8 --commit HASH
                 --results bench/results/h200/gpu_tests.json [-- ARGUMENTS OF gpu_test]

Compiling takes most of the time of a run on an empty store, and one process compiles for one spec
at a time; GoogleTest's shards split the tests among processes. Tests that need the device for
themselves (they keep time, or look at its free memory) are in suites whose names end in "AloneTest";
one more process runs them after the shards. What a process prints goes to FILE.shardN.log and
FILE.alone.log beside the result file; failures are repeated here. Counts are added and the worst
figures kept. With a --gtest_filter of yours all that it names runs in the shards.

Exits with 1 when a test failed or a process gave no result, 2 for wrong usage.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

ALONE = "*AloneTest.*"
ADDED = ("specs_checked", "specs_failed", "tests_failed")
COUNTS = ("tests_run", "tests_skipped")


def merge(parts):
    """The rows of one run from those of its shards."""
    rows = []
    for row in parts[0]["rows"]:
        name = row["name"]
        same = [other for part in parts for other in part["rows"] if other["name"] == name]
        if name in ADDED:
            merged = dict(row)
            merged["value"] = sum(other["value"] for other in same)
            for count in COUNTS:
                if count in row:
                    merged[count] = sum(other[count] for other in same)
            for other in same:
                if "spec" in other:
                    merged["spec"] = other["spec"]
        else:
            # JSON has no NaN; a figure that is none is the worst of all.
            merged = dict(max(same, key=badness))
        merged["holds"] = holds(merged)
        if name == "specs_checked":
            merged["ratio"] = merged["value"] / merged["peer_value"]
        rows.append(merged)
    return rows


def badness(row):
    return math.inf if row["value"] is None else row["value"]


def holds(row):
    if row["name"] == "specs_checked":
        return row["value"] >= row["peer_value"]
    return row["value"] is not None and row["value"] <= row["peer_value"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--program", type=pathlib.Path, default=pathlib.Path("build/release/gpu_test")
    )
    parser.add_argument("--shards", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--commit", required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("arguments", nargs="*", help="passed on to the program")
    options = parser.parse_args()
    if options.shards < 1:
        parser.error(f"--shards is {options.shards}; it must be at least 1")
    options.results.parent.mkdir(parents=True, exist_ok=True)

    def start(name, filters, variables):
        part = options.results.with_suffix(f".{name}.json")
        part.unlink(missing_ok=True)
        log = options.results.with_suffix(f".{name}.log").open("wb")
        command = [
            str(options.program.resolve()),
            "--gtest_brief=1",
            *filters,
            "--results",
            str(part),
            "--commit",
            options.commit,
            *options.arguments,
        ]
        environment = dict(os.environ, **variables)
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        return part, log, process

    own_filter = any(argument.startswith("--gtest_filter") for argument in options.arguments)
    running = [
        start(
            f"shard{shard}",
            [] if own_filter else [f"--gtest_filter=-{ALONE}"],
            {"GTEST_TOTAL_SHARDS": str(options.shards), "GTEST_SHARD_INDEX": str(shard)},
        )
        for shard in range(options.shards)
    ]
    for _, _, process in running:
        process.wait()
    if not own_filter:
        running.append(start("alone", [f"--gtest_filter={ALONE}"], {}))

    parts, failed = [], False
    for part, log, process in running:
        status = process.wait()
        log.close()
        if status != 0 or not part.exists():
            failed = True
            print(f"{log.name}: exit status {status}")
            lines = pathlib.Path(log.name).read_text(errors="replace").splitlines()
            print("\n".join(line for line in lines if "FAILED" in line or "Failure" in line))
        if part.exists():
            parts.append(json.loads(part.read_text()))
            part.unlink()
    if not parts:
        print("no shard wrote a result")
        return 1
    whole = dict(parts[0])
    family = os.environ.get("TILEWRIGHT_FAMILY")
    words = [f"TILEWRIGHT_FAMILY={family}"] if family else []
    words += ["gpu_suite.py", f"--shards {options.shards}", f"--commit {options.commit}"]
    whole["command"] = " ".join([*words, f"--results {options.results.name}", *options.arguments])
    whole["rows"] = merge(parts)
    if len(parts) < len(running):
        why = f"{len(running) - len(parts)} of {len(running)} gave no result"
        whole["rows"].append(
            {"name": "shards", "value": len(parts), "unit": "processes", "holds": False, "why": why}
        )
    options.results.write_text(json.dumps(whole, indent=1) + "\n")
    for row in whole["rows"]:
        verdict = "ok" if row["holds"] else "DOES NOT HOLD"
        print(f"{row['name']:24} {row['value']}  {verdict}  {row.get('spec', row.get('why', ''))}")
    return 1 if failed or not all(row["holds"] for row in whole["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())

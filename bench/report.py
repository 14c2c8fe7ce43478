#!/usr/bin/env python3
"""Result files of compare.py as one self-contained HTML page: no script, no other file, no network.

    report.py bench/results/h200/forward.json [MORE.json...] --html page.html [--picture page.png]

For each row a bar for Tilewright and for each peer that gave a right answer, the ratio to the best peer, the share of
the limit (measured matrix and memory speed of the same run) and the latency of the first call. --picture has a headless
Chromium draw it.
"""

import argparse
import html
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p.meta { color: #5a6675; margin-top: 0; } code { font-size: .85em; color: #44505e; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .45rem .5rem; vertical-align: top; text-align: left; }
tr + tr { border-top: 1px solid #e3e7ec; } th { color: #5a6675; font-weight: 600; }
td.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg text { font: 11px system-ui, sans-serif; fill: #1d2733; } .ours { fill: #2463eb; } .peer { fill: #aab4c0; }
.limit { stroke: #d1495b; stroke-dasharray: 3 2; } .better { color: #0a7d46; } .worse { color: #b4232f; }
"""

BAR, GAP, LABEL, WIDTH, VALUE = 14, 3, 92, 300, 62  # pixels


def bars_of(row):
    """[(name, value)]: Tilewright first, then the peers, the best first; without PEER@ROW, which computes another row."""
    peers = {name: peer for name, peer in row.get("peers", {}).items() if "@" not in name}
    values = {name: peer.get("value", peer.get("ms")) for name, peer in peers.items()}
    lower_is_better = row["unit"] in ("ms", "us")
    ordered = sorted(values, key=values.get, reverse=not lower_is_better)
    return [("tilewright", row["value"])] + [(name, values[name]) for name in ordered]


def chart(row):
    """The bars of one row as an SVG picture."""
    bars = bars_of(row)
    limit = row.get("limit")
    most = max([value for _, value in bars] + ([limit] if limit else []))
    height = len(bars) * (BAR + GAP)
    parts = [
        f'<svg width="{LABEL + WIDTH + VALUE}" height="{height}" role="img" aria-label="{html.escape(row["name"])}">'
    ]
    for n, (name, value) in enumerate(bars):
        y = n * (BAR + GAP)
        length = max(1.0, WIDTH * value / most)
        kind = "ours" if name == "tilewright" else "peer"
        parts.append(
            f'<text x="{LABEL - 6}" y="{y + 11}" text-anchor="end">{html.escape(name)}</text>'
        )
        parts.append(
            f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}"/>'
        )
        parts.append(f'<text x="{LABEL + length + 4:.1f}" y="{y + 11}">{value:g}</text>')
    if limit:
        x = LABEL + WIDTH * limit / most
        parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
    return "".join(parts) + "</svg>"


def ratio_of(row):
    """How many times better than the best peer, or None."""
    bars = bars_of(row)
    if len(bars) < 2 or not bars[1][1]:
        return None
    ours, best = bars[0][1], bars[1][1]
    return best / ours if row["unit"] in ("ms", "us") else ours / best


def first_calls(row):
    calls = {"tilewright": row.get("first_call_ms")}
    calls.update((name, peer.get("first_call_ms")) for name, peer in row.get("peers", {}).items())
    return (
        "<br>".join(
            f"{html.escape(name)} {ms:,.0f} ms" for name, ms in calls.items() if ms is not None
        )
        or "–"
    )


def table_row(row):
    title = f'<b>{html.escape(row["name"])}</b>'
    if row["spec"] != row["name"]:
        title += f'<br><code>{html.escape(row["spec"])}</code>'
    if "value" not in row:
        return f'<tr><td>{title}</td><td colspan="4" class="worse">{html.escape(row.get("why", "no figure"))}</td></tr>'
    ratio = ratio_of(row)
    shown = (
        "–"
        if ratio is None
        else f'<span class="{"better" if ratio >= 1 else "worse"}">{ratio:.2f}×</span>'
    )
    share = f'{100 * row["value"] / row["limit"]:.0f} %' if row.get("limit") else "–"
    return (
        f"<tr><td>{title}</td><td>{chart(row)}</td><td class='figure'>{shown}</td>"
        f"<td class='figure'>{share}</td><td class='figure'>{first_calls(row)}</td></tr>"
    )


def section(results):
    about = (
        f'{results["device"]}, driver {results["driver"]}, NVRTC {results.get("nvrtc", "unknown")}, {results["date"]}, '
        f'commit {results["commit"][:12]}. <code>{html.escape(results["command"])}</code>'
    )
    limits = results.get("limits")
    if limits:
        about += (
            " Measured limits: "
            + ", ".join(f"{html.escape(k)} {v:g}" for k, v in limits.items())
            + "."
        )
    units = sorted({row["unit"] for row in results["rows"] if "unit" in row})
    return (
        f'<h2>{html.escape(results["topic"])}</h2><p class="meta">{about}</p><table><tr><th>Shape</th>'
        f'<th>{html.escape(", ".join(units))}; longer is {"slower" if units == ["ms"] else "better"}</th>'
        "<th>to the best peer</th><th>of the limit</th><th>first call</th></tr>"
        + "".join(table_row(row) for row in results["rows"])
        + "</table>"
    )


def page(all_results):
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Tilewright beside other back ends</title>"
        f"<style>{STYLE}</style></head><body><h1>Tilewright beside other back ends</h1>"
        '<p class="meta">Same inputs, answers checked, measured in turns in one process. A back end without a bar '
        "refuses the shape or gave a wrong answer. Dashed: the limit.</p>"
        + "".join(section(results) for results in all_results)
        + "</body></html>\n"
    )


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PICTURE_WIDTH, HEAD_HEIGHT, LEAST_ROW_HEIGHT, LINE_HEIGHT = 1120, 320, 78, 20  # pixels


def find_browser():
    """A Chromium on the path, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def browse(browser, page_path, *options):
    """Standard output of a headless browser that opens a page."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", *options, pathlib.Path(page_path).resolve().as_uri()]
        return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.decode()


def draw(page_path, picture_path, all_results):
    """A picture of the page of these results, about as high as it is."""
    browser = find_browser()
    if browser is None:
        raise FileNotFoundError(f"no browser for --picture: none of {', '.join(BROWSERS)} is on the path")
    height = HEAD_HEIGHT * len(all_results)
    for row in (row for results in all_results for row in results["rows"]):
        height += max(LEAST_ROW_HEIGHT, (len(row.get("peers", {})) + 1) * LINE_HEIGHT + 18)
    picture = pathlib.Path(picture_path).resolve()
    browse(browser, page_path, f"--window-size={PICTURE_WIDTH},{height}", f"--screenshot={picture}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--html", type=pathlib.Path, required=True)
    parser.add_argument("--picture", type=pathlib.Path, help="draw the page into this PNG file")
    parser.add_argument("--rows", nargs="+", help="only the rows of these names, in this order")
    arguments = parser.parse_args(argv)
    all_results = [json.loads(path.read_text()) for path in arguments.results]
    if arguments.rows:
        for results in all_results:
            named = {row["name"]: row for row in results["rows"]}
            results["rows"] = [named[name] for name in arguments.rows if name in named]
    arguments.html.write_text(page(all_results))
    print(f"wrote {arguments.html}")
    if arguments.picture:
        draw(arguments.html, arguments.picture, all_results)
        print(f"wrote {arguments.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

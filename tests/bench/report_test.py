"""bench/report.py: the page says what the results say."""

import html.parser
import importlib.util
import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
_module = importlib.util.spec_from_file_location("report", ROOT / "bench" / "report.py")
report = importlib.util.module_from_spec(_module)
_module.loader.exec_module(report)

RESULTS = {
    "topic": "forward",
    "commit": "0123456789abcdef",
    "date": "2026-11-29",
    "device": "NVIDIA H200",
    "driver": "580.1",
    "nvrtc": "13.0.88",
    "command": "bench/compare.py --topic forward",
    "limits": {"bf16 TFLOP/s": 800.0, "TB/s": 4.3},
    "rows": [
        {
            "name": "d128",
            "spec": "fwd bf16 d=128 bias=<x>",
            "value": 400.0,
            "unit": "TFLOP/s",
            "limit": 800.0,
            "first_call_ms": 812.0,
            "peers": {
                "flash": {"value": 250.0},
                "cudnn": {"value": 320.0, "first_call_ms": 95.0},
                "cudnn@other": {"value": 700.0},
            },
        },
        {
            "name": "siglip",
            "spec": "siglip",
            "value": 10.0,
            "unit": "ms",
            "peers": {"sdpa": {"ms": 12.0}},
        },
        {"name": "broken", "spec": "fwd bf16 d=7", "holds": False, "why": "no <kernel>"},
    ],
}


class Reader(html.parser.HTMLParser):
    """Collects text and attributes, and checks that elements close in order."""

    VOID = {"meta", "br"}

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.attributes = [], [], []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_data(self, data):
        self.text.append(data)


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.page = report.page([RESULTS])
        self.reader = Reader(self.page)

    def test_every_row_is_there_with_its_figures(self):
        text = "".join(self.reader.text)
        for expected in (
            "d128",
            "fwd bf16 d=128 bias=<x>",
            "1.25×",
            "50 %",
            "tilewright 812 ms",
            "cudnn 95 ms",
            "1.20×",
            "no <kernel>",
            "0123456789ab",
            "TB/s 4.3",
        ):
            self.assertIn(expected, text)

    def test_bars_are_as_long_as_their_values(self):
        widths = {}
        for tag, name, value in self.reader.attributes:
            if tag == "rect" and name == "class":
                kind = value
            if tag == "rect" and name == "width":
                widths.setdefault(kind, []).append(float(value))
        self.assertEqual(widths["ours"], [report.WIDTH * 400 / 800, report.WIDTH * 10 / 12])
        self.assertEqual(widths["peer"], [report.WIDTH * 320 / 800, 93.8, report.WIDTH])

    def test_the_page_needs_nothing_else(self):
        self.assertNotIn("<script", self.page)
        self.assertFalse([a for a in self.reader.attributes if a[1] in ("src", "href")])
        self.assertNotIn("url(", self.page)

    def test_the_program_writes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "results.json").write_text(json.dumps(RESULTS))
            self.assertEqual(
                report.main([str(path / "results.json"), "--html", str(path / "page.html")]), 0
            )
            self.assertEqual((path / "page.html").read_text(), self.page)

    def test_rows_are_chosen_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "results.json").write_text(json.dumps(RESULTS))
            arguments = [str(path / "results.json"), "--html", str(path / "page.html")]
            self.assertEqual(report.main([*arguments, "--rows", "siglip", "nowhere"]), 0)
            page = (path / "page.html").read_text()
        self.assertIn("siglip", page)
        self.assertNotIn("d128", page)


# Run in the page once it is laid out; the browser prints the title with the rest.
PROBE = """<script>document.title = JSON.stringify({
  overflow: document.documentElement.scrollWidth > window.innerWidth,
  rows: document.querySelectorAll("table tr").length,
  bars: [...document.querySelectorAll("rect")].map(bar => Math.round(bar.getBoundingClientRect().width)),
  color: getComputedStyle(document.querySelector("rect.ours")).fill})</script>"""


@unittest.skipIf(report.find_browser() is None, "no Chromium on the path")
class BrowserTest(unittest.TestCase):
    """The page in a real browser, without a window."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_page_is_laid_out(self):
        path = self.folder / "page.html"
        path.write_text(report.page([RESULTS]) + PROBE)
        dom = report.browse(report.find_browser(), path, "--window-size=1120,800", "--dump-dom")
        seen = json.loads(re.search("<title>(.*?)</title>", dom)[1])
        self.assertFalse(seen["overflow"])
        self.assertEqual(seen["rows"], 4)
        self.assertEqual(seen["bars"], [150, 120, 94, 250, 300])
        self.assertEqual(seen["color"], "rgb(36, 99, 235)")

    def test_a_picture_is_drawn(self):
        path = self.folder / "results.json"
        path.write_text(json.dumps(RESULTS))
        picture = self.folder / "page.png"
        arguments = [str(path), "--html", str(self.folder / "page.html"), "--picture", str(picture)]
        self.assertEqual(report.main(arguments), 0)
        data = picture.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(int.from_bytes(data[16:20], "big"), report.PICTURE_WIDTH)
        self.assertGreater(len(data), 10_000)  # a blank one has a tenth of that


if __name__ == "__main__":
    unittest.main()

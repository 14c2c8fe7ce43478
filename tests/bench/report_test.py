"""bench/report.py: the page says what the results say."""

import html.parser
import importlib.util
import json
import pathlib
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
            "peers": {"flash": {"value": 250.0}, "cudnn": {"value": 320.0, "first_call_ms": 95.0}},
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


if __name__ == "__main__":
    unittest.main()

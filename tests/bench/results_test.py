"""bench/results: what is kept there was measured of right answers."""

import json
import pathlib
import unittest

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"


def wrong_answers(rows):
    """What rows say themselves: errors above their bars, of an output or of each gradient."""
    found = []
    for row in rows:
        pairs = [(row.get("error"), row.get("error_bar"))]
        errors = row.get("errors", {})
        pairs += [(errors.get(name), bar) for name, bar in row.get("error_bars", {}).items()]
        # NaN is not below anything.
        found += [
            f"{row['name']}: error {error}, bar {bar}"
            for error, bar in pairs
            if bar is not None and (error is None or not error <= bar)
        ]
    return found


class ResultsTest(unittest.TestCase):
    def test_errors_are_within_their_bars(self):
        files = sorted(RESULTS.glob("**/*.json"))
        self.assertGreater(len(files), 5)
        for file in files:
            with self.subTest(file=str(file.relative_to(RESULTS))):
                self.assertEqual(wrong_answers(json.loads(file.read_text()).get("rows", [])), [])

    def test_a_wrong_row_is_found(self):
        right = {"name": "right", "error": 1e-3, "error_bar": 2e-3}
        for wrong in (
            {"name": "far", "error": 3e-3, "error_bar": 2e-3},
            {"name": "infinite", "error": float("inf"), "error_bar": 2e-3},
            {"name": "nan", "error": float("nan"), "error_bar": 2e-3},
            {"name": "unknown", "error_bar": 2e-3},
            {"name": "dq", "errors": {"dq": 4e-3, "dk": 0}, "error_bars": {"dq": 3e-3, "dk": 1e-3}},
        ):
            found = wrong_answers([right, wrong])
            self.assertEqual([text.split(":")[0] for text in found], [wrong["name"]])


if __name__ == "__main__":
    unittest.main()

"""Tests of bench/gpu_suite.py with a stand-in for the test program."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUITE = pathlib.Path(__file__).resolve().parents[2] / "bench/gpu_suite.py"

PROGRAM = """#!/usr/bin/env python3
import json, os, sys
parts = json.load(open({parts!r}))
if "--gtest_filter=*AloneTest.*" in sys.argv:
    # After all shards have ended.
    assert "GTEST_SHARD_INDEX" not in os.environ
    assert len([name for name in os.listdir({ended!r})]) == len(parts) - 1
    shard = len(parts) - 1
else:
    assert "--gtest_filter=-*AloneTest.*" in sys.argv
    shard = int(os.environ["GTEST_SHARD_INDEX"])
    assert int(os.environ["GTEST_TOTAL_SHARDS"]) == len(parts) - 1
    open(os.path.join({ended!r}, str(shard)), "w").close()
part = parts[shard]
print("a line of shard", shard)
if part["failed"]:
    print("[  FAILED  ] SomeTest.Fails")
# As gpu_test reads them: the value is a word of its own.
results = sys.argv[sys.argv.index("--results") + 1]
assert sys.argv[sys.argv.index("--commit") + 1] == "abc"
if part["rows"] is not None:
    json.dump({{"topic": "gpu_tests", "device": "a device", "command": "", "rows": part["rows"]}},
              open(results, "w"))
sys.exit(part["failed"])
"""


def rows(checked, worst, spec, failed=0):
    result = [
        {"name": "specs_checked", "value": checked, "unit": "specs", "peer_value": 300, "ratio": 0, "holds": False},
        {"name": "specs_failed", "value": failed, "unit": "specs", "peer_value": 0, "holds": failed == 0},
        {"name": "worst_relative_error", "value": worst, "peer_value": 1, "holds": True, "spec": spec},
        {"name": "tests_failed", "value": failed, "peer_value": 0, "holds": failed == 0,
         "tests_run": 10, "tests_skipped": 1},
    ]
    if failed:
        result[1]["spec"] = spec
    return result


class GpuSuiteTest(unittest.TestCase):
    def run_suite(self, parts):
        """The last part is that of the tests that run alone."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "parts.json").write_text(json.dumps(parts))
            program = folder / "program"
            (folder / "ended").mkdir()
            program.write_text(
                PROGRAM.format(parts=str(folder / "parts.json"), ended=str(folder / "ended")))
            program.chmod(0o755)
            result = folder / "out/gpu_tests.json"
            done = subprocess.run(
                [sys.executable, str(SUITE), f"--program={program}", f"--shards={len(parts) - 1}",
                 "--commit=abc", f"--results={result}"], capture_output=True, text=True)
            written = json.loads(result.read_text()) if result.exists() else None
            logs = sorted(path.name for path in result.parent.glob("*.log"))
            self.assertEqual([p.name for p in result.parent.glob("*.json")], ["gpu_tests.json"] if written else [])
            self.assertEqual(len(logs), len(parts))
            return done, written

    def test_counts_are_added_and_the_worst_kept(self):
        done, written = self.run_suite([
            {"failed": 0, "rows": rows(200, 0.5, "fwd a")},
            {"failed": 0, "rows": rows(150, 0.75, "fwd b")},
            {"failed": 0, "rows": rows(0, 0.25, "fwd c")},
        ])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        by_name = {row["name"]: row for row in written["rows"]}
        self.assertEqual(by_name["specs_checked"]["value"], 350)
        self.assertEqual(by_name["specs_checked"]["ratio"], 350 / 300)
        self.assertEqual(by_name["worst_relative_error"]["value"], 0.75)
        self.assertEqual(by_name["worst_relative_error"]["spec"], "fwd b")
        self.assertEqual(by_name["tests_failed"]["tests_run"], 30)
        self.assertEqual(by_name["tests_failed"]["tests_skipped"], 3)
        self.assertTrue(all(row["holds"] for row in written["rows"]))
        self.assertIn("--shards 2 --commit abc", written["command"])

    def test_too_few_specs_do_not_hold(self):
        done, written = self.run_suite([
            {"failed": 0, "rows": rows(298, 0.5, "fwd a")},
            {"failed": 0, "rows": rows(1, 0.5, "fwd b")},
        ])
        self.assertEqual(done.returncode, 1)
        self.assertFalse(written["rows"][0]["holds"])

    def test_a_failure_is_named(self):
        done, written = self.run_suite([
            {"failed": 0, "rows": rows(300, 0.5, "fwd a")},
            {"failed": 1, "rows": rows(300, 2.0, "fwd b", failed=1)},
        ])
        self.assertEqual(done.returncode, 1)
        self.assertIn("SomeTest.Fails", done.stdout)
        by_name = {row["name"]: row for row in written["rows"]}
        self.assertEqual(by_name["specs_failed"]["spec"], "fwd b")
        self.assertFalse(by_name["worst_relative_error"]["holds"])

    def test_what_is_no_number_is_the_worst(self):
        done, written = self.run_suite([
            {"failed": 0, "rows": rows(300, 0.5, "fwd a")},
            {"failed": 0, "rows": rows(300, None, "fwd b")},
        ])
        self.assertEqual(done.returncode, 1)
        by_name = {row["name"]: row for row in written["rows"]}
        self.assertEqual(by_name["worst_relative_error"]["spec"], "fwd b")
        self.assertFalse(by_name["worst_relative_error"]["holds"])

    def test_a_shard_without_a_result_does_not_pass(self):
        done, written = self.run_suite([
            {"failed": 0, "rows": rows(300, 0.5, "fwd a")},
            {"failed": 1, "rows": None},
        ])
        self.assertEqual(done.returncode, 1)
        self.assertEqual(written["rows"][-1]["name"], "shards")
        self.assertFalse(written["rows"][-1]["holds"])


if __name__ == "__main__":
    unittest.main()

"""bench/clients.py without a GPU: what becomes of times and errors, and of the processes of --at-once."""

import importlib.util
import json
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
_module = importlib.util.spec_from_file_location("clients", ROOT / "bench" / "clients.py")
clients = importlib.util.module_from_spec(_module)
_module.loader.exec_module(clients)

RESULTS = ROOT / "bench/results/h200/clients.json"


def check(error=0.002, eager_error=0.004, layers=2):
    """An AttentionCheck after a forward pass."""
    done = clients.AttentionCheck.__new__(clients.AttentionCheck)
    done.layers, done.error, done.eager_error = layers, error, eager_error
    return done


def row(errors=None, times=None, of_attention=None):
    errors = errors or {"eager": 0.010, "sdpa": 0.010, "tilewright": 0.011}
    times = times or {"eager": 30.0, "sdpa": 12.0, "tilewright": 10.0}
    return clients.row_of("model_prefill", "spec", times, errors, of_attention or check(), {}, "")


class RowTest(unittest.TestCase):
    def test_the_best_right_implementation_is_the_peer(self):
        best = row()
        self.assertEqual((best["peer"], best["peer_value"], best["value"]), ("sdpa", 12.0, 10.0))
        self.assertEqual(best["ratio"], 1.2)
        self.assertTrue(best["holds"])

    def test_a_wrong_model_or_layer_does_not_hold(self):
        self.assertFalse(row(errors={"eager": 0.01, "tilewright": 0.0121})["holds"])
        self.assertFalse(row(of_attention=check(error=0.0061))["holds"])
        self.assertFalse(row(of_attention=check(layers=0))["holds"])


class TableTest(unittest.TestCase):
    def test_readme_shows_the_recorded_run(self):
        table = clients.table(json.loads(RESULTS.read_text()))
        readme = (ROOT / "README.md").read_text()
        self.assertIn(f"<!-- clients-table -->\n{table}<!-- end -->", readme, "run make readme")

    def test_the_recorded_run_is_of_every_model_and_right(self):
        rows = json.loads(RESULTS.read_text())["rows"]
        self.assertEqual(
            {name.rpartition("_")[0] for name in (row["name"] for row in rows)}, set(clients.MODELS)
        )
        self.assertTrue(all(row["holds"] for row in rows))

    def test_what_has_no_figure_has_a_dash(self):
        results = {"device": "D", "driver": "1", "date": "today", "commit": "abc"}
        some = row(times={"eager": 30.04, "tilewright": 10.0})
        last = clients.table({**results, "rows": [some, clients.failed_row("other", "why")]})
        self.assertEqual(
            last.splitlines()[-2:],
            ["| model prefill | 30.0 | – | – | 10.0 |", "| other prefill | – | – | – | – |"],
        )


CHILD = """
import sys
name = sys.argv[sys.argv.index("--models") + 1]
if name == "phi_2":
    sys.exit(3)
print("noise\\nclients.py is ready", flush=True)
sys.stdin.readline()
log = open(sys.argv[1], "a")
log.write(name + " begins\\n")
log.flush()
print('clients.py\\'s rows: [{"name": "' + name + '"}]', flush=True)
"""


class AtOnceTest(unittest.TestCase):
    def test_models_are_timed_in_turn_and_a_lost_process_is_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            child, log = pathlib.Path(folder) / "child.py", pathlib.Path(folder) / "log"
            child.write_text(CHILD)
            names = ["gpt_oss", "phi_2", "siglip_so400m"]
            arguments = types.SimpleNamespace(models=names)
            with unittest.mock.patch.object(clients, "__file__", str(child)):
                turns = clients.run_at_once(arguments, [str(log)])
                first = next(turns)
                self.assertEqual(log.read_text(), "gpt_oss begins\n")  # the last one waits
                rows = [first, *turns]
        self.assertEqual(rows[0], [{"name": "gpt_oss"}])
        self.assertEqual(rows[1], [clients.failed_row("phi_2", "its process ended with 3")])
        self.assertEqual(rows[2], [{"name": "siglip_so400m"}])


class ResultsTest(unittest.TestCase):
    def write(self, folder, commit, *rows):
        arguments = types.SimpleNamespace(results=folder, commit=commit)
        argv = ["--rounds", "3", "--results", folder]
        clients.write_results(arguments, "NVIDIA H200", argv, list(rows))
        return json.loads((pathlib.Path(folder) / "h200/clients.json").read_text())

    def test_rows_of_the_same_commit_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, "a", {"name": "x", "value": 1}, {"name": "y", "value": 1})
            kept = self.write(folder, "a", {"name": "y", "value": 2})
            self.assertEqual([row["value"] for row in kept["rows"]], [1, 2])
            self.assertEqual(kept["command"], "bench/clients.py --rounds 3 --results bench/results")
            self.assertEqual(len(self.write(folder, "b", {"name": "y"})["rows"]), 1)


if __name__ == "__main__":
    unittest.main()

"""Tests of bench/portable.py and of the zoo's rows in bench/compare.py. They need no GPU."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import compare  # noqa: E402
import portable  # noqa: E402

LIMITS = {"bf16 TFLOP/s": 800.0, "fp32 TFLOP/s": 50.0, "TB/s": 4.0}


def row_of(**fields):
    return {"name": "x", "value": 10.0, "ms": 0.1, "error": 1e-3, "error_bar": 2e-3, **fields}


class PortableTest(unittest.TestCase):
    def test_rows_have_specs_and_peers_that_compare_knows(self):
        entries = compare.load_entries(portable.HERE / "peers_portable.json")
        names = [entry["name"] for entry in entries]
        self.assertEqual(len(names), len(set(names)))
        for entry in entries:
            compare.parse_spec(entry["spec"])
            peer, _, other = entry["versus"].partition("@")
            self.assertIn(peer, (*compare.PEERS, "best"))
            self.assertTrue(other == "" or other in names, entry)

    def test_a_row_is_judged_by_its_peer_the_others_where_the_best_counts(self):
        self.assertEqual(portable.peers_of({"versus": "flash"}), ["flash"])
        self.assertEqual(portable.peers_of({"versus": "cudnn@other"}), [])
        self.assertEqual(portable.peers_of({"versus": "best"}), portable.PEERS)

    def test_groups_are_neighbours_of_one_family_and_the_same_peers_that_fit(self):
        def entry(name, batch=1, versus="flash", **more):
            spec = f"fwd bf16 b={batch} h=1 s=64 d=64"
            return {"name": name, "spec": spec, "versus": versus, **more}

        chosen = [("rows", entry(str(n))) for n in range(portable.MOST_TOGETHER + 1)]
        chosen.append(("rows", entry("other", family="attn_fwd_sm80")))
        chosen.append(("zoo", entry("zoo", versus="best")))
        huge = int(portable.MOST_BYTES / (4 * 64 * 64 * 2)) - 1
        chosen += [("zoo", entry("huge", batch=huge, versus="best"))] * 2
        groups = portable.groups_of(chosen)
        self.assertEqual([len(group[3]) for group in groups], [portable.MOST_TOGETHER, 1, 1, 2, 1])
        self.assertEqual(groups[2][:3], ("rows", "attn_fwd_sm80", ["flash"]))

    def test_names_are_of_rows_or_of_workloads(self):
        def chosen(*names):
            arguments = portable.parse_arguments(["--results", "x", "--names", *names])
            return [(kind, entry["name"]) for kind, entry in portable.entries_of(arguments)]

        self.assertEqual(chosen("tnt-s-*"), [("zoo", "tnt-s-inner-d6-s16")])
        self.assertEqual(
            chosen("swin_d32_49", "tnt-s-*"),
            [("rows", "swin_d32_49"), ("zoo", "tnt-s-inner-d6-s16")],
        )
        with self.assertRaisesRegex(compare.SpecError, "no-such"):
            chosen("no-such", "tnt-s-*")

    def test_workloads_that_take_long_come_last(self):
        arguments = portable.parse_arguments(["--results", "x", "--only", "zoo"])
        seconds = [portable.least_seconds(entry) for _, entry in portable.entries_of(arguments)]
        self.assertEqual(seconds, sorted(seconds))
        self.assertGreater(seconds[-1], 0.1)

    def test_a_bar_in_microseconds(self):
        entry = {"spec": "fwd bf16 b=1 h=1 s=64 d=64", "versus": "best", "must_us": 100}
        held = portable.complete(row_of(ms=0.1, holds=True), entry, LIMITS)
        self.assertEqual(held["us"], 100.0)
        self.assertTrue(held["holds"])
        self.assertEqual(held["gb_s"], round(4 * 64 * 64 * 2 / 0.1 * 1e-6, 1))
        self.assertFalse(portable.complete(row_of(ms=0.101), entry, LIMITS)["holds"])
        self.assertFalse(portable.complete(row_of(error=3e-3), entry, LIMITS)["holds"])

    def test_summary_counts_the_zoo_only(self):
        rows = [
            row_of(protocol="rows", ratio=2),
            row_of(protocol="zoo", ratio=1.2),
            row_of(protocol="zoo", ratio=0.9),
            row_of(protocol="zoo"),
            row_of(protocol="zoo", ratio=9, error=3e-3),
            {"protocol": "zoo", "why": "refused"},
        ]
        self.assertEqual(
            portable.summary(rows),
            {"asked": 5, "ran": 3, "with_a_peer": 2, "faster": 1, "median_ratio": 1.05},
        )
        self.assertIsNone(portable.summary(rows[3:])["median_ratio"])

    def test_the_table_has_a_line_for_each_group_and_one_for_all(self):
        def row(sizes, **fields):
            spec = f"fwd bf16 b=1 h=1 {sizes}"
            return row_of(name=sizes, spec=spec, protocol="zoo", **fields)

        results = {
            "device": "D",
            "driver": "1",
            "date": "today",
            "commit": "abc",
            "not_timed": {"other": "pages"},
            "rows": [
                row("s=1/64 d=64", ratio=0.5),
                row("s=49 d=32", ratio=2),
                row("s=512 d=64", ratio=1.5),
                row("s=512 d=192/128"),
            ],
        }
        lines = portable.table(results).splitlines()
        self.assertIn("| one query | 1 of 1 | 1 | 0 | 0.50 |", lines)
        self.assertIn("| more, larger head dims | 1 of 1 | 0 | 0 | – |", lines)
        self.assertIn("| all | 4 of 4 | 3 | 2 | 1.50 |", lines)
        self.assertTrue(lines[-2].startswith("1 further workloads"))
        others = len(compare.zoo_entries(["*"]))
        self.assertEqual(lines[-1], f"The run that this shows did not come to {others} others.")

    def test_every_workload_is_timed_or_has_a_reason(self):
        timed = {entry["name"] for entry in compare.zoo_entries(["*"])}
        left_out = portable.not_timed()
        self.assertEqual(timed & set(left_out), set())
        self.assertEqual(len(timed) + len(left_out), len(compare.zoo_workloads(["*"])))
        self.assertEqual(left_out["llama3-8b-decode-b32-paged16"], "pages")

    def test_packed_sequences_of_the_zoo(self):
        (entry,) = compare.zoo_entries(["moonshine-tiny-d36"])
        spec = compare.parse_spec(entry["spec"])
        self.assertEqual((len(spec.lengths), spec.lengths[0]), (16, (415, 415)))
        self.assertEqual(spec.rows(), (3235, 3235))
        self.assertEqual(spec.sequence(1).seqlen_kv, 120)
        squares = sum(queries * keys for queries, keys in spec.lengths)
        self.assertEqual(compare.flops(spec), 2 * squares * 8 * (36 + 36))
        self.assertEqual(
            compare.library_text(entry["spec"]),
            "fwd fp16 b=16 h=8/8 s=500/500 d=36/36 varlen layout=thd",
        )

    def test_terms_of_the_zoo(self):
        by_name = {
            entry["name"]: compare.parse_spec(entry["spec"]) for entry in compare.zoo_entries(["*"])
        }
        self.assertGreater(len(by_name), 140)
        swin = by_name["swin-t-stage1-win7-shifted"]
        self.assertEqual([term.shape for term in swin.terms], [(1, 3, 49, 49), (64, 1, 49, 49)])
        triangle = by_name["af2-triangle-start-crop256-train"]
        self.assertEqual([term.type for term in triangle.terms], ["bf16", "bool"])
        self.assertTrue(by_name["mpt-7b-alibi"].alibi)
        self.assertNotIn("sam-vit-h-global-4096-d80", by_name)  # looked up by row and column


class ReadmeTest(unittest.TestCase):
    def test_readme_shows_the_recorded_run(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        results = json.loads((root / "bench/results/h200/portable.json").read_text())
        readme = (root / "README.md").read_text()
        expected = f"<!-- zoo-table -->\n{portable.table(results)}<!-- end -->"
        self.assertTrue(expected in readme, "run make readme")


if __name__ == "__main__":
    unittest.main()

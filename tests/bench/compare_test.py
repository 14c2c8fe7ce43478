"""The parts of bench/compare.py that need neither PyTorch nor a GPU."""

import ctypes
import importlib
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
_module = importlib.util.spec_from_file_location("compare", ROOT / "bench" / "compare.py")
compare = importlib.util.module_from_spec(_module)
sys.modules["compare"] = compare  # dataclasses look their module up
_module.loader.exec_module(compare)


class SpecTest(unittest.TestCase):
    def test_words_are_read(self):
        spec = compare.parse_spec(
            "fwd fp16 b=3 h=8/2 s=5/9 d=192/128 causal=top_left window=4,0 scale=0.5 softcap=30"
            " alibi lse bias=bf16:3,8,5,9 mask=bool:1,1,1,9"
        )
        self.assertEqual((spec.heads_q, spec.heads_kv, spec.dim_v), (8, 2, 128))
        self.assertTrue(spec.causal and spec.top_left and spec.alibi and spec.lse)
        self.assertEqual((spec.window_left, spec.right()), (4, 0))
        self.assertEqual(spec.effective_scale(), 0.5)
        self.assertEqual([t.type for t in spec.terms], ["bf16", "bool"])
        self.assertEqual(spec.offset(), 0)
        plain = compare.parse_spec("fwd bf16 h=4 s=5/9 d=64")
        self.assertEqual((plain.heads_kv, plain.offset()), (4, 4))
        self.assertEqual(plain.effective_scale(), 1 / 8)
        self.assertEqual(plain.out_type(), "bf16")
        narrow = compare.parse_spec("fwd e4m3 h=4 s=5/9 d=64 out=fp16")
        self.assertEqual((narrow.type, narrow.out_type()), ("e4m3", "fp16"))

    def test_what_it_has_no_inputs_for_is_named(self):
        for text, word in (
            ("fwd bf16 paged=64", "paged=64"),
            ("fwd bf16 varlen", "varlen"),
            ("fwd e5m2 b=1", "e5m2"),
            ("fwd bf16 h=5/2", "h=5/2"),
            ("fwd bf16 bias=bool:1,1,1,1", "bias=bool"),
            ("fwd bf16 d=1/2/3", "d=1/2/3"),
            ("attention", "fwd TYPE"),
        ):
            with self.assertRaisesRegex(compare.SpecError, re.escape(word)):
                compare.parse_spec(text)


class ZooTest(unittest.TestCase):
    def test_workloads_become_specs(self):
        (entry,) = compare.zoo_entries(["gemma2-9b-local-softcap-window"])
        spec = compare.parse_spec(entry["spec"])
        self.assertEqual((spec.heads_q, spec.heads_kv, spec.dim_qk, spec.softcap), (16, 8, 256, 50))
        self.assertEqual((spec.window_left, spec.scale), (4095, 0.0625))
        self.assertIsNone(entry["must"])

    def test_those_without_inputs_are_left_out(self):
        with self.assertRaisesRegex(compare.SpecError, "sam-vit-h-global-4096-d80"):
            compare.zoo_entries(["sam-vit-h-global-4096-d80"])


class LimitTest(unittest.TestCase):
    LIMITS = {"bf16 TFLOP/s": 800.0, "fp32 TFLOP/s": 50.0, "TB/s": 4.0}

    def test_arithmetic_bounds_long_sequences_and_memory_decode(self):
        long = compare.parse_spec("fwd bf16 b=2 h=16 s=8192 d=128")
        self.assertEqual(compare.limit_of(long, self.LIMITS), 800)
        self.assertEqual(
            compare.limit_of(compare.parse_spec("fwd fp32 b=2 h=16 s=8192 d=128"), self.LIMITS), 50
        )
        decode = compare.parse_spec("fwd bf16 b=16 h=32/8 s=1/8192 d=128")
        milliseconds = compare.bytes_moved(decode) / 4e12 * 1e3
        self.assertAlmostEqual(
            compare.limit_of(decode, self.LIMITS), compare.tera(decode, milliseconds)
        )

    def test_terms_count_as_they_are_stored(self):
        plain = compare.parse_spec("fwd bf16 b=2 h=4 s=64 d=32")
        masked = compare.parse_spec(
            "fwd bf16 b=2 h=4 s=64 d=32 bias=fp32:1,4,64,64 mask=bool:2,1,1,64"
        )
        self.assertEqual(
            compare.bytes_moved(masked) - compare.bytes_moved(plain), 4 * 4 * 64 * 64 + 2 * 64
        )


class PackagesTest(unittest.TestCase):
    """flash-attn and xFormers, played by modules that record what they are called with."""

    def runner(self, name, text):
        calls = []

        def record(q, k, v, **options):
            calls.append(options)
            return (q, "lse")

        module = types.SimpleNamespace(flash_attn_func=record)
        inputs = types.SimpleNamespace(
            spec=compare.parse_spec(text), q="q", k="k", v="v", slopes="slopes"
        )
        with unittest.mock.patch.object(importlib, "import_module", return_value=module):
            call, _ = compare.make_peer(name, inputs)
        self.assertEqual(call(), "q")
        return calls[0]

    def test_options_of_flash_attn(self):
        options = self.runner("fa2", "fwd bf16 h=4 s=64 d=64 causal window=9,0 softcap=5 alibi")
        self.assertEqual(options["window_size"], (9, 0))
        self.assertEqual((options["softcap"], options["alibi_slopes"]), (5, "slopes"))
        self.assertEqual(
            self.runner("fa4", "fwd bf16 h=4 s=64 d=64 causal")["window_size"], (None, None)
        )

    def test_what_they_cannot_is_refused(self):
        for name, text in (
            ("fa3", "fwd bf16 h=4 s=64 d=64 alibi"),
            ("xformers", "fwd bf16 h=4 s=64 d=64 softcap=3"),
        ):
            with self.assertRaises(compare.TilewrightError):
                self.runner(name, text)


class FlopsTest(unittest.TestCase):
    def test_the_shared_cases(self):
        cases = json.loads((ROOT / "tests/bench/flops_cases.json").read_text())
        self.assertGreater(len(cases), 5)
        for case in cases:
            spec = compare.Spec(
                text="",
                batch=case["batch"],
                heads_q=case["heads"],
                heads_kv=case["heads"],
                seqlen_q=case["seqlen_q"],
                seqlen_kv=case["seqlen_kv"],
                dim_qk=case["dim_qk"],
                dim_v=case["dim_v"],
                causal=case["causal"],
                top_left=case["top_left"],
                window_left=case["window_left"],
                window_right=case["window_right"],
                backward=case["backward"],
            )
            self.assertEqual(compare.flops(spec), case["flops"], case)


class RowsTest(unittest.TestCase):
    def test_peers_json_is_sound(self):
        entries = compare.load_entries()
        names = [entry["name"] for entry in entries]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(entries), 50)
        for entry in entries:
            spec = compare.parse_spec(entry["spec"])
            self.assertGreater(compare.flops(spec), 0)
            versus, _, other = entry["versus"].partition("@")
            self.assertIn(versus, compare.PEERS + ("best", "own_bf16"))
            if other:
                self.assertIn(other, names)
            if entry["must"] is not None:
                self.assertLessEqual(entry["must"], entry["aim"])

    def test_the_twin_in_bf16_is_the_same_operation(self):
        rows = [e for e in compare.load_entries() if e["versus"] == "own_bf16"]
        self.assertEqual(len(rows), 4)
        for entry in rows:
            spec = compare.parse_spec(entry["spec"])
            twin = compare.spec_in_bf16(spec)
            self.assertEqual((twin.type, twin.out_type()), ("bf16", "bf16"))
            self.assertEqual(compare.flops(twin), compare.flops(spec))
            same = {"type": "", "out": None, "text": ""}
            self.assertEqual(
                compare.dataclasses.replace(twin, **same), compare.dataclasses.replace(spec, **same)
            )

    def test_rows_are_chosen_by_pattern(self):
        entries = compare.load_entries()
        chosen = compare.select(entries, ["d64_*_full", "sam_d80_4096"])
        self.assertEqual(len(chosen), 6)
        self.assertEqual(compare.select(entries, []), entries)
        with self.assertRaisesRegex(compare.SpecError, "no_such"):
            compare.select(entries, ["no_such*"])

    def test_a_row_is_judged_by_its_peer(self):
        spec = compare.parse_spec("fwd bf16 b=1 h=1 s=100 d=64")
        entry = {"name": "x", "versus": "cudnn", "must": 1.5, "aim": 2.0}

        def row(times, entry=entry, error=1e-3, bar=2e-3, specs=None):
            return compare.build_row(entry, spec, times, specs or {}, error, bar, {}, "plan")

        twice = row({"tilewright": [1, 9, 2], "cudnn": [4, 4, 4], "flash": [1, 1, 1]})
        self.assertEqual((twice["ratio"], twice["peer"], twice["holds"]), (2.0, "cudnn", True))
        self.assertEqual(twice["ms"], 2)
        self.assertEqual(twice["unit"], "TFLOP/s")
        self.assertAlmostEqual(twice["peers"]["flash"]["value"], compare.tera(spec, 1), places=1)
        self.assertEqual(twice["spread"], 4.0)
        slow = row({"tilewright": [3, 3, 3], "cudnn": [4, 4, 4]})
        self.assertFalse(slow["holds"])
        wrong = row({"tilewright": [1, 1, 1], "cudnn": [4, 4, 4]}, error=1)
        self.assertFalse(wrong["holds"])
        self.assertIn("wrong", wrong["why"])
        self.assertFalse(row({"tilewright": [1], "cudnn": [4]}, error=math.inf)["holds"])
        alone = row({"tilewright": [1, 1, 1]})
        self.assertFalse(alone["holds"])
        self.assertIn("cudnn", alone["why"])

        best = {"name": "x", "versus": "best", "must": None, "aim": None}
        fastest = row({"tilewright": [1], "cudnn": [4], "flash": [2]}, best)
        self.assertEqual(
            (fastest["peer"], fastest["ratio"], fastest["holds"]), ("flash", 2.0, True)
        )
        self.assertTrue(row({"tilewright": [1]}, best)["holds"])

        # By the rate of another shape, whose work is another.
        other = compare.parse_spec("fwd bf16 b=4 h=1 s=100 d=64")
        by_other = {"name": "x", "versus": "cudnn@y", "must": 0.5, "aim": 0.9}
        judged = row({"tilewright": [1], "cudnn@y": [2]}, by_other, specs={"cudnn@y": other})
        self.assertEqual((judged["peer"], judged["ratio"]), ("cudnn@y", 0.5))
        self.assertTrue(judged["holds"])

    def test_the_peer_of_the_row_is_always_loaded(self):
        entry = {"versus": "flex"}
        self.assertEqual(compare.row_peers(entry, ["cudnn"]), ["cudnn", "flex"])
        self.assertEqual(compare.row_peers(entry, ["flex", "cudnn"]), ["cudnn", "flex"])


class MeasureTest(unittest.TestCase):
    def test_heats_first_then_shuffled_rounds(self):
        log, now = [], [0.0]

        def runner(name):
            def call():
                log.append(name)
                now[0] += 0.05

            return call

        runners = {"tilewright": runner("a"), "cudnn": runner("b")}
        orders = iter([["tilewright", "cudnn"], ["cudnn", "tilewright"], ["cudnn", "tilewright"]])
        benched = []

        def bench(call):
            benched.append("tilewright" if call is runners["tilewright"] else "cudnn")
            return float(len(benched))

        def shuffle(order):
            order[:] = next(orders)

        times = compare.measure(
            runners, 3, bench, lambda: log.append("sync"), shuffle, lambda: now[0]
        )
        self.assertGreaterEqual(now[0], compare.HEAT_SECONDS)
        self.assertEqual(log.count("a"), log.count("b"))
        self.assertEqual(benched[:4], ["tilewright", "cudnn", "cudnn", "tilewright"])
        self.assertEqual(times, {"tilewright": [1.0, 4.0, 6.0], "cudnn": [2.0, 3.0, 5.0]})

    def test_long_calls_are_made_as_often_as_there_is_time(self):
        def times_of(took):
            calls = iter(took)
            return lambda: next(calls)

        self.assertEqual(compare.time_long(times_of([]), 300.0, 3, 10), 300.0)
        self.assertEqual(compare.time_long(times_of([11.0, 12.0, 13.0]), 20.0, 30, 20), 12.0)

    def test_heating_ends_with_a_pass_that_took_long(self):
        calls, now = [], [0.0]

        def call():
            calls.append(None)
            now[0] += 1.0

        compare.heat({"a": call}, lambda: None, 0.6, lambda: now[0])
        self.assertEqual(len(calls), 1)

    def test_fewer_than_three_rounds_are_refused(self):
        with self.assertRaises(SystemExit), open(os.devnull, "w") as quiet:
            sys.stderr, saved = quiet, sys.stderr
            try:
                compare.parse_arguments(["--rounds", "2"])
            finally:
                sys.stderr = saved


class SampleTest(unittest.TestCase):
    def test_rows_have_the_ends_and_the_edges(self):
        for length in (1, 2, 49, 64, 65, 1000, 4097, 32760):
            rows = compare.sampled_rows(length)
            self.assertEqual((rows[0], rows[-1]), (0, length - 1))
            self.assertEqual(rows, sorted(set(rows)))
            if length > 65:
                self.assertTrue({63, 64} <= set(rows))
            self.assertLess(len(rows), 160)
        self.assertEqual(compare.sampled_rows(49), list(range(49)))
        self.assertEqual(compare.sampled_rows(0), [])

    def test_heads_have_the_corners(self):
        pairs = compare.sampled_heads(compare.parse_spec("fwd bf16 b=5 h=12/4 s=10 d=64"))
        self.assertIn((0, 0), pairs)
        self.assertIn((4, 11), pairs)
        self.assertTrue(all(b < 5 and h < 12 for b, h in pairs))


class LibraryTest(unittest.TestCase):
    def setUp(self):
        path = os.environ.get("TILEWRIGHT_LIBRARY")
        if not path:
            self.skipTest("TILEWRIGHT_LIBRARY does not name a built libtilewright.so")
        self.directory = tempfile.TemporaryDirectory()
        os.environ["TILEWRIGHT_CACHE_DIR"] = self.directory.name
        self.path = pathlib.Path(path).resolve()
        self.library = compare.Library(path)

    def tearDown(self):
        if hasattr(self, "directory"):
            self.library.c.runtime_destroy(self.library.runtime)
            self.directory.cleanup()

    def test_arguments_have_the_size_that_the_library_knows(self):
        args = self.library.new_args()
        self.assertEqual(args.size, ctypes.sizeof(compare._c.Args))

    def test_a_name_without_a_folder_is_a_file_here(self):
        before = os.getcwd()
        os.chdir(self.path.parent)
        try:
            library = compare.Library(compare.find_library("./" + self.path.name))
        finally:
            os.chdir(before)
        library.c.runtime_destroy(library.runtime)

    def test_errors_bring_the_librarys_text(self):
        with self.assertRaisesRegex(compare.TilewrightError, "no_such_word"):
            self.library.prepare("fwd bf16 b=1 h=1 s=8 d=64 no_such_word")


class ResultsTest(unittest.TestCase):
    def test_files_are_written_and_rows_of_one_commit_merged(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "h200" / "forward.json"
            header = {"topic": "forward", "commit": "abc", "date": "2026-12-01"}
            compare.write_results(path, header, [{"name": "a", "value": 1}], append=False)
            compare.write_results(
                path, header, [{"name": "b", "value": 2}, {"name": "a", "value": 3}], append=True
            )
            file = json.loads(path.read_text())
            self.assertEqual(file["topic"], "forward")
            self.assertEqual([(r["name"], r["value"]) for r in file["rows"]], [("a", 3), ("b", 2)])
            with self.assertRaisesRegex(compare.SpecError, "abc"):
                compare.write_results(path, {**header, "commit": "def"}, [], append=True)

    def test_every_file_begins_with_the_same_fields(self):
        header = compare.results_header("decode", "abc", "bench/decode.py", "NVIDIA H200")
        names = ["topic", "commit", "date", "device", "driver", "command"]
        self.assertEqual(list(header), names)
        self.assertEqual((header["topic"], header["commit"]), ("decode", "abc"))
        self.assertRegex(header["date"], r"^\d{4}-\d{2}-\d{2}$")
        head = compare.results_header("decode", None, "", "")["commit"]
        self.assertEqual(head, compare.commit_hash(None))

    def test_names(self):
        self.assertEqual(compare.device_folder("NVIDIA H200"), "h200")
        self.assertEqual(compare.device_folder("NVIDIA A100-SXM4-80GB"), "a100_sxm4_80gb")
        self.assertEqual(compare.nvrtc_version(["", "compiled by nvrtc 13.0.88 in"]), "13.0.88")
        self.assertEqual(compare.nvrtc_version([""]), "unknown")


if __name__ == "__main__":
    unittest.main()

"""The Python package on the recording driver: what is prepared, with which arguments, and how it fails.

TEST_LIBRARY names libtilewright.so; libcuda.so.1 on the loader's path is the recording one.
"""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "src/python"), str(ROOT / "tests/python")]

import tilewright  # noqa: E402
from fake_arrays import FakeArray  # noqa: E402
from tilewright import _arrays, _call  # noqa: E402

STORE = tempfile.TemporaryDirectory()


def setUpModule():
    tilewright.use_library(os.environ["TEST_LIBRARY"])
    tilewright.set_default_runtime(
        tilewright.Runtime(cache_dir=STORE.name, log_level="error", tune_policy="off")
    )
    unittest.addModuleCleanup(STORE.cleanup)
    unittest.addModuleCleanup(tilewright.default_runtime().flush)


def call_of(options, arrays, terms=()):
    operands = {name: _arrays.from_dlpack(name, array, 0) for name, array in arrays.items()}
    return _call.find(options, operands, [_arrays.from_dlpack("terms", t, 0) for t in terms], (), 0)


def launched(call, arrays, stream, gradients=()):
    """(arguments, stream) of a launch of these arrays."""
    seen = []
    with unittest.mock.patch.object(call, "_run", lambda *arguments: seen.extend(arguments)):
        call.launch([array.data for array in arrays], stream, lambda size: 256, gradients)
    return seen[2]._obj, seen[3]


def qkvo(shape_q=(2, 10, 4, 16), shape_kv=(2, 12, 2, 16), **more):
    arrays = {
        "q": FakeArray(shape_q),
        "k": FakeArray(shape_kv),
        "v": FakeArray(shape_kv),
        "o": FakeArray(shape_q),
    }
    return {**arrays, **more}


class CallTest(unittest.TestCase):
    def test_shapes_become_a_spec(self):
        call = call_of(tilewright.Options(causal=True, window=(7, 0), softcap=30.0), qkvo())
        self.assertEqual(
            call.prepared.spec, "fwd fp32 b=2 h=4/2 s=10/12 d=16/16 window=7,0 softcap=30"
        )
        self.assertEqual((call.args.batch, call.args.seqlen_q, call.args.seqlen_kv), (2, 10, 12))
        self.assertEqual(call.args.k.strides.seq, 32)

    def test_layouts(self):
        arrays = qkvo((2, 4, 10, 16), (2, 2, 12, 16))
        call = call_of(tilewright.Options(layout="bhsd"), arrays)
        self.assertIn("layout=bhsd", call.prepared.spec)
        self.assertEqual((call.args.q.strides.seq, call.args.q.strides.head), (16, 160))
        # A [batch, head, sequence, dim] view of [batch, sequence, head, dim] memory.
        strides = {
            "q": (640, 16, 64, 1),
            "k": (384, 16, 32, 1),
            "v": (384, 16, 32, 1),
            "o": (640, 16, 64, 1),
        }
        arrays = {name: FakeArray(arrays[name].shape, strides=strides[name]) for name in "qkvo"}
        call = call_of(tilewright.Options(layout="bhsd"), arrays)
        self.assertNotIn("layout", call.prepared.spec)
        self.assertNotIn("strides", call.prepared.spec)

    def test_growing_sequences_share_a_spec(self):
        self.assertEqual(
            [_call.typical(n) for n in (1, 49, 64, 65, 729, 1000, 1024, 1025)],
            [1, 49, 64, 72, 768, 1024, 1024, 1152],
        )
        specs = set()
        for length in range(1001, 1024):
            keys = (1, 2, length, 16)  # of a cache that is concatenated, beside a view of the query
            arrays = {"q": FakeArray((1, 4, 1, 16)), "o": FakeArray((1, 4, 1, 16))}
            arrays.update(k=FakeArray(keys), v=FakeArray(keys))
            specs.add(call_of(tilewright.Options(layout="bhsd"), arrays).prepared.spec)
        self.assertEqual(len(specs), 1)

    def test_slices_keep_their_strides(self):
        packed = (2 * 3 * 64 * 10, 192, 16, 1)  # Q, K and V of one projection
        arrays = {name: FakeArray((2, 10, 4, 16), strides=packed) for name in "qkv"}
        call = call_of(tilewright.Options(), {**arrays, "o": FakeArray((2, 10, 4, 16))})
        self.assertIn("strides=3840,192,16,1;", call.prepared.spec)

    def test_terms_broadcast_by_size_and_by_stride(self):
        mask = FakeArray((2, 1, 1, 12), "bool")
        bias = FakeArray((2, 4, 10, 12), "fp16", strides=(0, 120, 12, 1))
        call = call_of(tilewright.Options(), qkvo(), (mask, bias))
        self.assertIn("bias=fp16:1,4,10,12", call.prepared.spec)
        self.assertIn("mask=bool:2,1,1,12", call.prepared.spec)
        with self.assertRaisesRegex(
            tilewright.InvalidArgumentError, "terms.0. .*dimension 3 must be 1 or 12"
        ):
            call_of(tilewright.Options(), qkvo(), (FakeArray((2, 1, 1, 11), "bool"),))

    def test_packed_sequences(self):
        lengths = FakeArray((4,), "int32")
        arrays = {
            "q": FakeArray((30, 4, 16)),
            "k": FakeArray((40, 2, 16)),
            "v": FakeArray((40, 2, 24)),
        }
        arrays.update(o=FakeArray((30, 4, 24)), cu_seqlens_q=lengths, cu_seqlens_kv=lengths)
        call = call_of(tilewright.Options(max_seqlen_q=20, max_seqlen_kv=25), arrays)
        self.assertIn("b=3 h=4/2 s=20/25 d=16/24", call.prepared.spec)
        self.assertIn("varlen", call.prepared.spec)
        self.assertEqual((call.args.total_q, call.args.total_kv), (30, 40))

    def test_pages(self):
        arrays = qkvo(
            (2, 1, 4, 16),
            (9, 8, 2, 16),
            page_table=FakeArray((2, 5), "int32"),
            seqused_kv=FakeArray((2,), "int32"),
        )
        call = call_of(tilewright.Options(), arrays)
        self.assertIn("paged=8", call.prepared.spec)
        self.assertEqual((call.args.seqlen_kv, call.args.page_table_stride), (40, 5))

    def test_slots_and_left_padding(self):
        arrays = qkvo(
            (2, 1, 4, 16),
            (9, 8, 2, 16),
            **{
                name: FakeArray((2,), "int32")
                for name in ("seqused_q", "left_padding", "cache_batch_idx")
            },
        )
        call = call_of(tilewright.Options(), arrays)
        self.assertIn("varlen left_padding cache_batch_idx", call.prepared.spec)
        self.assertEqual((call.args.batch, call.args.seqlen_kv), (2, 8))

    def test_types_and_scales(self):
        arrays = {"q": FakeArray((1, 4, 2, 16), "bf16"), "o": FakeArray((1, 4, 2, 16), "bf16")}
        arrays.update(k=FakeArray((1, 6, 2, 16), "e4m3"), v=FakeArray((1, 6, 2, 16), "e4m3"))
        arrays.update(k_scale=FakeArray((2,)), v_scale=FakeArray((2,)))
        self.assertIn("kv=e4m3", call_of(tilewright.Options(), arrays).prepared.spec)

    def test_equal_calls_are_prepared_once(self):
        first = call_of(tilewright.Options(), qkvo())
        self.assertIs(call_of(tilewright.Options(), qkvo()), first)
        self.assertIsNot(call_of(tilewright.Options(causal=True), qkvo()), first)


class CacheTest(unittest.TestCase):
    def append(self, rows=(2, 1, 2, 16), cache=(9, 8, 2, 16), **more):
        new, kept = FakeArray(rows, "bf16"), FakeArray(cache, more.pop("cache_kind", "bf16"))
        tilewright.append(new, new, kept, kept, **more)

    def test_append_launches_what_the_arrays_say(self):
        ints = FakeArray((2,), "int32")
        self.append(
            page_table=FakeArray((2, 5), "int32"),
            seqused_kv=ints,
            new_seqused_kv=ints,
            ticket=FakeArray((1,), "int32"),
            q=FakeArray((2, 1, 4, 16), "bf16"),
            rotary="half_split",
        )
        self.append(cache_kind="e4m3", k_scale=FakeArray((2,)), v_scale=FakeArray((2,)))
        self.append((5, 2, 16), cu_seqlens=FakeArray((4,), "int32"))

    def test_append_names_what_does_not_fit(self):
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "rotary = 'both'"):
            self.append(rotary="both")
        with self.assertRaisesRegex(TypeError, "no argument pages"):
            self.append(pages=1)
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "heads_q = 4: must be 0"):
            self.append(q=FakeArray((2, 1, 4, 16), "bf16"))
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "seqused_kv has elements"):
            self.append(seqused_kv=FakeArray((2,)))
        for text, cache, more in (
            (r"k_cache has shape \(9, 8, 3, 16\): must be \(9, 8, 2, 16\)", (9, 8, 3, 16), {}),
            ("k_cache has 1 sequences: must have 2", (1, 8, 2, 16), {}),
            (
                r"seqused_kv has strides \(2,\)",
                (9, 8, 2, 16),
                {"seqused_kv": FakeArray((2,), "int32", strides=(2,))},
            ),
            ("page_table has shape", (9, 8, 2, 16), {"page_table": FakeArray((3, 5), "int32")}),
            (
                "positions has shape",
                (9, 8, 2, 16),
                {"positions": FakeArray((1,), "int32"), "rotary": "half_split"},
            ),
        ):
            with self.subTest(text=text):
                with self.assertRaisesRegex(tilewright.InvalidArgumentError, text):
                    self.append(cache=cache, **more)

    def test_merge(self):
        parts, lse = FakeArray((3, 2, 5, 4, 16)), FakeArray((3, 2, 4, 5))
        out = FakeArray((2, 5, 4, 16), "bf16")
        tilewright.merge(parts, lse, out, FakeArray((2, 4, 5)))
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "lse_parts has shape"):
            tilewright.merge(parts, FakeArray((3, 2, 5, 4)), out)
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "lse has shape"):
            tilewright.merge(parts, lse, out, FakeArray((2, 5, 4)))


class AttentionTest(unittest.TestCase):
    def test_launches_with_the_arrays_given(self):
        q, kv = FakeArray((2, 10, 4, 16)), FakeArray((2, 12, 2, 16))
        before = tilewright.default_runtime().counters()["prepares"]
        out, lse = tilewright.attention(q, kv, kv, causal=True, lse=True, stream=48)
        self.assertEqual((out.shape, lse.shape, lse.dtype), ((2, 10, 4, 16), (2, 4, 10), "fp32"))
        self.assertEqual(q.seen_streams, [48])
        self.assertEqual(tilewright.default_runtime().counters()["prepares"], before + 1)

    def test_the_arguments_of_a_launch(self):
        arrays = qkvo(sinks=FakeArray((4,)), alibi_slopes=FakeArray((2, 4)))
        operands = {name: _arrays.from_dlpack(name, array, 0) for name, array in arrays.items()}
        term = FakeArray((2, 4, 10, 12), offset=8)
        terms = [_arrays.from_dlpack("term", term, 0)]
        call = _call.find(
            tilewright.Options(scalars=(("gain", 2.5), ("limit", 7)), score="score * gain + limit"),
            operands,
            terms,
            (),
            0,
        )
        args, stream = launched(call, (*operands.values(), *terms), 16)
        self.assertEqual(stream, 16)
        for name in "qkvo":
            self.assertEqual(getattr(args, name).data, arrays[name].address, name)
        self.assertEqual(args.sinks, arrays["sinks"].address)
        self.assertEqual(
            (args.alibi_slopes, args.alibi_stride_batch), (arrays["alibi_slopes"].address, 4)
        )
        self.assertEqual(args.bias[0].data, term.address)
        self.assertEqual((args.bias[0].stride_batch, args.bias[0].stride_q), (480, 12))
        self.assertEqual((args.snippet_scalars[0].f, args.snippet_scalars[1].i), (2.5, 7))

    def test_what_is_wrong_is_named(self):
        q, kv = FakeArray((2, 10, 4, 16)), FakeArray((2, 12, 2, 16))
        for error, text, arguments, options in (
            (
                tilewright.InvalidArgumentError,
                "heads_q = 4: must be a multiple of heads_kv = 3",
                (q, *[FakeArray((2, 12, 3, 16))] * 2),
                {},
            ),
            (
                tilewright.InvalidArgumentError,
                "q lies on DLPack device type 1",
                (FakeArray((2, 10, 4, 16), device_type=1), kv, kv),
                {},
            ),
            (
                tilewright.InvalidArgumentError,
                "k lies on device 1: must lie on that of q, device 0",
                (q, FakeArray((2, 12, 2, 16), device=1), kv),
                {},
            ),
            (
                tilewright.InvalidArgumentError,
                "v lies on no CUDA device: must lie on that of q, device 0",
                (q, kv, FakeArray((2, 12, 2, 16), device=-1)),
                {},
            ),
            (
                tilewright.InvalidArgumentError,
                "q has elements of DLPack type 2 with 64 bits",
                (FakeArray((2, 10, 4, 16), "fp64"), kv, kv),
                {},
            ),
            (
                tilewright.InvalidArgumentError,
                "layout = 'hsbd': must be one of bshd",
                (q, kv, kv),
                {"layout": "hsbd"},
            ),
            (
                tilewright.InvalidArgumentError,
                "k has head dim 8: must be that of q, 16",
                (q, *[FakeArray((2, 12, 2, 8))] * 2),
                {},
            ),
            (TypeError, "no argument causl", (q, kv, kv), {"causl": True}),
            (
                TypeError,
                "q is list: must be an array with __dlpack__",
                ([1], kv, kv),
                {"stream": 0, "out": q},
            ),
            (tilewright.InvalidArgumentError, "score_snippet", (q, kv, kv), {"score": "scor * 2"}),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                tilewright.attention(*arguments, **options)

    def test_arrays_beside_q_k_and_v_have_the_shapes_that_kernels_read(self):
        """A kernel goes by the shapes of q, k and v, and reads arrays of one axis without a stride."""
        q, kv = FakeArray((2, 10, 4, 16)), FakeArray((2, 12, 2, 16))
        table, lengths = FakeArray((2, 3), "int32"), FakeArray((2,), "int32")
        stored = FakeArray((2, 12, 2, 16), "e4m3")
        pages = FakeArray((9, 8, 2, 16))
        sums = FakeArray((3,), "int32")
        packed = FakeArray((20, 4, 16)), FakeArray((24, 2, 16))
        half = FakeArray((2, 10, 4, 16), "bf16")
        for text, arguments, options in (
            (r"sinks has shape \(2,\): must be \(4,\)", (q, kv, kv), {"sinks": FakeArray((2,))}),
            (
                r"sinks has strides \(3,\): must be contiguous",
                (q, kv, kv),
                {"sinks": FakeArray((4,), strides=(3,))},
            ),
            (
                r"alibi_slopes has strides \(0,\): must be contiguous",
                (q, kv, kv),
                {"alibi_slopes": FakeArray((4,), strides=(0,))},
            ),
            ("alibi_slopes has shape", (q, kv, kv), {"alibi_slopes": FakeArray((2, 3))}),
            (
                r"seqused_kv has shape \(3,\): must be \(2,\)",
                (q, kv, kv),
                {"seqused_kv": FakeArray((3,), "int32")},
            ),
            (
                r"seqused_kv has strides \(2,\)",
                (q, kv, kv),
                {"seqused_kv": FakeArray((2,), "int32", strides=(2,))},
            ),
            (
                r"cu_seqlens_kv has shape \(2,\): must be \(3,\)",
                (packed[0], packed[1], packed[1]),
                {
                    "cu_seqlens_q": sums,
                    "cu_seqlens_kv": lengths,
                    "max_seqlen_q": 12,
                    "max_seqlen_kv": 12,
                },
            ),
            (
                "page_table has shape",
                (q, pages, pages),
                {"page_table": FakeArray((1, 3), "int32"), "seqused_kv": lengths},
            ),
            (
                "max_seqlen_kv = 25: must be at most 24",
                (q, pages, pages),
                {"page_table": table, "seqused_kv": lengths, "max_seqlen_kv": 25},
            ),
            (
                "block_mask_size = .0, 0.: must be the rows and keys",
                (q, kv, kv),
                {"block_mask": FakeArray((1, 1, 1, 1), "bool")},
            ),
            (
                r"block_mask has shape \(1, 1, 3, 2\).*must be \(2, 4, 2, 2\)",
                (q, kv, kv),
                {"block_mask": FakeArray((1, 1, 3, 2), "bool"), "block_mask_size": (8, 8)},
            ),
            (
                "k_scale and v_scale are of different kinds",
                (half, stored, stored),
                {"k_scale": FakeArray((1,)), "v_scale": FakeArray((2,))},
            ),
            (
                r"k_scale has shape \(4,\)",
                (half, stored, stored),
                {"k_scale": FakeArray((4,)), "v_scale": FakeArray((4,))},
            ),
            (
                r"k_scale has shape \(2, 12, 2\): must be \(2, 2, 12\)",
                (half, stored, stored),
                {"k_scale": FakeArray((2, 12, 2)), "v_scale": FakeArray((2, 2, 12))},
            ),
            ("lse has shape", (q, kv, kv), {"lse": FakeArray((2, 10, 4))}),
            (
                r"arrays\['t'\] has strides",
                (q, kv, kv),
                {"score": "score + t[h]", "arrays": {"t": FakeArray((4,), strides=(2,))}},
            ),
        ):
            with self.subTest(text=text):
                with self.assertRaisesRegex(tilewright.InvalidArgumentError, text):
                    tilewright.attention(*arguments, **options)

    def test_a_snippet_that_does_not_compile_shows_the_log(self):
        q = FakeArray((1, 4, 1, 16))
        with self.assertRaises(tilewright.InvalidArgumentError) as caught:
            tilewright.attention(q, q, q, mask_rule="j < lngth")
        self.assertIn("lngth", caught.exception.log)

    def test_threads_share_what_is_prepared(self):
        errors = []

        def work():
            try:
                array = FakeArray((1, 33, 2, 16))
                for _ in range(20):
                    tilewright.attention(array, array, array)
            except Exception as error:  # reported by the assertion below
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


class BackwardTest(unittest.TestCase):
    def test_gradients_are_asked_for_and_passed(self):
        names = "qkvo"
        shapes = {
            "q": (2, 10, 4, 16),
            "k": (2, 12, 2, 16),
            "v": (2, 12, 2, 16),
            "o": (2, 10, 4, 16),
        }
        arrays = {name: FakeArray(shapes[name]) for name in names}
        arrays.update({f"d_{name}": FakeArray(shapes[name]) for name in names})
        arrays.update(lse=FakeArray((2, 4, 10)), sinks=FakeArray((4,)), d_sinks=FakeArray((4,)))
        operands = {name: _arrays.from_dlpack(name, array, 0) for name, array in arrays.items()}
        term, gradient = FakeArray((1, 4, 10, 12), "fp16"), FakeArray((1, 4, 10, 12))
        terms = [_arrays.from_dlpack("term", term, 0)]
        options = tilewright.Options(backward=True, sinks_gradient=True, term_gradients=(0,))
        call = _call.find(options, operands, terms, (), 0)
        self.assertRegex(call.prepared.spec, "^bwd fp32 b=2 h=4/2 s=10/12 d=16/16 .*sinks")
        gradients = [(0, _arrays.from_dlpack("gradient", gradient, 0))]
        args, _ = launched(call, (*operands.values(), *terms), 0, gradients)
        for name in names:
            self.assertEqual(getattr(args, f"d_{name}").data, arrays[f"d_{name}"].address)
        self.assertEqual(
            (args.lse, args.d_sinks), (arrays["lse"].address, arrays["d_sinks"].address)
        )
        self.assertEqual((args.d_bias[0].data, args.d_bias[0].stride_q), (gradient.address, 12))


class ReadmeTest(unittest.TestCase):
    def test_the_five_lines_run(self):
        """With FakeArrays in the place of PyTorch's tensors; torch_test runs them as they are."""
        torch = types.ModuleType("torch")
        torch.bfloat16 = "bf16"
        torch.randn = lambda *shape, device, dtype: FakeArray(shape, dtype)
        package = types.ModuleType("tilewright.torch")
        package.attention = tilewright.attention
        output = io.StringIO()
        with unittest.mock.patch.dict(sys.modules, {"torch": torch, "tilewright.torch": package}):
            with unittest.mock.patch.object(tilewright, "torch", package, create=True):
                with contextlib.redirect_stdout(output):
                    exec((ROOT / "tests/embedding/python/five_lines.py").read_text(), {})
        self.assertIn("(2, 1000, 8, 72)", output.getvalue())
        self.assertIn("plan", output.getvalue())


class RuntimeTest(unittest.TestCase):
    def test_options_are_checked(self):
        with self.assertRaisesRegex(TypeError, "no option cache_dri"):
            tilewright.Runtime(cache_dri="x")
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "tune_policy = 'never'"):
            tilewright.Runtime(tune_policy="never")
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "device_ordinal = -1"):
            tilewright.Runtime(device_ordinal=-1)

    def test_events_reach_the_log(self):
        events = []
        tilewright.Runtime(
            cache_dir="/proc/tilewright", log=lambda level, line: events.append((level, line))
        )
        self.assertEqual(events[0][0], "warning")
        self.assertIn("store_memory_only", events[0][1])

    def test_specs_in_words(self):
        prepared = tilewright.default_runtime().prepare("fwd bf16 b=1 h=2 s=64 d=16")
        self.assertIn("plan", prepared.explain())
        self.assertEqual(tilewright.explain("fwd bf16 b=1 h=2 s=64 d=16"), prepared.explain())
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "causl"):
            tilewright.default_runtime().prepare("fwd bf16 causl")

    def test_tuning_gives_a_record_and_tells_how_far_it_is(self):
        seen = []
        record = tilewright.default_runtime().tune(
            "fwd fp32 b=1 h=1 s=20 d=8", max_candidates=2, force=True, progress=seen.append
        )
        self.assertIn("winner", record)
        self.assertTrue(seen[-1]["done"])
        self.assertEqual(seen[-1]["candidates"], seen[-1]["settled"])
        self.assertIn(b"attn_fwd_sm80", seen[-1]["best"])

    def test_frozen_runtimes_compile_nothing(self):
        with tempfile.TemporaryDirectory() as empty:
            runtime = tilewright.Runtime(cache_dir=empty, tune_policy="frozen")
            with self.assertRaises(tilewright.FailedPreconditionError):
                runtime.prepare("fwd bf16 b=1 h=2 s=64 d=48")

    def test_a_forked_child_makes_its_own_runtime(self):
        tilewright.default_runtime()
        child = os.fork()
        if child == 0:
            os._exit(tilewright._runtime._default is None and 7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_the_version_is_that_of_the_library(self):
        self.assertRegex(tilewright.version(), r"^\d+\.\d+\.\d+$")

    def test_a_missing_library_is_said(self):
        script = "import tilewright; tilewright.version()"
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "src/python"), LD_LIBRARY_PATH="")
        output = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        if output.returncode == 0:
            self.skipTest("libtilewright.so.0 is installed on this machine")
        self.assertIn("libtilewright.so was not found", output.stderr)


if __name__ == "__main__":
    unittest.main()

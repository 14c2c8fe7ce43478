"""tilewright.torch. Without PyTorch the whole file is skipped, without a GPU all but shapes, masks and fallbacks.

TEST_LIBRARY names libtilewright.so. With transformers installed its models are tried too.
"""

import contextlib
import io
import math
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "src/python"))

# torch.compile in this process: its pool of workers takes a minute to start and to end on a busy machine.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

try:
    import torch
    import torch.nn.functional as functional
except ImportError:
    print("SKIPPED: PyTorch is not installed")
    sys.exit(77)

import tilewright  # noqa: E402
import tilewright.torch as tw  # noqa: E402

try:
    import transformers
    from transformers import masking_utils
except ImportError:
    transformers = None

HAVE_GPU = torch.cuda.is_available()
needs_gpu = unittest.skipUnless(HAVE_GPU, "no GPU that PyTorch sees")
needs_transformers = unittest.skipIf(transformers is None, "transformers is not installed")


def setUpModule():
    # Every spec is new here; what tuning would choose is not what is tested.
    os.environ.setdefault("TILEWRIGHT_TUNE_POLICY", "off")
    tilewright.use_library(os.environ["TEST_LIBRARY"])


def normal(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def exact(
    q,
    k,
    v,
    *,
    causal=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    added=None,
    keep=None,
    sinks=None,
    top_left=False,
):
    """[batch, heads, sequence, dim] in fp64, with its LSE."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if added is not None:
        scores = scores + added.double()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    diagonal = torch.arange(q.shape[2], device=q.device)[:, None] + (
        0 if top_left else k.shape[2] - q.shape[2]
    )
    key = torch.arange(k.shape[2], device=q.device)[None, :]
    right = 0 if causal else window[1]
    visible = torch.ones_like(scores, dtype=torch.bool)
    if right >= 0:
        visible &= key <= diagonal + right
    if window[0] >= 0:
        visible &= key >= diagonal - window[0]
    if keep is not None:
        visible &= keep
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        lse = torch.logsumexp(torch.cat([scores, column], -1), -1)
    else:
        lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse[..., None]).nan_to_num(0)
    return weights @ v, lse


class ShapeTest(unittest.TestCase):
    """What needs no device."""

    def test_fake_tensors_have_the_shapes_of_results(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            q, k = torch.empty(2, 8, 5, 64, device="cuda"), torch.empty(2, 2, 7, 64, device="cuda")
            v = torch.empty(2, 2, 7, 32, device="cuda")
            o, lse = tw.attention(q, k, v, layout="bhsd", lse=True)
            self.assertEqual(
                (o.shape, lse.shape, lse.dtype), ((2, 8, 5, 32), (2, 8, 5), torch.float32)
            )
            self.assertTrue(o.transpose(1, 2).is_contiguous())
            lengths = torch.empty(4, dtype=torch.int32, device="cuda")
            q, k = torch.empty(20, 8, 64, device="cuda"), torch.empty(30, 2, 64, device="cuda")
            o, lse = tw.attention(
                q,
                k,
                k,
                cu_seqlens_q=lengths,
                cu_seqlens_kv=lengths,
                max_seqlen_q=9,
                max_seqlen_kv=9,
                lse=True,
            )
            self.assertEqual((o.shape, lse.shape), ((20, 8, 64), (8, 20)))

    def test_gradients_have_the_shapes_and_types_of_their_inputs(self):
        half = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
        q, k = torch.empty(2, 8, 5, 64, **half), torch.empty(2, 2, 7, 64, **half)
        v, bias = torch.empty(2, 2, 7, 32, **half), torch.empty(1, 8, 5, 7, **half)
        sinks = torch.empty(8, device="meta", requires_grad=True)
        keep = torch.empty(2, 1, 1, 7, device="meta", dtype=torch.bool)
        terms = (keep, bias.expand(2, -1, -1, -1))
        o = tw.attention(q, k, v, layout="bhsd", terms=terms, sinks=sinks, causal=True)
        o.sum().backward()
        for t in (q, k, v, bias, sinks):
            self.assertEqual((t.grad.shape, t.grad.dtype), (t.shape, t.dtype))
        self.assertFalse(tw.attention(q, k, v, layout="bhsd", lse=True)[1].requires_grad)

    def test_unknown_arguments_are_named(self):
        q = torch.empty(1, 2, 3, 16)
        with self.assertRaisesRegex(TypeError, "no argument causl"):
            tw.attention(q, q, q, causl=True)
        with self.assertRaisesRegex(tilewright.InvalidArgumentError, "align = 'middle'"):
            tw.attention(q, q, q, align="middle")

    def test_tensors_elsewhere_go_to_pytorch(self):
        q = torch.randn(1, 2, 5, 16)
        self.assertFalse(tw.sdpa_serves(q, q, q))
        expected = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.testing.assert_close(
            tw.scaled_dot_product_attention(q, q, q, is_causal=True), expected
        )

    def test_sdpa_is_replaced_until_unregistered(self):
        original = functional.scaled_dot_product_attention
        tw.register(transformers=False, sdpa=True)
        self.assertIs(functional.scaled_dot_product_attention, tw.scaled_dot_product_attention)
        tw.unregister()
        self.assertIs(functional.scaled_dot_product_attention, original)


@needs_transformers
class TransformersMaskTest(unittest.TestCase):
    def mask(self, **arguments):
        base = {
            "batch_size": 2,
            "q_length": 5,
            "kv_length": 5,
            "mask_function": masking_utils.causal_mask_function,
        }
        return tw._transformers_mask(**{**base, **arguments})

    def test_plain_masks_need_no_tensor(self):
        self.assertIsNone(self.mask())
        self.assertIsNone(self.mask(attention_mask=torch.ones(2, 5, dtype=torch.bool)))
        # Keys of a cache before the first query, whole and cut to a window.
        self.assertIsNone(self.mask(q_length=3, kv_length=9, q_offset=6))
        self.assertIsNone(
            self.mask(q_length=3, kv_length=9, q_offset=16, kv_offset=10, local_size=9)
        )
        self.assertIsNone(self.mask(allow_is_causal_skip=False, allow_is_bidirectional_skip=True))

    def test_padding_alone_stays_one_row(self):
        padding = torch.ones(2, 5, dtype=torch.bool)
        padding[1, :2] = False
        mask = self.mask(attention_mask=padding)
        self.assertEqual(mask.shape, (2, 1, 1, 5))
        self.assertTrue(mask.tilewright_padding)
        self.assertTrue(torch.equal(mask[:, 0, 0], padding))

    def test_other_rules_are_written_out(self):
        for arguments in (
            {"allow_is_causal_skip": False},  # a rule of the model's own
            {
                "q_length": 5,
                "kv_length": 9,
                "q_offset": 0,
            },  # a static cache, whose end is not filled yet
            {"q_offset": torch.tensor(0)},
        ):
            mask = self.mask(**arguments)
            self.assertEqual(mask.shape[-2], 5)
            self.assertFalse(hasattr(mask, "tilewright_padding"))
            expected = torch.arange(mask.shape[-1])[None, :] <= torch.arange(5)[:, None]
            self.assertTrue(torch.equal(mask[0, 0], expected))


@needs_gpu
class NumericsTest(unittest.TestCase):
    def check(self, o, expected, bar=6e-3):
        error = (o.double() - expected).norm() / expected.norm()
        self.assertLess(error.item(), bar)

    def test_layouts_types_and_groups(self):
        for dtype, bar in ((torch.bfloat16, 6e-3), (torch.float16, 1e-3), (torch.float32, 5e-6)):
            for dim in (64, 72, 80, 128):
                q, k, v = normal(2, 6, 130, dim, dtype=dtype), *(
                    normal(2, 2, 150, dim, dtype=dtype, seed=n) for n in (1, 2)
                )
                expected, lse = exact(q, k, v, causal=True)
                o, got_lse = tw.attention(q, k, v, layout="bhsd", causal=True, lse=True)
                self.check(o, expected, bar)
                torch.testing.assert_close(got_lse.double(), lse, atol=1e-3, rtol=1e-3)
                views = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
                self.check(tw.attention(*views, causal=True).transpose(1, 2), expected, bar)
                self.check(
                    tw.attention(*(t.transpose(1, 2) for t in views), layout="bhsd", causal=True),
                    expected,
                    bar,
                )

    def test_masks_bias_softcap_and_sinks(self):
        q, k, v = normal(2, 4, 70, 64), normal(2, 4, 90, 64, seed=1), normal(2, 4, 90, 64, seed=2)
        bias, keep = normal(1, 4, 70, 90, seed=3), torch.rand(2, 1, 1, 90, device="cuda") < 0.8
        sinks = normal(4, dtype=torch.float32, seed=4)
        expected, _ = exact(
            q, k, v, window=(20, 3), softcap=20.0, added=bias, keep=keep, sinks=sinks
        )
        o = tw.attention(
            q, k, v, layout="bhsd", window=(20, 3), softcap=20.0, terms=(bias, keep), sinks=sinks
        )
        self.check(o, expected)
        expected, _ = exact(q, k, v, added=bias.expand(2, -1, -1, -1))
        self.check(
            tw.attention(q, k, v, layout="bhsd", terms=(bias.expand(2, -1, -1, -1),)), expected
        )

    def test_rows_that_see_nothing_are_zero(self):
        q = normal(1, 2, 8, 64)
        keep = torch.zeros(1, 1, 1, 8, dtype=torch.bool, device="cuda")
        self.assertEqual(tw.attention(q, q, q, layout="bhsd", terms=(keep,)).abs().max().item(), 0)

    def test_sdpa_is_pytorchs(self):
        q, k = normal(2, 4, 60, 80), normal(2, 2, 60, 80, seed=1)
        for options in (
            {},
            {"is_causal": True},
            {"attn_mask": torch.rand(60, 60, device="cuda") < 0.7},
            {"scale": 0.3},
            {"attn_mask": normal(4, 60, 60, seed=5)},
        ):
            self.assertTrue(tw.sdpa_serves(q, k, k, options.get("attn_mask")))
            got = tw.scaled_dot_product_attention(q, k, k, enable_gqa=True, **options)
            expected = tw._torch_sdpa(
                q.float(),
                k.float(),
                k.float(),
                enable_gqa=True,
                **{
                    name: (
                        value.float()
                        if torch.is_tensor(value) and value.dtype != torch.bool
                        else value
                    )
                    for name, value in options.items()
                },
            )
            self.check(got, expected.double())

    def test_dropout_follows_the_generator(self):
        q = normal(1, 2, 64, 64)
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(tw.attention(q, q, q, dropout=0.5))
        self.assertTrue(torch.equal(results[0], results[1]))
        self.assertFalse(torch.equal(results[0], results[2]))

    def test_packed_sequences(self):
        lengths = [5, 0, 37, 64]
        starts = torch.tensor([0, 5, 5, 42, 106], dtype=torch.int32, device="cuda")
        q, k = normal(106, 4, 64), normal(106, 2, 64, seed=1)
        o = tw.attention(
            q,
            k,
            k,
            causal=True,
            cu_seqlens_q=starts,
            cu_seqlens_kv=starts,
            max_seqlen_q=64,
            max_seqlen_kv=64,
        )
        for n, length in enumerate(lengths):
            if length:
                rows = slice(int(starts[n]), int(starts[n + 1]))
                part = [t[rows].transpose(0, 1)[None] for t in (q, k, k)]
                self.check(o[rows].transpose(0, 1)[None], exact(*part, causal=True)[0])


@needs_gpu
class GradientTest(unittest.TestCase):
    """Against fp64 and PyTorch's own differentiation."""

    def check(self, inputs, ours, theirs, bar=1.2e-2):
        exact_inputs = [t.detach().double().requires_grad_() for t in inputs]
        expected = theirs(*exact_inputs)
        upstream = normal(*expected.shape, seed=7)
        expected.backward(upstream.double())
        for t in inputs:
            t.requires_grad_()
        ours(*inputs).backward(upstream)
        for n, (got, exact_input) in enumerate(zip(inputs, exact_inputs)):
            error = (got.grad.double() - exact_input.grad).norm() / exact_input.grad.norm()
            self.assertLess(error.item(), bar, f"input {n}")

    def test_of_queries_keys_and_values(self):
        for dim in (64, 80, 128):
            q, k, v = normal(2, 6, 100, dim), *(normal(2, 2, 120, dim, seed=n) for n in (1, 2))
            self.check(
                (q, k, v),
                lambda q, k, v: tw.attention(q, k, v, layout="bhsd", causal=True),
                lambda q, k, v: exact(q, k, v, causal=True)[0],
            )

    def test_of_bias_and_sinks(self):
        q, k, v = (normal(2, 4, 64, 64, seed=n) for n in range(3))
        bias, sinks = normal(1, 4, 64, 64, seed=3), normal(4, dtype=torch.float32, seed=4)

        def ours(q, k, v, bias, sinks):
            terms = (bias.expand(2, -1, -1, -1),)
            return tw.attention(q, k, v, layout="bhsd", terms=terms, sinks=sinks)

        self.check(
            (q, k, v, bias, sinks),
            ours,
            lambda q, k, v, bias, sinks: exact(q, k, v, added=bias, sinks=sinks)[0],
            bar=3e-2,
        )

    def test_through_torch_compile(self):
        q, k = normal(1, 4, 96, 64).requires_grad_(), normal(1, 2, 96, 64, seed=1).requires_grad_()

        def loss(q, k):
            return tw.attention(q, k, k, layout="bhsd", causal=True).float().square().mean()

        loss(q, k).backward()
        expected = [t.grad.clone() for t in (q, k)]
        q.grad = k.grad = None
        torch.compile(loss, fullgraph=True)(q, k).backward()
        for got, want in zip((q.grad, k.grad), expected):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=2e-2)


@needs_gpu
class IntegrationTest(unittest.TestCase):
    def test_torch_compile_gives_one_graph(self):
        def layer(q, k, v):
            return tw.attention(q * 2, k, v, layout="bhsd", causal=True) + 1

        compiled = torch.compile(layer, fullgraph=True)
        for length in (33, 65, 90):  # the second length makes the graph dynamic
            q, k = normal(1, 4, length, 64), normal(1, 2, length, 64, seed=1)
            # The one without a gradient in sight needs no LSE, and so may have another kernel.
            torch.testing.assert_close(compiled(q, k, k), layer(q, k, k), atol=1e-2, rtol=1.6e-2)

    def test_the_operator_passes_pytorchs_own_check(self):
        q = normal(1, 2, 16, 64)
        settings = (
            "bhsd",
            True,
            False,
            -1,
            -1,
            None,
            0.0,
            False,
            0.0,
            0,
            0,
            0,
            0,
            "",
            "",
            False,
            False,
            True,
            None,
        )
        torch.library.opcheck(
            torch.ops.tilewright.attention.default,
            (q, q, q, [], *[None] * len(tw._OPTIONAL), *settings),
            test_utils=("test_schema", "test_faketensor"),
        )

    def test_a_cuda_graph_replays_on_new_data(self):
        q, k = normal(2, 128, 4, 64), normal(2, 128, 4, 64, seed=1)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # warm-up: what a capture needs must be in memory
            tw.attention(q, k, k, causal=True)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = tw.attention(q, k, k, causal=True)
        q.copy_(normal(2, 128, 4, 64, seed=9))
        graph.replay()
        expected, _ = exact(*(t.transpose(1, 2) for t in (q, k, k)), causal=True)
        error = (o.transpose(1, 2).double() - expected).norm() / expected.norm()
        self.assertLess(error.item(), 6e-3)

    def test_a_cuda_graph_holds_forward_and_backward(self):
        q, k = normal(2, 128, 4, 64).requires_grad_(), normal(2, 128, 4, 64, seed=1).requires_grad_()

        def step():
            tw.attention(q, k, k, causal=True).float().square().mean().backward()
            return q.grad, k.grad

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        q.grad = k.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            q.copy_(normal(2, 128, 4, 64, seed=9))
        graph.replay()
        replayed = [gradient.clone() for gradient in captured]
        q.grad = k.grad = None
        for got, expected in zip(replayed, step()):
            torch.testing.assert_close(got, expected, atol=1e-6, rtol=2e-2)

    def test_torch_compile_makes_cuda_graphs(self):
        q, k = normal(1, 4, 96, 64), normal(1, 2, 96, 64, seed=1)

        def layer(q, k):
            return tw.attention(q, k, k, layout="bhsd", causal=True)

        compiled = torch.compile(layer, mode="reduce-overhead")
        for _ in range(3):  # warm-up, capture, replay
            o = compiled(q, k).clone()
        self.assertLess((o.double() - exact(q, k, k, causal=True)[0]).abs().max().item(), 2e-2)

    def test_the_current_stream_is_used(self):
        q = normal(1, 2048, 8, 64)
        side = torch.cuda.Stream()
        expected = tw.attention(q, q, q)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            late = q * 1
            o = tw.attention(late, late, late)
        side.synchronize()
        self.assertTrue(torch.equal(o, expected))

    def test_the_general_function_takes_tensors_of_each_library(self):
        q = normal(1, 40, 2, 64, dtype=torch.float16)
        expected = tw.attention(q, q, q, causal=True)
        self.assertTrue(torch.equal(tilewright.attention(q, q, q, causal=True), expected))
        try:
            import cupy
        except ImportError:
            pass
        else:
            array = cupy.from_dlpack(q)
            result = tilewright.attention(array, array, array, causal=True)
            self.assertIsInstance(result, cupy.ndarray)
            self.assertTrue(torch.equal(torch.from_dlpack(result), expected))
        try:
            import jax
        except ImportError:
            pass
        else:
            array = jax.dlpack.from_dlpack(q)
            result = tilewright.attention(array, array, array, causal=True)
            self.assertTrue(torch.equal(torch.from_dlpack(result), expected))

    def test_the_five_lines_of_the_readme_run(self):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec((ROOT / "tests/embedding/python/five_lines.py").read_text(), {})
        self.assertIn("torch.Size([2, 1000, 8, 72])", output.getvalue())
        self.assertIn("plan", output.getvalue())

    def test_host_time_of_a_call_is_small(self):
        import time

        q = normal(1, 16, 2, 64)
        tw.attention(q, q, q)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            tw.attention(q, q, q)
        microseconds = (time.perf_counter() - start) * 1e3
        print(f"host time of tilewright.torch.attention: {microseconds:.1f} us a call", flush=True)
        self.assertLess(microseconds, 500)


@needs_gpu
@needs_transformers
class ModelTest(unittest.TestCase):
    """Small random models: the same logits as with the eager implementation."""

    def setUp(self):
        tw.register()

    def outputs(self, config, implementation, **inputs):
        """Logits, or of a tower the last hidden state."""
        torch.manual_seed(0)
        make = transformers.AutoModelForCausalLM.from_config
        if isinstance(config, transformers.SiglipVisionConfig):
            make = transformers.SiglipVisionModel._from_config
        model = make(config, attn_implementation=implementation, dtype=torch.float32).cuda().eval()
        with torch.no_grad():
            output = model(**inputs)
        return output.logits if hasattr(output, "logits") else output.last_hidden_state

    def check(self, config, **inputs):
        expected = self.outputs(config, "eager", **inputs)
        got = self.outputs(config, "tilewright", **inputs)
        if "attention_mask" in inputs:
            keep = inputs["attention_mask"].bool()
            got, expected = got[keep], expected[keep]
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-3)

    def test_a_vision_tower(self):
        config = transformers.SiglipVisionConfig(
            hidden_size=144,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=64,
            patch_size=8,
        )
        self.check(config, pixel_values=torch.randn(2, 3, 64, 64, device="cuda"))

    def test_the_lines_of_the_readme_run(self):
        with tempfile.TemporaryDirectory() as folder:
            config = next(self.configs())
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            names = {
                "tilewright": tilewright,
                "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
                "NAME": folder,
            }
            self.addCleanup(tw.unregister)
            exec((ROOT / "tests/embedding/python/register.py").read_text(), names)
        self.assertEqual(names["model"].config._attn_implementation, "tilewright")
        self.assertIs(functional.scaled_dot_product_attention, tw.scaled_dot_product_attention)

    def configs(self):
        small = dict(
            vocab_size=64,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
        )
        yield transformers.Qwen2Config(**small)
        yield transformers.PhiConfig(**small | {"num_key_value_heads": 4}, partial_rotary_factor=0.5)
        yield transformers.Gemma2Config(
            **small, sliding_window=20, attn_logit_softcapping=5.0, query_pre_attn_scalar=32
        )
        yield transformers.GptOssConfig(
            **small, sliding_window=20, num_local_experts=2, num_experts_per_tok=1
        )

    def test_decoders_with_and_without_padding(self):
        ids = torch.randint(0, 64, (2, 70), device="cuda")
        padding = torch.ones_like(ids)
        padding[1, :9] = 0
        for config in self.configs():
            with self.subTest(model=config.model_type):
                self.check(config, input_ids=ids)
                self.check(config, input_ids=ids, attention_mask=padding)

    def test_generation_gives_the_same_tokens(self):
        ids = torch.randint(0, 64, (2, 30), device="cuda")
        padding = torch.ones_like(ids)
        padding[1, :9] = 0
        for config in self.configs():
            tokens = []
            for implementation in ("eager", "tilewright"):
                torch.manual_seed(0)
                model = (
                    transformers.AutoModelForCausalLM.from_config(
                        config, attn_implementation=implementation, dtype=torch.float32
                    )
                    .cuda()
                    .eval()
                )
                tokens.append(
                    model.generate(
                        ids,
                        attention_mask=padding,
                        max_new_tokens=12,
                        do_sample=False,
                        pad_token_id=0,
                    )
                )
            with self.subTest(model=config.model_type):
                self.assertTrue(torch.equal(*tokens))


if __name__ == "__main__":
    if not HAVE_GPU:
        print(
            "SKIPPED on this machine, which has no GPU that PyTorch sees: numbers, integration and models"
        )
    unittest.main()

"""The C interface (tilewright_c.h) through ctypes. tests/python compares every struct with the header."""

import ctypes
import ctypes.util
import pathlib
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 1, 3, 4, 5
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 9, 12, 13, 14

FP16, BF16, FP32, FP8_E4M3, FP8_E5M2, INT8, BOOL, INT32 = range(8)
SAME_TYPE = -1
ELEMENT_NAMES = ("fp16", "bf16", "fp32", "e4m3", "e5m2", "int8", "bool", "int32")
ELEMENT_BYTES = (2, 2, 4, 1, 1, 1, 1, 4)
BSHD, BHSD, SBHD, THD = range(4)
SCALE_NONE, SCALE_PER_TENSOR, SCALE_PER_HEAD, SCALE_PER_TOKEN = range(4)
TUNE_POLICIES = ("first_run", "background", "cached_only", "off", "frozen")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")

LogSink = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t)


class Strides(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("batch", "seq", "head", "dim")]


class BiasTerm(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("type", c_int32), ("batch_map", c_int32)] + [
        (name, c_int64) for name in ("batch", "heads", "seqlen_q", "seqlen_kv")
    ]
    _fields_ += [("gradient", c_int32), ("reserved", c_int32)]


class SnippetArray(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("type", c_int32), ("gradient", c_int32)]


class SnippetScalar(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("type", c_int32), ("reserved", c_int32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("cache_dir", c_char_p),
        ("cache_packs", POINTER(c_char_p)),
        ("num_cache_packs", c_size_t),
        ("cache_read_only", c_int32),
        ("cache_in_memory", c_int32),
        ("cache_group_shared", c_int32),
        ("device_ordinal", c_int32),
        ("cache_max_bytes", c_int64),
        ("nvrtc_path", c_char_p),
        ("template_dir", c_char_p),
        ("allow_fallback", c_int32),
        ("tune_policy", c_int32),
        ("lineinfo", c_int32),
        ("compile_threads", c_int32),
        ("lock_timeout_ms", c_int32),
        ("log_level", c_int32),
        ("log_sink", LogSink),
        ("log_user", c_void_p),
        ("embedded_pack", c_char_p),
        ("embedded_pack_bytes", c_size_t),
        ("pack_sha256", POINTER(c_char_p)),
        ("num_pack_sha256", c_size_t),
        ("compiler_helper", c_char_p),
        ("compile_timeout_ms", c_int32),
        ("isolate_compiler", c_int32),
        ("family", c_char_p),
        ("tune_budget_ms", c_int32),
        ("tune_total_ms", c_int32),
        ("tune_candidates", c_int32),
        ("churn_per_minute", c_int32),
        ("tune_max_bytes", c_int64),
        ("device_allocate", c_void_p),
        ("device_release", c_void_p),
        ("device_memory_user", c_void_p),
    ]


class Spec(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("operation", c_int32),
        ("type", c_int32),
        ("kv_type", c_int32),
        ("out_type", c_int32),
        ("batch", c_int64),
        ("heads_q", c_int64),
        ("heads_kv", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_kv", c_int64),
        ("dim_qk", c_int64),
        ("dim_v", c_int64),
        ("layout", c_int32),
        ("strided_innermost", c_int32),
        ("strides", POINTER(Strides)),
        ("causal", c_int32),
        ("align", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("block_mask_q", c_int64),
        ("block_mask_kv", c_int64),
        ("has_scale", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("softcap_before_bias", c_int32),
        ("alibi", c_int32),
        ("sinks", c_int32),
        ("bias", POINTER(BiasTerm)),
        ("num_bias", c_size_t),
        ("dropout", c_float),
        ("q_scale", c_int32),
        ("kv_scale", c_int32),
        ("varlen", c_int32),
        ("score_snippet", c_char_p),
        ("score_snippet_file", c_char_p),
        ("mask_snippet", c_char_p),
        ("mask_snippet_file", c_char_p),
        ("snippet_arrays", POINTER(SnippetArray)),
        ("num_snippet_arrays", c_size_t),
        ("snippet_scalars", POINTER(SnippetScalar)),
        ("num_snippet_scalars", c_size_t),
        ("page_size", c_int64),
        ("lse", c_int32),
        ("lse_base", c_int32),
        ("empty_lse", c_int32),
        ("allow_tf32", c_int32),
        ("deterministic", c_int32),
        ("batch_invariant", c_int32),
        ("exact", c_int32),
        ("reserved", c_int32),
        ("alibi_gradient", c_int32),
        ("sinks_gradient", c_int32),
        ("score_gradient_snippet", c_char_p),
        ("score_gradient_snippet_file", c_char_p),
        ("mask_tile_snippet", c_char_p),
        ("mask_tile_snippet_file", c_char_p),
        ("left_padding", c_int32),
        ("cache_batch_idx", c_int32),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("strides", Strides)]


class BiasTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p)] + [
        (name, c_int64) for name in ("stride_batch", "stride_head", "stride_q", "stride_kv")
    ]


BiasGradient = type("BiasGradient", (ctypes.Structure,), {"_fields_": BiasTensor._fields_})


class SnippetValue(ctypes.Union):
    _fields_ = [("f", c_float), ("i", c_int64)]


class Args(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_kv", c_int64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", c_void_p),
        ("lse_stride_batch", c_int64),
        ("lse_stride_head", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_kv", c_void_p),
        ("seqused_kv", c_void_p),
        ("total_q", c_int64),
        ("total_kv", c_int64),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("alibi_slopes", c_void_p),
        ("alibi_stride_batch", c_int64),
        ("bias", BiasTensor * 4),
        ("sinks", c_void_p),
        ("block_mask", c_void_p),
        ("block_mask_strides", c_int64 * 3),
        ("q_scale", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("k_scale_strides", c_int64 * 3),
        ("v_scale_strides", c_int64 * 3),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("dropout_seed_ptr", c_void_p),
        ("dropout_offset_ptr", c_void_p),
        ("snippet_arrays", c_void_p * 8),
        ("snippet_scalars", SnippetValue * 8),
        ("workspace", c_void_p),
        ("d_o", Tensor),
        ("d_q", Tensor),
        ("d_k", Tensor),
        ("d_v", Tensor),
        ("d_alibi_slopes", c_void_p),
        ("d_bias", BiasGradient * 4),
        ("d_sinks", c_void_p),
        ("d_snippet_arrays", c_void_p * 8),
        ("seqused_q", c_void_p),
        ("left_padding", c_void_p),
        ("cache_batch_idx", c_void_p),
    ]


class Counters(ctypes.Structure):
    _fields_ = [("size", c_size_t)] + [
        (name, c_double if name.endswith("_ms") else c_int64)
        for name in (
            "prepares memory_hits store_hits store_misses compiles compile_ms loads load_rejects fallbacks"
            " capture_refusals evictions compile_failures compile_timeouts compile_cancels helper_crashes"
            " store_memory_hits store_pack_hits store_disk_hits misses_absent misses_corrupt misses_foreign"
            " misses_differ misses_unreadable publishes publish_ms publish_failures publish_drops"
            " store_evictions lock_waits lock_wait_ms lock_timeouts warnings_suppressed"
            " tunes tune_ms tune_failures tune_postponed record_hits nearest_hits tuned_swaps churn_alarms"
        ).split()
    ]


class TuneProgress(ctypes.Structure):
    _fields_ = [("size", c_size_t)]
    _fields_ += [(name, c_int32) for name in ("candidates", "settled", "rounds", "done")]
    _fields_ += [(name, c_double) for name in ("elapsed_ms", "budget_ms", "best_relative")]
    _fields_ += [("best", c_char_p)]


TuneObserver = ctypes.CFUNCTYPE(None, c_void_p, POINTER(TuneProgress))


class TuneOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("budget_ms", c_int32),
        ("max_candidates", c_int32),
        ("force", c_int32),
        ("hot", c_int32),
        ("lengths_q", POINTER(c_int64)),
        ("num_lengths_q", c_size_t),
        ("lengths_kv", POINTER(c_int64)),
        ("num_lengths_kv", c_size_t),
        ("progress", TuneObserver),
        ("progress_user", c_void_p),
    ]


class MergeSpec(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("part_type", c_int32),
        ("out_type", c_int32),
        ("heads", c_int64),
        ("dim_v", c_int64),
        ("lse", c_int32),
        ("lse_base", c_int32),
        ("empty_lse", c_int32),
        ("reserved", c_int32),
    ]


class MergeArgs(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("parts", c_int64),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("o_parts", Tensor),
        ("o_stride_part", c_int64),
        ("lse_parts", c_void_p),
        ("lse_stride_part", c_int64),
        ("lse_stride_batch", c_int64),
        ("lse_stride_head", c_int64),
        ("o", Tensor),
        ("lse", c_void_p),
        ("lse_out_stride_batch", c_int64),
        ("lse_out_stride_head", c_int64),
    ]


class AppendSpec(ctypes.Structure):
    _fields_ = [("size", c_size_t)]
    _fields_ += [(name, c_int32) for name in ("type", "cache_type", "cache_scale", "rotary")]
    _fields_ += [
        (name, c_int64)
        for name in "heads_q heads_kv dim_qk dim_v page_size rotary_begin rotary_dim".split()
    ]
    _fields_ += [("rotary_base", c_double), ("rotary_table", c_int32), ("reserved", c_int32)]


class AppendArgs(ctypes.Structure):
    _fields_ = [("size", c_size_t)]
    _fields_ += [(name, c_int64) for name in ("batch", "seqlen", "total")]
    _fields_ += [(name, Tensor) for name in ("q", "q_out", "k", "v")]
    _fields_ += [(name, c_void_p) for name in ("cu_seqlens", "seqused", "positions")]
    _fields_ += [
        ("k_cache", Tensor),
        ("v_cache", Tensor),
        ("capacity", c_int64),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("cache_batch_idx", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("k_scale_strides", c_int64 * 3),
        ("v_scale_strides", c_int64 * 3),
    ]
    _fields_ += [
        (name, c_void_p) for name in ("seqused_kv", "new_seqused_kv", "ticket", "cos", "sin")
    ]
    _fields_ += [("rotary_stride", c_int64)]


class TilewrightError(RuntimeError):
    """A call failed. `status` is the number of tilewright_c.h, `log` the compiler's log, if it says more."""

    status = INTERNAL

    def __init__(self, text, log=""):
        super().__init__(text)
        self.log = log


class InvalidArgumentError(TilewrightError, ValueError):
    status = INVALID_ARGUMENT


class UnimplementedError(TilewrightError, NotImplementedError):
    status = UNIMPLEMENTED


class UnavailableError(TilewrightError):
    """The driver or NVRTC is missing or too old."""

    status = UNAVAILABLE


class FailedPreconditionError(TilewrightError):
    """No device, another context, a spec that is not stored in frozen mode or during a graph capture."""

    status = FAILED_PRECONDITION


_ERRORS = {
    error.status: error
    for error in (
        InvalidArgumentError,
        UnimplementedError,
        UnavailableError,
        FailedPreconditionError,
    )
}

# (result, arguments) of each function; None: void, `int`: tw_status.
_PROTOTYPES = {
    "tw_status_name": (c_char_p, [c_int32]),
    "tw_last_error": (c_char_p, []),
    "tw_last_error_log": (c_char_p, []),
    "tw_version": (c_char_p, []),
    "tw_options_init": (int, [POINTER(Options), c_size_t]),
    "tw_options_from_environment": (int, [POINTER(Options), c_size_t]),
    "tw_spec_init": (int, [POINTER(Spec), c_size_t]),
    "tw_bias_term_init": (int, [POINTER(BiasTerm), c_size_t]),
    "tw_dense_strides": (int, [c_int32, c_int64, c_int64, c_int64, c_int64, POINTER(Strides)]),
    "tw_args_init": (int, [POINTER(Args), c_size_t]),
    "tw_runtime_create": (int, [POINTER(Options), POINTER(c_void_p)]),
    "tw_runtime_destroy": (None, [c_void_p]),
    "tw_prepare": (int, [c_void_p, POINTER(Spec), c_void_p, POINTER(c_void_p)]),
    "tw_prepare_text": (int, [c_void_p, c_char_p, c_void_p, POINTER(c_void_p)]),
    "tw_attention_destroy": (None, [c_void_p]),
    "tw_warmup": (int, [c_void_p, POINTER(POINTER(Spec)), c_size_t]),
    "tw_run": (int, [c_void_p, c_void_p, POINTER(Args), c_void_p]),
    "tw_attention_once": (int, [c_void_p, POINTER(Spec), POINTER(Args), c_void_p]),
    "tw_workspace_bytes": (int, [c_void_p, POINTER(Args), POINTER(c_size_t)]),
    "tw_spec_text": (c_char_p, [c_void_p]),
    "tw_explain": (c_char_p, [c_void_p]),
    "tw_runtime_counters": (int, [c_void_p, POINTER(Counters)]),
    "tw_tune_options_init": (int, [POINTER(TuneOptions), c_size_t]),
    "tw_tune": (
        int,
        [c_void_p, POINTER(Spec), POINTER(TuneOptions), c_void_p, POINTER(c_char_p)],
    ),
    "tw_tune_text": (
        int,
        [c_void_p, c_char_p, POINTER(TuneOptions), c_void_p, POINTER(c_char_p)],
    ),
    "tw_wait_for_tuning": (int, [c_void_p, c_int32, POINTER(c_int32)]),
    "tw_merge_spec_init": (int, [POINTER(MergeSpec), c_size_t]),
    "tw_merge_args_init": (int, [POINTER(MergeArgs), c_size_t]),
    "tw_prepare_merge": (int, [c_void_p, POINTER(MergeSpec), c_void_p, POINTER(c_void_p)]),
    "tw_merge": (int, [c_void_p, c_void_p, POINTER(MergeArgs), c_void_p]),
    "tw_append_spec_init": (int, [POINTER(AppendSpec), c_size_t]),
    "tw_append_args_init": (int, [POINTER(AppendArgs), c_size_t]),
    "tw_prepare_append": (int, [c_void_p, POINTER(AppendSpec), c_void_p, POINTER(c_void_p)]),
    "tw_append": (int, [c_void_p, c_void_p, POINTER(AppendArgs), c_void_p]),
    "tw_cancel_compiles": (int, [c_void_p]),
    "tw_flush": (int, [c_void_p]),
}


class Library:
    """libtilewright.so: its functions without the prefix; those that can fail raise."""

    def __init__(self, path):
        self.path = str(path)
        library = ctypes.CDLL(self.path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = c_int32 if result is int else result
            if result is int:
                function.errcheck = self._check
            setattr(self, name[len("tw_") :], function)

    def _check(self, status, function, arguments):
        if status != OK:
            error = _ERRORS.get(status, TilewrightError)(
                self.last_error().decode(), self.last_error_log().decode()
            )
            error.status = status
            raise error
        return status

    def new(self, struct, init):
        """A struct with its defaults."""
        value = struct()
        init(byref(value), ctypes.sizeof(value))
        return value


_library = None


def use_library(path):
    """Use this libtilewright.so instead of the one in the package or on the loader's path. Before the first call."""
    global _library
    _library = Library(path)
    return _library


def library():
    """The library: the one given to use_library, else the package's own, else the loader's."""
    if _library is not None:
        return _library
    packaged = pathlib.Path(__file__).with_name("libtilewright.so")
    for path in (str(packaged), "libtilewright.so.0"):
        if path == str(packaged) and not packaged.exists():
            continue
        try:
            return use_library(path)
        except OSError as error:
            failure = error
    raise UnavailableError(
        f"libtilewright.so was not found: {failure}; install the package with its library (pip install .), put the"
        " library on the loader's path, or name it with tilewright.use_library(PATH)"
    )

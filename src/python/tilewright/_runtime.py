"""Runtimes and prepared operations: the handles of the C interface as objects."""

import atexit
import ctypes
import json
import os
import threading

from . import _c


def _strings(values):
    return (ctypes.c_char_p * len(values))(*[os.fsencode(value) for value in values])


class Runtime:
    """Compiles, keeps and launches kernels. Threads may share one; a forked child needs its own.

    Options are those of RuntimeOptions (tilewright/options.h), by name: cache_dir, cache_packs, cache_read_only,
    cache_in_memory, tune_policy ("first_run", "background", "cached_only", "off", "frozen"), log_level ("debug", "info",
    "warning", "error", "off"), family and so on. Those that are not given come from the TILEWRIGHT_* variables.
    `log(level, line)` receives each event; without it they go to stderr.
    """

    def __init__(self, *, log=None, **options):
        self._library = library = _c.library()
        values = library.new(_c.Options, library.options_from_environment)
        known = {name for name, _ in _c.Options._fields_} - {"size", "log_sink", "log_user"}
        kept = []
        for name, value in options.items():
            if name not in known or name.startswith("num_") or name == "embedded_pack_bytes":
                raise TypeError(f"Runtime has no option {name}")
            if name in ("cache_packs", "pack_sha256"):
                array = _strings(value)
                kept.append(array)
                setattr(values, name, ctypes.cast(array, ctypes.POINTER(ctypes.c_char_p)))
                setattr(values, f"num_{name}", len(value))
            elif name == "embedded_pack":
                values.embedded_pack, values.embedded_pack_bytes = value, len(value)
            elif name in ("tune_policy", "log_level"):
                names = _c.TUNE_POLICIES if name == "tune_policy" else _c.LOG_LEVELS
                if value not in names:
                    raise _c.InvalidArgumentError(
                        f"{name} = {value!r}: must be one of {', '.join(names)}"
                    )
                setattr(values, name, names.index(value))
            elif isinstance(value, (str, os.PathLike)):
                setattr(values, name, os.fsencode(value))
            else:
                setattr(values, name, int(value))
        if log is not None:
            values.log_sink = _c.LogSink(
                lambda user, level, line, length: log(
                    _c.LOG_LEVELS[level], ctypes.string_at(line, length).decode(errors="replace")
                )
            )
        # Of what is pointed to the library copies all but these.
        self._kept = (values.log_sink, options.get("embedded_pack"))
        self.handle = ctypes.c_void_p()
        library.runtime_create(ctypes.byref(values), ctypes.byref(self.handle))
        self._pid = os.getpid()

    def __del__(self):
        if getattr(self, "handle", None) and self._pid == os.getpid():
            self._library.runtime_destroy(self.handle)

    def prepare(self, spec, stream=0):
        """The kernel of a spec in words, such as "fwd bf16 b=2 h=32/8 s=4096 d=128 causal", on the current device."""
        attention = ctypes.c_void_p()
        self._library.prepare_text(
            self.handle, spec.encode(), stream or None, ctypes.byref(attention)
        )
        return Prepared(self, attention)

    def prepare_struct(self, spec, stream=0):
        attention = ctypes.c_void_p()
        self._library.prepare(
            self.handle, ctypes.byref(spec), stream or None, ctypes.byref(attention)
        )
        return Prepared(self, attention)

    def prepare_merge(self, spec, stream=0):
        """The kernel of an `_c.MergeSpec`, for `merge`."""
        merge = ctypes.c_void_p()
        self._library.prepare_merge(
            self.handle, ctypes.byref(spec), stream or None, ctypes.byref(merge)
        )
        return Prepared(self, merge)

    def merge(self, prepared, args, stream=0):
        """Launches with an `_c.MergeArgs`, as `run`."""
        self._library.merge(self.handle, prepared.handle, ctypes.byref(args), stream or None)

    def prepare_append(self, spec, stream=0):
        """The kernel of an `_c.AppendSpec`, for `append`."""
        append = ctypes.c_void_p()
        self._library.prepare_append(
            self.handle, ctypes.byref(spec), stream or None, ctypes.byref(append)
        )
        return Prepared(self, append)

    def append(self, prepared, args, stream=0):
        """Launches with an `_c.AppendArgs`, as `run`."""
        self._library.append(self.handle, prepared.handle, ctypes.byref(args), stream or None)

    def run(self, prepared, args, stream=0):
        """Launches with an `_c.Args` on a stream, given by its handle as an integer, and returns."""
        self._library.run(self.handle, prepared.handle, ctypes.byref(args), stream or None)

    def counters(self):
        """What happened so far, by name; see RuntimeCounters (tilewright/runtime.h)."""
        values = _c.Counters(size=ctypes.sizeof(_c.Counters))
        self._library.runtime_counters(self.handle, ctypes.byref(values))
        return {name: getattr(values, name) for name, _ in _c.Counters._fields_[1:]}

    def tune(
        self, spec, *, budget_ms=0, max_candidates=0, force=False, progress=None, stream=0
    ):
        """Measures the candidates of a spec in words on the current device and keeps the result in the store; later
        calls of prepare take it. Returns the tuning record as a dict. `progress` is called now and then with the fields
        of TuneProgress (tilewright/options.h) as a dict."""
        how = self._library.new(_c.TuneOptions, self._library.tune_options_init)
        how.budget_ms, how.max_candidates, how.force = budget_ms, max_candidates, bool(force)
        if progress is not None:
            how.progress = _c.TuneObserver(
                lambda user, now: progress(
                    {name: getattr(now.contents, name) for name, _ in _c.TuneProgress._fields_[1:]}
                )
            )
        record = ctypes.c_char_p()
        self._library.tune_text(
            self.handle, spec.encode(), ctypes.byref(how), stream or None, ctypes.byref(record)
        )
        return json.loads(record.value)

    def wait_for_tuning(self, timeout_ms):
        """Waits until nothing is left to measure in the background; False on time-out."""
        idle = ctypes.c_int32()
        self._library.wait_for_tuning(self.handle, timeout_ms, ctypes.byref(idle))
        return bool(idle.value)

    def cancel_compiles(self):
        """Ends compiles that run or wait; the calls that need them raise."""
        self._library.cancel_compiles(self.handle)

    def flush(self):
        """Waits (at most a second) until kernels being stored are on disk."""
        self._library.flush(self.handle)


class Prepared:
    """One operation on one device, ready to run. Immutable; any thread may use it."""

    def __init__(self, runtime, handle):
        self._library = runtime._library
        self._pid = runtime._pid
        self.handle = handle

    def __del__(self):
        if self.handle and self._pid == os.getpid():
            self._library.attention_destroy(self.handle)

    @property
    def spec(self):
        """The spec in words."""
        return self._library.spec_text(self.handle).decode()

    def explain(self):
        """Family, tiles, registers, shared memory, and where the kernel came from."""
        return self._library.explain(self.handle).decode()

    def workspace_bytes(self, args):
        size = ctypes.c_size_t()
        self._library.workspace_bytes(self.handle, ctypes.byref(args), ctypes.byref(size))
        return size.value


_default = None
_default_lock = threading.Lock()


def default_runtime():
    """The runtime of calls that name none, with the options of the environment; made on the first call."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Runtime()
    return _default


def set_default_runtime(runtime):
    """Use `runtime` in calls that name none."""
    global _default
    _default = runtime


# The driver does not survive a fork; a child makes its own runtime.
os.register_at_fork(after_in_child=lambda: set_default_runtime(None))
# While the interpreter, and the contexts of other libraries, are still whole.
atexit.register(set_default_runtime, None)

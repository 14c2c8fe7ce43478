"""The two things that callers without a framework need of the CUDA driver."""

import ctypes
import functools

from . import _c


@functools.lru_cache(maxsize=None)
def _driver():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _c.UnavailableError(f"no CUDA driver: {error}") from None


def _check(call, result):
    if result != 0:
        raise _c.TilewrightError(f"{call} failed with error {result} of the CUDA driver")


@functools.lru_cache(maxsize=None)
def _primary_context(device):
    driver, context = _driver(), ctypes.c_void_p()
    _check("cuInit", driver.cuInit(0))
    _check(
        "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    return context


def ensure_context(device):
    """Makes the device's primary context current in a thread that has no context."""
    driver, current = _driver(), ctypes.c_void_p()
    _check("cuInit", driver.cuInit(0))
    _check("cuCtxGetCurrent", driver.cuCtxGetCurrent(ctypes.byref(current)))
    if not current.value:
        _check("cuCtxSetCurrent", driver.cuCtxSetCurrent(_primary_context(device)))


def synchronize(stream):
    """Waits for what was launched on a stream."""
    _check("cuStreamSynchronize", _driver().cuStreamSynchronize(ctypes.c_void_p(stream or None)))

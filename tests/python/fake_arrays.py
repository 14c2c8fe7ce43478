"""Arrays with __dlpack__ in host memory that say they lie on CUDA device 0, for the recording driver."""

import ctypes

from tilewright import _arrays

KINDS = {
    "fp16": (2, 16),
    "bf16": (4, 16),
    "fp32": (2, 32),
    "e4m3": (10, 8),
    "int8": (0, 8),
    "bool": (6, 8),
}
KINDS.update({"int32": (0, 32), "int64": (0, 64), "fp64": (2, 64)})

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_no_destructor = _Destructor()
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]


def dense(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


class FakeArray:
    def __init__(self, shape, kind="fp32", strides=None, device_type=2, offset=0, device=0):
        self.shape, self.dtype, self.device = tuple(shape), kind, device
        self.strides = strides or dense(self.shape)
        self.device_type, self.offset = device_type, offset
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides) if n)
        self.memory = ctypes.create_string_buffer(max(16, extent * KINDS[kind][1] // 8 + offset))
        self.seen_streams = []

    @property
    def address(self):
        return ctypes.addressof(self.memory) + self.offset

    def __array_namespace__(self):
        return Namespace

    def __dlpack_device__(self):
        return self.device_type, self.device

    def __dlpack__(self, stream=None):
        self.seen_streams.append(stream)
        code, bits = KINDS[self.dtype]
        n = len(self.shape)
        self._shape = (ctypes.c_int64 * n)(*self.shape)
        self._strides = (ctypes.c_int64 * n)(*self.strides)
        self._tensor = _arrays._DLTensor(
            ctypes.addressof(self.memory),
            self.device_type,
            0,
            n,
            code,
            bits,
            1,
            self._shape,
            self._strides,
            self.offset,
        )
        return _new_capsule(ctypes.addressof(self._tensor), b"dltensor", _no_destructor)


class Namespace:
    """What `attention` asks of an array library."""

    float32, int8 = "fp32", "int8"

    @staticmethod
    def empty(shape, dtype, device):
        return FakeArray(shape, dtype)

"""Arrays of any library as pointer, type, shape and strides, without a copy: DLPack, and PyTorch's directly."""

import ctypes
import sys

from . import _c

CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged

# DLPack's (code, bits) of the element types.
_TYPES = {
    (2, 16): _c.FP16,
    (4, 16): _c.BF16,
    (2, 32): _c.FP32,
    (10, 8): _c.FP8_E4M3,
    (12, 8): _c.FP8_E5M2,
    (0, 8): _c.INT8,
    (6, 8): _c.BOOL,
    (1, 8): _c.BOOL,
    (0, 32): _c.INT32,
}
# Read by pointer only: 64-bit counters of dropout.
INT64 = -2
_TYPES[(0, 64)] = _TYPES[(1, 64)] = INT64


class Array:
    """`signature` is what a kernel is chosen by: (type, shape, strides, device), strides in elements. `keep` holds the
    memory alive."""

    __slots__ = ("data", "signature", "keep")

    def __init__(self, data, signature, keep):
        self.data, self.signature, self.keep = data, signature, keep

    type = property(lambda self: self.signature[0])
    shape = property(lambda self: self.signature[1])
    strides = property(lambda self: self.signature[2])
    device = property(lambda self: self.signature[3])


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _dense_strides(shape):
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides)) if shape else ()


def need_dense(name, array, *shapes):
    """Raises unless the elements follow one another without gaps, as the kernels read them, in one of `shapes` (in any,
    if none is given)."""
    if shapes and tuple(array.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise _c.InvalidArgumentError(f"{name} has shape {tuple(array.shape)}: must be {wanted}")
    dense = _dense_strides(array.shape)
    if any(n > 1 and a != b for n, a, b in zip(array.shape, array.strides, dense)):
        raise _c.InvalidArgumentError(
            f"{name} has strides {tuple(array.strides)}: must be contiguous, {dense}"
        )


def need_page_table(table, batch, slots):
    """Raises unless it is [batch, pages]; with `slots` it has rows of more or fewer sequences."""
    ok = len(table.shape) == 2 and (slots or table.shape[0] == batch)
    if not ok or (table.shape[1] > 1 and table.strides[1] != 1):
        raise _c.InvalidArgumentError(
            f"page_table has shape {tuple(table.shape)} and strides {tuple(table.strides)}: must be [batch, pages]"
            f" with a batch of {batch} and the pages of a sequence side by side"
        )


def kv_scale_kind(scales, blocks, tokens, heads):
    """The kind of the scales of K and V that are given, by name; None without any. A cache, or its pages, has so many
    blocks of so many tokens. Raises where they fit neither it nor one another."""
    kinds = set()
    for name, scale in scales.items():
        if len(scale.shape) != 3:
            need_dense(name, scale, (), (1,), (heads,))
            kinds.add(_c.SCALE_PER_TENSOR if scale.shape in ((), (1,)) else _c.SCALE_PER_HEAD)
            continue
        kinds.add(_c.SCALE_PER_TOKEN)
        wanted = (blocks, heads, tokens)
        if tuple(scale.shape) != wanted:
            raise _c.InvalidArgumentError(
                f"{name} has shape {tuple(scale.shape)}: must be {wanted}, [batch or page, head, token]"
            )
    if len(kinds) > 1:
        raise _c.InvalidArgumentError(
            "k_scale and v_scale are of different kinds: must both be one number, or one for each head or token"
        )
    return kinds.pop() if kinds else None


def package_of(array):
    return type(array).__module__.partition(".")[0]


def current_stream(array):
    """The handle of its library's current stream; 0 where it has none."""
    if package_of(array) == "torch":
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if package_of(array) == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0


def from_dlpack(name, array, stream):
    """An object with __dlpack__. Its producer makes `stream` (an integer handle) wait for what it still computes."""
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"{name} is {type(array).__name__}: must be an array with __dlpack__ (PyTorch, CuPy, JAX, ...)"
        )
    device_type, device = array.__dlpack_device__()
    if device_type not in CUDA_DEVICES:
        raise _c.InvalidArgumentError(
            f"{name} lies on DLPack device type {int(device_type)}: must lie on a CUDA device"
        )
    # 1 is how DLPack writes the legacy default stream, whose handle is 0.
    capsule = array.__dlpack__(stream=stream or 1)
    tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    kind = _TYPES.get((tensor.code, tensor.bits))
    if kind is None or tensor.lanes != 1:
        raise _c.InvalidArgumentError(
            f"{name} has elements of DLPack type {tensor.code} with {tensor.bits} bits: must be one of"
            f" {', '.join(_c.ELEMENT_NAMES)}"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _dense_strides(shape)
    # The capsule, while it lives, owns the exported memory.
    address = (tensor.data or 0) + tensor.byte_offset
    return Array(address, (kind, shape, strides, device), (capsule, array))


_torch_types = None


def from_torch(tensor):
    """A torch.Tensor; much quicker than DLPack, and tensors that require a gradient are fine."""
    global _torch_types
    if _torch_types is None:
        torch = sys.modules["torch"]
        _torch_types = {
            torch.float16: _c.FP16,
            torch.bfloat16: _c.BF16,
            torch.float32: _c.FP32,
            torch.float8_e4m3fn: _c.FP8_E4M3,
            torch.float8_e5m2: _c.FP8_E5M2,
            torch.int8: _c.INT8,
            torch.bool: _c.BOOL,
            torch.uint8: _c.BOOL,
            torch.int32: _c.INT32,
            torch.int64: INT64,
        }
    kind = _torch_types.get(tensor.dtype)
    if kind is None:
        raise _c.InvalidArgumentError(
            f"a tensor has elements of {tensor.dtype}: must be one of {', '.join(_c.ELEMENT_NAMES)}"
        )
    signature = (kind, tensor.shape, tensor.stride(), tensor.get_device())
    return Array(tensor.data_ptr(), signature, tensor)

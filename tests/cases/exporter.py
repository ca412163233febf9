"""Tensors that claim to lie on a GPU, exported as DLPack has it: nobody reads their memory."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from gemmill.library.dtypes import DTYPES, DTypeName

CUDA, CPU = 2, 1
FLOAT, BFLOAT, INT = 2, 4, 0

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new_capsule.restype = ctypes.py_object


class Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h lays it out."""

    _fields_ = (
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
    )


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Exporter:
    """An object with ``__dlpack__`` whose memory claims to be on a GPU."""

    def __init__(
        self,
        shape: tuple[int, ...] = (4, 8),
        strides: tuple[int, ...] | None = None,
        *,
        code: int = BFLOAT,
        bits: int = 16,
        lanes: int = 1,
        offset: int = 0,
        version: tuple[int, int] | None = (1, 0),
        flags: int = 0,
        device: int = CUDA,
        gpu: int = 3,
        address: int = 0x7F0000000000,
    ) -> None:
        self.device = device, gpu
        self.version = version
        self.streams: list[object] = []
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = Tensor(address, device, gpu, len(shape), code, bits, lanes, self._shape, self._strides, offset)
        self._managed = Versioned((ctypes.c_uint32 * 2)(*(version or (0, 0))), None, None, flags, tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> object:
        self.streams.append(stream)
        if self.version is None:
            if options:
                raise TypeError("max_version")
            return _new_capsule(ctypes.addressof(self._managed) + Versioned.tensor.offset, b"dltensor", None)
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor_versioned", None)


_addresses = itertools.count(1 << 40, 1 << 33)


def on_gpu(
    shape: tuple[int, ...],
    dtype: DTypeName = "bf16",
    *,
    strides: tuple[int, ...] | None = None,
    address: int | None = None,
    gpu: int = 0,
    read_only: bool = False,
) -> Exporter:
    """A tensor of one of our dtypes, in memory of its own unless an address is given."""
    code, bits = DTYPES[dtype].dlpack
    where = next(_addresses) if address is None else address
    return Exporter(shape, strides, code=code, bits=bits, flags=int(read_only), gpu=gpu, address=where)


class Words(Exporter):
    """Addresses of matrices: int64, which are viewed as pairs of int32, as PyTorch's and CuPy's tensors are."""

    dtype = "int64"

    def __init__(self, rows: int, columns: int, address: int = 1 << 39) -> None:
        super().__init__((rows, columns), code=INT, bits=64, gpu=0, address=address)
        self._as_words = on_gpu((rows, 2 * columns), "s32", address=address)

    def view(self, _: str) -> Exporter:
        return self._as_words

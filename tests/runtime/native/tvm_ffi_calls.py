"""Calls libgemmill through TVM-FFI. Arguments: the library, a pack; a line of output for each call that fails."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import tvm_ffi
from tests.cases.exporter import BFLOAT, CPU, CUDA, Tensor
from tests.runtime.native.cases import CHOSEN

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new_capsule.restype = ctypes.py_object


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class OnGpu:
    """A bf16 tensor that claims to be in GPU memory."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self._extents = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
        tensor = Tensor(address, CUDA, 0, len(shape), BFLOAT, 16, 1, *self._extents, 0)
        self._managed = Managed(tensor, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **_: Any) -> object:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)


def main() -> None:
    library, pack = sys.argv[1:]
    module = tvm_ffi.load_module(library)
    assert np.zeros(1).__dlpack_device__()[0] == CPU
    in_host_memory = np.zeros((64, 64), np.float32)
    case = CHOSEN[0]
    tensors = [
        OnGpu(at, x.shape, x.steps) for at, x in zip((1 << 40, 1 << 41, 1 << 42), (case.a, case.b, case.d), strict=True)
    ]
    a, b, d = map(tvm_ffi.from_dlpack, tensors)
    for path, operands in ((pack, [in_host_memory] * 3), (f"{pack}.missing", [a, b, d]), (pack, [a, b, d])):
        try:
            module.matmul(path, *operands, 1.0, None, 0.0)
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main()

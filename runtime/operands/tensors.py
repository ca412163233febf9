"""Tensors of any library, read as operands of a GEMM without a copy: PyTorch, DLPack, ``__cuda_array_interface__``."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.runtime import driver

TORCH_DTYPES: Mapping[str, DTypeName] = {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
"""gemmill's dtype by the name of PyTorch's."""

_DLPACK_CUDA = 2
_DLPACK_CUDA_MANAGED = 13
_DLPACK_READ_ONLY = 1


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided tensor in GPU memory."""

    ptr: int
    """Address of the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbours along each extent."""
    dtype: DTypeName
    device: int
    """Ordinal of the GPU that holds it."""
    writable: bool = True
    """Whether its owner lets others write to it."""
    owner: object = None
    """What keeps the memory alive."""

    @property
    def reach(self) -> tuple[int, int]:
        """Bytes before its first element, and from there on, in which it lies; it has elements."""
        size = DTYPES[self.dtype].bytes
        steps = [(extent - 1) * stride * size for extent, stride in zip(self.shape, self.strides, strict=True)]
        return -sum(min(0, step) for step in steps), sum(max(0, step) for step in steps) + size

    def same_layout(self, other: TensorView) -> bool:
        """Whether another tensor differs in nothing but its address. Strides along extents of 0 and 1 do not count."""
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.device == other.device
            and all(s == t for n, s, t in zip(self.shape, self.strides, other.strides, strict=True) if n > 1)
        )

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape} with strides {self.strides} on GPU {self.device}"


def is_torch(tensor: object) -> bool:
    """Whether this is a PyTorch tensor. PyTorch is not imported: it is there if the caller has one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def as_words(tensor: Any, name: str) -> Any:
    """A tensor of int64, of PyTorch, CuPy or any library whose tensors have a dtype and are viewed as another, as one
    of twice as many int32, which is a dtype of the table."""
    dtype = str(getattr(tensor, "dtype", f"that of a {type(tensor).__qualname__}")).removeprefix("torch.")
    if dtype != "int64":
        raise OperandError(f"{name} has dtype {dtype}; it must be int64: addresses have 64 bits")
    try:
        return tensor.view(sys.modules["torch"].int32 if is_torch(tensor) else "int32")
    except (RuntimeError, ValueError):
        raise OperandError(f"{name} is not packed: pass {name}.contiguous()") from None


def view(tensor: Any, name: str, stream: int = 0) -> TensorView:
    """Read a tensor; ``name`` is what errors call it.

    DLPack producers other than PyTorch are told the stream (0: the legacy default stream) that will use the tensor and
    order their pending work before it. The ``stream`` entry of ``__cuda_array_interface__`` is not read: there the
    caller orders the streams.
    """
    if is_torch(tensor):
        return _from_torch(tensor, name)
    if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
        return _from_dlpack(tensor, name, stream)
    if hasattr(tensor, "__cuda_array_interface__"):
        interface = tensor.__cuda_array_interface__
        pointer = int(interface["data"][0])
        device = driver.device_of(pointer) if pointer else 0
        if device is None:
            raise OperandError(f"{name}: {pointer:#x} is no address of GPU memory")
        return from_cuda_array_interface(interface, name, device, tensor)
    raise OperandError(
        f"{name} is a {type(tensor).__module__}.{type(tensor).__qualname__}; gemmill takes tensors of PyTorch, or any "
        "object with __dlpack__ or __cuda_array_interface__"
    )


def _refuse_cpu(name: str, where: str) -> OperandError:
    return OperandError(f"{name} is {where}; gemmill takes tensors in GPU memory: copy it there first")


def _refuse_dtype(name: str, dtype: str) -> OperandError:
    return OperandError(f"{name} has dtype {dtype}; gemmill knows {', '.join(DTYPES)}")


def _from_torch(tensor: Any, name: str) -> TensorView:
    if tensor.device.type != "cuda":
        raise _refuse_cpu(name, f"on {tensor.device}")
    if str(tensor.layout) != "torch.strided":
        raise OperandError(f"{name} has layout {tensor.layout}; gemmill takes dense tensors: {name}.to_dense()")
    dtype = TORCH_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise _refuse_dtype(name, str(tensor.dtype))
    if tensor.is_neg():
        raise OperandError(f"{name} is a view that negates what lies in memory: pass {name}.resolve_neg()")
    return TensorView(
        ptr=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype,
        device=tensor.device.index,
        owner=tensor,
    )


def from_cuda_array_interface(interface: Mapping[str, Any], name: str, device: int, owner: object) -> TensorView:
    """Read version 2 or 3 of the CUDA array interface (Numba's documentation, "CUDA Array Interface")."""
    if interface.get("mask") is not None:
        raise OperandError(f"{name} is masked; gemmill takes dense tensors")
    dtype = next((t for t in DTYPES.values() if t.typestr == interface["typestr"]), None)
    if dtype is None:
        raise _refuse_dtype(name, f"{interface['typestr']!r} (bf16 has no typestr: pass an object with __dlpack__)")
    shape = tuple(int(extent) for extent in interface["shape"])
    in_bytes = interface.get("strides")
    if in_bytes is None:
        strides = _row_major(shape)
    elif any(step % dtype.bytes for step in in_bytes):
        raise OperandError(f"{name} has strides of {tuple(in_bytes)} bytes; its elements have {dtype.bytes}")
    else:
        strides = tuple(int(step) // dtype.bytes for step in in_bytes)
    pointer, read_only = interface["data"]
    return TensorView(int(pointer), shape, strides, _name(dtype.name), device, not read_only, owner)


class _DLTensor(ctypes.Structure):
    """``DLTensor`` (dlpack.h)."""

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


class _DLManagedTensorVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned`` (dlpack.h, version 1)."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


def _from_dlpack(tensor: Any, name: str, stream: int) -> TensorView:
    device_type, device = (int(part) for part in tensor.__dlpack_device__())
    if device_type not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED):
        raise _refuse_cpu(name, f"on DLPack device type {device_type}")
    consumer = stream or 1  # DLPack writes the legacy default stream as 1
    try:
        capsule = tensor.__dlpack__(stream=consumer, max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        capsule = tensor.__dlpack__(stream=consumer)
    read_only = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise OperandError(f"{name} comes with DLPack {managed.major}.{managed.minor}; gemmill reads version 1")
        read_only = bool(managed.flags & _DLPACK_READ_ONLY)
        dl = managed.tensor
    elif _capsule_is_valid(capsule, b"dltensor"):
        dl = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise OperandError(f"{name}: its __dlpack__ returned {capsule!r}, which is no DLPack capsule")
    dtype = next((t for t in DTYPES.values() if t.dlpack == (dl.code, dl.bits)), None)
    if dtype is None or dl.lanes != 1:
        raise _refuse_dtype(name, f"with DLPack code {dl.code}, {dl.bits} bits, {dl.lanes} lanes")
    shape = tuple(dl.shape[: dl.ndim])
    strides = tuple(dl.strides[: dl.ndim]) if dl.strides else _row_major(shape)
    # The capsule stays unconsumed: dropping it with the view releases the tensor.
    owner = (tensor, capsule)
    return TensorView((dl.data or 0) + dl.byte_offset, shape, strides, _name(dtype.name), device, not read_only, owner)


def _name(name: str) -> DTypeName:
    """A name of the dtype table, as its literal type."""
    return name  # type: ignore[return-value]


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)

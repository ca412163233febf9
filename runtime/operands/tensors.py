"""Strided tensors in GPU memory, of any library, read as they are and without a copy: PyTorch, DLPack,
``__cuda_array_interface__``."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gemmill.library.dtypes import DTYPES, DTypeName, find_dtype, unknown
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime import driver


class SupportsDLPack(Protocol):
    """What exports its memory by DLPack, as PyTorch, CuPy and JAX do."""

    def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArrayInterface(Protocol):
    """What exports its memory by the CUDA array interface, as CuPy and Numba do."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


Tensor = SupportsDLPack | SupportsCudaArrayInterface
"""A tensor of any library, in GPU memory."""

TORCH_DTYPES: Mapping[str, DTypeName] = {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
"""gemmill's dtype by the name of PyTorch's."""

LEAST_ADDRESS = 1 << 32
"""No GPU memory lies below: of a tensor whose storage is gone, PyTorch tells its offset there for an address."""


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
    def byte_extents(self) -> tuple[tuple[int, int], ...]:
        """Extents, and bytes between neighbours along them, of its bytes: along those of an element too. Elements
        narrower than a byte share one along the stride of 1."""
        bits = DTYPES[self.dtype].bits
        extents = [
            (-(-extent * bits // 8), 1) if bits < 8 and stride == 1 else (extent, stride * bits // 8)
            for extent, stride in zip(self.shape, self.strides, strict=True)
        ]
        return (*extents, (max(1, bits // 8), 1))

    @property
    def layout(self) -> tuple[Hashable, ...]:
        """All of it that decides how a kernel reads it: of its address the alignment."""
        return self.shape, self.strides, self.dtype, self.device, self.writable, self.ptr % TMA_ALIGN

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


def reach(byte_extents: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Bytes before its first element, and from there on, in which a tensor that has elements lies, by its
    :attr:`TensorView.byte_extents`."""
    before, behind = 0, 1
    for extent, step in byte_extents:
        last = (extent - 1) * step
        before, behind = (before - last, behind) if last < 0 else (before, behind + last)
    return before, behind


def is_torch(tensor: object) -> bool:
    """Whether this is a PyTorch tensor. PyTorch is not imported: it is there if the caller has one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def without_memory(name: str) -> OperandError:
    """What to say of a tensor that has elements and no address."""
    return OperandError(
        f"{name} has no memory of its own: it is a fake, meta or functional tensor, a wrapper around other tensors, or "
        "its storage was freed: pass a tensor whose elements lie in GPU memory"
    )


# Of dtypes that others write alike, the first: a caller says what else bytes hold.
_OF_TYPESTR = {dtype.typestr: dtype for dtype in reversed([*DTYPES.values()]) if dtype.typestr}
_OF_DLPACK = {dtype.dlpack: dtype for dtype in reversed([*DTYPES.values()]) if dtype.dlpack}

TABLES = ("offsets", "counts", "addresses")
"""Operands that say where matrices are."""
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
"""Type codes of DLPack, as dtypes are called."""
_CONVERTED = {
    "scale": "; scales are floating-point: pass {}.float()",
}
"""What to do about dtypes that gemmill has not, where the name of the argument tells."""

_DLPACK_HOST = 1
_DLPACK_CUDA = 2
_DLPACK_CUDA_MANAGED = 13
_DLPACK_READ_ONLY = 1


def view(tensor: Any, name: str, stream: int = 0) -> TensorView:
    """Read a tensor; ``name`` is what errors call it.

    DLPack producers other than PyTorch are told the stream (0: the legacy default stream) that will use the tensor and
    order their pending work before it. The ``stream`` entry of ``__cuda_array_interface__`` is not read: there the
    caller orders the streams. What is a view already stays as it is.
    """
    if isinstance(tensor, TensorView):
        return tensor
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


def dtype_named(dtype: object, argument: str) -> DTypeName:
    """gemmill's name of a dtype that a caller wrote for an argument, as a text or as another library's."""
    name = str(dtype)
    if (found := find_dtype(name)) is None:
        raise OperandError(f"{argument} is {dtype!r}{unknown(name) or ';'} gemmill knows {', '.join(DTYPES)}")
    return found


def view_table(tensor: Any, name: str, stream: int = 0) -> TensorView:
    """Read offsets, counts or addresses as words of 32 bits, which are a dtype of the table.

    Offsets and counts of int64 are the low words, at twice the stride: what they say is below 2^31. ``addresses``, of
    int64, are twice as many words. :func:`view` says the rest.
    """
    if isinstance(tensor, TensorView):
        return tensor
    dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if name == "addresses":
        if dtype != "int64":
            has = dtype or f"that of a {type(tensor).__qualname__}"
            raise OperandError(f"{name} has dtype {has}; it must be int64: addresses have 64 bits")
        return view(_as_words(tensor, name), name, stream)
    if dtype in ("", "int32"):
        return view(tensor, name, stream)
    if dtype in ("int64", "uint64"):
        words = view(_as_words(tensor[..., None], name), name, stream)
        return replace(words, shape=words.shape[:-1], strides=words.strides[:-1])
    if dtype == "uint32":
        return view(_as_words(tensor, name), name, stream)
    raise OperandError(f"{name} has dtype {dtype}; it must be int32 or int64: pass {name}.int()")


def _as_words(tensor: Any, name: str) -> Any:
    """A tensor of integers of PyTorch, CuPy or any library whose tensors are viewed as another dtype, as int32."""
    try:
        return tensor.view(sys.modules["torch"].int32 if is_torch(tensor) else "int32")
    except (AttributeError, RuntimeError, ValueError):
        raise OperandError(f"{name} is not packed: pass {name}.contiguous()") from None


def unpacked(name: str, tensor: TensorView, dtype: DTypeName, k: int) -> TensorView:
    """``a`` or ``b`` in bytes as what those hold: ``dtype``, of 8 bits, or of 4 and then two a byte along K.

    ``k`` is the other operand's; where the last byte holds but one element, it decides.
    """
    bits = DTYPES[dtype].bits
    axis = -2 if name == "b" and len(tensor.shape) > 1 else -1
    if dtype == tensor.dtype or not tensor.shape:  # a scalar is refused later
        return tensor
    if bits > 8 or DTYPES[tensor.dtype].bits != 8:
        raise OperandError(f"{name} is {tensor.dtype}, and cannot be read as {dtype}: pass int8 or uint8 that hold it")
    if bits == 8:
        return replace(tensor, dtype=dtype)
    count = 2 * tensor.shape[axis]
    if k == count - 1:
        count = k
    if tensor.shape[axis] > 1 and tensor.strides[axis] != 1:
        raise OperandError(
            f"{name} has strides {tensor.strides}; two {dtype} lie in a byte along K, which must be contiguous: pack "
            "(N, K / 2) and pass its transpose"
        )
    shape, strides = list(tensor.shape), [2 * step for step in tensor.strides]
    shape[axis], strides[axis] = count, 1
    return replace(tensor, shape=tuple(shape), strides=tuple(strides), dtype=dtype)


def _refuse_cpu(name: str, where: str) -> OperandError:
    return OperandError(
        f"{name} is {where}; gemmill takes tensors in GPU memory: copy it there first, as with {name}.cuda()"
    )


def _refuse_dtype(name: str, dtype: str) -> OperandError:
    wanted = _CONVERTED.get(name.rpartition("_")[2], "; gemmill knows " + ", ".join(DTYPES) + ": convert it first")
    return OperandError(f"{name} has dtype {dtype}{wanted.format(name)}")


def _from_torch(tensor: Any, name: str) -> TensorView:
    device = tensor.device
    if device.type != "cuda":
        raise _refuse_cpu(name, f"on {device}")
    if tensor.layout is not sys.modules["torch"].strided:
        raise OperandError(f"{name} has layout {tensor.layout}; gemmill takes dense tensors: {name}.to_dense()")
    dtype = _of_torch(tensor.dtype)
    if dtype is None:
        raise _refuse_dtype(name, str(tensor.dtype))
    if tensor.is_neg():
        raise OperandError(f"{name} is a view that negates what lies in memory: pass {name}.resolve_neg()")
    try:
        has_memory = bool(tensor.untyped_storage().data_ptr()) or not tensor.numel()
        address = tensor.data_ptr() if has_memory else 0
    except (NotImplementedError, RuntimeError):  # of a tensor that only says what it would be
        has_memory = False
    if not has_memory:
        raise without_memory(name)
    return TensorView(
        ptr=address,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype,
        device=device.index,
        owner=tensor,
    )


@functools.cache
def _of_torch(dtype: Any) -> DTypeName | None:
    """gemmill's name of a dtype of PyTorch's; None where it has none."""
    return TORCH_DTYPES.get(str(dtype).removeprefix("torch."))


def from_cuda_array_interface(interface: Mapping[str, Any], name: str, device: int, owner: object) -> TensorView:
    """Read version 2 or 3 of the CUDA array interface (Numba's documentation, "CUDA Array Interface")."""
    if interface.get("mask") is not None:
        raise OperandError(f"{name} is masked; gemmill takes dense tensors")
    dtype = _OF_TYPESTR.get(interface["typestr"])
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
    try:
        return _from_capsule(tensor, name, stream)
    except (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # What is traced, deleted, or somebody else's mistake.
        raise OperandError(f"{name}, a {type(tensor).__qualname__}, gives no DLPack capsule: {error}") from error


def _from_capsule(tensor: Any, name: str, stream: int) -> TensorView:
    device_type, device = (int(part) for part in tensor.__dlpack_device__())
    if device_type not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED):
        raise _refuse_cpu(name, "in host memory" if device_type == _DLPACK_HOST else f"on DLPack device {device_type}")
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
    dtype = _OF_DLPACK.get((dl.code, dl.bits))
    if dtype is None or dl.lanes != 1:
        kind = _KINDS.get(dl.code, f"DLPack code {dl.code} of bits ")
        raise _refuse_dtype(name, f"{kind}{dl.bits}" + (f" in vectors of {dl.lanes}" if dl.lanes != 1 else ""))
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

"""Reads strided tensors in GPU memory from any library without a copy: PyTorch, DLPack,
``__cuda_array_interface__``."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gemmill.library.dtypes import COMPLEX, COMPLEX_OF, DTYPES, ComplexType, DType, DTypeName, find_dtype, unknown
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime import driver


class SupportsDLPack(Protocol):
    """A tensor that exports its memory by DLPack, as in PyTorch, CuPy and JAX."""

    def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArrayInterface(Protocol):
    """A tensor that exports its memory by the CUDA array interface, as in CuPy and Numba."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


Tensor = SupportsDLPack | SupportsCudaArrayInterface
"""A tensor of any library, in GPU memory."""

TORCH_DTYPES: Mapping[str, DTypeName] = {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
"""gemmill's dtypes by PyTorch's names."""

LEAST_ADDRESS = 1 << 32
"""No GPU memory has a lower address. For a tensor whose storage is gone, PyTorch reports its offset as the address."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided tensor in GPU memory."""

    ptr: int
    """Address of the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbours along each extent."""
    dtype: DTypeName
    """Dtype of the elements, or of the parts of complex elements."""
    device: int
    """Ordinal of the GPU that holds it."""
    writable: bool = True
    """Whether the owner allows writing."""
    owner: object = None
    """Object that keeps the memory alive."""
    imaginary: int = 0
    """0 if elements are real; the sign of the imaginary parts in memory if they are complex: -1 in the view of a
    conjugate."""

    @property
    def element(self) -> str:
        """The name of the dtype of the elements, which may be complex."""
        return COMPLEX_OF[self.dtype] if self.imaginary else self.dtype

    @property
    def byte_extents(self) -> tuple[tuple[int, int], ...]:
        """Extents of the tensor in bytes, and bytes between neighbours along them; the last is the bytes of one
        element. Elements narrower than a byte share bytes along the extent with stride 1."""
        bits = DTYPES[self.dtype].bits * (2 if self.imaginary else 1)
        extents = [
            (-(-extent * bits // 8), 1) if bits < 8 and stride == 1 else (extent, stride * bits // 8)
            for extent, stride in zip(self.shape, self.strides, strict=True)
        ]
        return (*extents, (max(1, bits // 8), 1))

    @property
    def layout(self) -> tuple[Hashable, ...]:
        """Everything that decides how a kernel reads the tensor; of its address only the alignment."""
        layout = self.shape, self.strides, self.dtype, self.device, self.writable, self.ptr % TMA_ALIGN
        return (*layout, self.imaginary)

    def same_layout(self, other: TensorView) -> bool:
        """Whether another tensor differs only in its address. Strides along extents of 0 and 1 do not count."""
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.imaginary == other.imaginary
            and self.device == other.device
            and all(s == t for n, s, t in zip(self.shape, self.strides, other.strides, strict=True) if n > 1)
        )

    def __str__(self) -> str:
        return f"{self.element} {self.shape} with strides {self.strides} on GPU {self.device}"


@dataclass(frozen=True, slots=True, repr=False)
class PreparedOperand(TensorView):
    """A ``b`` in the form that kernels load (:func:`gemmill.prepare`). It does not follow its tensor: prepare it again
    after a change.

    Attributes:
        shape: (K, N), that of the tensor.
        dtype: the precision for which f32 was split, or the dtype of the tensor.
    """

    def __repr__(self) -> str:
        return f"<PreparedOperand {self.dtype} {self.shape} on GPU {self.device}>"


def reach(byte_extents: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return how many bytes a tensor with elements spans before its first element, and how many from there on, given
    its :attr:`TensorView.byte_extents`."""
    head, tail = 0, 1
    for extent, step in byte_extents:
        last = (extent - 1) * step
        head, tail = (head - last, tail) if last < 0 else (head, tail + last)
    return head, tail


def is_torch(tensor: object) -> bool:
    """Whether this is a PyTorch tensor. The function does not import PyTorch: a caller with a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def without_memory(name: str) -> OperandError:
    """Return the error for a tensor that has elements and no address."""
    return OperandError(
        f"{name} has no memory: it is a fake, meta or functional tensor, a wrapper around other tensors, or its "
        "storage was freed: pass a tensor whose elements are in GPU memory"
    )


# Several dtypes may share a code of other libraries; the first in the table counts. Callers name the others, as with
# b_dtype.
_ELEMENTS: tuple[DType | ComplexType, ...] = (*COMPLEX.values(), *reversed([*DTYPES.values()]))
_OF_TYPESTR = {dtype.typestr: dtype for dtype in _ELEMENTS if dtype.typestr}
_OF_DLPACK = {dtype.dlpack: dtype for dtype in _ELEMENTS if dtype.dlpack}

TABLES = ("offsets", "counts", "addresses", "rows")
"""Operands that locate matrices or their rows."""
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
"""Names of DLPack's type codes."""
_CONVERTED = {
    "scale": "; scales are floating-point: pass {}.float()",
}
"""Advice for an unsupported dtype, by the last word of the argument's name."""

_DLPACK_HOST = 1
_DLPACK_CUDA = 2
_DLPACK_CUDA_MANAGED = 13
_DLPACK_READ_ONLY = 1


def view(tensor: Any, name: str, stream: int = 0, *, may_be_complex: bool = False) -> TensorView:
    """Read a tensor; ``name`` is its name in errors.

    DLPack producers other than PyTorch get the stream that will use the tensor (0: the legacy default stream) and order
    their pending work before it. The function does not read the ``stream`` entry of ``__cuda_array_interface__``:
    callers order the streams themselves. A view is returned unchanged.
    """
    found = _view(tensor, name, stream)
    if found.imaginary and not may_be_complex:
        raise OperandError(
            f"{name} has dtype {found.element}; complex are only a, b, c and out of matmul and plan: pass its real and "
            "imaginary parts"
        )
    return found


def _view(tensor: Any, name: str, stream: int) -> TensorView:
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
            raise OperandError(f"{name}: {pointer:#x} is not an address in GPU memory")
        return from_cuda_array_interface(interface, name, device, tensor)
    raise OperandError(
        f"{name} is a {type(tensor).__module__}.{type(tensor).__qualname__}; it must be a PyTorch tensor, or an object "
        "with __dlpack__ or __cuda_array_interface__"
    )


def check_devices(tensors: Mapping[str, TensorView]) -> None:
    """Raise OperandError for a tensor that is on another GPU than the first."""
    first, device = next((name, tensor.device) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise OperandError(
                f"{name} is on GPU {tensor.device} and {first} is on GPU {device}; all must be on one GPU"
            )


def element_named(dtype: object, argument: str) -> str:
    """Return the name of a complex dtype, or else :func:`dtype_named`."""
    name = str(dtype).removeprefix("torch.")
    return name if name in COMPLEX else dtype_named(dtype, argument)


def dtype_named(dtype: object, argument: str) -> DTypeName:
    """Return gemmill's name of a dtype that a caller passed as a text or as an object of another library."""
    name = str(dtype)
    if (canonical := find_dtype(name)) is None:
        raise OperandError(f"{argument} is {dtype!r}{unknown(name) or ';'} supported dtypes are {', '.join(DTYPES)}")
    return canonical


def view_table(tensor: Any, name: str, stream: int = 0) -> TensorView:
    """Read offsets, counts, addresses or indices of rows as 32-bit words.

    For int64 offsets, counts and indices, these are the low words, at twice the stride, since the values are below
    2^31. For ``addresses``, which are int64, the result has twice as many words. All else is as in :func:`view`.
    """
    if isinstance(tensor, TensorView):
        return tensor
    dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if name == "addresses":
        if dtype != "int64":
            described = dtype or f"of a {type(tensor).__qualname__}"
            raise OperandError(f"{name} has dtype {described}; it must be int64, since addresses have 64 bits")
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
    """Return an integer tensor as int32 words; PyTorch, CuPy or any library whose tensors have ``view``."""
    try:
        return tensor.view(sys.modules["torch"].int32 if is_torch(tensor) else "int32")
    except (AttributeError, RuntimeError, ValueError):
        raise OperandError(f"{name} is not contiguous: pass {name}.contiguous()") from None


def unpacked(name: str, tensor: TensorView, dtype: DTypeName, k: int) -> TensorView:
    """Return ``a`` or ``b``, a tensor of bytes, as the elements that they hold: one of 8 bits, or two of 4 bits along
    K.

    ``k`` is the K of the other operand; it decides where the last byte holds only one element.
    """
    bits = DTYPES[dtype].bits
    axis = -2 if name == "b" and len(tensor.shape) > 1 else -1
    if dtype == tensor.dtype or not tensor.shape:  # later code refuses a scalar
        return tensor
    if bits > 8 or DTYPES[tensor.dtype].bits != 8:
        raise OperandError(
            f"{name} is {tensor.dtype}; to read it as {dtype} it must be a tensor of bytes: pass int8 or uint8"
        )
    if bits == 8:
        return replace(tensor, dtype=dtype)
    count = 2 * tensor.shape[axis]
    if dtype == "e2m1" and count % MX_BLOCK:
        raise OperandError(f"{name} has K = {count}; for {dtype} it must be a multiple of {MX_BLOCK}: pad K with zeros")
    if dtype != "e2m1" and k == count - 1:
        count = k
    if tensor.shape[axis] > 1 and tensor.strides[axis] != 1:
        raise OperandError(
            f"{name} has strides {tensor.strides}; two {dtype} share a byte along K, so K must be contiguous: pack "
            "(N, K / 2) and pass its transpose"
        )
    shape, strides = list(tensor.shape), [2 * step for step in tensor.strides]
    shape[axis], strides[axis] = count, 1
    return replace(tensor, shape=tuple(shape), strides=tuple(strides), dtype=dtype)


def not_on_gpu(name: str, device: object) -> OperandError:
    """Return the error for a PyTorch tensor on another device, such as ``cpu``."""
    return OperandError(f"{name} is on {device}; it must be in GPU memory: pass {name}.cuda()")


def _dtype_error(name: str, dtype: str) -> OperandError:
    advice = _CONVERTED.get(name.rpartition("_")[2], f"; supported dtypes are {', '.join(DTYPES)}: convert it first")
    return OperandError(f"{name} has dtype {dtype}{advice.format(name)}")


def _from_torch(tensor: Any, name: str) -> TensorView:
    if tensor.device.type != "cuda":
        raise not_on_gpu(name, tensor.device)
    return view_anywhere(tensor, name)


def view_anywhere(tensor: Any, name: str) -> TensorView:
    """Read a PyTorch tensor on any device. One that is not on a GPU counts as on GPU 0, so that a call which runs
    elsewhere can be checked; nothing can be launched on its view. Its address then lies above those that no GPU
    memory has."""
    if tensor.layout is not sys.modules["torch"].strided:
        raise OperandError(f"{name} has layout {tensor.layout}; it must be dense (strided): pass {name}.to_dense()")
    is_complex = tensor.is_complex()
    dtype = _of_torch(tensor.dtype)
    if dtype is None:
        raise _dtype_error(name, str(tensor.dtype))
    if tensor.is_neg():
        raise OperandError(f"{name} is a lazily negated view: pass {name}.resolve_neg()")
    try:
        has_memory = bool(tensor.untyped_storage().data_ptr()) or not tensor.numel()
        address = tensor.data_ptr() if has_memory else 0
    except (NotImplementedError, RuntimeError):  # a tensor without data
        has_memory = False
    if not has_memory:
        raise without_memory(name)
    return TensorView(
        ptr=address if tensor.is_cuda else address + LEAST_ADDRESS,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype,
        device=tensor.device.index or 0,
        owner=tensor,
        imaginary=(-1 if tensor.is_conj() else 1) if is_complex else 0,
    )


@functools.cache
def _of_torch(dtype: Any) -> DTypeName | None:
    """Return gemmill's name of a PyTorch dtype, or of its parts if it is complex; None for an unsupported one."""
    name = str(dtype).removeprefix("torch.")
    return COMPLEX[name].part if name in COMPLEX else TORCH_DTYPES.get(name)


def _parted(dtype: DType | ComplexType) -> tuple[DTypeName, int]:
    """Return the dtype and the sign of imaginary parts of a view whose elements have a type."""
    return (dtype.part, 1) if isinstance(dtype, ComplexType) else (dtype.name, 0)


def from_cuda_array_interface(interface: Mapping[str, Any], name: str, device: int, owner: object) -> TensorView:
    """Read version 2 or 3 of the CUDA array interface (Numba's documentation, "CUDA Array Interface")."""
    if interface.get("mask") is not None:
        raise OperandError(f"{name} has a mask; masked arrays are not supported: pass a dense one")
    dtype = _OF_TYPESTR.get(interface["typestr"])
    if dtype is None:
        raise _dtype_error(name, f"{interface['typestr']!r} (bf16 has no typestr: pass an object with __dlpack__)")
    shape = tuple(int(extent) for extent in interface["shape"])
    in_bytes = interface.get("strides")
    if in_bytes is None:
        strides = _row_major(shape)
    elif any(step % dtype.bytes for step in in_bytes):
        raise OperandError(
            f"{name} has strides of {tuple(in_bytes)} bytes; they must be multiples of the element size, {dtype.bytes}"
        )
    else:
        strides = tuple(int(step) // dtype.bytes for step in in_bytes)
    pointer, read_only = interface["data"]
    name_of_part, imaginary = _parted(dtype)
    return TensorView(int(pointer), shape, strides, name_of_part, device, not read_only, owner, imaginary)


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
        # The producer failed: a traced or deleted tensor, or an error of its library.
        raise OperandError(
            f"{name}, a {type(tensor).__qualname__}, failed to export a DLPack capsule: {error}"
        ) from error


def _from_capsule(tensor: Any, name: str, stream: int) -> TensorView:
    device_type, device = (int(part) for part in tensor.__dlpack_device__())
    if device_type not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED):
        where = "in host memory" if device_type == _DLPACK_HOST else f"on DLPack device {device_type}"
        raise OperandError(f"{name} is {where}; it must be in GPU memory: pass a copy, such as cupy.asarray({name})")
    consumer = stream or 1  # DLPack writes the legacy default stream as 1
    try:
        capsule = tensor.__dlpack__(stream=consumer, max_version=(1, 0))
    except TypeError:  # the producer is older than DLPack 1.0
        capsule = tensor.__dlpack__(stream=consumer)
    read_only = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise OperandError(f"{name} uses DLPack {managed.major}.{managed.minor}; supported is version 1")
        read_only = bool(managed.flags & _DLPACK_READ_ONLY)
        dl = managed.tensor
    elif _capsule_is_valid(capsule, b"dltensor"):
        dl = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise OperandError(f"{name}: its __dlpack__ returned {capsule!r}, which is not a DLPack capsule")
    dtype = _OF_DLPACK.get((dl.code, dl.bits))
    if dtype is None or dl.lanes != 1:
        kind = _KINDS.get(dl.code, f"DLPack code {dl.code} of bits ")
        raise _dtype_error(name, f"{kind}{dl.bits}" + (f" in vectors of {dl.lanes}" if dl.lanes != 1 else ""))
    shape = tuple(dl.shape[: dl.ndim])
    strides = tuple(dl.strides[: dl.ndim]) if dl.strides else _row_major(shape)
    # The capsule stays unconsumed, so the tensor is released with the view.
    owner = (tensor, capsule)
    ptr, (part, imaginary) = (dl.data or 0) + dl.byte_offset, _parted(dtype)
    return TensorView(ptr, shape, strides, part, device, not read_only, owner, imaginary)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)

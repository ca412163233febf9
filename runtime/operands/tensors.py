"""Strided tensors in GPU memory, whichever library they come from."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN


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

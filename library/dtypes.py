"""The dtype table. A new dtype is a row here, not a branch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

DTypeName = Literal["bf16", "f16", "f32"]
"""Names of :data:`DTYPES`, as a type that pydantic and the JSON Schema can list."""


@dataclass(frozen=True, slots=True)
class DType:
    """One element type as memory, C++, TMA, DLPack and error analysis see it."""

    name: DTypeName
    """Name in manifests, kernel names and the API."""
    bits: int
    """Size of one element in memory."""
    cpp: str
    """C++ type in the emitted source."""
    tma: str
    """``CUtensorMapDataType`` enumerator without its ``CU_TENSOR_MAP_DATA_TYPE_`` prefix."""
    dlpack: tuple[int, int]
    """DLPack type code and bits (dlpack.h, ``DLDataTypeCode``)."""
    torch: str
    """Name of the dtype in PyTorch."""
    typestr: str | None
    """``__cuda_array_interface__`` typestr; None where numpy has no such type."""
    epsilon: float
    """Distance from 1 to the next representable number."""

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return self.bits // 8


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        t.name: t
        for t in (
            DType("bf16", 16, "gemmill::bf16", "BFLOAT16", (4, 16), "bfloat16", None, 2.0**-7),
            DType("f16", 16, "gemmill::f16", "FLOAT16", (2, 16), "float16", "<f2", 2.0**-10),
            DType("f32", 32, "float", "FLOAT32", (2, 32), "float32", "<f4", 2.0**-23),
        )
    }
)
"""Every dtype gemmill knows, by name."""

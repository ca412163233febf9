"""The dtype table. A new dtype is a row here, not a branch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from gemmill.library.wording import suggest

DTypeName = Literal["bf16", "f16", "f32", "tf32", "f64", "e4m3", "e5m2", "s8", "u8", "s32", "s4", "u4", "ue8m0"]
"""Names of :data:`DTYPES`, as a type that pydantic and the JSON Schema can list."""
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""Largest finite float32."""


class DType(NamedTuple):
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
    """Distance from 1 to the next representable number; 1 for integers."""
    stored_as: DTypeName | None = None
    """The dtype of the tensors that hold it, where memory does not tell the two apart and the caller must."""
    alike: DTypeName | None = None
    """The dtype whose kernels are as fast with this one in its place, where sets declare more of those."""

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes; ValueError for packed elements, which have none."""
        if self.bits % 8:
            raise ValueError(f"{self.name} has {self.bits} bits an element, no whole number of bytes")
        return self.bits // 8

    @property
    def unpacked_bytes(self) -> int:
        """Size of one element in shared memory, where packed ones are unpacked, in bytes."""
        return max(8, self.bits) // 8

    @property
    def is_integer(self) -> bool:
        """Whether sums of its products are exact."""
        return self.dlpack[0] < 2


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        t.name: t
        for t in (
            DType("bf16", 16, "gemmill::bf16", "BFLOAT16", (4, 16), "bfloat16", None, 2.0**-7),
            DType("f16", 16, "gemmill::f16", "FLOAT16", (2, 16), "float16", "<f2", 2.0**-10),
            DType("f32", 32, "float", "FLOAT32", (2, 32), "float32", "<f4", 2.0**-23),
            DType("tf32", 32, "gemmill::tf32", "TFLOAT32", (2, 32), "float32", "<f4", 2.0**-10, stored_as="f32"),
            DType("f64", 64, "double", "FLOAT64", (2, 64), "float64", "<f8", 2.0**-52),
            DType("e4m3", 8, "gemmill::e4m3", "UINT8", (10, 8), "float8_e4m3fn", None, 2.0**-3),
            DType("e5m2", 8, "gemmill::e5m2", "UINT8", (12, 8), "float8_e5m2", None, 2.0**-2, alike="e4m3"),
            DType("s8", 8, "int8_t", "UINT8", (0, 8), "int8", "|i1", 1.0),
            DType("u8", 8, "uint8_t", "UINT8", (1, 8), "uint8", "|u1", 1.0, alike="s8"),
            DType("s32", 32, "int32_t", "INT32", (0, 32), "int32", "<i4", 1.0),
            # Powers of two, of which there are only scales.
            DType("ue8m0", 8, "gemmill::ue8m0", "UINT8", (14, 8), "float8_e8m0fnu", None, 1.0),
            # Two in a byte, the even one in the low half.
            DType("s4", 4, "gemmill::s4", "UINT8", (0, 4), "int8", None, 1.0, stored_as="s8"),
            DType("u4", 4, "gemmill::u4", "UINT8", (1, 4), "uint8", None, 1.0, stored_as="u8"),
        )
    }
)
"""Every dtype gemmill knows, by name."""


_ELSEWHERE: Mapping[str, DTypeName] = MappingProxyType(
    {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
    | {"fp16": "f16", "half": "f16", "fp32": "f32", "float": "f32", "single": "f32", "fp64": "f64", "double": "f64"}
    | {"tensorfloat32": "tf32", "tfloat32": "tf32"}
    | dict.fromkeys(("e4m3fn", "fp8", "fp8_e4m3", "f8e4m3", "f8e4m3fn", "fe4m3", "float8_e4m3", "float8e4m3fn"), "e4m3")
    | dict.fromkeys(("fp8_e5m2", "f8e5m2", "fe5m2", "float8e5m2"), "e5m2")
    | dict.fromkeys(("e8m0", "e8m0fnu", "f8e8m0", "f8e8m0fnu", "fue8m0", "float8_e8m0"), "ue8m0")
    | {"int4": "s4", "uint4": "u4", "i4": "s4", "i8": "s8", "i32": "s32", "int": "s32"}
)
"""What PyTorch, NumPy, CUTLASS and others call dtypes."""


def called(name: str) -> DTypeName | None:
    """The dtype of a name, ours or another's; None where nobody calls one so."""
    if name in DTYPES:
        return DTYPES[name].name
    return _ELSEWHERE.get(name.strip().lower().removeprefix("torch."))


def unknown(name: str) -> str:
    """What an error says of a name that no dtype has: the one that others call so, or whose name is near."""
    meant = called(name)
    return f", did you mean {meant}?" if meant else suggest(name, DTYPES)


def with_alike(dtype: DTypeName) -> tuple[DTypeName, ...]:
    """A type of A or B, and the one whose kernels may be taken with it, if there is one."""
    other = DTYPES[dtype].alike
    return (dtype, other) if other else (dtype,)


def default_accumulator(dtype: str) -> DTypeName:
    """The type that products of operands of a type are summed in where nobody asks for another."""
    return "s32" if DTYPES[dtype].is_integer else "f64" if dtype == "f64" else "f32"


def default_output(dtype: DTypeName) -> DTypeName:
    """The type of D where nobody asks for another: the operands', or for 8 bits and fewer, one that holds the sums."""
    if DTYPES[dtype].bits > 8:
        return dtype
    return "s32" if DTYPES[dtype].is_integer else "bf16"

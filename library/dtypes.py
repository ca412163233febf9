"""The table of dtypes. To add a dtype, add a row here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from gemmill.library.wording import suggest

DTypeName = Literal[
    "bf16",
    "f16",
    "f32",
    "tf32",
    "bf16x9",
    "bf16x6",
    "bf16x3",
    "f16x3",
    "f64",
    "e4m3",
    "e5m2",
    "s8",
    "u8",
    "s32",
    "s4",
    "u4",
    "ue8m0",
    "e2m1",
]
"""The names in :data:`DTYPES`, as a type for pydantic and the JSON Schema."""
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""Largest finite float32."""


class DType(NamedTuple):
    """An element type: its size, numeric properties, and names in C++, TMA, DLPack and other libraries."""

    name: DTypeName
    """Name in manifests, kernel names and the API."""
    bits: int
    """Size of an element in memory in bits."""
    cpp: str
    """C++ type in the emitted source."""
    tma: str
    """``CUtensorMapDataType`` enumerator without its ``CU_TENSOR_MAP_DATA_TYPE_`` prefix."""
    dlpack: tuple[int, int]
    """DLPack type code and bits (dlpack.h, ``DLDataTypeCode``)."""
    torch: str
    """Name of the dtype in PyTorch."""
    typestr: str | None
    """``__cuda_array_interface__`` typestr; None if NumPy has no such type."""
    epsilon: float
    """Distance from 1 to the next representable number; 1 for integers."""
    largest: float
    """Largest finite value."""
    least_exponent: int
    """Exponent of 2 in the smallest normal number; 0 for integers."""
    names: str
    """Further names in PyTorch, NumPy, CUTLASS, BLAS libraries and their logs, separated by spaces."""
    cuda: str | None = None
    """``cudaDataType`` in cuBLASLt's calls; None if gemmill has no cuBLASLt baseline for it."""
    xla: int | None = None
    """``XLA_FFI_DataType``; None if JAX has no arrays of it."""
    aten: int | None = None
    """Number in PyTorch's traces (c10/core/ScalarType.h)."""
    stored_as: DTypeName | None = None
    """The dtype of the tensors that contain it, if tensors do not distinguish the two and the caller must state it."""
    compatible: DTypeName | None = None
    """A dtype whose kernels have the same speed with this dtype, and of which kernel sets declare more."""
    component: DTypeName | None = None
    """For f32 that is multiplied as a sum of products of a narrower type: the type of the components into which an
    element is split, the largest first. They add up to the element."""
    terms: tuple[tuple[int, int], ...] = ((0, 0),)
    """The products that are summed, in order: a component of A and one of B, by their index."""

    @property
    def components(self) -> int:
        """Components into which an element is split; 1 for types that are not."""
        return 1 + max(max(term) for term in self.terms)

    @property
    def scales_rows(self) -> bool:
        """Whether rows of A and columns of B are scaled by powers of two before they are split, since components have
        less range than f32."""
        return self.component is not None and self.loaded.least_exponent > self.least_exponent

    @property
    def loaded(self) -> DType:
        """The type that kernels load into shared memory: that of the components, or the type itself."""
        return DTYPES[self.component] if self.component else self

    @property
    def bytes(self) -> int:
        """Size of an element in memory in bytes; ValueError for packed types."""
        if self.bits % 8:
            raise ValueError(f"{self.name} has {self.bits} bits per element, which is not a whole number of bytes")
        return self.bits // 8

    @property
    def unpacked_bytes(self) -> int:
        """Size of an element in bytes; 1 for packed types, as in unpacked form."""
        return max(8, self.bits) // 8

    @property
    def least(self) -> float:
        """Smallest (most negative) finite value."""
        if not self.is_integer:
            return -self.largest
        is_signed = self.dlpack[0] == 0
        return -self.largest - 1 if is_signed else 0.0

    @property
    def is_scale(self) -> bool:
        """Whether it is used only for scales."""
        return self.epsilon == 1 and not self.is_integer

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type, so that sums of products are exact."""
        return self.dlpack[0] < 2


_NINE_TERMS = ((2, 2), (1, 2), (2, 1), (0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0))
"""All products of three components of A and of B, the smallest first."""


def _split(name: DTypeName, component: DTypeName, terms: tuple[tuple[int, int], ...], epsilon: float) -> DType:
    """The row of f32 that is multiplied as ``terms`` of a narrower type."""
    return DType(
        name,
        32,
        cpp="float",
        tma="FLOAT32",
        dlpack=(2, 32),
        torch="float32",
        typestr="<f4",
        epsilon=epsilon,
        largest=MAX_FLOAT32,
        least_exponent=-126,
        names="",
        cuda="CUDA_R_32F",
        stored_as="f32",
        component=component,
        terms=terms,
    )


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        t.name: t
        for t in (
            DType(
                "bf16",
                16,
                cpp="gemmill::bf16",
                tma="BFLOAT16",
                dlpack=(4, 16),
                torch="bfloat16",
                typestr=None,
                epsilon=2.0**-7,
                largest=(2 - 2**-7) * 2.0**127,
                least_exponent=-126,
                names="16bf bf16_r",
                cuda="CUDA_R_16BF",
                xla=16,
                aten=15,
            ),
            DType(
                "f16",
                16,
                cpp="gemmill::f16",
                tma="FLOAT16",
                dlpack=(2, 16),
                torch="float16",
                typestr="<f2",
                epsilon=2.0**-10,
                largest=65504.0,
                least_exponent=-14,
                names="half fp16 16f f16_r h",
                cuda="CUDA_R_16F",
                xla=10,
                aten=5,
            ),
            DType(
                "f32",
                32,
                cpp="float",
                tma="FLOAT32",
                dlpack=(2, 32),
                torch="float32",
                typestr="<f4",
                epsilon=2.0**-23,
                largest=MAX_FLOAT32,
                least_exponent=-126,
                names="float single fp32 32f f32_r s",
                cuda="CUDA_R_32F",
                xla=11,
                aten=6,
            ),
            DType(
                "tf32",
                32,
                cpp="gemmill::tf32",
                tma="TFLOAT32",
                dlpack=(2, 32),
                torch="float32",
                typestr="<f4",
                epsilon=2.0**-10,
                largest=(2 - 2**-10) * 2.0**127,
                least_exponent=-126,
                names="tensorfloat32 tfloat32 xf32 xf32_r",
                cuda="CUDA_R_32F",
                stored_as="f32",
            ),
            # Three components of bf16 hold all bits of an f32, two 16; two of f16 hold 23.
            _split("bf16x9", "bf16", _NINE_TERMS, epsilon=2.0**-23),
            _split("bf16x6", "bf16", _NINE_TERMS[3:], epsilon=2.0**-22),
            _split("bf16x3", "bf16", _NINE_TERMS[6:], epsilon=2.0**-15),
            _split("f16x3", "f16", _NINE_TERMS[6:], epsilon=2.0**-21),
            DType(
                "f64",
                64,
                cpp="double",
                tma="FLOAT64",
                dlpack=(2, 64),
                torch="float64",
                typestr="<f8",
                epsilon=2.0**-52,
                largest=(2 - 2**-52) * 2.0**1023,
                least_exponent=-1022,
                names="double fp64 64f f64_r d",
                cuda="CUDA_R_64F",
                xla=12,
                aten=7,
            ),
            DType(
                "e4m3",
                8,
                cpp="gemmill::e4m3",
                tma="UINT8",
                dlpack=(10, 8),
                torch="float8_e4m3fn",
                typestr=None,
                epsilon=2.0**-3,
                largest=448.0,
                least_exponent=-6,
                names="e4m3fn fp8 fp8_e4m3 f8e4m3 f8e4m3fn fe4m3 float8_e4m3 float8e4m3fn 8f_e4m3 f8_r",
                cuda="CUDA_R_8F_E4M3",
                xla=20,
                aten=24,
            ),
            DType(
                "e5m2",
                8,
                cpp="gemmill::e5m2",
                tma="UINT8",
                dlpack=(12, 8),
                torch="float8_e5m2",
                typestr=None,
                epsilon=2.0**-2,
                largest=57344.0,
                least_exponent=-14,
                names="fp8_e5m2 f8e5m2 fe5m2 float8e5m2 8f_e5m2 bf8_r",
                cuda="CUDA_R_8F_E5M2",
                xla=19,
                aten=23,
                compatible="e4m3",
            ),
            DType(
                "s8",
                8,
                cpp="int8_t",
                tma="UINT8",
                dlpack=(0, 8),
                torch="int8",
                typestr="|i1",
                epsilon=1.0,
                largest=127.0,
                least_exponent=0,
                names="i8 8i i8_r char signed_char",
                cuda="CUDA_R_8I",
                xla=2,
                aten=1,
            ),
            DType(
                "u8",
                8,
                cpp="uint8_t",
                tma="UINT8",
                dlpack=(1, 8),
                torch="uint8",
                typestr="|u1",
                epsilon=1.0,
                largest=255.0,
                least_exponent=0,
                names="8u u8_r unsigned_char",
                xla=6,
                aten=0,
                compatible="s8",
            ),
            DType(
                "s32",
                32,
                cpp="int32_t",
                tma="INT32",
                dlpack=(0, 32),
                torch="int32",
                typestr="<i4",
                epsilon=1.0,
                largest=2.0**31 - 1,
                least_exponent=0,
                names="i32 int 32i i32_r",
                cuda="CUDA_R_32I",
                xla=4,
                aten=3,
            ),
            # Powers of two; used only for scales.
            DType(
                "ue8m0",
                8,
                cpp="gemmill::ue8m0",
                tma="UINT8",
                dlpack=(14, 8),
                torch="float8_e8m0fnu",
                typestr=None,
                epsilon=1.0,
                largest=2.0**127,
                least_exponent=-127,
                names="e8m0 e8m0fnu f8e8m0 f8e8m0fnu fue8m0 float8_e8m0",
                xla=33,
            ),
            # Two per byte; the element with the even index is in the low half.
            DType(
                "s4",
                4,
                cpp="gemmill::s4",
                tma="UINT8",
                dlpack=(0, 4),
                torch="int8",
                typestr=None,
                epsilon=1.0,
                largest=7.0,
                least_exponent=0,
                names="int4 i4 4i i4_r",
                stored_as="s8",
            ),
            DType(
                "u4",
                4,
                cpp="gemmill::u4",
                tma="UINT8",
                dlpack=(1, 4),
                torch="uint8",
                typestr=None,
                epsilon=1.0,
                largest=15.0,
                least_exponent=0,
                names="uint4 4u u4_r",
                stored_as="u8",
            ),
            # Two per byte, in the order of fragments (emitters/include/gemmill/mma/upconvert.cuh).
            DType(
                "e2m1",
                4,
                cpp="gemmill::e2m1",
                tma="UINT8",
                dlpack=(17, 4),
                torch="uint8",
                typestr=None,
                epsilon=2.0**-1,
                largest=6.0,
                least_exponent=0,
                names="fp4 e2m1fn f4e2m1fn fe2m1 float4_e2m1 float4_e2m1fn float4_e2m1fn_x2 4f_e2m1",
                stored_as="u8",
            ),
        )
    }
)
"""Every supported dtype by name."""
SPLIT: tuple[DTypeName, ...] = tuple(t.name for t in DTYPES.values() if t.component)
"""Types of f32 operands that are multiplied as sums of products of a narrower type."""
SPLIT_PROMOTION = 2
"""WGMMAs of each term after which sums of split f32 move to f32 registers (two-level accumulation)."""

FP8 = tuple(t.name for t in DTYPES.values() if t.bits == 8 and not t.is_integer and not t.is_scale)
"""8-bit floating-point types of operands."""
INT8 = tuple(t.name for t in DTYPES.values() if t.bits == 8 and t.is_integer)
"""8-bit integer types."""
NAMES: Mapping[str, DTypeName] = MappingProxyType(
    {name: t.name for t in DTYPES.values() for name in (t.name, *t.names.split())}
    | {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
)
"""Dtypes by gemmill's names and those of PyTorch, NumPy, CUTLASS and others."""


class ComplexType(NamedTuple):
    """A type whose elements are pairs: a real part, then an imaginary part. Products of it are real products."""

    name: str
    """Its name, in PyTorch and NumPy too."""
    part: DTypeName
    dlpack: tuple[int, int]
    typestr: str

    @property
    def bytes(self) -> int:
        """Size of an element in memory in bytes."""
        return 2 * DTYPES[self.part].bytes

    @property
    def torch(self) -> str:
        """Name of the dtype in PyTorch."""
        return self.name


COMPLEX: Mapping[str, ComplexType] = MappingProxyType(
    {
        "complex64": ComplexType("complex64", "f32", dlpack=(5, 64), typestr="<c8"),
        "complex128": ComplexType("complex128", "f64", dlpack=(5, 128), typestr="<c16"),
    }
)
"""Complex types by name."""
COMPLEX_OF: Mapping[str, str] = MappingProxyType({x.part: x.name for x in COMPLEX.values()})
"""The complex type by the type of its parts."""


def find_dtype(name: str) -> DTypeName | None:
    """The dtype with a name, gemmill's or another library's; None if there is none. Single letters are not accepted."""
    word = name.strip().lower().removeprefix("torch.")
    return NAMES.get(word) if len(word) > 1 else None


def unknown(name: str) -> str:
    """The hint of an error about an unknown dtype: the one with that name in another library, or a similar name."""
    meant = find_dtype(name)
    return f", did you mean {meant}?" if meant else suggest(name, DTYPES)


def compatible_types(dtype: DTypeName) -> tuple[DTypeName, ...]:
    """A type of A or B, and its :attr:`DType.compatible` type if there is one."""
    other = DTYPES[dtype].compatible
    return (dtype, other) if other else (dtype,)


def default_accumulator(dtype: str) -> DTypeName:
    """The default accumulator type for operands of a type."""
    return "s32" if DTYPES[dtype].is_integer else "f64" if dtype == "f64" else "f32"


def default_output(dtype: DTypeName) -> DTypeName:
    """The default type of D: the type in which operands are stored (f32 for tf32); for operands of at most 8 bits, s32
    or bf16."""
    if DTYPES[dtype].bits > 8:
        return DTYPES[dtype].stored_as or dtype
    return "s32" if DTYPES[dtype].is_integer else "bf16"

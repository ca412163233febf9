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
    largest: float
    """Greatest finite value."""
    least_exponent: int
    """Of 2, in the least normal number; 0 for integers."""
    names: str
    """What PyTorch, NumPy, CUTLASS, BLAS libraries and logs of them call it beside these, between spaces."""
    cuda: str | None = None
    """``cudaDataType`` in cuBLASLt's calls; None where gemmill compares itself with none."""
    xla: int | None = None
    """``XLA_FFI_DataType``; None where JAX has no arrays of it."""
    aten: int | None = None
    """Number in PyTorch's traces (c10/core/ScalarType.h)."""
    stored_as: DTypeName | None = None
    """The dtype of the tensors that hold it, where memory does not tell the two apart and the caller must."""
    compatible: DTypeName | None = None
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
    def least(self) -> float:
        """Least finite value."""
        if not self.is_integer:
            return -self.largest
        is_signed = self.dlpack[0] == 0
        return -self.largest - 1 if is_signed else 0.0

    @property
    def is_scale(self) -> bool:
        """Whether there are only scales of it."""
        return self.epsilon == 1 and not self.is_integer

    @property
    def is_integer(self) -> bool:
        """Whether sums of its products are exact."""
        return self.dlpack[0] < 2


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
            # Powers of two, of which there are only scales.
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
            # Two in a byte, the even one in the low half.
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
        )
    }
)
"""Every dtype gemmill knows, by name."""


FP8 = tuple(t.name for t in DTYPES.values() if t.bits == 8 and not t.is_integer and not t.is_scale)
"""Floating-point types of 8 bits that are multiplied."""
INT8 = tuple(t.name for t in DTYPES.values() if t.bits == 8 and t.is_integer)
"""Integers of 8 bits."""
NAMES: Mapping[str, DTypeName] = MappingProxyType(
    {name: t.name for t in DTYPES.values() for name in (t.name, *t.names.split())}
    | {t.torch: t.name for t in DTYPES.values() if t.stored_as is None}
)
"""Dtypes by what PyTorch, NumPy, CUTLASS and others call them, and by their own names."""


def find_dtype(name: str) -> DTypeName | None:
    """The dtype of a name, ours or another's; None where nobody calls one so. A letter is none."""
    word = name.strip().lower().removeprefix("torch.")
    return NAMES.get(word) if len(word) > 1 else None


def unknown(name: str) -> str:
    """What an error says of a name that no dtype has: the one that others call so, or whose name is near."""
    meant = find_dtype(name)
    return f", did you mean {meant}?" if meant else suggest(name, DTYPES)


def compatible_types(dtype: DTypeName) -> tuple[DTypeName, ...]:
    """A type of A or B, and the one whose kernels may be taken with it, if there is one."""
    other = DTYPES[dtype].compatible
    return (dtype, other) if other else (dtype,)


def default_accumulator(dtype: str) -> DTypeName:
    """The type that products of operands of a type are summed in where nobody asks for another."""
    return "s32" if DTYPES[dtype].is_integer else "f64" if dtype == "f64" else "f32"


def default_output(dtype: DTypeName) -> DTypeName:
    """The type of D where none is requested: that in which operands are stored, f32 for tf32, or for 8 bits and fewer,
    one that holds the sums."""
    if DTYPES[dtype].bits > 8:
        return DTYPES[dtype].stored_as or dtype
    return "s32" if DTYPES[dtype].is_integer else "bf16"

"""What others call dtypes and what is done after a product, in the words of this library."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.profiler.imports.problems import LeftOut, shown

_CALLED: Mapping[DTypeName, str] = {
    "bf16": "bfloat16 bf16 16bf bf16_r",
    "f16": "half float16 fp16 f16 16f f16_r h",
    "f32": "float single float32 fp32 f32 32f f32_r s",
    "tf32": "tf32 xf32 xf32_r",
    "f64": "double float64 fp64 f64 64f f64_r d",
    "e4m3": "float8_e4m3fn float8_e4m3 fp8_e4m3 fp8 e4m3fn e4m3 fe4m3 8f_e4m3 f8_r",
    "e5m2": "float8_e5m2 fp8_e5m2 e5m2 fe5m2 8f_e5m2 bf8_r",
    "s8": "int8 i8 s8 8i i8_r char signed_char",
    "u8": "uint8 u8 8u u8_r unsigned_char",
    "s32": "int32 i32 s32 32i i32_r int",
    "s4": "int4 i4 s4 4i i4_r",
    "u4": "uint4 u4 4u u4_r",
}
_MEANT: Mapping[str, DTypeName] = MappingProxyType(
    {word: name for name, words in _CALLED.items() for word in words.split()}
)
_PREFIXES = ("torch.", "c10::", "cuda_", "hip_", "r_")


def dtype(word: object, what: str) -> DTypeName:
    """The dtype that a word of another library means; LeftOut where it is none that kernels here take."""
    key = word.strip().lower().replace(" ", "_") if isinstance(word, str) else ""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    if key not in _MEANT:
        raise LeftOut(f"the type of {what} is {shown(word)}; those here are {', '.join(DTYPES)}")
    return _MEANT[key]


def compute(word: str) -> tuple[DTypeName | None, bool]:
    """The accumulator that a BLAS compute type means, if it says one, and whether it multiplies f32 as TF32."""
    key = word.strip().lower().removeprefix("cublas_").removeprefix("compute_").removeprefix("c_")
    key = key.replace("_pedantic", "")
    if "tf32" in key or "xf32" in key:
        return "f32", True
    if not key:
        return None, False
    first = key.removeprefix("cuda_r_").partition("_fast")[0]
    return dtype(
        first.removesuffix("_f16_r").removesuffix("_bf16_r") if first.startswith("f32_") else first, "sums"
    ), False


_SUFFIX: Mapping[str, str] = MappingProxyType({name: f".{name}" for name in DTYPES} | {"f32": ""})


def epilogue(function: str, bias: DTypeName | None, *, adds_c: bool = False) -> str | None:
    """The epilogue that applies a function to a product, to which a bias of N elements was added; None for none."""
    if not function and bias is None:
        return None
    value = "alpha * acc" + (" + beta * c" if adds_c else "") + (f" + bias{_SUFFIX[bias]}[n]" if bias else "")
    return f"d = {function}({value})" if function else f"d = {value}"

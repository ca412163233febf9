"""Elements of each type as bits: their values, the tensor core's view of them, and rounding of results to bits.

NumPy has no bf16 and no fp8, so arrays of these hold bits: uint16 or uint8. Other types are NumPy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.errors import ProblemError

ARRAYS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(FP8, "uint8"),
        "bf16": "uint16",
        "f16": "float16",
        "f32": "float32",
        "tf32": "float32",
        "f64": "float64",
        "s8": "int8",
        "u8": "uint8",
        "s32": "int32",
    }
)
"""NumPy's dtype of an array of each type."""
_NAN = np.uint32(0x7FFFFFFF)
"""The NaN that tensor cores and additions in f32 return."""
_TF32_BITS = 13
"""Bits of an f32 that tf32 does not have."""


class Factors(NamedTuple):
    """An operand as the tensor core takes it, K along the first axis."""

    values: np.ndarray
    """float32; 0 for infinities and NaNs."""
    powers: np.ndarray
    """float64: 2 to the power of a multiple of the exponent, to find the largest exponent of several products; 0 for
    zeros, infinities and NaNs. The exponent of a subnormal number is that of the smallest normal one."""
    specials: np.ndarray | None
    """float32: infinities and NaNs as they are, zeros as 0, other elements as 1 or -1; None if all are finite."""

    def part(self, along_k: slice, elements: slice = slice(None)) -> Factors:
        """A part along K, of some rows of A or columns of B."""
        specials = None if self.specials is None else self.specials[along_k, elements]
        if specials is not None and np.isfinite(specials).all():
            specials = None
        return Factors(self.values[along_k, elements], self.powers[along_k, elements], specials)

    def ordered(self, indices: np.ndarray) -> Factors:
        """The elements at indices along K; zeros at the index -1."""
        absent = (indices < 0)[:, None]
        values, powers = (np.where(absent, 0, x[indices]) for x in (self.values, self.powers))
        specials = None if self.specials is None else np.where(absent, 0, self.specials[indices])
        return Factors(values, powers, specials)


def checked_array(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Return an operand as an array of its type; integers of the size of its elements are read as their bits.

    Raises:
        ProblemError: the elements have another size.
    """
    expected = np.dtype(ARRAYS[dtype])
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == expected:
        return array
    if array.dtype.itemsize == expected.itemsize and array.dtype.kind in "iuV":
        return np.ascontiguousarray(array).view(expected)
    raise ProblemError(f"{name} is an array of {array.dtype}; {dtype} takes {expected} or integers with its bits")


def values(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of elements as float32, float64 or int32, exactly."""
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype == "e5m2":
        return (array.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    if dtype == "e4m3":
        return np.asarray(_e4m3_values()[array])
    if DTYPES[dtype].is_integer:
        return array.astype(np.int32)
    return array if dtype == "f64" else array.astype(np.float32)


def _e4m3_values() -> np.ndarray:
    bits = np.arange(256)
    exponent, fraction = (bits >> 3) & 15, bits & 7
    sizes = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    sizes[bits & 127 == 127] = np.nan
    return np.where(bits & 128, -sizes, sizes).astype(np.float32)


def rounded_to_tf32(array: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest tf32, ties to even."""
    bits = array.view(np.uint32)
    nearest = bits + np.uint32(2 ** (_TF32_BITS - 1) - 1) + ((bits >> _TF32_BITS) & np.uint32(1))
    rounded = (nearest & np.uint32(2**32 - 2**_TF32_BITS)).view(np.float32)
    return np.where(np.isnan(array), array, rounded)


def factors(array: np.ndarray, least_exponent: int, spread: int, shift: int = 0) -> Factors:
    """Take float32 values apart. ``least_exponent`` is that of the smallest normal number of the type that the tensor
    core multiplies; powers have ``spread`` times the exponent plus ``shift``."""
    finite = np.isfinite(array)
    array, specials = (array, None) if finite.all() else (np.where(finite, array, 0), _specials(array))
    exponents = np.maximum(np.frexp(array)[1] - 1, least_exponent)
    powers = np.where(array == 0, 0, np.ldexp(1.0, spread * exponents + shift))
    return Factors(array, powers, specials)


def _specials(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array), np.sign(array), array)


def with_one_nan(sums: np.ndarray) -> np.ndarray:
    """Give every NaN of a float32 array the bits of the GPU's NaN."""
    return np.where(np.isnan(sums), _NAN, sums.view(np.uint32)).view(np.float32)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 or float64 results to a type as kernels do: to nearest, ties to even; 8-bit types saturate.

    Raises:
        ProblemError: the oracle has no such rounding.
    """
    if dtype in ("f32", "f64"):
        return array.astype(ARRAYS[dtype])
    if dtype not in ("bf16", "f16", *FP8, *INT8):
        raise ProblemError(f"d_dtype is {dtype} for sums in {array.dtype}; they are rounded to floats or 8 bits")
    row = DTYPES[dtype]
    if row.is_integer:
        nearest = np.rint(np.where(np.isnan(array), 0, array))
        return np.asarray(np.clip(nearest, row.least, row.largest), ARRAYS[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        wide = array.astype(np.float32).astype(np.float64)
        _, exponents = np.frexp(wide)
        quantum = np.maximum(exponents - 1, row.least_exponent) + round(np.log2(row.epsilon))
        nearest = np.ldexp(np.rint(np.ldexp(wide, -quantum)), quantum)
        if row.bits == 8:
            nearest = np.clip(nearest, row.least, row.largest)
    return _encoded(np.where(np.isnan(wide), wide, nearest), dtype)


def _encoded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The bits of float64 values that the type has exactly, or that overflow it."""
    with np.errstate(over="ignore"):
        if dtype == "bf16":
            bits = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            return np.where(np.isnan(array), np.uint16(0x7FFF), bits)
        if dtype == "f16":
            bits = array.astype(np.float16).view(np.uint16)
            return np.where(np.isnan(array), np.uint16(0x7FFF), bits).view(np.float16)
        if dtype == "e5m2":
            bits = (array.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
            return np.where(np.isnan(array), np.uint8(0x7F), bits)
    sizes = _e4m3_values()[:127].astype(np.float64)
    bits = np.searchsorted(sizes, np.abs(np.where(np.isnan(array), 0, array))).astype(np.uint8)
    bits |= (np.signbit(array) * 128).astype(np.uint8)
    return np.where(np.isnan(array), np.uint8(0x7F), bits)

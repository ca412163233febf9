"""The tensor core's sum, to the bit.

In one step the tensor core adds the products of a few elements along K to a sum at once:

1. A product is exact. Its exponent is the sum of the operands' exponents (a subnormal number has the exponent of the
   smallest normal one), so its significand may be below 1 or up to 4.
2. All products, and the sum so far, are aligned to the largest exponent among them, and truncated toward zero to some
   bits of fraction below it. A zero has no exponent. No exponent counts as less than :data:`LEAST_EXPONENT`.
3. The aligned values are added exactly, and the result is truncated toward zero to the format of the sum. Overflow
   gives infinity. A zero result is +0.
4. Infinities and NaNs behave as in IEEE 754; every NaN has the bits 0x7fffffff.

Sources: arXiv 2511.10909 and 2512.07004, which agree on steps 1 to 4; the least exponent was found on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gemmill.library.oracle.elements import Factors

LEAST_EXPONENT = -133
"""The least exponent to which the tensor core aligns. It matters only to sums of bf16 and tf32 below 2**-126."""
BLOCK_ELEMENTS = 1 << 17
"""Products that are in memory at a time: with ten bytes each, buffers of them about fit a core's L2 cache."""
_SPARE = 3
"""Bits by which a product is shifted up in advance: the significand of a product is below 4."""
_LEAST_NORMAL = -126
"""Exponent of the smallest normal float32, and of every subnormal one."""
_USUAL = range(_LEAST_NORMAL, 121)
"""Largest exponents of a step in which no sum is subnormal, overflows, or is infinite or NaN already."""
_BIAS = 1023
"""Of exponents of float64."""
_SUBNORMAL_QUANTUM = 149
"""The smallest float32 is 2 to the power of minus this."""


class Model(NamedTuple):
    """How the tensor core of sm_90 sums products of a type to a sum in f32."""

    products: int
    """Products of one step."""
    aligned: int
    """Bits of fraction that an aligned value keeps."""
    kept: int
    """Bits of fraction of the sum."""


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "k8": Model(8, 25, 23),
        "k16": Model(16, 25, 23),
        "k16x2": Model(16, 25, 23),
        "k32": Model(32, 13, 13),
    }
)
"""Models by the step of an arithmetic (:data:`gemmill.library.arithmetic.STEPS`)."""


class Buffers:
    """The sums of a block of D, and memory for the products of one step, which every step uses again."""

    def __init__(self, model: Model, rows: int, columns: int) -> None:
        shape = (model.products, rows, columns)
        self.products = np.empty(shape, np.float32)
        self.exponents = np.empty(shape, np.int16)
        self.integers = np.empty(shape, np.int32)
        self.sums = np.zeros(shape[1:])
        """float64 that hold float32."""
        self.added = np.empty(shape[1:], np.int32)
        self.scale = np.zeros(shape[1:])


def block_shape(model: Model, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of a block of an m x n D whose products of one step fit :data:`BLOCK_ELEMENTS`."""
    columns = min(n, 512)
    rows = max(1, min(m, BLOCK_ELEMENTS // (model.products * columns)))
    return rows, max(1, min(n, BLOCK_ELEMENTS // (model.products * rows)))


def add_step(model: Model, a: Factors, b: Factors, buffers: Buffers) -> None:
    """Add the products of one step to the sums of a block; ``a`` and ``b`` have K along their first axis."""
    eighths = b.significands * np.float32(2.0**-_SPARE)
    np.multiply(a.significands[:, :, None], eighths[:, None, :], out=buffers.products)
    np.add(a.exponents[:, :, None], b.exponents[:, None, :], out=buffers.exponents)
    sums = buffers.sums
    largest = np.maximum.reduce(buffers.exponents, axis=0)
    own = (_high_words(sums) >> 4 & 2047) - np.int16(_BIAS)
    top = np.maximum(largest, own)
    usual = top.min() in _USUAL and top.max() in _USUAL and a.specials is None and b.specials is None
    before = None if usual else sums.copy()
    if before is not None:
        own = np.maximum(own, np.int16(_LEAST_NORMAL))
        top = np.maximum(largest, np.where(sums == 0, np.int16(LEAST_EXPONENT), own))
    _add_products(model, top, buffers)
    sums.view(np.int64)[:] &= ~((1 << (52 - model.kept)) - 1)  # truncates
    sums /= buffers.scale
    if before is not None:
        _treat_unusual(a, b, before, sums)


def _high_words(array: np.ndarray) -> np.ndarray:
    """The high 16 bits of each float64."""
    return array.view(np.int16)[..., 3::4]


def _add_products(model: Model, top: np.ndarray, buffers: Buffers) -> None:
    """Scale the sums so that the last kept bit is 1, truncate, and add the truncated products."""
    # A product whose exponent is below `low` truncates to zero, as does one at `low`, so shifts are never negative.
    low = top - np.int16(model.aligned + _SPARE)
    np.maximum(buffers.exponents, low, out=buffers.exponents)
    np.subtract(buffers.exponents, low, out=buffers.exponents)
    np.copyto(buffers.integers, buffers.exponents)
    np.left_shift(buffers.integers, 23, out=buffers.integers)
    bits = buffers.products.view(np.int32)
    np.add(bits, buffers.integers, out=bits)
    np.copyto(buffers.integers, buffers.products, casting="unsafe")  # truncates
    np.add.reduce(buffers.integers, axis=0, dtype=np.int32, out=buffers.added)
    _high_words(buffers.scale)[:] = (np.int16(model.aligned + _BIAS) - top) << 4  # powers of two
    buffers.sums *= buffers.scale
    np.trunc(buffers.sums, out=buffers.sums)
    buffers.sums += buffers.added


def _treat_unusual(a: Factors, b: Factors, before: np.ndarray, sums: np.ndarray) -> None:
    """Give sums the range of float32, and take infinities and NaNs of operands and earlier sums into account."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums[:] = (np.trunc(sums * 2.0**_SUBNORMAL_QUANTUM) * 2.0**-_SUBNORMAL_QUANTUM).astype(np.float32)
        special = np.where(np.isfinite(before), 0.0, before)
        if a.specials is not None or b.specials is not None:
            left, right = (np.sign(x.significands) if x.specials is None else x.specials for x in (a, b))
            special += np.add.reduce(left[:, :, None] * right[:, None, :], axis=0)
        np.copyto(sums, special, where=~np.isfinite(special))

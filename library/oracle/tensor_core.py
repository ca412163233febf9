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
BLOCK_ELEMENTS = 1 << 18
"""Products that are in memory at a time, with eight bytes each: 2 MiB, so that calls of NumPy are few and caches hold
most of it."""
_BIAS, _FRACTION = 127, 23
"""Of float32: what is added to exponents, and the bits of fraction."""
_LEAST_NORMAL = -126
"""Exponent of the smallest normal float32, and of every subnormal one."""
_USUAL = range(_BIAS - 100, _BIAS + 121)
"""Largest exponents of a step, with their bias, for which products in float32 are exact where they are not truncated to
zero, and no sum is subnormal, overflows, or is infinite or NaN already."""
_FURTHER = 16
"""What is added to exponents besides the bias where they may be below those of float32."""
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

    @property
    def spread(self) -> int:
        """The factor of exponents in :attr:`Factors.powers`. Powers of two that are so far apart exceed the sum of as
        many smaller ones as there are products, so the exponent of an inner product of powers, divided by the factor,
        is the largest exponent of the products."""
        return self.products.bit_length()

    @property
    def shift(self) -> int:
        """What is added to exponents of the powers of A, so that the quotient has the bias of float32."""
        return self.spread * _BIAS - 1023


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
    """The sums of a block of D, and memory for one step, which every step uses again."""

    def __init__(self, model: Model, rows: int, columns: int) -> None:
        block = rows, columns
        self.products = np.empty((model.products, *block), np.float32)
        self.integers = np.empty((model.products, *block), np.int32)
        self.added = np.empty(block, np.int32)
        self.powers, self.wide, self.total = (np.empty(block) for _ in range(3))
        self.top, self.own = (np.empty(block, np.int32) for _ in range(2))
        self.sums, self.scaled = (np.zeros(block, np.float32) for _ in range(2))


def block_shape(model: Model, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of a block of an m x n D whose products of one step fit :data:`BLOCK_ELEMENTS`."""
    columns = min(n, 512)
    rows = max(1, min(m, BLOCK_ELEMENTS // (model.products * columns)))
    return rows, max(1, min(n, BLOCK_ELEMENTS // (model.products * rows)))


def add_step(model: Model, a: Factors, b: Factors, buffers: Buffers) -> None:
    """Add the products of one step to the sums of a block; ``a`` and ``b`` have K along their first axis."""
    top, own, bits = buffers.top, buffers.own, buffers.sums.view(np.int32)
    np.matmul(a.powers.T, b.powers, out=buffers.powers)
    np.right_shift(buffers.powers.view(np.int32)[:, 1::2], 20, out=top)
    np.floor_divide(top, model.spread, out=top)
    np.right_shift(bits, _FRACTION, out=own)
    np.bitwise_and(own, 255, out=own)
    np.maximum(top, own, out=top)
    if top.min() < _USUAL.start:
        top[_is_zero(a, b, buffers.sums)] = _BIAS  # any scale will do
    usual = top.min() in _USUAL and top.max() in _USUAL and a.specials is None and b.specials is None
    (_add_usual if usual else _add_unusual)(model, a, b, buffers)


def _is_zero(a: Factors, b: Factors, sums: np.ndarray) -> np.ndarray:
    """Where all products of a step, and the sums, are zero, as where a row of A is."""
    pairs = (a.values != 0).T.astype(np.float32) @ (b.values != 0).astype(np.float32)
    return np.asarray((pairs == 0) & (sums == 0))


def _add_usual(model: Model, a: Factors, b: Factors, buffers: Buffers) -> None:
    """Scale the sums and products so that the last kept bit is 1, truncate, add, and truncate the result."""
    products, total = buffers.products, buffers.total
    scale = buffers.own
    np.subtract(2 * _BIAS + model.aligned, buffers.top, out=scale)
    np.left_shift(scale, _FRACTION, out=scale)
    np.multiply(a.values[:, :, None], b.values[:, None, :], out=products)
    np.multiply(products, scale.view(np.float32), out=products)
    np.copyto(buffers.integers, products, casting="unsafe")  # truncates
    np.add.reduce(buffers.integers, axis=0, dtype=np.int32, out=buffers.added)
    np.multiply(buffers.sums, scale.view(np.float32), out=buffers.scaled)
    np.trunc(buffers.scaled, out=buffers.scaled)
    np.copyto(buffers.wide, buffers.scaled)
    np.copyto(total, buffers.added)
    np.add(total, buffers.wide, out=total)
    _truncate(model, total)
    np.copyto(buffers.sums, total, casting="same_kind")
    np.subtract(2 * _BIAS << _FRACTION, scale, out=scale)  # one over it
    np.multiply(buffers.sums, scale.view(np.float32), out=buffers.sums)


def _truncate(model: Model, total: np.ndarray) -> None:
    """Truncate float64 to the fraction of the sum, in place."""
    bits = total.view(np.int64)
    np.bitwise_and(bits, -1 << (52 - model.kept), out=bits)


def _add_unusual(model: Model, a: Factors, b: Factors, buffers: Buffers) -> None:
    """Add in float64, which has the range of all products, and take infinities and NaNs into account."""
    sums = buffers.sums
    before = np.where(np.isfinite(sums), sums, 0).astype(np.float64)
    powers = (a.powers * 2.0 ** (model.spread * _FURTHER)).T @ b.powers
    top = (powers.view(np.int64) >> 52) // model.spread - (_BIAS + _FURTHER)
    own = np.maximum(np.frexp(before)[1] - 1, _LEAST_NORMAL)
    top = np.maximum(np.maximum(top, LEAST_EXPONENT), np.where(before == 0, LEAST_EXPONENT, own))
    scale = np.ldexp(1.0, model.aligned - top)
    products = a.values[:, :, None].astype(np.float64) * b.values[:, None, :] * scale
    total = np.add.reduce(np.trunc(products), axis=0) + np.trunc(before * scale)
    _truncate(model, total)
    quanta = np.trunc(total / scale * 2.0**_SUBNORMAL_QUANTUM)
    with np.errstate(over="ignore", invalid="ignore"):
        special = np.where(np.isfinite(sums), np.float32(0), sums)
        if a.specials is not None or b.specials is not None:
            left, right = (np.sign(x.values) if x.specials is None else x.specials for x in (a, b))
            special += np.add.reduce(left[:, :, None] * right[:, None, :], axis=0)
        sums[:] = np.where(np.isfinite(special), quanta * 2.0**-_SUBNORMAL_QUANTUM, special)

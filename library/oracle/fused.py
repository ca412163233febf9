"""Fused multiply-adds of arrays, to the bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

_SPLIT = 2.0**27 + 1
_LEAST, _LARGEST = 2.0**-900, 2.0**900
"""Magnitudes between which the steps of :func:`fma64` neither underflow nor overflow."""


_NAN = np.int64(-(2**51)).view(np.float64)
"""The NaN of an invalid f64 operation. A NaN operand comes before it: that of ``b``, else of ``c``, else of ``a``."""


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``a * b + c`` of float32 with one rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = a.astype(np.float64) * b  # exact
        return np.asarray(_sum_to_odd(product, c.astype(np.float64)), np.float32)


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``a * b + c`` of float64 with one rounding (Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(all="ignore"):
        product = a * b
        plain = product + c
        plain = np.where(np.isnan(plain), _NAN, plain)
        for x in (a, c, b):
            plain = np.where(np.isnan(x), x, plain)
        largest = np.maximum.reduce([np.abs(x) for x in (product, a, b, c)])
        exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
        usual = exact & (np.abs(product) > _LEAST) & (largest < _LARGEST)
        low = _error_of_product(a, b, product)
        high, tail = _two_sum(c, low)
        first, rest = _two_sum(product, high)
        result = np.where(usual, first + _sum_to_odd(rest, tail), plain)
    for place in zip(*np.nonzero(exact & ~usual), strict=True):
        result[place] = _fraction_rounded(Fraction(a[place]) * Fraction(b[place]) + Fraction(c[place]))
    return result


def _fraction_rounded(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum, and its error (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _error_of_product(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> np.ndarray:
    """``a * b - product``, exactly (Dekker)."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return np.asarray(a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low))


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = x * _SPLIT
    high = scaled - (scaled - x)
    return high, x - high


def _sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum, rounded to odd: truncated, with the last bit set where it is inexact. A later rounding to fewer bits is
    then as if there were no other."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0)
    # An error of the other sign means that the sum was rounded away from zero: one bit pattern less.
    truncated = bits - (inexact & ((error < 0) != (total < 0)))
    return np.asarray(truncated | inexact).view(np.float64)

"""e2m1 weights (MXFP4): the values of 4 bits, and the order in which bytes hold them.

The functions take arrays of NumPy, JAX or PyTorch; ``xp`` is the module. Bytes are int32 arrays with values 0 to 255,
and numbers are codes 0 to 15: a sign, two bits of the exponent and one of the fraction.
"""

from __future__ import annotations

from typing import Any

MX_BLOCK = 32
"""Numbers along K that share a scale, and whose order in memory is not that of K (OCP Microscaling Formats, 1.0)."""
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers by their codes."""
SCALES = {"bf16": (0, 128), "f16": (104, 128)}
"""Least and greatest scale by the dtype of activations, as ue8m0 bytes: all products of scales and numbers are values
of that dtype, and kernels compute them exactly."""


def in_fragment_order(codes: Any, xp: Any) -> Any:
    """The bytes (..., K / 2) of numbers (..., K), as kernels read them; K is a multiple of 32.

    Every 16 bytes hold 32 numbers in four words, the low byte first. Word q holds numbers 2 q + 8 i, i = 0 to 3, in its
    low half, and their successors in its high half. A half has the bits of its numbers, the sign last, at 6, 7, 8 and
    15; at 0, 1, 2 and 9; at 10, 11, 12 and, in the other half, 3; and at 4, 5, 14 and 13. A lane of a warp so loads one
    word, which has what its registers of the fragment need, and one shift moves all bits of two numbers.
    """
    by_lane = codes.reshape((*codes.shape[:-1], -1, 4, 4, 2))  # blocks, i, q, half
    a, b, c, d = (by_lane[..., i, :, :] for i in range(4))
    half = (a & 7) << 6 | a >> 3 << 15 | b & 7 | b >> 3 << 9 | (c & 7) << 10 | _swapped(c >> 3, xp) << 3
    half = half | (d & 3) << 4 | (d >> 2 & 1) << 14 | d >> 3 << 13
    return xp.stack((half & 255, half >> 8), -1).reshape((*codes.shape[:-1], codes.shape[-1] // 2))


def from_fragment_order(packed: Any, xp: Any) -> Any:
    """Undo :func:`in_fragment_order`: the numbers (..., K) of bytes (..., K / 2)."""
    by_lane = packed.reshape((*packed.shape[:-1], -1, 4, 2, 2))  # blocks, q, half, byte
    half = by_lane[..., 0] | by_lane[..., 1] << 8
    codes = [
        half >> 6 & 7 | half >> 15 << 3,
        half & 7 | (half >> 9 & 1) << 3,
        half >> 10 & 7 | (_swapped(half, xp) >> 3 & 1) << 3,
        half >> 4 & 3 | (half >> 14 & 1) << 2 | (half >> 13 & 1) << 3,
    ]
    return xp.stack(codes, -3).reshape((*packed.shape[:-1], packed.shape[-1] * 2))


def _swapped(halves: Any, xp: Any) -> Any:
    """Low and high halves of words in each other's place."""
    return xp.stack((halves[..., 1], halves[..., 0]), -1)

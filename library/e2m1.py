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
    low half, and their successors in its high half. A half has the magnitude of its number i in bits 3 i to 3 i + 2,
    and the sign in bit 12 + (i ^ 1). A lane of a warp so loads one word, which has what its registers of the fragment
    need, and most shifts move magnitudes and signs together.
    """
    by_lane = codes.reshape((*codes.shape[:-1], -1, 4, 4, 2))  # blocks, i, q, half
    half = sum((by_lane[..., i, :, :] & 7) << 3 * i | by_lane[..., i, :, :] >> 3 << 12 + (i ^ 1) for i in range(4))
    return xp.stack((half & 255, half >> 8), -1).reshape((*codes.shape[:-1], codes.shape[-1] // 2))


def from_fragment_order(packed: Any, xp: Any) -> Any:
    """Undo :func:`in_fragment_order`: the numbers (..., K) of bytes (..., K / 2)."""
    by_lane = packed.reshape((*packed.shape[:-1], -1, 4, 2, 2))  # blocks, q, half, byte
    half = by_lane[..., 0] | by_lane[..., 1] << 8
    codes = [half >> 3 * i & 7 | (half >> 12 + (i ^ 1) & 1) << 3 for i in range(4)]
    return xp.stack(codes, -3).reshape((*packed.shape[:-1], packed.shape[-1] * 2))

"""Quantities that rules of all families count in."""

from __future__ import annotations

SM_REGISTERS = 65536
"""Registers of an SM (CUDA Programming Guide, Compute Capabilities)."""
TMA_ALIGN = 16
"""Bytes that TMA needs base addresses and strides to be a multiple of."""


def align_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple

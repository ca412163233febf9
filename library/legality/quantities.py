"""Constants and arithmetic shared by the rules of all families."""

from __future__ import annotations

SM_REGISTERS = 65536
"""Registers of an SM (CUDA Programming Guide, Compute Capabilities)."""
SM_PARTS = 4
"""Partitions of an SM. Each has a quarter of its registers, for whole warps."""
TMA_ALIGN = 16
"""TMA needs base addresses and strides that are multiples of this many bytes."""


def align_up(value: int, multiple: int) -> int:
    """``value`` rounded up to a multiple of ``multiple``."""
    return -(-value // multiple) * multiple

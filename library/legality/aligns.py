"""Alignments that a kernel's operands must have, at the least."""

from __future__ import annotations

from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of

BY_TMA: frozenset[FamilyName] = frozenset({"wgmma"})
"""Families whose operands TMA moves. It stands here, as who serves from a pack loads no family with its rules."""


def least_aligns(config: GemmConfig) -> tuple[int, int, int, int]:
    """Alignments in bytes that A, B, C and D must have at least, 0 where there is no C: those of the operands, or of an
    element where they are realigned beforehand, or threads store the D that TMA cannot. C is not where a second
    kernel reads it, by its own address."""
    a, b, c, d, batching = config.a, config.b, config.c, config.d, config.scheduler.batching
    tma = config.family in BY_TMA
    by_element = tma and batching != "array"
    realigned = tma and batching == "strided" and a.type.bits == b.type.bits
    realigned_c = realigned and not decomposition_of(config).has_second_kernel
    return (
        a.type.bytes if realigned else a.align,
        b.type.bytes if realigned else b.align,
        0 if c is None else c.type.bytes if realigned_c else c.align,
        d.type.bytes if by_element else d.align,
    )

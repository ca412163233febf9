"""The minimum alignment that a kernel needs from each operand."""

from __future__ import annotations

from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of

BY_TMA: frozenset[FamilyName] = frozenset({"wgmma"})
"""Families that load operands by TMA. It is defined here so that programs that load packs need not import the rules."""


def least_aligns(config: GemmConfig) -> tuple[int, int, int, int]:
    """Minimum alignments in bytes of A, B, C and D; 0 if there is no C.

    The minimum is the operand's ``align`` in the config. It is one element where gemmill can copy a misaligned operand
    to an aligned buffer before the launch, and for a D that threads can store without TMA. C is not copied for
    split-K kernels, because their second kernel reads it in place.
    """
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

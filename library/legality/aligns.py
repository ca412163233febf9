"""Alignments that a kernel's operands must have, at the least."""

from __future__ import annotations

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.legality.footprint import FAMILY


def least_aligns(config: GemmConfig) -> tuple[int, int, int, int]:
    """Alignments in bytes that A, B, C and D must have at least, 0 where there is no C: those of the operands, or of an
    element where they are realigned beforehand, or threads store the D that TMA cannot."""
    a, b, c, d, batching = config.a, config.b, config.c, config.d, config.scheduler.batching
    tma = FAMILY[config.family].has_tma
    by_element = tma and not decomposition_of(config).has_second_kernel and batching != "array"
    realigned = tma and batching == "strided" and a.type.bits == b.type.bits
    return (
        a.type.bytes if realigned else a.align,
        b.type.bytes if realigned else b.align,
        0 if c is None else c.type.bytes if realigned and by_element else c.align,
        d.type.bytes if by_element else d.align,
    )

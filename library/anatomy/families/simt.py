"""How SIMT kernels work: 16 x 16 threads of fused multiply-adds."""

from __future__ import annotations

from gemmill.library.anatomy.families.anatomy import (
    Anatomy,
    Lane,
    no_instruction,
    no_span,
    pipeline,
    stage_regions,
    thread_values,
)
from gemmill.library.config.fields import Fields
from gemmill.library.families import simt
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import integer


def _accumulators(f: Fields) -> Layout:
    """16 x 16 threads, each with rows and columns in groups of 16 bytes (``SimtGemm::position``)."""
    m, n = integer(f, "tile.m"), integer(f, "tile.n")
    rows, columns, most = m // simt.SIDE, n // simt.SIDE, 16 // simt.value_bytes(f)
    gm, gn = min(rows, most), min(columns, most)
    threads = ((2, gm), (8, gn * m), (2, 2 * gm), (4, 4 * gm), (2, 8 * gn * m))
    return thread_values(threads, ((gn, m), (columns // gn, 16 * gn * m), (gm, 1), (rows // gm, 16 * gm)))


def _lanes(f: Fields) -> list[Lane]:
    return pipeline("registers", "FMAs", integer(f, "stages"))


ANATOMY = Anatomy(
    accumulators=_accumulators,
    instruction=no_instruction,
    regions=stage_regions,
    span=no_span,
    lanes=_lanes,
    threads="T is a thread, V one of its sums, w a warp: 16 x 16 threads with rows and columns in groups of 16 bytes.",
    operands="A and B: each thread reads its rows of A and columns of B from a stage, 16 bytes at a time.",
    unswizzled="Stages are not swizzled: values of the accumulator's type lie K by K, with 16 bytes between rows.",
)

"""How multistage kernels work: every warp copies and multiplies."""

from __future__ import annotations

from gemmill.library.anatomy.families.anatomy import Anatomy, Lane, Modes, pipeline, stage_regions, thread_values
from gemmill.library.anatomy.memory import CHUNK
from gemmill.library.config.fields import Fields
from gemmill.library.families import mma
from gemmill.library.families.wgmma.ring import swizzle_bytes
from gemmill.library.layouts.atoms import MmaAtom, mma_atom
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import element_bytes, integer

_TARGETS = {"F64": "SM90", "E4M3": "SM89", "E5M2": "SM89"}
"""Architectures in CUTLASS's names, of types of A that SM80 is not for."""


def _groups(f: Fields, operand: str, extent: int, unit: int) -> tuple[int, Modes]:
    """How far apart the rows of a group of eight are, and where groups are: bytes that are neighbours along M or N are
    transposed from four rows along K at a time (``Fragments::position``)."""
    if f[f"{operand}.major"] == "mn" and element_bytes(f, operand) == 1:
        return 4 * unit, ((4, unit), (extent // 32, 32 * unit))
    return unit, ((extent // 8, 8 * unit),)


def _accumulators(f: Fields) -> Layout:
    m, n = integer(f, "tile.m"), integer(f, "tile.n")
    along_m, along_n, _ = mma.warps(f)
    warp_m, warp_n = m // along_m, n // along_n
    apart = ((along_m, warp_m), (along_n, warp_n * m))
    if f["arch"] in mma.QUADPAIR_ARCHS:
        threads = ((2, 1), (2, 2 * m), (2, 4), (2, 4 * m), (2, 8))
        return thread_values((*threads, *apart), ((2, m), (2, 2), (warp_n // 8, 8 * m), (warp_m // 16, 16)))
    row, rows = _groups(f, "a", warp_m, 1)
    column, columns = _groups(f, "b", warp_n, m)
    return thread_values(((4, 2 * column), (8, row), *apart), ((2, column), *rows, *columns))


def _instruction(f: Fields) -> MmaAtom | None:
    accumulator, a, b = (str(f[name]).upper() for name in ("accumulator", "a.dtype", "b.dtype"))
    types = f"{accumulator}{a}{b}{accumulator}"
    if f["arch"] in mma.QUADPAIR_ARCHS:
        majors = ("N" if f["a.major"] == "mn" else "T") + ("T" if f["b.major"] == "mn" else "N")
        return mma_atom(f"SM70_8x8x4_{types}_{majors}")
    k = mma.MMA_K_BYTES // element_bytes(f, "a")
    return mma_atom(f"{_TARGETS.get(a, 'SM80')}_16x8x{k}_{types}_TN")


def _span(f: Fields, operand: str) -> int:
    if mma.is_shifted(f, operand):
        return CHUNK
    extent = ("tile.m" if operand == "a" else "tile.n") if f[f"{operand}.major"] == "mn" else "tile.k"
    return swizzle_bytes(integer(f, extent) * element_bytes(f, operand))


def _lanes(f: Fields) -> list[Lane]:
    copies = "registers" if f["arch"] in mma.QUADPAIR_ARCHS else "cp.async"
    return pipeline(copies, "MMAs", integer(f, "stages"))


ANATOMY = Anatomy(
    accumulators=_accumulators,
    instruction=_instruction,
    regions=stage_regions,
    span=_span,
    lanes=_lanes,
    threads="T is a thread, V one of its sums, w a warp. Further warps, if any, have sums of other slices of K.",
    operands="",
    unswizzled="Stages are not swizzled: rows are copied as they lie, with 16 bytes more each.",
)

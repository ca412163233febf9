"""How gemv kernels work: B straight into the registers of MMAs, whose rows are columns of D."""

from __future__ import annotations

from gemmill.library.anatomy.families.anatomy import (
    LOAD,
    MULTIPLY,
    STORE,
    Anatomy,
    Lane,
    Step,
    no_instruction,
    no_span,
    thread_values,
)
from gemmill.library.anatomy.memory import Region
from gemmill.library.config.fields import Fields
from gemmill.library.families import gemv
from gemmill.library.launch import LaunchSpec
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import integer


def _accumulators(f: Fields) -> Layout:
    """Columns of D are the rows of MMAs; warps along K hold sums of the same elements, which are added up
    (``Gemv::store``)."""
    m, n, vector, warp_n = integer(f, "tile.m"), integer(f, "tile.n"), gemv.vector(f), gemv.warp_n(f)
    columns, step = ((2, 8 * m), m) if f["b.major"] == "k" else ((vector, m), vector * m)
    warps_k = gemv.threads(f) // 32 // (n // warp_n)
    threads = ((4, 2), (8, step), (n // warp_n, warp_n * m), (warps_k, 0))
    return thread_values(threads, ((2, 1), columns, (m // gemv.MMA_M, gemv.MMA_M)))


def _regions(f: Fields, launch: LaunchSpec, stages: tuple[int, int]) -> list[Region]:
    return [Region("sums of warps", 1, launch.shared_bytes)]


def _lanes(f: Fields) -> list[Lane]:
    words = [("load A, B", LOAD), ("MMAs", MULTIPLY)] * 2 + [("sums, D", STORE)]
    return [Lane("every warp", [Step(2.0 * at, 2.0 * at + 2, *step) for at, step in enumerate(words)])]


ANATOMY = Anatomy(
    accumulators=_accumulators,
    instruction=no_instruction,
    regions=_regions,
    span=no_span,
    lanes=_lanes,
    threads="T is a thread, V one of its sums, w a warp. Columns of D are rows of MMAs; warps along K have the same.",
    operands="A and B: lane l of a warp loads runs of K, l mod 4 says which, straight from global memory.",
    unswizzled="A and B do not pass through shared memory: they are loaded straight into the registers of MMAs.",
)

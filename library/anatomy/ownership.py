"""Which thread of a CTA holds which element: of the accumulators of a tile, and of A and B of one instruction.

These are the places that the headers give threads (``mma/`` and ``kernel/``), as layouts (thread, value) -> coordinate;
a coordinate of the accumulators is m + n times tile M. Values are counted along N first within what a thread has of an
instruction, then along M, then on to its next instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gemmill.library.config.fields import Fields
from gemmill.library.families import gemv, mma, simt
from gemmill.library.families.wgmma import warpgroups
from gemmill.library.layouts.atoms import MmaAtom, mma_atom
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import element_bits, element_bytes, integer

Modes = tuple[tuple[int, int], ...]
"""Extents and strides, those of extent 1 left out when they become a layout."""


def _layout(threads: Modes, values: Modes) -> Layout:
    def mode(of: Modes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept = [each for each in of if each[0] > 1] or [(1, 0)]
        return tuple(extent for extent, _ in kept), tuple(stride for _, stride in kept)

    (t, dt), (v, dv) = mode(threads), mode(values)
    return Layout((t, v), (dt, dv))


def _of_wgmma(f: Fields) -> Layout:
    """Four warps of sixteen rows each, and warpgroups below each other; in pingpong, and where warpgroups share K, one
    has the whole tile."""
    m, n, rows = integer(f, "tile.m"), integer(f, "tile.n"), warpgroups.warpgroup_m(f)
    threads = ((4, 2 * m), (8, 1), (4, 16), (m // rows, rows))
    return _layout(threads, ((2, m), (2, 8), (n // 8, 8 * m), (rows // 64, 64)))


def _groups(f: Fields, operand: str, extent: int, unit: int) -> tuple[int, Modes]:
    """How far apart the rows of a group of eight are, and where groups are: bytes that are neighbours along M or N are
    transposed from four rows along K at a time (``Fragments::position``)."""
    if f[f"{operand}.major"] == "mn" and element_bytes(f, operand) == 1:
        return 4 * unit, ((4, unit), (extent // 32, 32 * unit))
    return unit, ((extent // 8, 8 * unit),)


def _of_mma(f: Fields) -> Layout:
    m, n = integer(f, "tile.m"), integer(f, "tile.n")
    along_m, along_n, _ = mma.warps(f)
    warp_m, warp_n = m // along_m, n // along_n
    apart = ((along_m, warp_m), (along_n, warp_n * m))
    if f["arch"] in mma.QUADPAIR_ARCHS:
        threads = ((2, 1), (2, 2 * m), (2, 4), (2, 4 * m), (2, 8))
        return _layout((*threads, *apart), ((2, m), (2, 2), (warp_n // 8, 8 * m), (warp_m // 16, 16)))
    row, rows = _groups(f, "a", warp_m, 1)
    column, columns = _groups(f, "b", warp_n, m)
    return _layout(((4, 2 * column), (8, row), *apart), ((2, column), *rows, *columns))


def _of_simt(f: Fields) -> Layout:
    """16 x 16 threads, each a part of rows and columns in groups of 16 bytes (``SimtGemm::position``)."""
    m, n = integer(f, "tile.m"), integer(f, "tile.n")
    rows, columns, most = m // simt.SIDE, n // simt.SIDE, 16 // simt.value_bytes(f)
    gm, gn = min(rows, most), min(columns, most)
    threads = ((2, gm), (8, gn * m), (2, 2 * gm), (4, 4 * gm), (2, 8 * gn * m))
    return _layout(threads, ((gn, m), (columns // gn, 16 * gn * m), (gm, 1), (rows // gm, 16 * gm)))


def _of_gemv(f: Fields) -> Layout:
    """Columns of D are the rows of MMAs; warps along K hold sums of the same elements, which are added up."""
    m, n = integer(f, "tile.m"), integer(f, "tile.n")
    along_k, vector, warp_n = f["b.major"] == "k", gemv.vector(f), gemv.warp_n(f)
    columns, step = ((2, 8 * m), m) if along_k else ((vector, m), vector * m)
    warps_k = gemv.threads(f) // 32 // (n // warp_n)
    threads = ((4, 2), (8, step), (n // warp_n, warp_n * m), (warps_k, 0))
    return _layout(threads, ((2, 1), columns, (m // gemv.MMA_M, gemv.MMA_M)))


_ACCUMULATORS: Mapping[str, Callable[[Fields], Layout]] = MappingProxyType(
    {"wgmma": _of_wgmma, "mma": _of_mma, "simt": _of_simt, "gemv": _of_gemv}
)


def accumulators(family: str, fields: Fields) -> Layout:
    """(thread, value) -> m + n tile M of the sums of a tile: threads are those that multiply, from 0: of WGMMA kernels
    behind the producer, of multistage ones those of the first slice of K."""
    return _ACCUMULATORS[family](fields)


def instruction(family: str, fields: Fields) -> MmaAtom | None:
    """The MMA that a kernel is made of, by CUTLASS's name; None of FMAs, and of gemv, whose operands are exchanged."""
    names = {operand: str(fields[f"{operand}.dtype"]).upper() for operand in "ab"}
    accumulator = str(fields["accumulator"]).upper()
    if family == "wgmma":
        a = names["b"] if warpgroups.is_mixed(fields) else names["a"]
        n = integer(fields, "tile.n") // warpgroups.atom_parts(fields)
        k = 8 * warpgroups.INSTRUCTION_K_BYTES // element_bits(fields, "b")
        where = "RS" if warpgroups.multiplies_from_registers(fields) else "SS"
        return mma_atom(f"SM90_64x{n}x{k}_{accumulator}{a}{names['b']}_{where}")
    if family != "mma":
        return None
    types = f"{accumulator}{names['a']}{names['b']}{accumulator}"
    if fields["arch"] in mma.QUADPAIR_ARCHS:
        majors = ("T" if fields["a.major"] != "mn" else "N") + ("N" if fields["b.major"] != "mn" else "T")
        return mma_atom(f"SM70_8x8x4_{types}_{majors}")
    target = {"F64": "SM90", "E4M3": "SM89", "E5M2": "SM89"}.get(names["a"], "SM80")
    k = 8 if names["a"] == "F64" else 32 // element_bytes(fields, "a")
    return mma_atom(f"{target}_16x8x{k}_{types}_TN")

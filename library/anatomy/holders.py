"""The panel of a page that says who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmill.library.anatomy.sheet import Kernel, Sheet
from gemmill.library.drawing.grid import SHADES, Grid
from gemmill.library.layouts.atoms import Operand, is_whole
from gemmill.library.layouts.layout import Layout
from gemmill.library.layouts.picture import grids

SHOWN = 16
"""Rows and columns of a table of who holds what; further ones repeat what these have."""


def holders(sheet: Sheet, kernel: Kernel) -> None:
    """Which warp has which part of the accumulators, and which thread which element."""
    sheet.heading("Who holds what")
    layout = kernel.anatomy.accumulators(kernel.fields)
    m, n = kernel.config.tile.m, kernel.config.tile.n
    sheet.words(kernel.anatomy.threads)
    owners = _owners(layout)
    sheet.tables(_warps(owners, m, n), _elements("accumulators", owners, m, n))
    atom = kernel.anatomy.instruction(kernel.fields)
    if atom is None:
        sheet.words(kernel.anatomy.operands)
        return
    sheet.words(
        f"A and B of one instruction, {atom}: M {atom.shape_mnk[0]}, N {atom.shape_mnk[1]}, K {atom.shape_mnk[2]}."
    )
    drawn = dict(zip("ABC", grids(atom), strict=True))
    parts: dict[Operand, Layout] = {"A": atom.a, "B": atom.b}
    for operand, of_operand in parts.items():
        if is_whole(of_operand[0]):
            sheet.words(f"{operand} is in shared memory: a descriptor names it, and no thread holds any of it.")
    sheet.tables(*(_corner(drawn[operand]) for operand, part in parts.items() if not is_whole(part[0])))


def _owners(layout: Layout) -> dict[int, tuple[int, int]]:
    """Thread and value of each coordinate; of several, the lowest thread."""
    starts = [layout[0](thread) for thread in range(layout[0].size)]
    steps = [layout[1](value) for value in range(layout[1].size)]
    found: dict[int, tuple[int, int]] = {}
    for thread, start in enumerate(starts):
        for value, step in enumerate(steps):
            found.setdefault(start + step, (thread, value))
    return found


def _elements(what: str, owners: Mapping[int, tuple[int, int]], m: int, n: int) -> Grid:
    """The first rows and columns of a tile."""
    rows, columns = min(m, SHOWN), min(n, SHOWN)
    found = [[owners[row + column * m] for column in range(columns)] for row in range(rows)]
    title = f"{what}: rows 0-{rows - 1} of {m}, columns 0-{columns - 1} of {n}"
    return Grid(title, _rows(found), tuple(tuple(thread % SHADES for thread, _ in row) for row in found))


def _rows(found: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"T{thread}V{value}" for thread, value in row) for row in found)


def _warps(owners: Mapping[int, tuple[int, int]], m: int, n: int) -> Grid:
    """The warps of each part of a tile."""
    high, wide = max(1, min(16, m)), max(8, n // 8)
    cells = []
    for row in range(0, m, high):
        line = []
        for column in range(0, n, wide):
            inside = [(r, c) for r in range(row, min(row + high, m)) for c in range(column, min(column + wide, n))]
            warps = sorted({owners[r + c * m][0] // 32 for r, c in inside})
            line.append(f"w{warps[0]}" if len(warps) == 1 else f"w{warps[0]}-{warps[-1]}")
        cells.append(tuple(line))
    shades = tuple(tuple(int(cell[1:].partition("-")[0]) % SHADES for cell in row) for row in cells)
    return Grid(f"warps: parts of {high}x{wide} of the tile", tuple(cells), shades)


def _corner(grid: Grid) -> Grid:
    """The first rows and columns of a table."""
    cells = tuple(row[:SHOWN] for row in grid.cells[:SHOWN])
    shades = tuple(row[:SHOWN] for row in grid.shades[:SHOWN])
    return Grid(f"{grid.title} (rows 0-{len(cells) - 1}, columns 0-{len(cells[0]) - 1})", cells, shades)

"""Tables of cells: the layout of tables in a picture, in any unit, and tables as text like CuTe's ``print_layout``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

SHADES = 8
"""Number of colours of cells, which are numbered from 0."""


@dataclass(frozen=True)
class Grid:
    """A table of cells."""

    title: str
    cells: tuple[tuple[str, ...], ...]
    """The text of each cell by row. All rows have the same length."""
    shades: tuple[tuple[int, ...], ...]
    """The colour of each cell, below :data:`SHADES`."""
    place: tuple[int, int] = (0, 0)
    """The row and column of the table in a picture."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.cells)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return len(self.cells[0])

    @property
    def widest(self) -> int:
        """Characters of the longest text of a cell or column number."""
        return max(len(str(self.columns - 1)), *(len(cell) for row in self.cells for cell in row))


def runs(grid: Grid) -> Iterator[tuple[int, int, int, int]]:
    """Runs of adjacent cells of one colour: row, first column, column after the last, colour."""
    for row, shades in enumerate(grid.shades):
        start = 0
        for shade, same in itertools.groupby(shades):
            end = start + sum(1 for _ in same)
            yield row, start, end, shade
            start = end


@dataclass(frozen=True)
class Picture:
    """Tables side by side."""

    title: str
    grids: tuple[Grid, ...]


def cell_width(picture: Picture, character: float, height: float) -> float:
    """The common width of all cells of a picture, so that columns align: that of the longest text, and at least
    ``height``."""
    return max(height, (max(grid.widest for grid in picture.grids) + 2) * character)


def outer_size(grid: Grid, width: float, character: float, height: float) -> tuple[float, float]:
    """Width and height of a table including its numbers and title, for cells of ``width`` and ``height``."""
    inner = max(grid.columns * width, len(grid.title) * character)
    return _margin(grid, character) + inner, (grid.rows + _HEADER) * height


_HEADER = 2.4
"""Height of the title and the column numbers, in rows."""


def _margin(grid: Grid, character: float) -> float:
    """Width of the row numbers to the left of the cells."""
    return (len(str(grid.rows - 1)) + 1.5) * character


def placed(picture: Picture, character: float, height: float, gap: float) -> Iterator[tuple[Grid, float, float]]:
    """Each table with the position of the upper left corner of its first cell. Tables are arranged in rows and columns,
    with a gap between them."""
    width = cell_width(picture, character, height)
    sizes = {grid.place: outer_size(grid, width, character, height) for grid in picture.grids}
    lefts = _starts(_most(sizes, 1, 0), gap)
    tops = _starts(_most(sizes, 0, 1), gap)
    margins = {grid.place[1]: 0.0 for grid in picture.grids}
    for grid in picture.grids:
        margins[grid.place[1]] = max(margins[grid.place[1]], _margin(grid, character))
    for grid in picture.grids:
        row, column = grid.place
        yield grid, lefts[column] + margins[column], tops[row] + _HEADER * height


def _most(sizes: dict[tuple[int, int], tuple[float, float]], axis: int, of: int) -> dict[int, float]:
    """The largest extent of each row (axis 0) or column (axis 1) of a picture."""
    extents: dict[int, float] = {}
    for place, size in sizes.items():
        extents[place[axis]] = max(extents.get(place[axis], 0.0), size[of])
    return extents


def _starts(extents: dict[int, float], gap: float) -> dict[int, float]:
    starts, start = {}, 0.0
    for number in sorted(extents):
        starts[number] = start
        start += extents[number] + gap
    return starts


def as_text(grid: Grid) -> str:
    """A table as text with borders, column numbers above and row numbers to the left."""
    return "\n".join(_lines(grid))


def _lines(grid: Grid) -> Iterator[str]:
    width, margin = grid.widest, max(2, len(str(grid.rows - 1)))
    edge = f"{' ' * (margin + 2)}{('+' + '-' * (width + 2)) * grid.columns}+"
    yield f"{' ' * (margin + 2)}{''.join(f'  {column:>{width}} ' for column in range(grid.columns))}".rstrip()
    for number, row in enumerate(grid.cells):
        yield edge
        yield f"{number:>{margin}}  {''.join(f'| {cell:>{width}} ' for cell in row)}|"
    yield edge

"""Tables of cells: where those of a picture stand, in any unit, and as text, as CuTe's ``print_layout`` has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

SHADES = 8
"""Colours that cells may have, which drawings number from 0."""


@dataclass(frozen=True)
class Grid:
    """A table of cells."""

    title: str
    cells: tuple[tuple[str, ...], ...]
    """What stands in each cell, row by row; all rows have as many."""
    shades: tuple[tuple[int, ...], ...]
    """The colour of each cell, below :data:`SHADES`."""
    place: tuple[int, int] = (0, 0)
    """Where the table stands among those of a picture: row and column."""

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
        """Characters of the longest text of a cell or column."""
        return max(len(str(self.columns - 1)), *(len(cell) for row in self.cells for cell in row))


def runs(grid: Grid) -> Iterator[tuple[int, int, int, int]]:
    """Cells of one colour that are side by side: row, first column, column behind the last, colour."""
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
    """The width of all cells of a picture, so that columns of tables line up: that of the longest text, at least a
    cell's height."""
    return max(height, (max(grid.widest for grid in picture.grids) + 2) * character)


def outer_size(grid: Grid, width: float, character: float, height: float) -> tuple[float, float]:
    """Width and height of a table, whose cells have a width, with its numbers and title."""
    inner = max(grid.columns * width, len(grid.title) * character)
    return _margin(grid, character) + inner, (grid.rows + _HEADER) * height


_HEADER = 2.4
"""Rows that a title and the numbers of columns take."""


def _margin(grid: Grid, character: float) -> float:
    """What the numbers of rows take at the left of the cells."""
    return (len(str(grid.rows - 1)) + 1.5) * character


def placed(picture: Picture, character: float, height: float, gap: float) -> Iterator[tuple[Grid, float, float]]:
    """Each table with the place of its first cell's left upper corner: tables of one row and one column of a picture
    stand below and beside each other, a gap apart."""
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
    """The greatest extent of each row (axis 0) or column (axis 1) of a picture."""
    found: dict[int, float] = {}
    for place, size in sizes.items():
        found[place[axis]] = max(found.get(place[axis], 0.0), size[of])
    return found


def _starts(extents: dict[int, float], gap: float) -> dict[int, float]:
    starts, reached = {}, 0.0
    for number in sorted(extents):
        starts[number] = reached
        reached += extents[number] + gap
    return starts


def as_text(grid: Grid) -> str:
    """A table with borders, the numbers of columns above it and those of rows at its left."""
    return "\n".join(_lines(grid))


def _lines(grid: Grid) -> Iterator[str]:
    width, margin = grid.widest, max(2, len(str(grid.rows - 1)))
    edge = f"{' ' * (margin + 2)}{('+' + '-' * (width + 2)) * grid.columns}+"
    yield f"{' ' * (margin + 2)}{''.join(f'  {column:>{width}} ' for column in range(grid.columns))}".rstrip()
    for number, row in enumerate(grid.cells):
        yield edge
        yield f"{number:>{margin}}  {''.join(f'| {cell:>{width}} ' for cell in row)}|"
    yield edge

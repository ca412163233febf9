"""A picture as tables of cells, whatever draws them."""

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

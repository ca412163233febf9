"""Where tables of a picture stand, in whatever unit."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.drawing.grid import Grid, Picture


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

"""Tables of cells as text, as CuTe's ``print_layout`` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.drawing.grid import Grid


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

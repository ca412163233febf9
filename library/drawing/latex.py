"""Pictures as standalone LaTeX documents with TikZ, like CuTe's ``print_latex``."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.drawing.cells import Grid, Picture, cell_width, placed, runs

_COLORS = ("DCE9F9", "FBE3CF", "DDF0DC", "F9DADA", "E6DFF3", "E9E1D9", "F9DFEE", "E6E6E6")
_HEIGHT, _CHARACTER = 0.55, 0.17
"""Height of a cell and width of a character in cm."""


def as_latex(picture: Picture) -> str:
    """A document for ``pdflatex``. TeX runs out of memory at about 15,000 cells."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield f"% {picture.title}"
    yield r"\documentclass[tikz,border=4mm]{standalone}"
    for number, color in enumerate(_COLORS):
        yield rf"\definecolor{{shade{number}}}{{HTML}}{{{color}}}"
    yield from (r"\begin{document}", r"\ttfamily\footnotesize", r"\begin{tikzpicture}")
    width = cell_width(picture, _CHARACTER, _HEIGHT)
    for grid, left, top in placed(picture, _CHARACTER, _HEIGHT, gap=1.2):
        yield from _grid(grid, left, top, width)
    yield from (r"\end{tikzpicture}", r"\end{document}")


def _grid(grid: Grid, left: float, top: float, width: float) -> Iterator[str]:
    """A table: a path for each run of cells of one colour, one grid, and a text per cell. TeX keeps all of it in
    memory, so there are as few elements as possible."""
    yield rf"\begin{{scope}}[shift={{({left:.2f},{-top:.2f})}},x={width:.3f}cm,y={-_HEIGHT}cm]"
    yield rf"\node[anchor=base west,inner sep=0pt] at (0,-1.4) {{{_escaped(grid.title)}}};"
    for row, start, end, shade in runs(grid):
        yield rf"\fill[shade{shade}] ({start},{row}) rectangle ({end},{row + 1});"
    yield rf"\foreach \i in {{0,...,{grid.rows}}} \draw (0,\i) -- ({grid.columns},\i);"
    yield rf"\foreach \i in {{0,...,{grid.columns}}} \draw (\i,0) -- (\i,{grid.rows});"
    yield from (_text(column + 0.5, -0.5, str(column)) for column in range(grid.columns))
    for number, row_cells in enumerate(grid.cells):
        yield _text(-0.1, number + 0.5, str(number), "right")
        yield from (_text(column + 0.5, number + 0.5, cell) for column, cell in enumerate(row_cells) if cell)
    yield r"\end{scope}"


def _text(x: float, y: float, text: str, side: str = "") -> str:
    return rf"\pgftext[{side and side + ','}at={{\pgfpointxy{{{x:.1f}}}{{{y:.1f}}}}}]{{{_escaped(text)}}}"


def _escaped(text: str) -> str:
    for mark in "_&%#":
        text = text.replace(mark, f"\\{mark}")
    return text

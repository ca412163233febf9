"""SVG output: elements, documents that follow the reader's light or dark mode, and tables of cells.

A table of 64 x 128 cells is 0.4 MB, because all cells of a colour are one path, and all texts of a row one element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from gemmill.library.drawing.cells import SHADES, Grid, Picture, cell_width, outer_size, placed, runs

CHARACTER = 7.3
"""Width of a character of the font, in pixels: 12 px, monospaced."""
CELL = 22
"""Height of a cell in pixels."""
_MARGIN = 12
_GAP = 28
_LIGHT = ("#dce9f9", "#fbe3cf", "#ddf0dc", "#f9dada", "#e6dff3", "#e9e1d9", "#f9dfee", "#e6e6e6")
_DARK = ("#1f3a5c", "#5c3a1a", "#1f4a26", "#5c2626", "#3d2f5e", "#4a3d30", "#572945", "#424242")


def _colors(page: str, ink: str, line: str, shades: Iterable[str]) -> str:
    names = "".join(f"--s{number}:{color};" for number, color in enumerate(shades))
    return f"--page:{page};--ink:{ink};--line:{line};{names}"


def style(root: str) -> str:
    """Style sheet of drawings: colours by name for light and dark mode, defined for the element ``root``, and a default
    text size of 12 px."""
    return (
        f"{root}{{{_colors('#fff', '#1a1a1a', '#8a8a8a', _LIGHT)}color-scheme:light dark;background:var(--page)}}"
        f"@media(prefers-color-scheme:dark){{{root}{{{_colors('#16181c', '#ececec', '#7d828c', _DARK)}}}}}"
        "text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:var(--ink)}"
        ".page{fill:var(--page)}.c{text-anchor:middle}.r{text-anchor:end}.t{font-weight:bold}"
        ".h{font:bold 16px system-ui,sans-serif}.b{stroke:var(--line)}.line{stroke:var(--line);fill:none}"
        + "".join(f".s{number}{{fill:var(--s{number})}}" for number in range(SHADES))
    )


def element(name: str, *content: str, **attributes: object) -> str:
    """An element. ``class_`` means class, and ``_`` in the name of an attribute means a dash."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(v))}"' for key, v in attributes.items()
    )
    return f"<{name}{attribute_text}>{''.join(content)}</{name}>" if content else f"<{name}{attribute_text}/>"


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def label(x: float, y: float, text: str, class_: str = "") -> str:
    """A text with its baseline at y."""
    return element("text", escape(text), x=float(x), y=float(y), **({"class_": class_} if class_ else {}))


def document(width: float, height: float, title: str, description: str, *content: str) -> str:
    """A standalone SVG. Screen readers read its title and description."""
    wide, high = math.ceil(width), math.ceil(height)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    named = f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{style('svg')}</style>"
    page = element("rect", class_="page", width=wide, height=high)
    return "\n".join((f'{head} role="img">{named}{page}', *content, "</svg>\n"))


def as_svg(picture: Picture) -> str:
    """A picture as a standalone SVG."""
    placed_grids = [*placed(picture, CHARACTER, CELL, _GAP)]
    top, cell = 2 * _MARGIN + CELL, cell_width(picture, CHARACTER, CELL)
    parts = [label(_MARGIN, _MARGIN + 14, picture.title, "t")]
    width = 2 * _MARGIN + len(picture.title) * CHARACTER
    height = float(top)
    for grid, left, above in placed_grids:
        parts.append(table(grid, left + _MARGIN, above + top, cell))
        wide, high = outer_size(grid, cell, CHARACTER, CELL)
        width = max(width, left + wide + 2 * _MARGIN)
        height = max(height, top + above + high + _MARGIN)
    tables = "; ".join(f"{grid.title}: {grid.rows} rows, {grid.columns} columns" for grid, _, _ in placed_grids)
    return document(width, height, picture.title, tables, *parts)


def table(grid: Grid, left: float, top: float, width: float) -> str:
    """A table whose first cell is at (left, top), with cells of ``width``; its title and numbers are above and to the
    left."""
    across = [left + (column + 0.5) * width for column in range(grid.columns)]
    numbers = _texts(across, top - 6, map(str, range(grid.columns)))
    parts = [label(left, top - CELL - 4, grid.title, "t"), numbers]
    cells = sorted(_cells(grid, left, top, width).items())
    parts += [element("path", d=path, class_=f"s{shade}") for shade, path in cells]
    parts.append(element("path", d=_lines(grid, left, top, width), class_="line"))
    for number, row in enumerate(grid.cells):
        y = top + number * CELL + 15
        parts += [label(left - 6, y, str(number), "r"), _texts(across, y, row)]
    return element("g", "\n".join(parts))


def _texts(xs: Iterable[float], y: float, texts: Iterable[str]) -> str:
    spans = "".join(f'<tspan x="{_short(x)}">{escape(text)}</tspan>' for x, text in zip(xs, texts, strict=True))
    return f'<text class="c" y="{_short(float(y))}">{spans}</text>'


def _cells(grid: Grid, left: float, top: float, width: float) -> dict[int, str]:
    """The cells of each colour as one path. Adjacent cells are one rectangle."""
    paths: dict[int, str] = {}
    for row, start, end, shade in runs(grid):
        x, y, wide = _short(left + start * width), _short(float(top + row * CELL)), _short((end - start) * width)
        paths[shade] = f"{paths.get(shade, '')}M{x} {y}h{wide}v{CELL}h-{wide}z"
    return paths


def _lines(grid: Grid, left: float, top: float, width: float) -> str:
    """The borders of all cells."""
    wide, high = grid.columns * width, grid.rows * CELL
    across = "".join(
        f"M{_short(left)} {_short(float(top + row * CELL))}h{_short(wide)}" for row in range(grid.rows + 1)
    )
    down = "".join(
        f"M{_short(left + column * width)} {_short(float(top))}v{_short(high)}" for column in range(grid.columns + 1)
    )
    return across + down

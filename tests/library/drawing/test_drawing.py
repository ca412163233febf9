"""Drawings of tables: what they hold, and that nothing of one lies on another."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from gemmill.library.drawing.cells import Grid, Picture, as_text
from gemmill.library.drawing.latex import as_latex
from gemmill.library.drawing.svg import CELL, CHARACTER, as_svg
from gemmill.library.layouts.evaluate import evaluate
from gemmill.library.layouts.picture import picture

SVG = "{http://www.w3.org/2000/svg}"
ATOM = "SM90_64x32x16_F32F16F16_RS"


def drawn(expression: str) -> tuple[Picture, str]:
    found = picture(evaluate(expression))
    return found, as_svg(found)


def spans(svg: str) -> list[tuple[float, float, str]]:
    """Place and text of everything written, in the middle of a cell or beside it."""
    return [
        (float(part.get("x", 0)), float(text.get("y", 0)), part.text or "")
        for text in ElementTree.fromstring(svg).iter(f"{SVG}text")
        for part in [*text.iter(f"{SVG}tspan")] or [text]
    ]


@pytest.mark.parametrize("expression", ["(8,(2,2)):(2,(1,16))", ATOM, "Copy_Atom<SM75_U32x4_LDSM_N, half_t>", "128:1"])
def test_everything_is_written_once_inside_the_page_and_on_nothing_else(expression: str) -> None:
    found, svg = drawn(expression)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    written = spans(svg)
    cells = sorted(cell for grid in found.grids for row in grid.cells for cell in row)
    numbers = sorted(str(each) for grid in found.grids for count in (grid.rows, grid.columns) for each in range(count))
    titles = [found.title, *(grid.title for grid in found.grids)]
    assert sorted(text for _, _, text in written) == sorted([*cells, *numbers, *titles])
    by_line: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in written:
        assert 0 <= x <= width
        assert 0 < y < height
        by_line.setdefault(y, []).append((x, text))
    for line in by_line.values():
        middle = sorted(each for each in line if each[1] not in titles)
        for (x, text), (after, following) in itertools.pairwise(middle):
            assert after - x >= (len(text) + len(following)) / 2 * CHARACTER - 0.2, (text, following)
    lines = sorted(by_line)
    assert all(after - before >= 12 or after == before for before, after in itertools.pairwise(lines))


def test_a_cell_has_the_colour_of_its_thread() -> None:
    found, svg = drawn(ATOM)
    for shade, shaded in re.findall(r'd="([^"]+)" class="s(\d)"', svg):
        assert shade
        assert any(int(shaded) in row for grid in found.grids for row in grid.shades)
    root = ElementTree.fromstring(svg)
    area = sum(
        float(wide) * CELL
        for path in root.iter(f"{SVG}path")
        if path.get("class", "").startswith("s")
        for wide in re.findall(r"h([\d.]+)v", path.get("d", ""))
    )
    cell = area / CELL / sum(grid.rows * grid.columns for grid in found.grids)
    assert cell == pytest.approx((len("T127V15") + 2) * CHARACTER, abs=0.2), "each cell is of one colour"


def test_a_document_is_light_and_dark_and_says_what_it_shows() -> None:
    _, svg = drawn("Sw<3,3,3> o (8,64):(64,1)")
    assert "prefers-color-scheme:dark" in svg
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Sw<3,3,3> o 0 o (8,64):(64,1)"
    assert "8 rows, 64 columns" in (root.findtext(f"{SVG}desc") or "")


def test_the_largest_warpgroup_mma_is_below_a_megabyte() -> None:
    assert len(drawn("SM90_64x256x16_F32F16F16_SS")[1]) < 1_000_000


def test_text_is_that_of_print_layout() -> None:
    (grid,) = picture(evaluate("(2,3):(3,1)")).grids
    assert as_text(grid).splitlines() == [
        "      0   1   2",
        "    +---+---+---+",
        " 0  | 0 | 1 | 2 |",
        "    +---+---+---+",
        " 1  | 3 | 4 | 5 |",
        "    +---+---+---+",
    ]


def test_latex_is_one_document_with_a_node_for_each_cell() -> None:
    text = as_latex(Picture("Sw<1,2,3> & 100%", (Grid("a_b", (("T0V0", ""),), ((0, 7),)),)))
    assert r"\fill[shade0] (0,0) rectangle (1,1);" in text
    assert r"at={\pgfpointxy{0.5}{0.5}}]{T0V0}" in text
    assert r"{a\_b}" in text
    assert text.count("{") == text.count("}")
    assert all(text.count(rf"\begin{{{what}}}") == text.count(rf"\end{{{what}}}") for what in ("document", "scope"))

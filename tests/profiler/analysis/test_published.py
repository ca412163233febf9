"""Published tables: what the kept measurements come to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gemmill.profiler.analysis.figures import geometric_mean
from gemmill.profiler.analysis.published import PAGE, TABLES, Table, lines, markdown

ROOT = Path(__file__).parents[3]
SMALL = ("Random problems with a row-major B, H200", "Layers outside the suites, H200")
"""Tables that are made in less than a second; the others are compared in the heavy tier."""


def parts(text: str) -> list[str]:
    """The head of a page, and its tables."""
    return [part.strip() for part in re.split(r"^## ", text, flags=re.M)]


def test_the_page_has_the_tables_in_their_order() -> None:
    _, *tables = parts(PAGE.read_text(encoding="utf-8"))
    assert [part.splitlines()[0] for part in tables] == [table.title for table in TABLES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [pytest.param(table, marks=() if table.title in SMALL else pytest.mark.heavy, id=table.title) for table in TABLES],
)
def test_the_page_is_what_the_measurements_come_to(table: Table) -> None:
    head, *tables = parts(PAGE.read_text(encoding="utf-8"))
    expected = parts(markdown([table]))
    assert [head, tables[TABLES.index(table)]] == expected, "run python -m gemmill.profiler.analysis.published"


Figure = Callable[[Sequence[float]], float | None]
ROWS: Mapping[str, tuple[int, Figure]] = {
    "H200: all problems": (0, geometric_mean),
    "H200: worst problem": (0, min),
    "H200: relative to cuBLAS in PyTorch": (2, geometric_mean),
    "H200: 24 other layers": (-2, geometric_mean),
    "H100: all problems": (1, geometric_mean),
    "H100: worst problem": (1, min),
}
"""Rows of the summary: the table each is from, and the figure over the selected kernels' ratios."""
OTHERS = {
    "60 random layers": "Random problems, H200",
    "the same, B row-major": "Random problems with a row-major B, H200",
    "90 gradients of inputs": "Gradients of inputs, H200",
    "90 gradients of weights": "Gradients of weights, H200",
    "180 with 1 to 256 rows": "Few rows times row-major weights, H200",
    "24 batched GEMMs": "Batched GEMMs, H200",
}
"""Beginnings of rows with means and, in parentheses, the worst problem, and the tables that they are from."""


@pytest.mark.slow
@pytest.mark.heavy
def test_the_summary_and_the_readme_have_the_figures_of_the_page() -> None:
    summary = (ROOT / "docs" / "performance" / "summary.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    def row(start: str, page: str = summary) -> list[float]:
        (found,) = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", page, re.M)
        return [float(figure) for figure in re.findall(r"\d+\.\d+", found)]

    suites = [x for line in lines(TABLES[0]) for x in (geometric_mean(line.ratios), min(line.ratios))]
    assert row("Bursts, 327 layer shapes", readme) == pytest.approx(suites, abs=6e-4)
    assert row("Bursts, 300 random shapes", readme) == row("H200: selected kernel")
    for start, (table, figure) in ROWS.items():
        assert row(start) == pytest.approx([figure(x.ratios) for x in lines(TABLES[table])], abs=6e-4), start
    for start, title in OTHERS.items():
        (own,) = (table for table in TABLES if table.title == title)
        known = [f(x.ratios) for x in lines(own) if x.type != "f16" for f in (geometric_mean, min)]
        assert row(start) == pytest.approx(known, abs=6e-3), start

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
ROWS: Mapping[str, tuple[int, str, Figure]] = {
    "**H200**: selected / cuBLASLt (00b13fba; tf32 e2cb6a32)": (0, "ratios", geometric_mean),
    "selected / PyTorch's cuBLAS": (2, "ratios", geometric_mean),
    "on 24 problems of layers that nobody had measured": (-2, "ratios", geometric_mean),
    "**H100**: selected / cuBLASLt (e4d48ab)": (1, "ratios", geometric_mean),
}
"""Rows of the summary: of which table, which ratios, and what is said of them."""
TWICE: Mapping[str, tuple[str, Figure]] = {
    "best of the set / cuBLASLt": ("best", geometric_mean),
    "least selected / cuBLASLt": ("ratios", min),
}
"""Rows that come twice, for the H200 and for the H100."""
OTHERS = {
    "60 drawn at random": "Random problems, H200",
    "60 of the first row with a row-major B": "Random problems with a row-major B, H200",
    "90 gradients of inputs": "Gradients of inputs, H200",
    "90 gradients of weights": "Gradients of weights, H200",
    "180 of 1 to 256 rows": "Few rows times row-major weights, H200",
    "24 batches": "Batched GEMMs, H200",
}
"""Beginnings of rows with means and, in parentheses, the least, and the tables that they are of."""


@pytest.mark.slow
@pytest.mark.heavy
def test_the_summary_and_the_readme_have_the_figures_of_the_page() -> None:
    summary = (ROOT / "docs" / "performance" / "summary.md").read_text(encoding="utf-8")

    def said(start: str, page: str = summary) -> list[list[float]]:
        rows = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", page, re.M)
        return [[float(figure) for figure in re.findall(r"[\d.]+", row)] for row in rows]

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    of_suites = [[x for line in lines(TABLES[0]) for x in (geometric_mean(line.ratios), min(line.ratios))]]
    assert said("bursts: 327 problems", readme) == [pytest.approx(row, abs=6e-4) for row in of_suites]
    (drawn,), (with_f16,) = (
        said("300 a type drawn by a seed"),
        said("bursts: [300 problems a type drawn by a seed]", readme),
    )
    assert drawn == pytest.approx([*with_f16[:2], *with_f16[4:]], abs=6e-3)
    for start, (table, ratios, figure) in ROWS.items():
        assert said(start) == [pytest.approx([figure(getattr(x, ratios)) for x in lines(TABLES[table])], abs=6e-4)]
    for start, (ratios, figure) in TWICE.items():
        of = [[figure(getattr(x, ratios)) for x in lines(TABLES[table])] for table in (0, 1)]
        assert said(start) == [pytest.approx(row, abs=6e-4) for row in of], start
    for start, title in OTHERS.items():
        (own,) = (table for table in TABLES if table.title == title)
        known = [f(x.ratios) for x in lines(own) if x.type != "f16" for f in (geometric_mean, min)]
        assert said(start) == [pytest.approx(known, abs=6e-3)], start

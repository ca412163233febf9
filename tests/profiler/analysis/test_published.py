"""Published tables: what the kept measurements come to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gemmill.profiler.analysis.published import PAGE, TABLES, lines, markdown

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_page_is_what_the_measurements_come_to() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run python -m gemmill.profiler.analysis.published"


@pytest.mark.slow
def test_the_readme_has_the_figures_of_the_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for gpu, table in (("H200", TABLES[0]), ("H100", TABLES[1])):
        (row,) = re.findall(rf"^\| \*\*{gpu}\*\*: selected / cuBLASLt[^|]*\|(.*)\|$", readme, re.M)
        said = [float(cell) for cell in row.split("|")]
        product = [1.0] * len(said)
        for i, line in enumerate(lines(table)):
            for ratio in line.ratios:
                product[i] *= ratio ** (1 / len(line.ratios))
        assert said == pytest.approx(product, abs=6e-4)

"""``gemmill bench`` on several problems: every kernel verified, timed and written, next to the baselines."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.cli.test_cli import MANIFEST, ok

from gemmill.profiler.baselines.baseline import BASELINES

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_the_best_kernels_of_a_suite(regime: str, tmp_path: Path) -> None:
    shapes = "[[8192, 8192, 4096], {m: 4096, n: 8192, k: 8192, a: f16}]"
    (suite := tmp_path / "suite.yaml").write_text(f"name: s\nshapes: {shapes}\n")
    to_csv, to_svg = tmp_path / "table.csv", tmp_path / "bars.svg"
    files = ("--csv", to_csv, "--svg", to_svg)
    items = json.loads(ok("bench", "--shapes", suite, "--top", "2", "--regime", regime, *files, "--json"))["items"]
    kernels = [row for row in items if row["kernel"] not in BASELINES]
    assert len(kernels) == 4
    assert {(row["regime"], row["stage"], row["verified"]) for row in kernels} == {(regime, "final", True)}
    assert all(0.3 < row["of_roof"] < 1.1 for row in kernels)
    table = [*csv.DictReader(to_csv.open())]
    assert [(row["kernel"], float(row["us"])) for row in table] == [(row["kernel"], row["us"]) for row in items]
    assert to_svg.read_text().count('class="s0"') == 4


def test_all_kernels_of_a_manifest(tmp_path: Path) -> None:
    (path := tmp_path / "all.yaml").write_text(MANIFEST.replace("stages: 4}", "stages: [2, 3, 4]}"))
    rows = json.loads(ok("bench", "--mnkl", "256,256,256", "--kernel", "all", "--manifest", path, "--json"))["items"]
    kernels = [row for row in rows if row["kernel"] not in BASELINES]
    assert len(kernels) == 3
    assert all(row["verified"] for row in kernels)

"""Every kind of problem by the commands that need no GPU: rows of the table in docs/problems.md, and that table."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cases.kinds import KINDS, Kind, manifest, suite, table
from typer.testing import CliRunner

from gemmill.cli import application
from gemmill.library.input.group_sizes import checked_sizes, flops_of
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.sweep.shape_suites import load_shapes
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Choice

DOCS = Path(__file__).parents[2] / "docs" / "problems.md"


def ok(*arguments: str | Path) -> str:
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert done.exit_code == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def choices() -> Mapping[str, Choice]:
    registry = Registry(gpu="H200")
    return {name: registry.select(kind.problem) for name, kind in KINDS.items()}


def test_the_table_in_the_docs_is_what_is_tried() -> None:
    assert table() in DOCS.read_text(), "docs/problems.md: put there what tests.cases.kinds.table() gives"


@pytest.mark.parametrize("name", KINDS)
def test_select(name: str, choices: Mapping[str, Choice]) -> None:
    found = json.loads(ok("select", "--problem", KINDS[name].text, "--gpu", "H200", "--json"))
    assert found["name"] == choices[name].name
    assert found["text"] == KINDS[name].text


@pytest.mark.parametrize("name", KINDS)
def test_shapes(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    (path := tmp_path / "asked.yaml").write_text(suite([kind]))
    (again := tmp_path / "again.yaml").write_text(ok("shapes", path))
    (shape,) = load_shapes(again).shapes
    assert (shape.problem, shape.sizes) == (kind.problem, checked_sizes(kind.problem, kind.sizes or None))


@pytest.fixture(scope="module")
def packed(choices: Mapping[str, Choice], tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A pack for problems of every kind, of a manifest of the kernels that are selected for them."""
    folder = tmp_path_factory.mktemp("kinds")
    (path := folder / "kinds.yaml").write_text(manifest(dict.fromkeys(choice.config for choice in choices.values())))
    problems = [word for kind in KINDS.values() for word in ("--problem", kind.text)]
    ok("pack", path, *problems, "--gpu", "H200", "-o", folder / "kinds.pack")
    return Registry(packs=[folder / "kinds.pack"], gpu="H200")


@pytest.mark.heavy
@pytest.mark.parametrize("name", KINDS)
def test_pack(name: str, packed: Registry) -> None:
    assert packed.select(KINDS[name].problem).name in packed.packs[0].names()


def record(kind: Kind, kernel: str) -> Measurement:
    """A measurement of 10 us."""
    return Measurement(
        kernel=kernel,
        digest="0" * 64,
        problem=kind.measured,
        sizes=checked_sizes(kind.problem, kind.sizes or None),
        gpu="NVIDIA H200",
        driver="580",
        cuda="13.0",
        torch="2.9",
        gemmill="0.1",
        commit="",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        stage="final",
        us=10.0,
        verified=True,
    )


@pytest.fixture(scope="module")
def reported(choices: Mapping[str, Choice], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What report says of a measurement of every kind."""
    folder = tmp_path_factory.mktemp("kinds")
    found = (record(kind, choices[name].name) for name, kind in KINDS.items())
    (path := folder / "records.jsonl").write_text("".join(f"{m.model_dump_json()}\n" for m in found))
    ok("report", path, "--csv", folder / "table.csv", "-o", folder / "report.html")
    assert "zipf:1.1" in (folder / "report.html").read_text()
    with (folder / "table.csv").open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("name", KINDS)
def test_report(name: str, choices: Mapping[str, Choice], reported: list[dict[str, Any]]) -> None:
    kind, (row,) = KINDS[name], (r for r, own in zip(reported, KINDS, strict=True) if own == name)
    assert row["best"] == choices[name].name
    assert row["problem"] == kind.measured.extents
    assert float(row["tflops"]) == pytest.approx(flops_of(kind.measured, row_sizes(kind)) / 10 / 1e6)
    assert row["selected"] == choices[name].name
    said = kind.problem.epilogue if kind.problem.epilogue != "linear" else kind.problem.batching
    assert said == "strided" or said in row["formats"]
    assert kind.sizes in row["formats"]


def row_sizes(kind: Kind) -> str:
    return checked_sizes(kind.problem, kind.sizes or None)


def test_lines_are_the_ones_that_problems_print() -> None:
    assert [GemmProblem.from_text(kind.text).__str__() for kind in KINDS.values()] == [k.text for k in KINDS.values()]

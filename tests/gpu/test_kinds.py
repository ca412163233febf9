"""Every kind of problem by the commands that need a GPU: the rows of the table in docs/problems.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cases.kinds import KINDS, Kind, manifest, suite
from typer.testing import CliRunner

from gemmill.cli import application
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.input.group_sizes import checked_sizes, flops_of
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.baselines.cublas import lacking
from gemmill.runtime.registry import Registry

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def ok(*arguments: str | Path) -> Any:
    """What a command prints as JSON."""
    done = CliRunner().invoke(application(), [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What profile measures of all kinds: of each by the kernel that is selected. The manifest has them without their
    expressions: profile takes them with those that the shapes say."""
    folder = tmp_path_factory.mktemp("kinds")
    registry = Registry()
    configs = [replace(registry.select(kind.problem).config, epilogue=LINEAR) for kind in KINDS.values()]
    (path := folder / "kinds.yaml").write_text(manifest(dict.fromkeys(configs)))
    (shapes := folder / "shapes.yaml").write_text(suite(KINDS.values()))
    ok("profile", path, "--shapes", shapes, "--records", folder / "records.jsonl")
    return folder / "records.jsonl"


@pytest.fixture(scope="module")
def reached(records: Path) -> list[dict[str, Any]]:
    """What roofline says of these measurements."""
    found = ok("roofline", "--dtypes", "bf16,e4m3", "--records", records)
    return list(found["problems"])


def rows_of(rows: list[dict[str, Any]], kind: Kind) -> list[dict[str, Any]]:
    sizes = checked_sizes(kind.problem, kind.sizes or None)
    return [row for row in rows if GemmProblem(**row["problem"]) == kind.measured and row["sizes"] == sizes]


def check(rows: list[dict[str, Any]], kind: Kind) -> None:
    """Kernels are verified and timed, the rate is of what is multiplied, and baselines are beside those they have."""
    sizes = checked_sizes(kind.problem, kind.sizes or None)
    kernels = [row for row in rows if row["kernel"] not in BASELINES]
    assert kernels
    for row in kernels:
        assert row["verified"], row["says"]
        assert row["tflops"] == pytest.approx(flops_of(kind.measured, sizes) / row["us"] / 1e6)
    baselines = [row["kernel"] for row in rows if row["kernel"] in BASELINES and row["us"]]
    if lacking(kind.measured):
        assert not baselines
        assert {row["ratio"] for row in kernels} == {None}
    else:
        assert baselines


@pytest.mark.parametrize("name", KINDS)
def test_run(name: str) -> None:
    kind = KINDS[name]
    rows = ok("bench", "--problem", kind.text, *(("--sizes", kind.sizes) if kind.sizes else ()))["items"]
    assert rows_of(rows, kind) == rows
    check(rows, kind)


@pytest.mark.parametrize("name", KINDS)
def test_profile(name: str, records: Path) -> None:
    check(rows_of([*map(json.loads, records.read_text().splitlines())], KINDS[name]), KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_roofline(name: str, reached: list[dict[str, Any]]) -> None:
    problem = KINDS[name].measured
    own = [row for row in reached if row["problem"] == problem.extents]
    assert any(row["best"] and row["roof"] and 0 < row["of_roof"] < 1.5 for row in own)


def test_profile_measures_a_list_of_several_types_without_a_manifest(tmp_path: Path) -> None:
    lines = ["256x512x256 bf16 tn", "256x512x256 e4m3 tn", "256x512x256 s8 tn"]
    asked = [word for line in lines for word in ("--problem", line)]
    rows = ok("profile", *asked, "--preset", "quick", "--records", tmp_path / "records.jsonl")["items"]
    for line in lines:
        problem = GemmProblem.from_text(line)
        kernels = [row for row in rows if GemmProblem(**row["problem"]) == problem and row["kernel"] not in BASELINES]
        assert kernels
        assert all(row["verified"] for row in kernels)
        assert ok("select", "--problem", line, "--records", tmp_path / "records.jsonl")["source"] == "measured"
    assert {row["formats"] for row in ok("report", tmp_path / "records.jsonl")["items"]} >= {
        "bf16 tn",
        "e4m3 tn",
        "s8 tn",
    }


@pytest.mark.parametrize(("bits", "arithmetic"), [("cublas", "k16"), ("k16/8", "k16/8")])
def test_run_and_profile_take_only_kernels_that_give_the_required_bits(
    bits: str, arithmetic: str, tmp_path: Path
) -> None:
    asked = ("--problem", "64x512x8192 bf16 tn", "--bits", bits)
    some = "tile.m == 64 and tile.n == 128 and d.dtype == 'bf16'"
    rows = ok("bench", *asked, "--top", "3")["items"]
    rows += ok("profile", "bf16", *asked, "--where", some, "--records", tmp_path / "records.jsonl")["items"]
    kernels = [row for row in rows if row["kernel"] not in BASELINES]
    assert {(row["arithmetic"], row["verified"]) for row in kernels} == {(arithmetic, True)}

"""``python -m benchmarks choosing``: regret of choosers on records whose times are known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from benchmarks.choosers.cases import (
    RESULTS,
    Answer,
    Case,
    Chooser,
    KernelProperties,
    Measured,
    cases_of,
    distance,
    nearest,
)
from benchmarks.choosers.deepgemm import deepgemm
from benchmarks.choosing import Score, built_in, figures_of, scored

from gemmill.library.config.names import kernel_name
from gemmill.library.errors import ConfigError
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.parquet import problems_of
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement

ROOT = Path(__file__).parents[2]
PROBLEMS = (GemmProblem(64, 4096, 4096), GemmProblem(4096, 4096, 4096), GemmProblem(100, 4000, 520))
US = (10.0, 11.0, 12.0, 15.0, 20.0, 30.0, 40.0)
"""Times of the kernels of each problem, in their order, which turns by one from problem to problem."""


def names() -> list[str]:
    tiles = (c for c in load_manifest(shipped_manifest("bf16")).expand() if c.scheduler.decomposition == "tiles")
    direct = (config for config in tiles if config.d.major == "n" and config.b.major == config.a.major == "k")
    return [kernel_name(config) for config in islice(direct, len(US))]


def measured(problem: GemmProblem, kernel: str, us: float, gpu: str = "NVIDIA H100 PCIe") -> Measurement:
    conditions: dict[str, Any] = {
        "gpu": gpu,
        "driver": "1",
        "cuda": "1",
        "torch": "2",
        "gemmill": "0",
        "commit": "c",
        "digest": "d",
    }
    return Measurement(
        kernel=kernel,
        problem=problem,
        us=us,
        stage="final",
        verified=True,
        time=datetime.now(UTC),
        run="r",
        **conditions,
    )


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    kernels = names()
    lines = (
        measured(problem, kernels[(i + turn) % len(US)], us).model_dump_json()
        for turn, problem in enumerate(PROBLEMS)
        for i, us in enumerate(US)
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def cases(records: Path) -> list[Measured]:
    found = cases_of([records], ["burst"])
    assert (len(found.measured), found.too_few) == (len(PROBLEMS), 0)
    return found.measured


def on(cases: list[Measured], chooser: Chooser) -> Iterator[Score]:
    return scored("own", chooser, cases)


def ranked(cases: list[Measured], case: Case) -> list[str]:
    us = next(measured.us for measured in cases if measured.case == case)
    return sorted(us, key=lambda name: us[name])


def test_the_best_has_no_regret_and_the_worst_all_of_it(cases: list[Measured]) -> None:
    assert [score.regret for score in on(cases, lambda case: ranked(cases, case)[0])] == [0.0] * len(cases)
    assert [score.regret for score in on(cases, lambda case: ranked(cases, case)[-1])] == [pytest.approx(3)] * len(
        cases
    )


def test_of_several_names_the_first_counts_and_the_best_is_scored_too(cases: list[Measured]) -> None:
    (figures, *_) = figures_of(on(cases, lambda case: ranked(cases, case)[::-1][:6]))
    assert (figures["mean"], figures["mean of first 8"]) == (pytest.approx(3), pytest.approx(0.1))


def test_problems_that_a_chooser_refuses_lower_its_coverage_alone(cases: list[Measured]) -> None:
    def refuses_large(case: Case) -> Answer:
        return ranked(cases, case)[1] if case.problem.m < 1000 else None

    figures = {row["group"]: row for row in figures_of(on(cases, refuses_large))}
    assert figures["all"]["coverage"] == pytest.approx(2 / 3)
    assert figures["all"]["mean"] == pytest.approx(0.1)
    assert figures["kind decode"]["coverage"] == 1
    assert {row["split"] for row in figures_of(on(cases, refuses_large))} == {"unseen", "unseen weights"}


def test_a_kernel_that_was_not_measured_is_an_error_that_names_it(cases: list[Measured]) -> None:
    other = names()[0].replace("_s", "_s1")
    with pytest.raises(ConfigError, match=rf"chooser own names {other} for 64x4096x4096"):
        list(on(cases, lambda case: other))


def test_the_kernel_nearest_to_a_wanted_one_stands_for_it(cases: list[Measured]) -> None:
    for name, kernel in cases[0].case.kernels.items():
        assert distance(kernel, kernel.properties) == 0
        name_of_nearest, _ = nearest(kernel.properties, cases[0].case.kernels)
        assert distance(cases[0].case.kernels[name_of_nearest], kernel.properties) == 0
        m, n, k = kernel.tile
        assert distance(kernel, KernelProperties((2 * m, n // 2, k), kernel.cluster, kernel.stages, 4)) == 4, name


def test_every_chooser_that_ships_names_candidates(cases: list[Measured]) -> None:
    choosers = built_in(cases)
    for name in {*choosers} - {"nvidia"}:
        assert all(score.kernel for score in scored(name, choosers[name], cases)), name


def test_deepgemm_fills_the_gpu_and_multicasts_where_there_are_waves(cases: list[Measured]) -> None:
    """No outside reference runs here: its rules say that a single wave has no cluster, and that at most one extent of a
    tile is above 128."""
    for measured in cases:
        wanted = deepgemm(measured.case)
        assert isinstance(wanted, KernelProperties)
        m, n, k = wanted.tile
        assert k == 64
        assert min(m, n) <= 128
        assert wanted.stages >= 3
        assert (wanted.cluster == (1, 1)) == (measured.case.problem.m < 1000)


@pytest.mark.slow
def test_problems_of_sweeps_that_the_model_was_fitted_to_are_not_unseen(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    drawn = problems_of(RESULTS / "h200-drawn.parquet")
    fitted = next(p for p in sorted(next(iter(drawn.values())), key=str) if str(p).endswith("bf16 tn"))
    path = tmp_path / "records.jsonl"
    lines = [
        measured(p, kernel, 9.0, "NVIDIA H200") for p in (fitted, GemmProblem(1237, 5064, 3128)) for kernel in names()
    ]
    path.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    by_problem = {m.case.problem: m.is_fitted for m in cases_of([path], ["burst"]).measured}
    assert by_problem == {fitted: True, GemmProblem(1237, 5064, 3128): False}


@pytest.mark.slow
def test_a_chooser_of_a_file_from_the_command_line(records: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    results = {"first": "min(case.kernels)", "fails": "case.missing", "number": "7"}
    own.write_text("".join(f"def {name}(case):\n    return {result}\n" for name, result in results.items()))
    program = [sys.executable, "-m", "benchmarks", "choosing", "--records", str(records), "--json", "out.json"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        return subprocess.run([*program, *options], cwd=tmp_path, capture_output=True, text=True, env=environment)

    done = run("--chooser", f"{own}:first", "--chooser", "random")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads((tmp_path / "out.json").read_text())
    own_choices = [choice for choice in content["choices"] if choice["chooser"] == f"{own}:first"]
    assert {choice["kernel"] for choice in own_choices} == {min(names())}
    assert len(own_choices) == len(PROBLEMS)
    assert f"burst, unseen, all: {len(PROBLEMS)} problems" in done.stdout
    assert content["figures"][0]["problems"] == len(PROBLEMS)
    for chooser, says in (
        (f"{own}:other", "has no function other"),
        (f"{own}:fails", "failed on 64x4096x4096"),
        (f"{own}:number", "TypeError"),
    ):
        failed = run("--chooser", chooser)
        assert failed.returncode == 1
        assert failed.stderr.startswith(f"error: chooser {own}")
        assert says in failed.stderr

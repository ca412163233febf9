"""Models trained on real records: written whole, chosen by, and refused where they are of another GPU or damaged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cli import gemmill, ok

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.analysis.appender import Appender
from gemmill.profiler.training.rows import PAUSED, by_clock, merged, rows_of
from gemmill.profiler.training.tables import fastest
from gemmill.profiler.training.train import read_runs, train
from gemmill.runtime.health import examination
from gemmill.runtime.registry import Registry
from gemmill.runtime.select import model_file
from gemmill.runtime.select.model_file import content_of, path_of, with_model

RECORDS = Path(__file__).parents[2] / "cases" / "records"
CLUSTERS = RECORDS / "fp8-clusters-20261121T194000Z.jsonl.xz"
"""Of problems of which many are in suites."""
GPU = DEFAULT_GPU.name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of few records."""
    folder = tmp_path_factory.mktemp("model")
    assert train([CLUSTERS], None, folder) == GPU
    return folder


@pytest.mark.slow
def test_a_model_is_judged_written_and_chosen_by(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(path_of(GPU, model).read_text())
    assert content["fitted to"] == ["fp8-clusters-20261121T194000Z"]
    judged = content[
        "held out by K: problems, once for each run; selected / best, its 5th percentile, best of 8 / best"
    ]
    assert judged["all"]["problems"] == judged["e4m3"]["problems"] > 0
    asked = ("select", "--mnkl", "1000,1112,1224", "--gpu", "H200", "--json")
    own, shipped = (json.loads(ok(*asked, *more)) for more in (("--model", model), ()))
    assert own["ranking"] != shipped["ranking"], "times are of another model"
    monkeypatch.setenv("GEMMILL_MODEL", str(model))
    assert json.loads(ok(*asked)) == own
    assert f"{model}: for {GPU}, trained on 1 sweeps" in examination.model().detail


def measured_at(us: float, kernel: str, like: Measurement, **changes: object) -> Measurement:
    return like.model_copy(update={"us": us, "kernel": kernel, "stage": "final", **changes})


@pytest.mark.parametrize(
    ("mnk", "us", "method", "is_full"),
    [
        ((4096, 4096, 4096), 210.0, PAUSED - 1, False),  # near the power limit
        ((4096, 4096, 4096), 190.0, PAUSED, True),
        ((16, 4096, 4096), 10.0, PAUSED - 1, True),  # DRAM is the bound
    ],
)
def test_without_pauses_only_problems_that_need_little_power_count_as_at_full_clock(
    mnk: tuple[int, int, int], us: float, method: int, is_full: bool
) -> None:
    ((_, own),) = read_runs([CLUSTERS]).items()
    measured = own[0].model_copy(update={"problem": GemmProblem(*mnk), "us": us, "method": method})
    assert by_clock([measured], DEFAULT_GPU) == (([measured], []) if is_full else ([], [measured]))


def test_of_what_no_longer_holds_nothing_or_the_rank_is_learnt() -> None:
    ((_, own),) = read_runs([CLUSTERS]).items()
    (first, *_) = rows_of(own, DEFAULT_GPU)
    of_first = [m for m in own if m.problem == first.problem]
    assert not [*rows_of([m.model_copy(update={"holds": "rank"}) for m in of_first], DEFAULT_GPU)]
    assert fastest([[m.model_copy(update={"holds": "rank"}) for m in own]]) == fastest([own])
    assert fastest([[m.model_copy(update={"holds": "nothing"}) for m in own]])["kernels"] == []


def test_a_run_that_was_slower_throughout_says_the_same_of_its_kernels() -> None:
    ((_, own),) = read_runs([CLUSTERS]).items()
    first = max(rows_of(own, DEFAULT_GPU), key=lambda rows: len(rows.kernels))
    slower = replace(
        first,
        kernels=first.kernels[1:],
        features=first.features[1:],
        analytic=first.analytic[1:],
        measured=first.measured[1:] + 0.2,
        best=first.best + 0.2,
    )
    (both,) = merged([first, slower])
    assert both.kernels == first.kernels
    assert both.measured - both.measured[-1] == pytest.approx(first.measured - first.measured[-1], abs=1e-3)
    assert both.measured.mean() == pytest.approx(first.measured.mean() + 0.1, abs=1e-3)


def test_of_split_k_what_a_launch_of_today_takes_is_learnt() -> None:
    """Kernels that summed in one launch are no more; a number that is an argument costs a little."""
    ((_, own),) = read_runs([CLUSTERS]).items()
    like = next(m for m in own if m.stage == "final" and m.problem.k >= 1024)
    name = "sm90a_e4m3k16_e4m3k16_f32_none_bf16n16_128x128x128_1x1_cooperative_s4_m8_{}_linear"
    kernels = [(name.format(how), slices) for how, slices in (("k1", 1), ("splitk", 4), ("k4split", 4), ("k4fused", 4))]
    own = [measured_at(10.0, kernel, like, slices=slices) for kernel, slices in kernels]
    (rows,) = rows_of(own, DEFAULT_GPU)
    assert dict(zip(rows.kernels, np.exp(rows.measured), strict=True)) == pytest.approx(
        dict(zip(kernels[:3], (10.0, 10.0, 10.17), strict=True))
    )


def test_the_last_run_that_looked_at_the_former_best_ranks_kernels() -> None:
    ((_, own),) = read_runs([CLUSTERS]).items()
    table = fastest([own])
    ((extents, row), *_) = table["tables"][0]["problems"].items()
    best, second = (table["kernels"][int(row[i])] for i in (0, 2))
    like = next(m for m in own if m.kernel == best and m.problem.extents == extents)
    other = next(m for m in own if m.kernel == second and m.problem.extents == extents)
    later = like.time.replace(year=like.time.year + 1)

    def first_of(*runs: list[Measurement]) -> str:
        found = fastest([[m for m in own if m.problem == like.problem], *runs])
        (problems,) = (t["problems"] for t in found["tables"])
        return str(found["kernels"][int(problems[extents][0])])

    faster = measured_at((like.us or 0) * 0.5, second, other, time=later)
    slower = measured_at((like.us or 0) * 2, second, other, time=later)
    assert first_of([measured_at(like.us or 0, best, like, time=later), faster]) == second
    assert first_of([faster]) == second, "as fast as the former best, which it did not look at"
    assert first_of([slower]) == best, "that run did not look at the former best"


def test_a_number_of_slices_that_was_compiled_in_counts_for_the_kernel_of_any_number() -> None:
    ((_, own),) = read_runs([CLUSTERS]).items()
    like = next(m for m in own if m.stage == "final")
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8_{}_linear"
    present = fastest([[measured_at(1.0, name.format("splitk"), like, slices=32)]])
    assert (present["kernels"], present["slices"]) == ([name.format("splitk")], [32])
    assert fastest([[measured_at(1.0, name.format("k32split"), like, slices=32)]]) == present
    assert fastest([[measured_at(1.0, name.format("k33split"), like, slices=33)]])["kernels"] == []


@pytest.mark.slow
def test_a_model_that_is_damaged_or_of_another_gpu_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(model_file.FOLDER, damaged)
    path_of(GPU, damaged).write_text('{"version": 3')
    with pytest.raises(RecordError, match=r"h200.json: is damaged, or not a model of a GPU .*; train a new one"):
        content_of(GPU, damaged)
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    shutil.copy(path_of(GPU), path_of("NVIDIA H100 PCIe", renamed))
    with pytest.raises(RecordError, match=r"for NVIDIA H200; expected version \d+ for NVIDIA H100 PCIe"):
        content_of("NVIDIA H100 PCIe", renamed)
    with pytest.raises(RecordError, match=r"nvidia-h200.json is missing; the folder has models of nvidia-h100-pcie"):
        with_model(DEFAULT_GPU, renamed)
    with pytest.raises(RecordError, match="the folder has no model; train a new one"):
        _ = Registry(manifests=["bf16"], gpu=DEFAULT_GPU, model=tmp_path).gpu
    result = gemmill("select", "--mnkl", "512,512,512", "--gpu", "H200", "--model", renamed)
    assert result.exit_code == 1
    assert "is missing; the folder has models of nvidia-h100-pcie" in result.stderr


def test_what_cannot_be_trained_is_said(tmp_path: Path) -> None:
    result = gemmill("train", CLUSTERS, "--gpu", "NVIDIA A100", "-o", tmp_path)
    assert result.exit_code == 2
    assert "'--gpu': 'NVIDIA A100' is none of NVIDIA H200, " in result.stderr
    result = gemmill("train", CLUSTERS, "--gpu", "H100", "-o", tmp_path)
    assert result.exit_code == 1
    assert "no measurements of NVIDIA H100 80GB HBM3, only of NVIDIA H200; choose one of these" in result.stderr
    two = tmp_path / "two.jsonl"
    m = next(read_records(CLUSTERS))
    with Appender(two) as appender:
        appender.append(m, m.model_copy(update={"gpu": "NVIDIA H100 PCIe"}))
    result = gemmill("train", two, "-o", tmp_path)
    assert "the records have several GPUs (NVIDIA H200, NVIDIA H100 PCIe); choose one with --gpu" in result.stderr
    with Appender(tmp_path / "failed.jsonl") as appender:
        appender.append(m.model_copy(update={"stage": "failed", "us": None}))
    result = gemmill("train", tmp_path / "failed.jsonl", "-o", tmp_path)
    assert "no finalists on problems that the model supports" in result.stderr
    (tmp_path / "empty.jsonl").touch()
    result = gemmill("train", tmp_path / "empty.jsonl", "--gpu", "H200", "-o", tmp_path)
    assert "the records have no measurements; run gemmill profile" in result.stderr

"""The energy term fitted: to records made by one, which is found again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import RecordError
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.training.sustained import held_problems, judge
from gemmill.profiler.training.train import train
from gemmill.runtime.select.cost.energy import COEFFICIENTS, sustained_us
from gemmill.runtime.select.cost.model import times
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.decisions import read_decisions
from gemmill.runtime.select.model_file import content_of, model_of

H200 = gpu_named("H200")
H100 = gpu_named("NVIDIA H100 80GB HBM3")
TRUE = dict(zip(COEFFICIENTS, (0.5, 0.06, 0.04, 0.01, 0.9, 690.0), strict=True))
WHERE = "a.major == 'k' and b.major == 'k' and tile.m >= 128 and tile.n >= 128 and scheduler.splits == 1"
KERNELS = [c for c in load_manifest(shipped_manifest("bf16")).expand(where=WHERE) if c.d.major == "n"][::4]


def record(
    problem: GemmProblem, kernel: str, us: float, regime: str = "sustained", stage: str = "final", gpu: Gpu = H200
) -> str:
    m = Measurement.model_validate(
        {
            "kernel": kernel,
            "digest": "" if kernel == "cublas" else "d" * 64,
            "problem": problem,
            "gpu": gpu.name,
            "driver": "",
            "cuda": "",
            "torch": "",
            "gemmill": "",
            "commit": "",
            "time": datetime.now(UTC),
            "stage": stage,
            "us": us,
            "regime": regime,
            "verified": True,
            "watts": 690.0,
            "sm_mhz": 1400,
        }
    )
    return m.model_dump_json() + "\n"


def written(path: Path, problems: int, a: DTypeName = "bf16", gpu: Gpu = H200) -> Path:
    configs = [parse_name(kernel_name(config).replace("bf16", a)) for config in KERNELS]
    learnt = model_of(gpu.name)
    assert learnt is not None
    entries = [(SlicedKernel(kernel_name(config)), config, False) for config in configs]
    table = FeatureTable.of(entries, gpu, learnt.network)
    with path.open("w") as file:
        for i in range(problems):
            problem = GemmProblem(m=4096, n=4096 + 512 * i, k=2048 + 1024 * (i % 9), a=a)
            work = times(table, problem, gpu)
            us = sustained_us(TRUE, work["us"], work["analytic_us"], table, problem, gpu)
            for config, value in zip(configs, us.tolist(), strict=True):
                file.write(record(problem, kernel_name(config), value / 2, "burst", "screen", gpu))
                file.write(record(problem, kernel_name(config), value, gpu=gpu))
            file.write(record(problem, "cublas", float(us.min()), gpu=gpu))
    return path


def test_an_energy_term_is_found_again(tmp_path: Path) -> None:
    says: list[str] = []
    folder = tmp_path / "models"
    assert train([written(tmp_path / "records.jsonl", 16)], None, folder, listener=says.append) == H200.name
    assert [path.name for path in folder.iterdir()] == ["nvidia-h200.json"]
    own, ships = model_of(H200.name, folder), content_of(H200.name)
    assert own is not None
    assert own.energies["bf16"] == pytest.approx(TRUE, rel=1e-3)
    written_content = content_of(H200.name, folder)
    assert written_content is not None
    assert ships is not None
    assert written_content["network"] == ships["network"], "nothing was measured of bursts at length"
    [said] = says
    assert "bf16 under sustained load: 16 problems" in said
    assert "'energy': {'of the best': 1.0," in said


def test_few_problems_are_enough_beside_those_of_another_type_on_another_gpu(tmp_path: Path) -> None:
    few = written(tmp_path / "f16.jsonl", 2, "f16")
    with pytest.raises(RecordError, match="fewer than 12 problems"):
        train([few], None, tmp_path / "models")
    train([few, written(tmp_path / "bf16.jsonl", 32, gpu=H100)], H200.name, tmp_path / "models")
    found = model_of(H200.name, tmp_path / "models")
    assert found is not None
    assert [*found.energies] == ["f16"]
    assert found.energies["f16"] == pytest.approx(TRUE, rel=0.02)


def test_too_few_problems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="H200: fewer than 12 problems were measured under sustained load"):
        train([written(tmp_path / "records.jsonl", 3)], None, tmp_path / "models")


def test_where_a_problem_was_measured_under_sustained_load_bursts_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 1)
    problem = GemmProblem(m=4096, n=4096, k=2048)
    other = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x64x64_1x1_pingpong_s8_m8_k1_linear"
    with path.open("a") as file:
        file.write(record(problem, other, 0.5, "burst"))
        file.write(record(problem, kernel_name(KERNELS[0]), 0.5, "burst"))
    found = {decision.kernel: decision.us for decision in read_decisions([path])}
    assert other not in found
    assert len(found) == len(KERNELS)
    assert min(found.values()) > 1


def test_records_of_sustained_load_alone_have_joules() -> None:
    lines = [json.loads(record(GemmProblem(m=64, n=64, k=64), "k", 100.0, x)) for x in ("sustained", "burst")]
    assert [line["joules"] for line in lines] == [pytest.approx(0.069), None]
    assert lines[0]["key"] != lines[1]["key"]


def test_nothing_is_judged_where_no_k_can_be_held_out(tmp_path: Path) -> None:
    problems = held_problems(read_records(written(tmp_path / "records.jsonl", 10)), H200, model_of(H200.name))
    assert judge(problems).keys() == {"model", "energy"}
    assert judge([x for x in problems if x.problem.k == 2048]) == {}

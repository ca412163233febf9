"""Measurements of no use are counted aloud: of other GPUs, of kernels unknown or not at hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cases.manifests import ONE

from gemmill.library.arch import GPUS
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.runtime.registry import Registry

PROBLEM = GemmProblem(64, 3072, 3072, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
H200 = GPUS["NVIDIA H200"]
MANIFEST = f"{ONE}    cluster: 1x1\n    stages: 4\n    scheduler: {{swizzle_size: 1}}\n"


def measured(kernel: str = KERNEL, gpu: str = H200.name, problem: GemmProblem = PROBLEM, us: float = 5.0) -> str:
    record = Measurement(
        kernel=kernel,
        digest="ab" * 32,
        problem=problem,
        gpu=gpu,
        driver="580",
        cuda="13.0",
        torch="2.11",
        gemmill="0.1.0",
        commit="",
        time=datetime(2026, 11, 21, tzinfo=UTC),
        stage="final",
        us=us,
        verified=True,
    )
    return record.model_dump_json() + "\n"


def selected(folder: Path, *lines: str) -> str:
    """The source of the choice for the problem, with such measurements."""
    (records := folder / "records.jsonl").write_text("".join(lines))
    (manifest := folder / "one.yaml").write_text(MANIFEST)
    registry = Registry(manifests=[manifest], records=[records], gpu=H200, store=folder / "store")
    choice = registry.select(PROBLEM)
    assert registry.select(replace(PROBLEM, m=128)).source == "model", "said once"
    return choice.source


def test_what_is_used_is_not_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = measured(kernel=KERNEL.replace("bf16", "f16"), problem=replace(PROBLEM, a_dtype="f16"))
    assert selected(tmp_path, measured(), other) == "measured"
    assert caplog.text == "", "nor what is of other types than were asked for"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (measured(gpu="NVIDIA B300"), "are from other GPUs than NVIDIA H200, such as 'NVIDIA B300'"),
        (measured(gpu="H200\x1b[31m"), r"such as 'H200\x1b[31m'"),
        (
            measured(kernel="sm90a_none"),
            "are of kernels that this version of gemmill does not support, such as 'sm90a_none'",
        ),
        (measured(kernel=KERNEL.replace("_s4_", "_s3_")), "are of kernels that are not in this registry"),
    ],
)
def test_what_is_not_used_is_counted(line: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert selected(tmp_path, measured(), line) == "measured"
    (said,) = caplog.messages
    assert said.startswith("ignoring 1 of 2 measurements: they ")
    assert says in said

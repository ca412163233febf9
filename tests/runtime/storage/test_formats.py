"""What this version wrote can be read for good: files in tests/data/formats, which no change may need to write anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gemmill
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.parquet import read_parquet
from gemmill.library.records import read_records
from gemmill.profiler.sweep.shape_suites import load_shapes
from gemmill.runtime.storage.lockfile import Lock
from gemmill.runtime.storage.trust.signatures import TrustedKeys

FORMATS = Path(__file__).parents[2] / "data" / "formats"
KEY = "ed25519:bUWMoV92jnS4bMh02RdTxTdUmXcJTM0qtIdsh93dCZg="
PLAIN = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
NAMES = (
    PLAIN.replace("linear", "xdEreluPaccAbiasDbf16BnJQ"),
    PLAIN,
    PLAIN.replace("64x32x64", "64x64x64"),
)


def test_a_manifest_declares_the_kernels_that_it_did() -> None:
    kernels = gemmill.load_manifest(FORMATS / "written.yaml")
    assert [kernel_name(config) for config in kernels.expand()] == [*NAMES]
    assert [kernel_name(config) for config in kernels.expand("quick")] == [PLAIN]


def test_a_signed_pack_serves_its_kernel() -> None:
    artifact = gemmill.Pack.open(FORMATS / "written.pack", trusted=TrustedKeys.read(KEY)).get(PLAIN)
    assert artifact.digest == "9c20c305bbee95434e3b359912ba38621542eeaad851c128c1e40422f727d3ca"
    assert artifact.resources.dynamic_shared_bytes == artifact.launch.shared_bytes == 65616


def test_a_lock_is_what_it_was() -> None:
    lock = Lock.read(FORMATS / "written.lock")
    assert lock.to_bytes() == (FORMATS / "written.lock").read_bytes()
    suite = load_shapes(FORMATS / "suite.yaml")
    assert {str(shape.problem) for shape in suite.shapes} == {*lock.problems}
    assert {*lock.problems.values()} == {*map(SlicedKernel, NAMES[1:])}


def test_records_say_what_they_said() -> None:
    pytest.importorskip("pyarrow")
    lines = [*read_records(FORMATS / "written.jsonl")]
    assert [*read_parquet(FORMATS / "written.parquet")] == lines
    assert [(m.regime, m.stage, m.problem.m, m.problem.n, m.problem.k) for m in lines[:1]] == [
        ("sustained", "final", 16384, 10240, 8192)
    ]
    assert all(m.joules and m.watts and m.us for m in lines)
    text = (FORMATS / "written.jsonl").read_text().splitlines()
    assert [m.key for m in lines] == [json.loads(line)["key"] for line in text], (
        "what was measured still counts as such"
    )


@pytest.mark.parametrize(
    "problem", ["64x64x128x3 bf16 tn", "8192x4096x7168 e4m3 tn grouped=64 a_scale=1x128 b_scale=128x128"]
)
def test_a_problem_in_a_line_is_written_as_it_was(problem: str) -> None:
    assert str(gemmill.GemmProblem.from_text(problem)) == problem

"""Baselines on the CPU: torch is needed, a GPU is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baseline import CUBLAS, PER_TENSOR, baseline
from gemmill.profiler.operands import make_operands
from gemmill.profiler.verify import reference

torch = pytest.importorskip("torch")


def problem(ab: DTypeName, accumulator: DTypeName, d: DTypeName, b: DTypeName | None = None) -> GemmProblem:
    return GemmProblem(64, 48, 96, 1, ab, "k", b or ab, "k", accumulator, d, "n")


SCALED = replace(problem("e4m3", "f32", "bf16"), promote=4, a_scale="1x128", b_scale="128x128")


@pytest.mark.parametrize(
    ("asked", "solved", "name"),
    [
        (problem("bf16", "f32", "bf16"), None, CUBLAS),
        (problem("f16", "f16", "f16"), None, CUBLAS),
        (problem("tf32", "f32", "f32"), None, CUBLAS),
        (problem("f64", "f64", "f64"), None, CUBLAS),
        (problem("s8", "s32", "s32"), None, CUBLAS),
        (problem("s8", "s32", "bf16"), problem("s8", "s32", "s32"), CUBLAS),
        (problem("e4m3", "f32", "bf16"), None, CUBLAS),
        (replace(problem("e4m3", "f32", "bf16"), promote=4), None, CUBLAS),
        (problem("e4m3", "f32", "e4m3"), problem("e4m3", "f32", "bf16"), CUBLAS),
        (SCALED, problem("e4m3", "f32", "bf16"), PER_TENSOR),
    ],
    ids=str,
)
def test_a_baseline_says_what_it_solves_and_solves_it(
    asked: GemmProblem, solved: GemmProblem | None, name: str
) -> None:
    operands = make_operands(asked, 1, "cpu", sets=2)
    cublas = baseline(asked, operands)
    assert cublas is not None
    assert (cublas.name, cublas.problem) == (name, solved or asked)
    settings = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_fp16_accumulation
    for index, own in enumerate(cublas.operands):
        try:
            cublas.launch(index)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"torch has none on the CPU: {error}")
        assert own.a is operands[index].a
        verdict = reference(cublas.problem, own, 1.0, 0.0).compare(own.d)
        assert verdict.passed, verdict.says
    assert settings == (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_fp16_accumulation)


@pytest.mark.parametrize(
    "asked",
    [
        problem("e5m2", "f32", "bf16"),
        problem("u8", "s32", "s32"),
        problem("bf16", "f32", "bf16", "s8"),
        problem("bf16", "f32", "f16"),
        replace(problem("s8", "s32", "s32"), c_dtype="s32", c_major="n"),
    ],
    ids=str,
)
def test_where_cublas_has_nothing_there_is_no_baseline(asked: GemmProblem) -> None:
    assert baseline(asked, make_operands(asked, 1, "cpu", sets=1)) is None

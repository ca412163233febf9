"""The harness itself, on the CPU: torch is needed, a GPU is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import Case, kernel, make_case, torch

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES

CONFIGS = [
    kernel(),
    kernel(ab="f16", accumulator="f16"),
    kernel(ab="tf32"),
    kernel(ab="f64"),
    kernel(ab="e4m3", b__dtype="e5m2"),
    kernel(ab="e4m3", promote=4, a__scale="1x128", b__scale="128x128"),
    kernel(ab="s8", b__dtype="u8"),
    kernel(ab="s8", d__dtype="s8", d__major="m"),
    kernel(ab="s8", d__dtype="f16"),
    kernel(ab="s8", d__dtype="f32", c__dtype="f32"),
    kernel(ab="f32", a__major="any", b__major="any", d__major="any", a__align=4, d__align=4, stages=2),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.a.dtype}{c.b.dtype}{c.d.dtype}{c.a.scale}")


def solve(case: Case) -> None:
    """Computes D in float64, rounded once."""
    problem, operands = case.problem, case.operands()
    a, b = operands.a.double(), operands.b.double()
    if operands.a_scale is not None:
        a *= operands.a_scale.repeat_interleave(128, 1)[:, : problem.k]
        b *= operands.b_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: problem.k, : problem.n]
    result = case.alpha * (a @ b)
    if operands.c is not None:
        result += case.beta * operands.c.double()
    if not operands.d.dtype.is_floating_point:
        info = torch.iinfo(operands.d.dtype)
        result = result.round().clamp(info.min, info.max)
    operands.d.copy_(result)


def broken(case: Case) -> bool:
    try:
        case.check()
    except AssertionError:
        return True
    return False


@each_config
@pytest.mark.parametrize("data", [None, "random"])
def test_a_right_result_passes_and_any_wrong_one_fails(config: GemmConfig, data: str | None) -> None:
    case = make_case(config, 70, 45, 200, data=data, device="cpu")
    assert broken(case), "D was never written"
    solve(case)
    case.check()
    d: Any = case.d.tensor
    kept = d[69, 44].clone()
    d[69, 44] = kept.double() + (1 if config.d.dtype in ("s8", "s32") else 0.5 * abs(float(kept)) + 8)
    assert broken(case)
    d[69, 44] = kept
    case.check()


@each_config
def test_a_write_beside_d_fails(config: GemmConfig) -> None:
    case = make_case(config, 70, 45, 200, device="cpu")
    solve(case)
    size = DTYPES[config.d.dtype].bytes
    case.d.buffer[4096 - size] = 1
    assert broken(case)

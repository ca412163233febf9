"""Calls that are slow without need are right, warned of once and explained each time; warm calls overlap nothing."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill
from gemmill.runtime.api import caches, explain

pytestmark = pytest.mark.gpu


def integers(extent: int, dtype: Any) -> Any:
    return torch.randint(-2, 3, (extent, extent), device="cuda").to(dtype)


def test_a_slow_call_is_right_warned_of_once_and_explained_each_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "_warned_kinds", set())
    caches.forget_calls()
    a, b = integers(1024, torch.bfloat16), integers(1024, torch.float16)
    with pytest.warns(gemmill.SlowPathWarning, match="convert b to bf16") as told:
        d = gemmill.matmul(a, b, out_dtype="f32")
    assert told[0].filename == __file__
    assert torch.equal(d, a.float() @ b.float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemmill.matmul(a[:768], b, out_dtype="f32")  # the same advice
        for _ in range(4):  # the last ones would be warm calls
            capsys.readouterr()
            assert torch.equal(gemmill.matmul(a, b, out_dtype="f32", explain=True), d)
            (line,) = capsys.readouterr().out.splitlines()
            assert line.startswith("gemmill: 1024x1024x1024 bf16*f16")
            assert "x slower than with" in line
    plan = gemmill.plan(a, b, out=d)
    assert plan.choice is not None
    assert plan.choice.why in repr(plan)
    assert repr(plan).endswith(f"{plan.ctas} CTAs on GPU {d.device.index}>")


def test_calls_like_one_before_overlap_nothing() -> None:
    a, b, out = (integers(64, torch.bfloat16) for _ in range(3))
    plan = gemmill.plan(a, b, out=out)
    for _ in range(3):  # recognised by guards, then by keys
        gemmill.matmul(a, b, out=out)
    kept = a.clone()
    for name in ("a", "b"):
        wrong = {"a": a, "b": b}[name]
        with pytest.raises(gemmill.OperandError, match=f"out and {name} overlap in memory"):
            gemmill.matmul(a, b, out=wrong)
        with pytest.raises(gemmill.OperandError, match=f"out and {name} overlap in memory"):
            plan.rebind(out=wrong)
    plan()
    torch.cuda.synchronize()
    assert torch.equal(a, kept)
    assert torch.equal(out, (a.float() @ b.float()).bfloat16())

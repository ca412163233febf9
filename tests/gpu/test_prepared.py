"""Operands that are prepared once, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill
from gemmill.library.dtypes import SPLIT
from gemmill.library.errors import CaptureError, OperandError

pytestmark = pytest.mark.gpu


def normal(*shape: int, dtype: str = "float32") -> Any:
    return torch.randn(*shape, device="cuda", dtype=getattr(torch, dtype))


@pytest.mark.parametrize("precision", SPLIT)
@pytest.mark.parametrize("turned", [False, True])
def test_calls_have_the_bits_of_calls_with_the_tensor(precision: str, turned: bool) -> None:
    x, w = normal(2000, 1030), normal(1100, 1030)[:, 1:] if turned else normal(1030, 1101)[:, :1100]
    x = x[:, : w.shape[1]] if turned else x
    b = w.T if turned else w
    wanted = gemmill.plan(x, b, precision=precision)
    assert wanted.choice is not None
    kernel = wanted.choice.name
    assert wanted.kernel is not None
    assert wanted.kernel.a.dtype == precision
    wanted()
    prepared = gemmill.prepare(b, precision=precision)
    assert torch.equal(gemmill.matmul(x, prepared, kernel=kernel), wanted.out)
    b.zero_()  # it is a copy
    assert torch.equal(gemmill.matmul(x, prepared, kernel=kernel, precision=precision), wanted.out)


@pytest.mark.parametrize("precision", ["bf16x6", "f16x3"])
@pytest.mark.parametrize("m", [1, 16, 300])
def test_any_number_of_rows_is_multiplied_in_components(precision: str, m: int) -> None:
    x, w = normal(3, m, 512), normal(512, 640)
    prepared = gemmill.prepare(w, precision=precision)
    bias = normal(640)
    d = gemmill.matmul(x, prepared, epilogue="d = relu(acc + bias[n])", bias=bias)
    wanted = (x.double() @ w.double() + bias).relu()
    assert (d.double() - wanted).abs().max() < 2e-4
    strided = normal(m, 1024)[:, ::2]
    if m > 1:
        with pytest.raises(gemmill.UnsupportedProblemError):
            gemmill.matmul(strided, prepared)


@pytest.mark.parametrize("precision", ["bf16x6", "f16x3"])
def test_plans_and_graphs_take_prepared_operands(precision: str) -> None:
    x = normal(700, 512)
    w, other = normal(512, 640), 2 * normal(512, 640)
    first, second = (gemmill.prepare(each, precision=precision) for each in (w, other))
    plan = gemmill.plan(x, first)
    plan()
    assert (plan.out.double() - x.double() @ w.double()).abs().max() < 1e-3
    plan.rebind(b=second)
    plan()
    wanted = plan.out.clone()
    assert (wanted.double() - x.double() @ other.double()).abs().max() < 1e-3
    with pytest.raises(OperandError, match="the plan needs"):
        plan.rebind(b=w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan()
    plan.out.zero_()
    graph.replay()
    assert torch.equal(plan.out, wanted)
    with pytest.raises(CaptureError, match="call it before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        gemmill.prepare(w, precision=precision)


def test_operands_that_tma_cannot_load_are_copied_once() -> None:
    x, w = normal(300, 512, dtype="bfloat16"), normal(512, 333, dtype="bfloat16")
    assert gemmill.plan(x, w).realigned == {"b"}
    prepared = gemmill.prepare(w)
    plan = gemmill.plan(x, prepared)
    assert plan.realigned == set()
    plan()
    assert torch.equal(plan.out, gemmill.matmul(x, w, kernel=plan.choice.name if plan.choice else None))
    aligned = normal(64, 64, dtype="bfloat16")
    assert gemmill.prepare(aligned).ptr == aligned.data_ptr()


def test_what_is_refused() -> None:
    x, w = normal(64, 64), normal(64, 64)
    prepared: Any = gemmill.prepare(w, precision="f16x3")
    with pytest.raises(OperandError, match="b was prepared with precision 'f16x3', and the call has 'bf16x6'"):
        gemmill.matmul(x, prepared, precision="bf16x6")
    with pytest.raises(OperandError, match="only b can be one"):
        gemmill.matmul(prepared, x, out=w)
    with pytest.raises(OperandError, match="a is bf16 and b is f16x3"):
        gemmill.matmul(x.bfloat16(), prepared)
    x.requires_grad_()
    with pytest.raises(OperandError, match="b is a prepared operand"):
        gemmill.matmul(x, prepared)
    with torch.no_grad():
        assert (gemmill.matmul(x, prepared) - x @ w).abs().max() < 1e-4

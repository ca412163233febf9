"""``gemmill.matmul`` and the operators under ``torch.autocast``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402

import gemmill.torch  # noqa: E402

operators = torch.ops.gemmill


def f32(*shape: int) -> Any:
    return wide(*shape, dtype=torch.float32)


A, B, C, FP8 = f32(5, 7), f32(7, 3), f32(3), torch.float8_e4m3fn
ENDS = torch.tensor([2, 5], dtype=torch.int32)

CAST: dict[str, Callable[[], Any]] = {
    "mm": lambda: gemmill.matmul(A, B),
    "addmm": lambda: gemmill.matmul(A, B, c=C),
    "bmm": lambda: gemmill.matmul(A.expand(2, 5, 7), B),
    "baddbmm": lambda: gemmill.matmul(A.expand(2, 5, 7), B, c=C),
    "mm of two widths": lambda: operators.mm(A, B.half()),
    "grouped_mm": lambda: gemmill.grouped_matmul(A, B.expand(2, 7, 3), ENDS),
    "epilogue": lambda: gemmill.matmul(A, B, epilogue="d = relu(acc) + x[n]", x=C),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CAST)
def test_operands_are_cast(name: str, dtype: Any) -> None:
    with torch.autocast("cpu", dtype):
        d = CAST[name]()
        assert d.dtype == torch.mm(A, B).dtype == dtype
        with torch.autocast("cpu", enabled=False), pytest.raises(gemmill.OperandError, match="a is on cpu"):
            gemmill.matmul(A, B)  # to a launcher, as ever


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda: gemmill.matmul(A.double(), B.double()), torch.float64),
        (lambda: gemmill.matmul(A.to(torch.int8), B.to(torch.int8)), torch.int32),
        (lambda: gemmill.matmul(A, B, out_dtype="f32"), torch.float32),
        (lambda: gemmill.matmul(A, B.to(torch.int8)), torch.float32),
        (lambda: operators.mm(f32(5, 16).to(FP8), f32(16, 16).to(FP8).mT, out_dtype=torch.float32), torch.float32),
        (lambda: gemmill.matmul(A, B, b_scale=C), torch.float32),
    ],
)
def test_what_is_of_other_types_is_left_as_it_is(call: Callable[[], Any], dtype: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert call().dtype == dtype


def test_gradients_have_the_types_of_operands() -> None:
    a, b = (x.clone().requires_grad_() for x in (A, B))
    with torch.autocast("cpu", torch.bfloat16):
        d = gemmill.matmul(a, b)
    d.sum().backward()
    assert (d.dtype, a.grad.dtype, b.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert torch.equal(a.grad, B.sum(1).expand(5, 7))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_is_compiled_is_cast(backend: str) -> None:
    def cast(a: Any, b: Any, c: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return gemmill.matmul(a, b, c=c)

    torch.compiler.reset()
    d = torch.compile(cast, backend=backend, fullgraph=True)(A, B, C)
    assert d.dtype == torch.bfloat16
    assert torch.equal(d, (A @ B + C).bfloat16())

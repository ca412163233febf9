"""Gradients of the operators, against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402

import gemmill.torch  # noqa: E402

operators = torch.ops.gemmill


def leaf(*shape: int, dtype: Any = torch.float64) -> Any:
    return wide(*shape, dtype=dtype).requires_grad_()


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mm": (lambda a, b: operators.mm(a, b, alpha=0.5), (leaf(5, 7), leaf(7, 3))),
    "mm of transposes": (lambda a, b: operators.mm(a.mT, b.mT), (leaf(7, 5), leaf(3, 7))),
    "mm of no K": (operators.mm, (leaf(5, 0), leaf(0, 3))),
    "addmm": (lambda c, a, b: operators.addmm(c, a, b, alpha=2.0, beta=0.5), (leaf(3), leaf(5, 7), leaf(7, 3))),
    "bmm": (operators.bmm, (leaf(2, 5, 7), leaf(2, 7, 3))),
    "bmm of one weight": (operators.bmm, (leaf(2, 2, 5, 7), leaf(7, 3))),
    "bmm that broadcasts": (operators.bmm, (leaf(2, 1, 5, 7), leaf(3, 7, 2))),
    "baddbmm": (lambda c, a, b: operators.baddbmm(c, a, b, beta=2.0), (leaf(5, 1), leaf(2, 5, 7), leaf(2, 7, 3))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_once_and_twice(name: str) -> None:
    function, operands = PRODUCTS[name]
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


def test_gradients_have_the_types_of_operands() -> None:
    """D and C in f32, as in the head of a language model."""
    c, a, b = leaf(3, dtype=torch.float32), leaf(5, 7, dtype=torch.bfloat16), leaf(7, 3, dtype=torch.bfloat16)
    operators.addmm(c, a, b, out_dtype=torch.float32).sum().backward()
    assert (c.grad.dtype, a.grad.dtype, b.grad.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
    assert torch.equal(a.grad.float(), b.detach().float().sum(1).expand(5, 7))


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("scaled_mm", lambda a, b: operators.scaled_mm(a, b, wide(5, 1, dtype=torch.float32))),
        ("mixed_mm", lambda a, b: operators.mixed_mm(a, b.detach().to(torch.int8))),
        ("grouped_mm", lambda a, b: operators.grouped_mm(a, b[None], torch.tensor([5], dtype=torch.int32))),
        ("epilogue", lambda a, b: operators.epilogue("d = relu(acc)", a, b, [], [])[0]),
    ],
)
def test_what_has_no_gradient_says_so(operator: str, call: Callable[..., Any]) -> None:
    d = call(leaf(5, 7, dtype=torch.bfloat16), leaf(7, 3, dtype=torch.bfloat16))
    with pytest.raises(gemmill.OperandError, match=f"gemmill::{operator} has no gradient yet; mm, .* have"):
        d.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_what_is_compiled(backend: str) -> None:
    def loss(a: Any, b: Any, c: Any) -> Any:
        return gemmill.matmul(a, b, c=c, alpha=0.5).square().sum()

    compiled, plain = ([leaf(5, 7), leaf(7, 3), leaf(3)] for _ in range(2))
    torch.compile(loss, backend=backend, fullgraph=True)(*compiled).backward()
    a, b, c = plain
    (0.5 * a @ b + c).square().sum().backward()
    for x, y in zip(compiled, plain, strict=True):
        assert torch.allclose(x.grad, y.grad)

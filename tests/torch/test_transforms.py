"""The operators, and ``gemmill.matmul``, under ``torch.func``, ``torch.vmap`` and forward mode, against PyTorch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.runtime.torch import calls  # noqa: E402


@pytest.fixture(autouse=True)
def no_slow_vmap() -> Any:
    """PyTorch warns where it maps an operator that has no rule."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        yield


def f64(*shape: int) -> Any:
    return wide(*shape, dtype=torch.float64)


A, B, C = f64(5, 7), f64(7, 3), f64(3)
V = 4
ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)

Mapped = tuple[Callable[..., Any], tuple[Any, ...], Any]
MAPPED: dict[str, Mapped] = {
    "rows of A": (lambda g, a, b: g.matmul(a, b), (f64(V, 5, 7), B), (0, None)),
    "columns of B": (lambda g, a, b: g.matmul(a, b), (A, f64(7, 3, V)), (None, 2)),
    "both": (lambda g, a, b: g.matmul(a, b), (f64(5, V, 7), f64(V, 7, 3)), (1, 0)),
    "C alone": (lambda g, a, b, c: g.matmul(a, b, c=c, beta=2.0), (A, B, f64(V, 3)), (None, None, 0)),
    "C and A": (lambda g, a, b, c: g.matmul(a, b, c=c), (f64(V, 5, 7), B, f64(5, V, 1)), (0, None, 1)),
    "a batch": (lambda g, a, b: g.matmul(a, b), (f64(V, 2, 5, 7), B), (0, None)),
    "weights of a batch": (lambda g, a, b: g.matmul(a, b), (f64(2, 5, 7), f64(V, 7, 3)), (None, 0)),
    "vectors": (lambda g, a, b: g.matmul(a, b), (f64(V, 7), f64(V, 7)), (0, 0)),
    "scales of rows": (lambda g, a, b, x: g.matmul(a, b, a_scale=x), (A, B, f64(V, 5, 1)), (None, None, 0)),
    "scales of columns": (lambda g, a, b, x: g.matmul(a, b, b_scale=x), (f64(V, 5, 7), B, f64(V, 3)), (0, None, 0)),
    "narrow weights": (lambda g, a: g.matmul(a, B.to(torch.int8)), (f64(V, 5, 7),), (0,)),
    "groups": (lambda g, a, b: g.grouped_matmul(a, b, ENDS), (f64(V, 5, 7), f64(3, 7, 3)), (0, None)),
    "an epilogue": (
        lambda g, a, x: g.matmul(a, B, epilogue="d = relu(acc) + x[n]", x=x),
        (A, f64(V, 3)),
        (None, 0),
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_one_call_a_slice(name: str) -> None:
    function, operands, axes = MAPPED[name]
    mapped = vmap(functools.partial(function, gemmill), in_dims=axes)(*operands)
    slices = [
        function(calls, *[x if axis is None else x.select(axis, i) for x, axis in zip(operands, axes, strict=True)])
        for i in range(V)
    ]
    assert torch.equal(mapped, torch.stack(slices))


def test_vmap_of_vmap_and_of_gradients() -> None:
    a, b = f64(2, V, 5, 7), f64(2, 7, 3)
    assert torch.equal(vmap(vmap(gemmill.matmul, (0, None)))(a, b), a @ b[:, None])
    mine = vmap(grad(lambda a, b: gemmill.matmul(a, b).square().sum()), (0, None))(a[0], b[0])
    assert torch.equal(mine, 2 * (a[0] @ b[0]) @ b[0].mT)


def mine(a: Any, b: Any) -> Any:
    return gemmill.matmul(a, b, alpha=0.5).square().sum()


def theirs(a: Any, b: Any) -> Any:
    return (0.5 * (a @ b)).square().sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: grad(f, (0, 1))(A, B),
        lambda f: vjp(f, A, B)[1](torch.tensor(2.0, dtype=torch.float64)),
        lambda f: jvp(f, (A, B), (A, B)),
        lambda f: jacrev(f)(A, B),
        lambda f: jacfwd(f)(A, B),
        lambda f: hessian(f)(A, B),
        lambda f: jacrev(grad(f))(A, B),
        lambda f: grad(lambda a: jvp(f, (a, B), (a, B))[1])(A),
        lambda f: grad(lambda a: grad(f)(a, B).square().sum())(A),
        lambda f: torch.autograd.functional.hvp(f, (A, B), (A, B)),
    ],
    ids=["grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "twice", "over jvp", "over grad", "hvp"],
)
def test_transforms_are_those_of_torch(transform: Callable[..., Any]) -> None:
    torch.testing.assert_close(transform(mine), transform(theirs))


def test_transforms_of_an_epilogue_and_of_groups() -> None:
    def of(a: Any, b: Any) -> Any:
        d = gemmill.matmul(a, b, epilogue="d = silu(acc) * x[n]", x=C)
        return d.sum() + gemmill.grouped_matmul(a, b.expand(3, 7, 3), ENDS).square().sum()

    def plain(a: Any, b: Any) -> Any:
        return (torch.nn.functional.silu(a @ b) * C).sum() + (a @ b).square().sum()

    torch.testing.assert_close(grad(of, (0, 1))(A, B), grad(plain, (0, 1))(A, B))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_transforms_are_compiled(backend: str) -> None:
    def of(a: Any, b: Any) -> Any:
        return vmap(grad(lambda a, b: gemmill.matmul(a, b).square().sum()), (0, None))(a, b)

    torch.compiler.reset()
    a = f64(V, 5, 7)
    assert torch.equal(torch.compile(of, backend=backend, fullgraph=True)(a, B), 2 * (a @ B) @ B.mT)


def test_forward_mode_with_and_without_gradients() -> None:
    weights = B.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, A)
        primal, tangent = forward_ad.unpack_dual(gemmill.matmul(dual, weights, c=C))
        assert torch.equal(tangent, A @ B)
        primal.sum().backward()
        with pytest.raises(
            gemmill.OperandError, match=r"epilogue does not support forward-mode derivatives .* mm, addmm"
        ):
            gemmill.matmul(dual, B, epilogue="d = relu(acc)")
        with pytest.raises(gemmill.OperandError, match="writes to the caller's tensors has no gradient"):
            gemmill.matmul(dual, B, out=torch.empty(5, 3, dtype=torch.float64))
    assert torch.equal(weights.grad, A.mT @ torch.ones(5, 3, dtype=torch.float64))

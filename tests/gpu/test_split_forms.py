"""Split f32 in every form of a call: batches, layouts, C, epilogues, dtypes of D, gradients, JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill

pytestmark = pytest.mark.gpu
M, N, K = 320, 264, 512
BOUND = 2.0**-19
"""Of the error over |A| |B|. That of tf32 is 2^-11, that of bf16x3 2^-15."""


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def assert_near(found: Any, wanted: Any, size: Any) -> None:
    """Whether an f64 result is met, within the bound of products of this size."""
    assert found.shape == wanted.shape
    assert bool(((found.double() - wanted).abs() <= BOUND * size).all())


def turned(*shape: int) -> Any:
    *batch, rows, columns = shape
    return normal(*batch, columns, rows).mT


LAYOUTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "nn": lambda: (normal(M, K), normal(K, N)),
    "nt": lambda: (normal(M, K), turned(K, N)),
    "tn": lambda: (turned(M, K), normal(K, N)),
    "tt": lambda: (turned(M, K), turned(K, N)),
    "rows apart": lambda: (normal(M, K + 3)[:, 1:-2], normal(K + 5, N + 1)[2:-3, 1:]),
    "columns apart": lambda: (normal(M, 2 * K)[:, ::2], normal(K, 3 * N)[:, ::3]),
    "an expanded row": lambda: (normal(1, K).expand(M, K), normal(K, N)),
    "K of 1": lambda: (normal(M, 1), normal(1, N)),
    "K of 7": lambda: (normal(M, 7), normal(7, N)),
    "one row": lambda: (normal(1, K), normal(K, N)),
    "one column": lambda: (normal(M, K), normal(K, 1)),
    "a vector": lambda: (normal(K), normal(K, N)),
    "a batch": lambda: (normal(3, M, K), normal(3, K, N)),
    "a batch of transposes": lambda: (turned(3, M, K), turned(3, K, N)),
    "a batch of one B": lambda: (normal(3, M, K), normal(K, N)),
    "a batch of one A": lambda: (normal(M, K), normal(3, K, N)),
    "batches that broadcast": lambda: (normal(2, 1, M, K), normal(1, 3, K, N)),
    "heads": lambda: (normal(2, M, 3, 64).transpose(1, 2), normal(2, N, 3, 64).permute(0, 2, 3, 1)),
}


@pytest.mark.parametrize("bits", ["any", "invariant"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_operands_have_any_layout(name: str, bits: str) -> None:
    """With ``bits`` of split kernels alone: elsewhere f32 may be multiplied as it is."""
    if bits != "any" and name in ("columns apart", "an expanded row", "batches that broadcast", "heads"):
        pytest.skip("no kernel for split f32 reads these in place")
    a, b = LAYOUTS[name]()
    found = gemmill.matmul(a, b, precision="bf16x6", bits=bits)
    assert_near(found, a.double() @ b.double(), a.double().abs() @ b.double().abs())


TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FORMS: dict[str, Callable[[Any, Any, Any], dict[str, Any]]] = {
    "C": lambda c, row, column: {"c": c},
    "C by factors": lambda c, row, column: {"c": c, "alpha": -0.5, "beta": 2.0},
    "C of one row": lambda c, row, column: {"c": row, "beta": 0.5},
    "C of one column": lambda c, row, column: {"c": column[:, None]},
    "C column by column": lambda c, row, column: {"c": c.mT.contiguous().mT},
    "no product": lambda c, row, column: {"c": c, "alpha": 0.0},
}


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("out_dtype", TYPES)
@pytest.mark.parametrize("name", FORMS)
def test_c_is_added(name: str, out_dtype: str, batch: tuple[int, ...]) -> None:
    a, b = normal(*batch, M, K), normal(*batch, K, N)
    keywords = FORMS[name](*(normal(*shape).to(TYPES[out_dtype]) for shape in ((*batch, M, N), (N,), (M,))))
    found = gemmill.matmul(a, b, precision="bf16x6", out_dtype=out_dtype, **keywords)
    alpha, added = keywords.get("alpha", 1.0), keywords.get("beta", 1.0) * keywords["c"].double()
    wanted, size = alpha * (a.double() @ b.double()) + added, a.double().abs() @ b.double().abs() + added.abs()
    if out_dtype != "f32":
        size = size + 2.0**11 * wanted.abs()  # D is rounded to at least 8 bits
    assert_near(found, wanted, size)


EPILOGUES: dict[str, tuple[str, Callable[[Any, Any, Any, Any], Any]]] = {
    "a bias": ("d = acc + bias[n]", lambda acc, bias, row, x: acc + bias),
    "silu": ("d = silu(acc + bias[n])", lambda acc, bias, row, x: torch.nn.functional.silu(acc + bias)),
    "a row and a residual": ("d = acc * row[m] + x[m, n]", lambda acc, bias, row, x: acc * row[:, None] + x),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_applied_to_the_sums(name: str) -> None:
    a, b, bias, row, x = normal(M, K), normal(K, N), normal(N), normal(M), normal(M, N)
    text, expected = EPILOGUES[name]
    given = {"bias": bias, "row": row, "x": x}
    operands = {word: value for word, value in given.items() if f"{word}[" in text}
    found = gemmill.matmul(a, b, precision="bf16x6", epilogue=text, **operands)
    wanted = expected(a.double() @ b.double(), *(y.double() for y in given.values()))
    scale = row.abs().double()[:, None].clamp(min=1)
    assert_near(found, wanted, 2 * scale * (a.double().abs() @ b.double().abs()))


def test_out_may_be_column_by_column_and_c() -> None:
    a, b = normal(M, K), normal(K, N)
    out = turned(M, N)
    wanted = a.double() @ b.double() + out.double()
    assert gemmill.matmul(a, b, c=out, out=out, precision="bf16x6") is out
    assert_near(out, wanted, a.double().abs() @ b.double().abs())


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_have_the_precision(batch: tuple[int, ...]) -> None:
    """Of A, B, C and an operand of an epilogue."""
    leaves = [normal(*batch, M, K), normal(K, N), normal(M, N), normal(N)]

    def gradients(multiply: Callable[..., Any], dtype: Any) -> list[Any]:
        a, b, c, bias = (x.to(dtype, copy=True).requires_grad_() for x in leaves)
        d = multiply(a, b, c, bias)
        d.square().sum().backward()
        return [d, a.grad, b.grad, c.grad, bias.grad]

    def multiplied(a: Any, b: Any, c: Any, bias: Any) -> Any:
        first = gemmill.matmul(a, b, c=c, precision="bf16x6")
        return gemmill.matmul(first, b.mT, epilogue="d = acc + v[n]", v=bias @ b.mT.detach(), precision="bf16x6")

    found = gradients(multiplied, torch.float32)
    wanted = gradients(lambda a, b, c, bias: (a @ b + c) @ b.mT + bias @ b.mT.detach(), torch.float64)
    for x, y in zip(found, wanted, strict=True):
        assert (x.double() - y).abs().max() <= 2.0**-17 * y.abs().max()


def test_jax_multiplies_and_differentiates_with_the_precision() -> None:
    jax: Any = pytest.importorskip("jax")
    import numpy as np

    import gemmill.jax

    drawn = [
        np.random.default_rng(seed).standard_normal(shape).astype("f4") for seed, shape in ((0, (M, K)), (1, (K, N)))
    ]

    def loss(a: Any, b: Any) -> Any:
        return (gemmill.jax.matmul(a, b, precision="bf16x6") ** 2).sum()

    found = jax.jit(jax.grad(loss, (0, 1)))(*drawn)
    a, b = (x.astype("f8") for x in drawn)
    for x, y in zip(found, (2 * (a @ b) @ b.T, a.T @ (2 * (a @ b))), strict=True):
        assert np.abs(np.asarray(x) - y).max() <= 2.0**-17 * np.abs(y).max()

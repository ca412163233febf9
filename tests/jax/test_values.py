"""What calls give on the CPU, eagerly and under ``jit``; and their gradients."""

from __future__ import annotations

from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from tests.jax.cases import CASES, Case, double  # noqa: E402

import gemmill.jax  # noqa: E402

jnp = jax.numpy
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def listed(found: Any) -> list[Any]:
    return [*found] if isinstance(found, tuple) else [found]


def assert_near(found: Any, wanted: Any, tolerance: float) -> None:
    scale = float(abs(wanted).max()) if wanted.size else 1.0
    np.testing.assert_allclose(double(found), double(wanted), rtol=tolerance, atol=tolerance * scale)


@all_cases
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_are_those_of_float64(case: Case, wrap: Any) -> None:
    found, wanted = listed(wrap(case.call)(**case.arrays)), listed(case.expected(**case.arrays))
    for x, y in zip(found, wanted, strict=True):
        assert_near(x, y, float(jnp.finfo(x.dtype).eps) if jnp.issubdtype(x.dtype, jnp.floating) else 0)


@pytest.mark.parametrize(
    "case", [x for x in CASES.values() if x.differentiable], ids=[n for n, x in CASES.items() if x.differentiable]
)
def test_gradients_are_those_of_the_same_in_jax(case: Case) -> None:
    """With weights for the elements of D, so that no gradient is the same everywhere."""
    differentiable = {name: case.arrays[name] for name in case.differentiable}
    fixed = {name: x for name, x in case.arrays.items() if name not in differentiable}

    def loss(call: Any, some: dict[str, Any]) -> Any:
        made = listed(call(**fixed, **some))
        return sum((double(x) * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum() for x in made)

    found = jax.jit(jax.grad(lambda some: loss(case.call, some)))(differentiable)
    exact = {name: double(x) for name, x in differentiable.items()}
    # Not jitted: XLA computes what `max` is taken of twice, and otherwise, and no element may be equal to the maximum.
    wanted = jax.grad(lambda some: loss(case.expected, some))(exact)
    for name in differentiable:
        assert found[name].dtype == differentiable[name].dtype
        narrow = min(jnp.finfo(x.dtype).bits for x in differentiable.values())
        assert_near(found[name], wanted[name], {8: 2**-3, 16: 2**-6, 32: 2**-16, 64: 2**-40}[narrow])


def test_gradients_of_gradients() -> None:
    a, b, c = (jnp.sin(jnp.arange(float(n * m))).reshape(n, m) for n, m in ((4, 6), (6, 5), (4, 5)))

    def steepness(multiply: Any, a: Any) -> Any:
        return (jax.grad(lambda a, b: (jnp.tanh(multiply(a, b)) * c).sum(), 1)(a, b) ** 2).sum()

    found = jax.grad(lambda a: steepness(gemmill.jax.matmul, a))(a)
    assert_near(found, jax.grad(lambda a: steepness(jnp.matmul, a))(a), 1e-12)

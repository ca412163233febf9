"""Derivatives in forward mode, and in both modes nested; and how many products they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from tests.jax.cases import CASES, Case, double, real, whole  # noqa: E402
from tests.jax.test_transforms import P, compiled, operations  # noqa: E402
from tests.jax.test_values import assert_near, listed  # noqa: E402

import gemmill.jax  # noqa: E402

jnp = jax.numpy
Call = Callable[..., Any]
differentiable = pytest.mark.parametrize(
    "case", [x for x in CASES.values() if x.differentiable], ids=[n for n, x in CASES.items() if x.differentiable]
)


def products(function: Call, *arrays: Any) -> int:
    """How many products a compiled function runs."""
    return len(operations(compiled(function, *arrays), "custom-call"))


def split(case: Case) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Operands with a tangent, their tangents, and the other operands."""
    some = {name: case.arrays[name] for name in case.differentiable}
    tangents = {name: whole(*x.shape[::-1], dtype=x.dtype).T for name, x in some.items()}
    return some, tangents, {name: x for name, x in case.arrays.items() if name not in some}


@differentiable
def test_tangents_are_those_of_the_same_in_jax(case: Case) -> None:
    some, tangents, fixed = split(case)
    found = jax.jit(lambda x, t: jax.jvp(lambda x: case.call(**fixed, **x), (x,), (t,)))(some, tangents)
    exact = ({name: double(x) for name, x in each.items()} for each in (some, tangents))
    wanted = jax.jvp(lambda x: case.expected(**fixed, **x), *((x,) for x in exact))
    narrow = min(jnp.finfo(x.dtype).bits for x in some.values())
    for mine, theirs in zip(found, wanted, strict=True):
        for x, y in zip(listed(mine), listed(theirs), strict=True):
            assert_near(x, y, {8: 2**-3, 16: 2**-6, 32: 2**-16, 64: 2**-40}[narrow])


A, B, X, Y = (real(*shape) for shape in ((4, 6), (6, 5), (4, 6), (6, 5)))
W = real(3, 6, 6) / 4


def loss(multiply: Call) -> Call:
    return lambda a, b: (jnp.tanh(multiply(a, b)) ** 2).sum()


def layers(multiply: Call, w: Any) -> Any:
    """A loop whose steps are computed again for the gradient."""
    return jax.lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(multiply(h, w)), None)), A, w)[0]


def tangent(function: Call, *primals: Any) -> Any:
    return jax.jvp(function, primals, tuple(map(jnp.cos, primals)))[1]


def gradient(function: Call, *primals: Any) -> Any:
    value, of_primals = jax.vjp(function, *primals)
    return of_primals(jnp.cos(value))


NESTED: dict[str, tuple[Callable[[Call], Call], tuple[Any, ...], int]] = {
    "jvp": (lambda m: lambda a, b: jax.jvp(m, (a, b), (X, Y)), (A, B), 3),
    "jvp by A": (lambda m: lambda a, b: jax.jvp(lambda a: m(a, b), (a,), (X,)), (A, B), 2),
    "gradient by A": (lambda m: jax.grad(loss(m)), (A, B), 2),
    "jacfwd": (lambda m: jax.jacfwd(lambda a, b: jnp.tanh(m(a, b)).sum(0), (0, 1)), (A, B), 3),
    "hessian": (lambda m: jax.hessian(loss(m), (0, 1)), (A, B), 7),
    "reverse over forward": (lambda m: jax.jacrev(jax.jacfwd(loss(m), (0, 1)), (0, 1)), (A, B), 7),
    "linearize": (lambda m: lambda a, b: jax.linearize(m, a, b)[1](X, Y), (A, B), 2),
    "linear_transpose": (lambda m: lambda a, b: jax.linear_transpose(lambda a: m(a, b) * 2, a)(A @ B)[0], (A, B), 1),
    "vjp of jvp": (lambda m: lambda a, b: gradient(lambda a, b: tangent(m, a, b), a, b), (A, B), 6),
    "jvp of vjp": (lambda m: lambda a, b: tangent(lambda a, b: gradient(m, a, b), a, b), (A, B), 7),
    "jvp of jvp": (lambda m: lambda a, b: tangent(lambda a, b: tangent(m, a, b), a, b), (A, B), 3),
    "vmap of jvp": (lambda m: jax.vmap(lambda a, y: jax.jvp(m, (a, B), (a, y)), (0, None)), (real(3, 4, 6), Y), 3),
    "vmap of jvp by tangents": (lambda m: jax.vmap(lambda x: jax.jvp(m, (A, B), (x, Y))), (real(3, 4, 6),), 3),
    "jvp of vmap": (lambda m: lambda a, b: tangent(jax.vmap(m, (2, None)), a, b), (real(4, 6, 3), B), 2),
    "gradient of vmap": (lambda m: lambda a, b: gradient(jax.vmap(m, (0, None)), a, b), (real(3, 4, 6), B), 3),
    "jvp of a loop": (lambda m: lambda w: tangent(lambda w: layers(m, w), w), (W,), 3),
    "forward over reverse of a loop": (
        lambda m: lambda w: tangent(jax.grad(lambda w: (layers(m, w) ** 2).sum()), w),
        (W,),
        0,
    ),
    "reverse over forward of a loop": (
        lambda m: lambda w: gradient(lambda w: tangent(lambda w: layers(m, w), w), w),
        (W,),
        0,
    ),
}
"""What is derived, from which arrays, and with how many products; 0 where XLA decides how many."""


@pytest.mark.parametrize("name", NESTED)
def test_both_modes_nest(name: str) -> None:
    derive, arrays, count = NESTED[name]
    found, wanted = (derive(multiply)(*arrays) for multiply in (gemmill.jax.matmul, jnp.matmul))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert count in (0, products(derive(gemmill.jax.matmul), *arrays))


def test_derivatives_by_factors() -> None:
    """By numbers that JAX traces, and in a batch of them."""
    c = real(4, 5)

    def ours(alpha: Any, beta: Any) -> Any:
        return jnp.tanh(gemmill.jax.matmul(A, B, c=c, alpha=alpha, beta=beta)).sum()

    def wanted(alpha: Any, beta: Any) -> Any:
        return jnp.tanh(alpha * (A @ B) + beta * c).sum()

    for derive in (jax.grad, jax.jacfwd, jax.hessian):
        for x, y in zip(*(jax.tree.leaves(derive(f, (0, 1))(0.5, 2.0)) for f in (ours, wanted)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    alphas = jnp.array([0.5, 1.5])
    found, right = (jax.vmap(jax.grad(f), (0, None))(alphas, 2.0) for f in (ours, wanted))
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)


def test_an_expression_differentiated_twice() -> None:
    """With an operand of each kind, forward over reverse, in a batch."""
    case = CASES["an expression"]
    values = {name: jnp.asarray(double(x)) for name, x in case.arrays.items()}
    exact = case.expected

    def steepness(call: Call, some: dict[str, Any]) -> Any:
        outputs = call(**some)
        return sum((double(x) ** 2).mean() for x in (outputs[0], outputs[1], outputs[3]))  # a maximum is not smooth

    def curvature(call: Call, some: dict[str, Any]) -> Any:
        of_scaled = jax.vmap(lambda x: jax.jvp(jax.grad(lambda y: steepness(call, y)), (some,), ({**some, "a": x},))[1])
        return of_scaled(jnp.stack([some["a"], some["a"] * 2]))

    found, wanted = jax.jit(lambda x: curvature(case.call, x))(case.arrays), curvature(exact, values)
    for name in case.arrays:
        assert_near(found[name], wanted[name], 2**-9 if name == "bias" else 2**-14)


def test_integers_have_no_tangents() -> None:
    """Weights in s8 with a scale: by the scale and the activations; and an integer product."""
    a, b, scale = real(16, 32), whole(32, 16, dtype="int8"), real(16)
    zero = np.zeros(b.shape, jax.dtypes.float0)

    def ours(a: Any, b: Any, scale: Any) -> Any:
        return gemmill.jax.matmul(a, b, b_scale=scale)

    for found, wanted in zip(
        jax.jvp(ours, (a, b, scale), (a * 2, zero, scale * 3)),
        jax.jvp(lambda a, scale: a @ (b * scale), (a, scale), (a * 2, scale * 3)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    squared = jax.jvp(gemmill.jax.matmul, (b, b.T.copy()), (zero, zero.T))
    np.testing.assert_array_equal(squared[0], b.astype("int32") @ b.T)
    assert squared[1].dtype == jax.dtypes.float0


def test_what_has_no_derivative_is_an_error_of_gemmill() -> None:
    a, b, ends = whole(8, 16), whole(2, 16, 8), jnp.array([3, 8], "int32")

    def most(a: Any) -> Any:
        return gemmill.jax.grouped_matmul(a, b, ends, epilogue="d = acc; most[n] = max(acc)")

    with pytest.raises(gemmill.OperandError, match="is not supported in derivatives"):
        jax.jvp(most, (a,), (a,))
    with pytest.raises(gemmill.OperandError, match="the call is not known to be linear in a"):
        jax.linear_transpose(lambda a: gemmill.jax.matmul(a, b[0], epilogue="d = acc + 1"), a)(a[:, :8])


@pytest.mark.skipif(jax.device_count() < 2, reason="JAX sees one device")
def test_tangents_of_shards() -> None:
    """Of slices of K that are added up across devices, in both modes."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def ours(a: Any, b: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            return jax.lax.psum(gemmill.jax.matmul(a, b, epilogue="d = tanh(acc)"), "x")

        return jax.shard_map(one, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P())(a, b)

    def wanted(a: Any, b: Any) -> Any:
        return sum(jnp.tanh(a[:, i : i + 3] @ b[i : i + 3]) for i in (0, 3))

    derivatives: list[Callable[[Call], Any]] = [
        lambda f: tangent(f, A, B),
        lambda f: tangent(lambda a, b: gradient(f, a, b), A, B),
    ]
    for derive in derivatives:
        for x, y in zip(jax.tree.leaves(derive(ours)), jax.tree.leaves(derive(wanted)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def dequantised(alpha: Any, scale: str) -> Any:
    """A product in e4m3 blocks, times their scales."""
    text = f"h = alpha * acc; {scale}[m, n/128] = scale(h); d = h / s"
    a, b = whole(16, 64, dtype="float8_e4m3fn"), whole(64, 256, dtype="float8_e4m3fn")
    d, s = gemmill.jax.matmul(a, b, alpha=alpha, epilogue=text, out_dtype="float8_e4m3fn")
    return (d.astype("float32").reshape(16, 2, 128) * s.astype("float32")[..., None]).sum()


def test_scales_of_blocks_have_a_derivative_in_f32_alone() -> None:
    rate = float(dequantised(3.0, "s") - dequantised(1.0, "s")) / 2
    assert float(jax.grad(dequantised)(2.0, "s")) == pytest.approx(rate, rel=0.02)
    with pytest.raises(gemmill.OperandError, match=r"ue8m0.* has no derivative"):
        jax.grad(dequantised)(2.0, "s.ue8m0")

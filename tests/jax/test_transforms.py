"""Calls under ``vmap``, ``shard_map``, ``scan`` and ``checkpoint``, and what XLA makes of them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from tests.jax.cases import double, real, whole  # noqa: E402

import gemmill.jax  # noqa: E402
from gemmill.library.arithmetic import arithmetic_of  # noqa: E402
from gemmill.library.config.names import parse_name  # noqa: E402

jnp = jax.numpy
P = jax.sharding.PartitionSpec


def compiled(function: Any, *arrays: Any, **options: Any) -> str:
    """The optimised HLO of a function."""
    return str(jax.jit(function, **options).lower(*arrays).compile().as_text())


def operations(text: str, names: str) -> list[str]:
    return re.findall(rf" ({names})\(", text)


@pytest.mark.parametrize(
    ("in_axes", "shapes"),
    [
        ((0, None), ((3, 16, 24), (24, 8))),
        ((None, 0), ((16, 24), (3, 24, 8))),
        ((1, 0), ((16, 3, 24), (3, 24, 8))),
        ((0, 0), ((3, 2, 16, 24), (3, 24, 8))),
        ((0, 0), ((3, 24), (3, 24, 8))),
    ],
)
def test_a_batch_is_one_call(in_axes: tuple[Any, Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (whole(*shape) for shape in shapes)
    found = jax.vmap(gemmill.jax.matmul, in_axes)(a, b)
    np.testing.assert_array_equal(double(found), jax.vmap(jnp.matmul, in_axes)(double(a), double(b)))
    text = compiled(jax.vmap(gemmill.jax.matmul, in_axes), a, b)
    assert operations(text, "custom-call") == ["custom-call"]
    assert not operations(text, "broadcast|while")  # what is not batched is not repeated


@pytest.mark.parametrize("batched", ["bias", "x", "c", "rows", "scale", "all"])
def test_a_batch_of_operands_of_an_expression(batched: str) -> None:
    shapes = {"a": (16, 24), "b": (24, 8), "bias": (8,), "x": (16, 8), "c": (16, 8), "rows": (16,), "scale": ()}
    over = {name: 0 if batched in (name, "all") else None for name in shapes}
    given = {name: real(*(3,) * (over[name] == 0), *shape) for name, shape in shapes.items()}

    def ours(a: Any, b: Any, bias: Any, x: Any, c: Any, rows: Any, scale: Any) -> Any:
        text = "d = (acc * scale + c) * per_row[m] + bias[n] + x[m, n]; most[m] = max(d)"
        return gemmill.jax.matmul(a, b, c=c, epilogue=text, bias=bias, x=x, per_row=rows, scale=scale)

    def wanted(a: Any, b: Any, bias: Any, x: Any, c: Any, rows: Any, scale: Any) -> Any:
        d = (a @ b * scale + c) * rows[:, None] + bias + x
        return d, d.max(1)

    for found, right in zip(*(jax.vmap(f, [*over.values()])(*given.values()) for f in (ours, wanted)), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-4)


def arithmetics(function: Any, *shapes: tuple[int, ...]) -> set[str]:
    """The arithmetic of every launch of a function of bf16 arrays."""
    text = str(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes)))
    launches = re.findall(r'"kernel","(\w+)"\],\["slices",(\d+)', text)
    assert len(launches) == text.count("= gemmill_gemm[")
    return {str(arithmetic_of(parse_name(name), int(slices))) for name, slices in launches}


def test_bits_do_not_change_in_transforms() -> None:
    """With a K so deep that the fastest kernel slices it."""
    m, n, k = 16, 64, 16384
    multiply = partial(gemmill.jax.matmul, bits="invariant")

    def loss(a: Any, b: Any, **options: Any) -> Any:
        return multiply(a, b, **options).astype("float32").sum()

    assert arithmetics(gemmill.jax.matmul, (m, k), (k, n)) != {"k16/4"}
    for rows in (1, m, 512):
        assert arithmetics(multiply, (rows, k), (k, n)) == {"k16/4"}
        for axes, shapes in (
            ((0, None), ((3, rows, k), (k, n))),
            ((None, 0), ((rows, k), (3, k, n))),
            ((0, 0), ((3, rows, k), (3, k, n))),
        ):
            assert arithmetics(jax.jit(jax.vmap(multiply, axes)), *shapes) == {"k16/4"}
    for major in ("k", "m"):
        assert arithmetics(jax.grad(partial(loss, a_major=major), (0, 1)), (m, n), (n, k)) == {"k16", "k16/4"}
    assert arithmetics(lambda a, b: jax.jvp(multiply, (a, b), (a, b)), (m, k), (k, n)) == {"k16/4"}


def test_batches_of_batches_and_their_gradients() -> None:
    a, b = whole(2, 3, 8, 16, dtype="float32"), whole(3, 16, 8, dtype="float32")

    def each(multiply: Any) -> Any:
        gradient = jax.grad(lambda a, b: (multiply(a, b) ** 2).sum(), (0, 1))
        return jax.vmap(jax.vmap(gradient), (0, None))(a, b)

    for x, y in zip(each(gemmill.jax.matmul), each(jnp.matmul), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_batch_of_groups() -> None:
    a, b, ends = whole(2, 24, 16), whole(3, 16, 8), jnp.array([[8, 8, 24], [1, 20, 24]], "int32")
    found = jax.vmap(gemmill.jax.grouped_matmul, (0, None, 0))(a, b, ends)
    for i in range(2):
        np.testing.assert_array_equal(found[i], gemmill.jax.grouped_matmul(a[i], b, ends[i]))


def test_column_major_operands_cost_no_transpose() -> None:
    """A weight as PyTorch keeps it, and the gradients of a layer with it, whose products take three transposes."""
    x, w = real(16, 24), real(8, 24)

    def layer(x: Any, w: Any) -> Any:
        return gemmill.jax.matmul(x, w.T, b_major="k")

    text = compiled(layer, x, w)
    assert "bitcast(" in text
    assert not operations(text, "transpose|copy|fusion")

    def both(x: Any, w: Any) -> Any:
        d, of_d = jax.vjp(layer, x, w)
        return of_d(d)

    text = compiled(both, x, w)
    assert len(operations(text, "custom-call")) == 3
    assert not operations(text, "transpose|copy")


def test_d_is_written_to_where_out_is() -> None:
    """A donated ``out``, and a C that D is added to."""
    a, b = whole(16, 24), whole(24, 8)

    def add(c: Any, a: Any, b: Any) -> Any:
        return gemmill.jax.matmul(a, b, c=c, out=c)

    for function in (lambda out, a, b: gemmill.jax.matmul(a, b, out=out), add):
        text = compiled(function, jnp.ones((16, 8), "bfloat16"), a, b, donate_argnums=0)
        assert "output_to_operand_aliasing={{}: (2, {})}" in text
        assert not operations(text, "copy")
    c = jnp.ones((16, 8), "bfloat16")
    wanted = double(a) @ double(b) + 1
    np.testing.assert_array_equal(double(add(c, a, b)), wanted)  # C is used below, so XLA copies it
    np.testing.assert_array_equal(double(jax.jit(add, donate_argnums=0)(c + 0, a, b)), wanted)
    np.testing.assert_array_equal(jax.grad(lambda c: add(c, a, b).astype("float32").sum())(c), jnp.ones((16, 8)))


def test_loops_and_recomputation() -> None:
    weights, x = real(3, 8, 8), real(4, 8)

    def loss(multiply: Any, weights: Any) -> Any:
        body = jax.checkpoint(lambda h, w: (jnp.tanh(multiply(h, w)), None))
        return (jax.lax.scan(body, x, weights)[0] ** 2).sum()

    found, wanted = (jax.jit(jax.grad(lambda w, f=f: loss(f, w)))(weights) for f in (gemmill.jax.matmul, jnp.matmul))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(jax.device_count() < 2, reason="JAX sees one device")
def test_shards_are_multiplied_where_they_are() -> None:
    """Rows of A on each device, and slices of K that are added up across them; and gradients."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    a, b = real(16, 24), real(24, 8)

    def of_rows(a: Any, b: Any) -> Any:
        return jax.shard_map(gemmill.jax.matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))(a, b)

    def of_slices(a: Any, b: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            return jax.lax.psum(gemmill.jax.matmul(a, b, out_dtype="float32"), "x")

        return jax.shard_map(one, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P())(a, b)

    for function in (of_rows, of_slices):
        np.testing.assert_allclose(jax.jit(function)(a, b), a @ b, rtol=1e-5, atol=1e-5)
        found = jax.jit(jax.grad(lambda a, b, f=function: (f(a, b) ** 2).sum(), (0, 1)))(a, b)
        wanted = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(a, b)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert not operations(compiled(of_rows, a, b), "all-gather")

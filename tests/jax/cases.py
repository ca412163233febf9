"""Calls of ``gemmill.jax``, with what they give by ``jax.numpy`` in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")

import gemmill.jax  # noqa: E402
from gemmill.library.e2m1 import VALUES, from_fragment_order  # noqa: E402

jnp = jax.numpy
jax.config.update("jax_enable_x64", True)


class Case(NamedTuple):
    """A call."""

    arrays: dict[str, Any]
    """By the names of keywords."""
    keywords: dict[str, Any]
    expected: Callable[..., Any]
    """Of the arrays, in float64: D, or a tuple of it and outputs."""
    grouped: bool = False
    differentiable: tuple[str, ...] = ("a", "b")

    def call(self, **arrays: Any) -> Any:
        """By gemmill."""
        function = gemmill.jax.grouped_matmul if self.grouped else gemmill.jax.matmul
        return function(**arrays, **self.keywords)


# Of NumPy, so that importing this starts no backend of JAX's.


def whole(*shape: int, dtype: Any = "bfloat16", low: int = -3) -> Any:
    """Small integers, so that sums are exact; the same for a shape."""
    made = np.random.default_rng(sum(shape)).integers(low, 4, shape)
    return made.astype(jnp.dtype(dtype))


def real(*shape: int, dtype: Any = "float32") -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(jnp.dtype(dtype))


def double(x: Any) -> Any:
    return x.astype("float64")


def product(a: Any, b: Any, **_: Any) -> Any:
    return double(a) @ double(b)


def in_blocks(a: Any, b: Any) -> Any:
    blocks = 2 * product(a, b).reshape(len(a), -1, 128)
    scales = jnp.maximum(jnp.abs(blocks).max(-1) / 448, 2.0**-40)
    return (blocks / scales[..., None]).reshape(len(a), -1), scales


def in_groups(a: Any, b: Any, offsets: Any, **_: Any) -> Any:
    spans = [*itertools.pairwise((0, *np.asarray(offsets)))]
    if b.ndim == 3:
        return jnp.concatenate([product(a[i:j], b[g]) for g, (i, j) in enumerate(spans)])
    return jnp.stack([product(a[:, i:j], b[i:j]) for i, j in spans])


def in_slots(a: Any, b: Any, counts: Any) -> Any:
    rows = jnp.arange(a.shape[1])[None, :, None] < counts[:, None, None]
    return jnp.where(rows, product(a, b), 0)


def of_e2m1(a: Any, b: Any, b_scale: Any) -> Any:
    values = jnp.asarray(VALUES)[from_fragment_order(b.T.astype("int32"), jnp)].T
    return double(a) @ (values * double(b_scale).repeat(32, 0))


def of_weights(a: Any, b: Any, b_scale: Any, b_zero: Any = None) -> Any:
    values = jnp.stack((b & 15, b >> 4), axis=1).reshape(-1, b.shape[1])
    zero = b_scale * 0 if b_zero is None else b_zero
    zero, scale = (jnp.repeat(double(x), 32, axis=0) for x in (zero, b_scale))
    return double(a) @ ((double(values) - zero) * scale)


def of_blocks(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    left = double(a) * jnp.repeat(double(a_scale), 128, axis=1)[:, : a.shape[1]]
    of_b = jnp.repeat(jnp.repeat(double(b_scale), 128, axis=0), 128, axis=1)
    return left @ (double(b) * of_b[: b.shape[0], : b.shape[1]])


def of_expression(a: Any, b: Any, c: Any, bias: Any, per_row: Any) -> Any:
    d = jax.nn.silu(2 * product(a, b) + 0.5 * double(c)) + double(bias)
    return d, d * double(per_row)[:, None], d.max(1), d.sum(0)


def of_gate(a: Any, b: Any) -> Any:
    sums = product(a, b)
    return jax.nn.gelu(sums[:, 0::2], approximate=False) * sums[:, 1::2]


FP8 = "float8_e4m3fn"
EXPRESSION = "d = silu(alpha * acc + beta * c) + bias[n]; x[m, n] = d * per_row[m]; most[m] = max(d); all[n] = sum(d)"

CASES: dict[str, Case] = {
    "bf16": Case({"a": whole(16, 24), "b": whole(24, 8)}, {}, product),
    "f16, B column by column": Case(
        {"a": whole(16, 24, dtype="float16"), "b": whole(24, 8, dtype="float16")}, {"b_major": "k"}, product
    ),
    "A column by column": Case({"a": whole(16, 24), "b": whole(24, 8)}, {"a_major": "m"}, product),
    "f32": Case({"a": whole(16, 24, dtype="float32"), "b": whole(24, 8, dtype="float32")}, {}, product),
    "tf32": Case({"a": whole(16, 24, dtype="float32"), "b": whole(24, 8, dtype="float32")}, {"tf32": True}, product),
    "f64 by alpha": Case(
        {"a": whole(16, 24, dtype="float64"), "b": whole(24, 8, dtype="float64")},
        {"alpha": 0.5},
        lambda a, b: 0.5 * (a @ b),
    ),
    "D in f32": Case({"a": whole(16, 24), "b": whole(24, 8)}, {"out_dtype": jnp.float32}, product),
    "integers": Case(
        {"a": whole(16, 32, dtype="int8"), "b": whole(32, 16, dtype="int8")}, {}, product, differentiable=()
    ),
    "fp8": Case({"a": whole(16, 32, dtype=FP8), "b": whole(32, 16, dtype=FP8)}, {"b_major": "k"}, product),
    "e5m2": Case({"a": whole(16, 32, dtype=FP8), "b": whole(32, 16, dtype="float8_e5m2")}, {"b_major": "k"}, product),
    "odd extents": Case({"a": whole(5, 7), "b": whole(7, 3)}, {}, product),
    "vectors": Case({"a": whole(24), "b": whole(24)}, {}, product),
    "a vector by a batch": Case({"a": whole(24), "b": whole(2, 24, 8)}, {}, product),
    "C": Case(
        {"a": whole(16, 24), "b": whole(24, 8), "c": whole(8)},
        {"alpha": 2.0, "beta": 0.5},
        lambda a, b, c: 2 * product(a, b) + 0.5 * double(c),
        differentiable=("a", "b", "c"),
    ),
    "a batch": Case({"a": whole(2, 16, 24), "b": whole(2, 24, 8)}, {}, product),
    "a batch of one weight": Case({"a": whole(3, 2, 16, 24), "b": whole(24, 8)}, {}, product),
    "batches that broadcast": Case({"a": whole(2, 1, 16, 24), "b": whole(3, 24, 8)}, {}, product),
    "scales of rows and columns": Case(
        {
            "a": whole(16, 32, dtype=FP8),
            "b": whole(32, 16, dtype=FP8),
            "a_scale": whole(16, 1, dtype="float32"),
            "b_scale": whole(16, dtype="float32"),
        },
        {"b_major": "k"},
        lambda a, b, a_scale, b_scale: product(a, b) * a_scale * b_scale,
        differentiable=("a", "b", "a_scale", "b_scale"),
    ),
    "scales of blocks": Case(
        {
            "a": whole(16, 256, dtype=FP8),
            "b": whole(256, 128, dtype=FP8),
            "a_scale": whole(16, 2, dtype="float32", low=1) / 8,
            "b_scale": whole(2, 1, dtype="float32", low=1) / 8,
        },
        {"b_major": "k"},
        of_blocks,
    ),
    "weights of 4 bits": Case(
        {
            "a": whole(16, 64),
            "b": whole(32, 16, dtype="uint8", low=0) * 16 + whole(32, 16, dtype="uint8", low=0),
            "b_scale": whole(2, 16, low=1),
            "b_zero": whole(2, 16),
        },
        {"b_dtype": "u4"},
        of_weights,
        differentiable=("a", "b_scale", "b_zero"),
    ),
    "weights of e2m1": Case(
        {
            "a": whole(16, 64),
            "b": whole(32, 16, dtype="uint8", low=0) * 37,
            "b_scale": (2.0 ** whole(2, 16, dtype="float32")).astype(jnp.float8_e8m0fnu),
        },
        {"b_dtype": "e2m1"},
        of_e2m1,
        differentiable=("a",),
    ),
    "an expression": Case(
        {
            "a": real(16, 24),
            "b": real(24, 8),
            "c": real(16, 8),
            "bias": real(8, dtype="float16"),
            "per_row": real(16),
        },
        {"alpha": 2.0, "beta": 0.5, "epilogue": EXPRESSION},
        of_expression,
        differentiable=("a", "b", "c", "bias", "per_row"),
    ),
    "a gate": Case(
        {"a": real(16, 24, dtype="bfloat16"), "b": real(24, 8, dtype="bfloat16")},
        {"epilogue": "d = gelu(gate) * up"},
        of_gate,
    ),
    "a gate of runs": Case(
        {"a": real(16, 24, dtype="bfloat16"), "b": real(24, 16, dtype="bfloat16")},
        {"epilogue": "d = gate8 * up8"},
        lambda a, b: product(a, b)[:, :8] * product(a, b)[:, 8:],
    ),
    "a gate of rows": Case(
        {"a": real(16, 24, dtype="bfloat16"), "b": real(24, 8, dtype="bfloat16")},
        {"epilogue": "d = gate8.m * up8.m"},
        lambda a, b: product(a, b)[:8] * product(a, b)[8:],
    ),
    "a quantised result": Case(
        {"a": whole(16, 64, dtype=FP8), "b": whole(64, 256, dtype=FP8)},
        {"epilogue": "h = acc * 2; s[m, n/128] = scale(h); d = h / s", "out_dtype": FP8},
        in_blocks,
        differentiable=(),
    ),
    "a scalar": Case(
        {"a": real(16, 24), "b": real(24, 8), "x": real(1)},
        {"epilogue": "d = tanh(acc * x) * y", "y": 2.0},
        lambda a, b, x: 2 * jnp.tanh(product(a, b) * x),
        differentiable=("a", "b", "x"),
    ),
    "groups of rows": Case(
        {"a": whole(24, 16), "b": whole(3, 16, 8), "offsets": np.array([8, 8, 24], "int32")},
        {},
        in_groups,
        grouped=True,
    ),
    "groups of rows at int64": Case(
        {"a": whole(24, 16), "b": whole(3, 16, 8), "offsets": np.array([8, 8, 24], "int64")},
        {"b_major": "k"},
        in_groups,
        grouped=True,
    ),
    "groups of gathered rows": Case(
        {
            "a": whole(7, 16),
            "b": whole(3, 16, 8),
            "offsets": np.array([8, 8, 24], "int32"),
            "rows": np.array([3, 9, 3, -1, *range(7), *range(7), *range(6)], "int64"),
        },
        {},
        lambda a, b, offsets, rows: in_groups(a[np.where((rows < 0) | (rows > 6), 6, rows)], b, offsets),
        grouped=True,
    ),
    "groups of rows with weights of u4": Case(
        {
            "a": whole(24, 64),
            "b": whole(3, 32, 16, dtype="uint8", low=0) * 37,
            "offsets": np.array([8, 8, 24], "int32"),
            "b_scale": whole(3, 2, 16),
            "b_zero": whole(3, 2, 16),
        },
        {"b_dtype": "u4"},
        lambda a, b, offsets, b_scale, b_zero: jnp.concatenate(
            [
                of_weights(a[begin:end], b[g], b_scale[g], b_zero[g])
                for g, (begin, end) in enumerate(itertools.pairwise((0, *np.asarray(offsets))))
            ]
        ),
        grouped=True,
        differentiable=("a",),
    ),
    "groups of gathered rows with weights of u4": Case(
        {
            "a": whole(7, 64),
            "b": whole(3, 32, 16, dtype="uint8", low=0) * 37,
            "offsets": np.array([8, 8, 24], "int32"),
            "rows": np.array([3, 9, 3, -1, *range(7), *range(7), *range(6)], "int32"),
            "b_scale": whole(3, 2, 16),
        },
        {"b_dtype": "u4"},
        lambda a, b, offsets, rows, b_scale: jnp.concatenate(
            [
                of_weights(a[np.where((rows < 0) | (rows > 6), 6, rows)][begin:end], b[g], b_scale[g])
                for g, (begin, end) in enumerate(itertools.pairwise((0, *np.asarray(offsets))))
            ]
        ),
        grouped=True,
        differentiable=("a",),
    ),
    "groups of rows, a bias each": Case(
        {
            "a": real(24, 16, dtype="bfloat16"),
            "b": real(3, 16, 8, dtype="bfloat16"),
            "offsets": np.array([8, 8, 24], "int32"),
            "bias": real(3, 8),
        },
        {"epilogue": "d = relu(acc + bias[n])"},
        lambda a, b, offsets, bias: jax.nn.relu(
            in_groups(a, b, offsets) + jnp.repeat(double(bias), np.array([8, 0, 16]), axis=0)
        ),
        grouped=True,
        differentiable=("a", "b", "bias"),
    ),
    "groups along K": Case(
        {"a": whole(16, 24), "b": whole(24, 8), "offsets": np.array([8, 8, 24], "int32")}, {}, in_groups, grouped=True
    ),
    "groups along K of gathered columns": Case(
        {
            "a": whole(16, 7),
            "b": whole(24, 8),
            "offsets": np.array([8, 8, 24], "int32"),
            "rows": np.array([3, 9, 3, -1, *range(7), *range(7), *range(6)], "int32"),
        },
        {},
        lambda a, b, offsets, rows: in_groups(a[:, np.where((rows < 0) | (rows > 6), 6, rows)], b, offsets),
        grouped=True,
    ),
    "slots": Case(
        {"a": whole(3, 8, 16), "b": whole(3, 16, 8), "counts": np.array([8, 0, 5], "int32")},
        {"expected_rows": 5},
        in_slots,
        grouped=True,
    ),
}

"""Calls that are refused where they are traced, by errors that name the argument and the way out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")

from tests.jax.cases import whole  # noqa: E402
from tests.runtime.api.test_signatures import taken_by  # noqa: E402

import gemmill  # noqa: E402
import gemmill.jax  # noqa: E402

jnp = jax.numpy
A, B = whole(16, 24), whole(24, 8)

REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "shapes": (gemmill.OperandError, "they must be equal", {"b": whole(16, 8)}),
    "a major": (gemmill.OperandError, "b_major is 'm'; it must be 'k' or 'n'", {"b_major": "m"}),
    "a dtype": (gemmill.OperandError, "a is int16", {"a": A.astype("int16")}),
    "no array": (gemmill.OperandError, "b is a str", {"b": "b"}),
    "an output": (
        gemmill.KeywordError,
        "x is an output of the epilogue",
        {"epilogue": "d = acc; x[m] = max(acc)", "x": A[:, 0]},
    ),
    "an operand that is missing": (gemmill.OperandError, "x is missing", {"epilogue": "d = acc + x[n]"}),
    "an operand too many": (gemmill.KeywordError, "bais", {"bais": A[0]}),
    "a vector beside an epilogue": (
        gemmill.OperandError,
        "a or b is a vector",
        {"a": A[0], "epilogue": "d = relu(acc)"},
    ),
    "a kernel": (gemmill.ConfigError, "fast", {"kernel": "fast"}),
    "a C that does not fit": (gemmill.OperandError, "c has shape", {"c": whole(7)}),
    "an out that does not fit": (gemmill.OperandError, "out is", {"out": whole(7, 8)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_where_it_is_traced(name: str) -> None:
    error, said, given = REFUSED[name]
    for call in (gemmill.jax.matmul, lambda **x: jax.eval_shape(lambda: gemmill.jax.matmul(**x))):
        with pytest.raises(error, match=said):
            call(**{"a": A, "b": B, **given})


@pytest.mark.parametrize(("call", "name"), [(gemmill.jax.grouped_matmul, "addresses"), (gemmill.jax.matmul, "offsets")])
def test_an_array_of_another_function_is_no_operand(call: Any, name: str) -> None:
    groups = {"a": whole(24, 16), "b": whole(3, 16, 8), name: jnp.array([8, 8, 24], "int32")}
    if name == "addresses":
        groups["offsets"] = groups[name]
    for epilogue in ({}, {"epilogue": "d = relu(acc)"}):
        with pytest.raises(gemmill.KeywordError, match=f"unexpected argument '{name}'"):
            call(**groups, **epilogue)


GROUPS = {"a": whole(24, 16), "offsets": jnp.array([8, 8, 24], "int32")}
NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "an array": lambda x, y: gemmill.jax.matmul(A, B, alpha=jnp.asarray(x, "bfloat16")),
    "a batch, and C": lambda x, y: gemmill.jax.matmul(whole(2, 16, 24), B, c=whole(16, 8), alpha=x, beta=y),
    "vectors": lambda x, y: gemmill.jax.matmul(A[0], B[:, 0], alpha=x),
    "an expression": lambda x, y: gemmill.jax.matmul(
        A, B, epilogue="d = relu(alpha * acc) + y * x[n]; most[m] = max(d)", alpha=x, y=y, x=A[0, :8]
    ),
    "scales": lambda x, y: gemmill.jax.matmul(A, B, a_scale=x, b_scale=y, alpha=x, epilogue="d = alpha * acc + 1"),
    "f64": lambda x, y: gemmill.jax.matmul(A.astype("float64"), B.astype("float64"), alpha=x / 10),
    "integers": lambda x, y: gemmill.jax.matmul(*(whole(16, 16, dtype="int8"),) * 2, alpha=x.astype("int32")),
    "groups of rows": lambda x, y: gemmill.jax.grouped_matmul(b=whole(3, 16, 8), alpha=x, **GROUPS),
    "groups along K": lambda x, y: gemmill.jax.grouped_matmul(whole(16, 24), B, GROUPS["offsets"], alpha=x),
    "C in place": lambda x, y: gemmill.jax.matmul(A, B, alpha=x, beta=y, **dict.fromkeys(("c", "out"), whole(16, 8))),
}
"""Calls with the numbers 2 and 0.5."""


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_be_traced(name: str) -> None:
    constant = NUMBERS[name](np.float64(2), np.float64(0.5))
    traced = jax.jit(NUMBERS[name])(2.0, 0.5)
    for x, y in zip(jax.tree.leaves(traced), jax.tree.leaves(constant), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"alpha": jnp.ones(3)}, r"alpha is float64 \(3,\); it must be one real number"),
        ({"alpha": 1j}, "alpha is complex128"),
        ({"beta": 2.0}, "there is no c to scale"),
        ({"alpha": 2.0, "epilogue": "d = relu(acc)"}, "`d = relu\\(acc\\)` does not read it"),
        ({"tf32": True}, "tf32 is traced; it must be a constant"),
    ],
)
def test_traced_values_that_are_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(gemmill.OperandError, match=said):
        jax.jit(partial(gemmill.jax.matmul, A, B), static_argnames="epilogue")(**keywords)


def test_what_is_selected_is_what_gemmill_selects() -> None:
    jaxpr = str(jax.make_jaxpr(gemmill.jax.matmul)(A, B))
    problem = gemmill.GemmProblem.from_text("16x8x24 bf16 tt")
    assert gemmill.Registry().select(problem).name in jaxpr


@pytest.mark.parametrize("name", ["matmul", "grouped_matmul"])
def test_keywords_have_the_defaults_and_the_order_of_gemmills(name: str) -> None:
    ours, declared = (inspect.signature(getattr(x, name)).parameters for x in (gemmill, gemmill.jax))
    assert {*declared} == taken_by(f"jax.{name}") | {"a_major", "b_major", "operands"}
    shared = [x for x in declared if x in ours]
    assert shared == [x for x in ours if x in declared]
    assert all(declared[x].default == ours[x].default and declared[x].kind == ours[x].kind for x in shared)

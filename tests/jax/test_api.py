"""Calls that are refused where they are traced, by errors that name the argument and the way out."""

from __future__ import annotations

import inspect
from typing import Any

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


def test_factors_are_constants() -> None:
    with pytest.raises(gemmill.OperandError, match="alpha is traced"):
        jax.jit(lambda x: gemmill.jax.matmul(A, B, alpha=x))(2.0)
    scaled = jax.jit(lambda x: gemmill.jax.matmul(A, B, epilogue="d = acc * x", x=x))
    assert (scaled(jnp.float32(2)) == 2 * gemmill.jax.matmul(A, B)).all()


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

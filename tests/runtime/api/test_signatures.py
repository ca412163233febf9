"""What the public functions declare, against the one table of their keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import gemmill
from gemmill.runtime.operands.call import DEFAULTS, Options
from gemmill.runtime.operands.gemm import OPERANDS

FUNCTIONS = (gemmill.matmul, gemmill.grouped_matmul, gemmill.array_matmul, gemmill.plan)


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keywords that a function declares, in order, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_keywords_have_the_order_and_the_defaults_of_the_table(function: Callable[..., Any]) -> None:
    declared, order = keywords(function), [*keywords(gemmill.plan)]
    assert declared == {name: getattr(DEFAULTS, name, None) for name in declared} | {"explain": False}
    assert [*declared] == [name for name in order if name in declared]
    assert inspect.getdoc(function)


def test_a_plan_takes_them_all() -> None:
    declared = [*keywords(gemmill.plan)]
    assert {*declared} == {*Options._fields, *OPERANDS, "stream", "explain", "epilogue"} - {"a", "b"}
    assert [name for name in declared if name in Options._fields] == [*Options._fields]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_no_function_takes_is_refused(function: Callable[..., Any]) -> None:
    tensors = [None] * 4 if function is gemmill.array_matmul else [None] * 2
    offsets = {"offsets": 0} if function is gemmill.grouped_matmul else {}
    with pytest.raises(TypeError, match="bogus"):
        function(*tensors, bogus=1, **offsets)

"""What the public functions declare, against the one table of their keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import gemmill
from gemmill.runtime.operands.call_keywords import DEFAULTS, OPERANDS, OTHERS, Options

FUNCTIONS = (gemmill.matmul, gemmill.grouped_matmul, gemmill.array_matmul, gemmill.plan)
OPTIONS = get_type_hints(Options, localns={"Registry": object}, include_extras=True)
CALLS = {**OPERANDS, **{name: hint.__metadata__[0] for name, hint in OPTIONS.items()}, **OTHERS}


def taken_by(call: str) -> set[str]:
    """Keywords that a call takes by the table."""
    return {name for name, calls in CALLS.items() if call in calls}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_signatures_are_those_of_the_table(function: Callable[..., Any]) -> None:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    declared = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert {p.name for p in parameters} == taken_by(function.__name__)
    assert declared == {name: getattr(DEFAULTS, name, None) for name in declared} | {"explain": False}
    assert [name for name in Options._fields if name in declared] == [x for x in declared if x in Options._fields]
    order = [*inspect.signature(gemmill.plan).parameters]
    assert [*declared] == [name for name in order if name in declared]
    assert inspect.getdoc(function)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_no_function_takes_is_refused(function: Callable[..., Any]) -> None:
    tensors = [None] * 4 if function is gemmill.array_matmul else [None] * 2
    offsets = {"offsets": 0} if function is gemmill.grouped_matmul else {}
    with pytest.raises(TypeError, match="bogus"):
        function(*tensors, bogus=1, **offsets)

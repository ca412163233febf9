"""Keywords that no call has: what was meant is named, and nothing is taken for an operand that no epilogue names."""

from __future__ import annotations

from typing import Any

import pytest

from gemmill.library.errors import OperandError
from gemmill.runtime.api.read import read_call
from gemmill.runtime.operands.epilogue_arguments import read_arguments

KEYWORDS = ("a", "b", "out", "alpha", "beta", "out_dtype", "sm_count", "deterministic", "autotune", "epilogue")
MISSPELT = [
    ("autotnue", "autotune"),
    ("bata", "beta"),
    ("out_dtyp", "out_dtype"),
    ("sm_cuont", "sm_count"),
    ("deterministc", "deterministic"),
]


@pytest.mark.parametrize(("wrong", "meant"), MISSPELT)
def test_a_misspelt_keyword_is_answered_by_the_right_one(wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected argument '{wrong}', did you mean {meant}?"):
        read_call({wrong: 1}, KEYWORDS)
    with pytest.raises(OperandError, match=f"{wrong} is passed, .* does not use it, did you mean {meant}?"):
        read_arguments("d = acc + x", {"x": 1.0, wrong: 1}, 0, KEYWORDS)


def test_what_the_epilogue_names_is_an_operand() -> None:
    assert read_arguments("d = acc * bata", {"bata": 2.0}, 0, KEYWORDS).values == {"bata": 2.0}


def test_a_keyword_like_none_is_answered_by_epilogues() -> None:
    with pytest.raises(
        TypeError, match="unexpected argument 'bias'; for an operand of an epilogue, pass epilogue= too"
    ):
        read_call({"bias": 1}, KEYWORDS)


@pytest.mark.parametrize("factor", ["alpha", "beta"])
@pytest.mark.parametrize("value", ["two", [1.0], object()])
def test_factors_that_are_no_numbers_are_named(factor: str, value: Any) -> None:
    given = {"a": None, "b": None, "alpha": 1.0, "beta": None, "out": None, "stream": None, factor: value}
    with pytest.raises(OperandError, match=f"{factor} is .*; it must be a number"):
        read_call(given)

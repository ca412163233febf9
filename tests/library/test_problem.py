"""Problems described by hand: every argument of a wrong type, range or count is named, with what may stand there."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from gemmill.library.dtypes import DTYPES, unknown
from gemmill.library.errors import ProblemError, UnsupportedProblemError
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.runtime.registry import Registry

OPERAND, OUTPUT = ("bf16", "k"), ("bf16", "n")
GOOD: dict[str, Any] = {
    "extents": (64, 64, 64, 1),
    "a": OPERAND,
    "b": OPERAND,
    "accumulator": "f32",
    "c": None,
    "d": OUTPUT,
}
BAD = [
    ("extents", (64, 64, 64), r"extents is \(64, 64, 64\); it must be the four extents \(M, N, K, batch\)"),
    ("extents", "64,64,64,1", "extents is '64,64,64,1'"),
    ("extents", 64, "extents is 64"),
    ("extents", ("64", 64, 64, 1), "M of extents is '64'; it must be a whole number from 0"),
    ("extents", (64, 5.5, 64, 1), "N of extents is 5.5"),
    ("extents", (64, 64, True, 1), "K of extents is True"),
    ("extents", (64, 64, 64, -1), "batch of extents is -1"),
    ("extents", (MAX_EXTENT + 1, 64, 64, 1), f"M of extents is {MAX_EXTENT + 1}"),
    ("a", "bf16", r"a is 'bf16'; it must be dtype and major, such as \('bf16', 'k'\)"),
    ("a", ("fp16", "k"), "the dtype of a is 'fp16', did you mean f16"),
    ("b", ("bfloat16", "k"), "the dtype of b is 'bfloat16', did you mean bf16"),
    ("b", ("bf16", "n"), "the major of b is 'n'; it must be k, mn or any"),
    ("accumulator", "float", "accumulator is 'float', did you mean f32"),
    ("c", ("half", "n"), "the dtype of c is 'half', did you mean f16"),
    ("c", (), r"c is \(\)"),
    ("d", None, r"d is None; it must be dtype and major, such as \('bf16', 'n'\)"),
    ("d", ("bf16", "k"), "the major of d is 'k'; it must be n, m or any"),
    ("d", (DTYPES["bf16"], "n"), "the dtype of d is DType"),
]


@pytest.mark.parametrize(("argument", "value", "says"), BAD)
def test_what_cannot_be_is_named(argument: str, value: object, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        GemmProblem.packed(**{**GOOD, argument: value})


def test_integers_of_any_library_are_integers() -> None:
    problem = GemmProblem.packed(**{**GOOD, "extents": [np.int64(64), np.int32(64), np.uint8(64), 1]})
    assert problem == GemmProblem.packed(**GOOD)
    assert json.loads(json.dumps(asdict(problem)))["m"] == 64


def test_an_extent_that_is_no_integer_reaches_no_kernel() -> None:
    problem = GemmProblem(5.5, 64, 64, 1, *OPERAND, *OPERAND, "f32", *OUTPUT)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedProblemError, match=r"m is 5.5; it must be a whole number"):
        Registry(manifests=["bf16"]).select(problem)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype.stored_as is None], ids=lambda d: d.name)
def test_what_others_call_dtypes_is_understood(dtype: Any) -> None:
    assert unknown(f"torch.{dtype.torch}") == f", did you mean {dtype.name}?"

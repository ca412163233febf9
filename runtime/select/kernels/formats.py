"""Formats: the properties that a kernel and a problem that it supports have in common, and the kernels for a format."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from gemmill.library.config.field_table import TABLE
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.scales import in_f32
from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.epilogues.parse import canonical, unstaged
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem

Format = tuple[str | int | None, ...]
"""Values of :data:`FIELDS`."""
_ROWS = tuple(row for row in TABLE.values() if row.field.format)
FIELDS = tuple(row.of_problem for row in _ROWS)
"""Fields that a kernel and a problem must have equal; a kernel may also have ``any`` as a major."""
A, B = FIELDS.index("a_dtype"), FIELDS.index("b_dtype")
OUTPUTS = slice(FIELDS.index("c_dtype"), FIELDS.index("d_major") + 1)
EPILOGUE = FIELDS.index("epilogue")
BATCHING = FIELDS.index("batching")
_SUMMED_IN_F16 = frozenset(("f16", *FP8))
"""Types of A and B for which tensor cores can accumulate in f16."""
A_SCALE, B_SCALE = FIELDS.index("a_scale"), FIELDS.index("b_scale")

format_of_problem: Callable[[GemmProblem], Format] = attrgetter(*FIELDS)
"""The formats of a problem."""


_with_c = attrgetter(*(row.name for row in _ROWS))
_without_c = attrgetter(*(row.name if row.absent is None else row.group for row in _ROWS))


def format_of(config: GemmConfig) -> Format:
    """Return the formats that a problem must have for a kernel."""
    formats: Format = _with_c(config) if config.c else _without_c(config)
    return formats


def types_of(formats: Format) -> Format:
    """Return formats without majors."""
    return tuple(value for field, value in zip(FIELDS, formats, strict=True) if not field.endswith("_major"))


def declared_scales(formats: Format) -> Format:
    """Return formats with scales as kernel sets declare them: block scales in f32."""
    scales: Any = formats[A_SCALE], formats[B_SCALE]
    changed = dict(zip((A_SCALE, B_SCALE), in_f32(*scales), strict=True))
    return tuple(changed.get(place, value) for place, value in enumerate(formats))


def with_declared_scales(problem: GemmProblem) -> GemmProblem:
    """Return a problem with scales as kernel sets declare them."""
    a_scale, b_scale = in_f32(problem.a_scale, problem.b_scale)
    return problem.but(a_scale=a_scale, b_scale=b_scale)


def serving_formats(problem: GemmProblem) -> Iterator[Format]:
    """Return the formats of kernels that support a problem: its own, those that take an operand with any major, and for
    a symmetric D those that compute all of it."""
    choices = []
    for field in FIELDS:
        value = getattr(problem, field)
        choices.append(dict.fromkeys((value, *(_others(field, value) if value else ()))))
    return itertools.product(*choices)


def with_f32_sums(problem: GemmProblem) -> GemmProblem | None:
    """Return a problem that sums in f16 with sums in f32, whose kernels support it more precisely; None for others."""
    if problem.accumulator == "f16" and {problem.a_dtype, problem.b_dtype} <= _SUMMED_IN_F16:
        return problem.but(accumulator="f32")
    return None


def _others(field: str, value: Any) -> tuple[Any, ...]:
    """Return the other values of a field that kernels for a problem with ``value`` may have."""
    if field == "epilogue":
        return (unstaged(value),)
    return ("general",) if field == "symmetry" else ("any",) if field.endswith("_major") else ()


def check_formats(problem: GemmProblem) -> None:
    """Check that the formats of a problem exist and have their canonical spelling.

    Raises:
        UnsupportedProblemError: names the field and its value.
    """
    for field in ("a_dtype", "b_dtype", "accumulator", "d_dtype"):
        if (value := getattr(problem, field)) not in DTYPES:
            raise UnsupportedProblemError(f"{field} is {value!r}; it must be one of {', '.join(DTYPES)}")
    if (problem.c_dtype is None) != (problem.c_major is None) or problem.c_dtype not in (None, *DTYPES):
        c = f"c_dtype is {problem.c_dtype!r} and c_major {problem.c_major!r}"
        raise UnsupportedProblemError(f"{c}; with C both must be set, without C both must be None")
    if (text := canonical(problem.epilogue)) != problem.epilogue:
        raise UnsupportedProblemError(
            f"the epilogue is {problem.epilogue!r}; it must have the canonical spelling {text!r}"
        )

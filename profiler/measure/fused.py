"""Reference results of epilogues, with an error bound for each value, computed part by part.

:mod:`gemmill.library.epilogues.evaluation` evaluates an expression and its error. This module passes it the operands of
one part of D, and combines the outputs of all parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.evaluation import EPSILON, Bounded, evaluate
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import Assignment, Operand, sums_by_name
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import argument_shape, torch
from gemmill.profiler.measure.parts import Part

_START: Mapping[str, float] = {"max": -math.inf, "min": math.inf, "sum": 0.0}
"""Initial values of reductions."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the epilogue other than D; its shape depends on its kind (:func:`argument_shape`)."""

    what: Assignment
    value: Any
    """Expected values in float64; NaN where no kernel writes."""
    error: Any
    """Error bounds of the kernel's arithmetic; infinite where no kernel writes."""

    @classmethod
    def of(cls, problem: GemmProblem, what: Assignment, device: Any) -> Output:
        """An output without any results yet."""
        shape = argument_shape(problem, what)
        reduced = what.is_reduction and what.kind != "row"
        start, error = (_START[what.role], 0.0) if reduced else (math.nan, math.inf)
        return cls(what, *(torch().full(shape, x, dtype=torch().float64, device=device) for x in (start, error)))

    def add(self, part: Part, rows: slice, found: Bounded, share: float) -> None:
        """Add the results of some rows of a part; ``share`` is their fraction of everything that is reduced."""
        value, error = (self._place(tensor, part, rows) for tensor in (self.value, self.error))
        added, added_error = found.value.reshape(value.shape), found.error.reshape(value.shape)
        if not self.what.is_reduction or self.what.kind == "row":
            value.copy_(added)
            error.copy_(added_error)
        elif self.what.role == "sum":
            value += added
            error += added_error / share  # the bound of a sum grows with the number of its terms
        else:
            value.copy_((torch().maximum if self.what.role == "max" else torch().minimum)(value, added))
            error.copy_(torch().maximum(error, added_error))

    def _place(self, tensor: Any, part: Part, rows: slice) -> Any:
        kind = self.what.kind
        if kind == "scalar":
            return tensor
        places = {"matrix": (rows, part.columns), "block": (rows,), "row": (rows,), "column": (part.columns,)}
        return _of_matrix(tensor, kind, part)[places.get(kind, ())]


def outputs_of(problem: GemmProblem, device: Any) -> dict[str, Output]:
    """The outputs of a problem's epilogue other than D, by name."""
    return {x.name: Output.of(problem, x, device) for x in parse(problem.epilogue).outputs}


def fused(
    problem: GemmProblem,
    part: Part,
    rows: slice,
    sums: Bounded,
    c: Any,
    arguments: Mapping[str, Any],
    factors: tuple[float, float],
) -> dict[str, Bounded]:
    """D and the other outputs of some rows of a part, before rounding to their types.

    Args:
        problem: the problem with its epilogue.
        part: the product.
        rows: rows of D's matrix.
        sums: accumulators of these rows, (rows, N).
        c: the same rows of C; None without C.
        arguments: operands of the epilogue by name.
        factors: alpha and beta.
    """
    epilogue = parse(problem.epilogue)
    if DTYPES[problem.accumulator].is_integer and problem.d_dtype != "s32":  # converted to f32
        sums = Bounded(sums.value, sums.error + EPSILON / 2 * sums.value.abs())
    errors = sums_by_name(epilogue, sums.error)
    values: dict[str, Any] = {
        name: Bounded(value, errors[name]) for name, value in sums_by_name(epilogue, sums.value).items()
    }
    like = 0.0 * next(iter(values.values())).value
    if c is not None:
        values["c"] = c.double()
    values |= {name: like + factor for name, factor in zip(("alpha", "beta"), factors, strict=True)}
    values |= {x.name: like + operand_of(x, arguments[x.name], part, rows).double() for x in epilogue.operands}
    results = evaluate(epilogue, values, torch(), problem.d_dtype)
    return {name: Bounded(x.value, x.error) for name, x in results.items()}


def operand_of(x: Operand, tensor: Any, part: Part, rows: slice) -> Any:
    """An operand of the epilogue, shaped to broadcast to some rows of a part."""
    if x.kind == "scalar":
        return tensor.reshape(())
    places = {"matrix": (rows, part.columns), "row": (rows, None), "column": (None, part.columns)}
    return _of_matrix(tensor, x.kind, part)[places.get(x.kind, ())]


_AXES = {"matrix": 2, "block": 2, "row": 1, "column": 1, "batch": 0}
"""Axes of each kind of operand, besides the batch or the groups."""


def _of_matrix(tensor: Any, kind: str, part: Part) -> Any:
    """What an operand or output of the epilogue has for the matrix or the group of a part."""
    return tensor.reshape(-1, *tensor.shape[tensor.dim() - _AXES[kind] :])[part.matrix_of(kind)]

"""Reference evaluation of epilogues: the values, and in float64 also a bound on the error of a kernel's float32 result.

Each value carries a bound of its error. Kernels round each operation to float32 (half an ulp), and the table of
functions states the error of each function. Works on arrays of NumPy, PyTorch and JAX: ``xp`` is the module or its
:class:`Arrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.function_table import FUNCTIONS, Arrays, Function
from gemmill.library.epilogues.grammar import SUMS as SUM_NAMES
from gemmill.library.epilogues.tree import (
    BLOCK,
    SCALE,
    Assignment,
    Call,
    Epilogue,
    Kind,
    Node,
    Number,
    Operand,
    Value,
    roundings,
)

EPSILON = 2.0**-23
"""An ulp of float32, relative."""
_BEYOND_FLOAT32: tuple[DTypeName, ...] = ("f64", "s32")
"""Types of operands that float32 rounds."""
SMALLEST = 2.0**-126
"""The smallest normal float32."""
LARGEST_E4M3, LEAST_SCALE = 448.0, 2.0**-40
"""The largest e4m3, and the least scale of a block (scale_of in emitters/include/gemmill/epilogue/operands.cuh)."""


def values(epilogue: Epilogue, inputs: Mapping[str, Any], xp: Any, number: Callable[[float], Any]) -> dict[str, Any]:
    """The value of each assignment per element, by name, before reductions and before rounding to its type; the scales
    (..., M, columns of D / 128) as they are stored.

    Args:
        epilogue: the epilogue to evaluate.
        inputs: ``acc``, or ``gate`` and ``up``, or ``gate8`` and ``up8``; ``c``; the operands,
            ``alpha`` and ``beta``: arrays that broadcast to (..., M, columns of D).
        xp: the module of the arrays, or its :class:`Arrays`.
        number: makes an array of a constant.
    """
    arrays = xp if isinstance(xp, Arrays) else Arrays(xp)
    variables = dict(inputs)

    def value(node: Node) -> Any:
        match node:
            case Number(constant):
                return number(constant)
            case Operand(name) | Value(name):
                return variables[name]
            case Call(name, arguments):
                return arrays.applied(FUNCTIONS[name], *map(value, arguments))

    results = {}
    for assignment in epilogue.assignments:
        results[assignment.name] = result = value(assignment.value)
        if assignment.role == SCALE:
            results[assignment.name] = scales = scales_of(_largest_of_blocks(result, arrays), assignment.dtype, arrays)
            result = _for_all_columns(scales, arrays)
        variables[assignment.name] = result
    return results


def scales_of(largest: Any, dtype: DTypeName, xp: Any) -> Any:
    """The scales of blocks with these largest magnitudes, so that the largest becomes 448, that of e4m3. As ue8m0 they
    are rounded up to powers of two, and NaN unless finite."""
    scales = xp.maximum(largest / LARGEST_E4M3, 0.0 * largest + LEAST_SCALE)
    if dtype == "f32":
        return scales
    fraction, exponent = xp.frexp(scales)  # 0.5 to below 1
    return xp.exp2(exponent * 1.0 - (fraction == 0.5) * 1.0) + (scales - scales)


def _largest_of_blocks(x: Any, xp: Any) -> Any:
    """The largest magnitude in each block of columns."""
    *rows, columns = x.shape
    return xp.amax(xp.abs(x.reshape(*rows, columns // BLOCK, BLOCK)), -1)


def _for_all_columns(scales: Any, xp: Any) -> Any:
    """The scale of each column."""
    blocks = scales.shape[-1]
    return xp.broadcast_to(scales[..., None], (*scales.shape, BLOCK)).reshape(*scales.shape[:-1], blocks * BLOCK)


def reduced(assignment: Assignment, x: Any, xp: Any) -> Any:
    """The output of an assignment whose value is ``x``: reduced if it is a reduction. Batch extents remain."""
    axes = _axes(assignment.kind, x)
    match assignment.role:
        case "max":
            return xp.amax(x, axes)
        case "min":
            return xp.amin(x, axes)
        case "sum":
            return x.sum(axes)
    return x


def _axes(kind: Kind, x: Any) -> tuple[int, ...]:
    return {"scalar": tuple(range(x.ndim)), "batch": (-2, -1), "row": (-1,), "column": (-2,)}.get(kind, ())


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value and a bound of the difference of the kernel's value from it."""

    value: Any
    error: Any


def evaluate(epilogue: Epilogue, inputs: Mapping[str, Any], xp: Any, d_dtype: DTypeName = "f32") -> dict[str, Bounded]:
    """D and the other outputs by name, with error bounds, before they are rounded to their types.

    ``inputs`` are those of :func:`values`, in float64; each can be a :class:`Bounded`. ``d_dtype`` is the type of D.
    Reductions keep batch extents.
    """
    arrays = Arrays(xp)
    variables = {name: x if isinstance(x, Bounded) else Bounded(x, 0.0 * x) for name, x in inputs.items()}
    outputs = {}
    rounded_to = roundings(epilogue, d_dtype)
    for a in epilogue.assignments:
        result = _value(a.value, variables, arrays, rounded_to[a.name])
        if a.role == SCALE:
            outputs[a.name] = scales = _scales(a, result, arrays)
            result = Bounded(_for_all_columns(scales.value, arrays), _for_all_columns(scales.error, arrays))
        variables[a.name] = result
        if a.role in ("local", SCALE):
            continue
        if a.is_reduction:  # broadcast to all of D first
            all_of_d = xp.zeros_like(next(variables[name] for name in SUM_NAMES if name in variables).value)
            result = _reduced(a, Bounded(result.value + all_of_d, result.error + all_of_d), xp)
        outputs[a.name] = result
    return outputs


def _value(node: Node, variables: Mapping[str, Bounded], xp: Arrays, rounded_to: DTypeName = "f32") -> Bounded:
    """The value of a node that is eventually rounded to ``rounded_to``; see :func:`roundings`."""
    match node:
        case Number(value):
            like = 0.0 * next(iter(variables.values())).value
            exact = value == int(value) and abs(value) <= 2**24
            return Bounded(like + value, like + EPSILON / 2 * abs(value) * (not exact))
        case Operand(name, dtype=dtype):
            x = variables[name]
            return Bounded(x.value, x.error + EPSILON / 2 * abs(x.value)) if dtype in _BEYOND_FLOAT32 else x
        case Value(name):
            return variables[name]
        case Call("where", (condition, x, y)):
            sure, unsure = _condition(condition, variables, xp)
            a, b = _value(x, variables, xp, rounded_to), _value(y, variables, xp, rounded_to)
            error = xp.where(sure, a.error, b.error)
            jump = abs(a.value - b.value) + a.error + b.error
            return Bounded(xp.where(sure, a.value, b.value), xp.where(unsure, jump, error))
        case Call(name, arguments):
            row = FUNCTIONS[name]
            inside = rounded_to if row.passes_error else "f32"
            return _applied(row, [_value(argument, variables, xp, inside) for argument in arguments], xp, rounded_to)


def _condition(node: Node, variables: Mapping[str, Bounded], xp: Arrays) -> tuple[Any, Any]:
    """Whether a condition holds, and whether rounding can change that."""
    assert isinstance(node, Call)
    holds = partial(FUNCTIONS[node.function].array, xp)
    if FUNCTIONS[node.function].takes[0] == "condition":
        pairs = [_condition(argument, variables, xp) for argument in node.arguments]
        return holds(*(x for x, _ in pairs)), pairs[0][1] | pairs[-1][1]
    x, y = (_value(argument, variables, xp) for argument in node.arguments)
    error = x.error + y.error
    return holds(x.value, y.value), (error > 0) & (abs(x.value - y.value) <= error)


def _applied(row: Function, x: list[Bounded], xp: Arrays, form: DTypeName) -> Bounded:
    """A function of bounded values. ``form`` is the type to which the result is eventually rounded."""
    arguments, errors = [bounded.value for bounded in x], [bounded.error for bounded in x]
    function = partial(row.array, xp)
    value, magnitude = function(*arguments), abs(arguments[0])
    if row.spread:
        error = row.spread(xp, arguments, errors, value)
    else:  # monotone
        low, high = (abs(function(arguments[0] + sign * errors[0]) - value) for sign in (-1, 1))
        error = xp.maximum(low, high)
    size = abs(value) + error
    if shorter := row.form(form):
        short = row.short[shorter]
        return Bounded(value, error + short.error * size + short.beside(arguments[0]))
    error = error + row.ulps * EPSILON * (magnitude if row.is_exact_by_argument else size)
    if exponential := row.exponential:
        error = error + 2 * EPSILON * exponential.exponent(magnitude) * (abs(value) + error)
        error = error + 2 * SMALLEST * exponential.factor(magnitude)
    return Bounded(value, error)


def _scales(a: Assignment, x: Bounded, xp: Arrays) -> Bounded:
    """The scales of blocks of ``x``. A kernel multiplies by 1 / 448, rounded; both round half an ulp. The function is
    monotone, so it is evaluated at both ends. A power of two may be either of two."""
    largest, error = _largest_of_blocks(x.value, xp), _largest_of_blocks(x.error, xp)
    error = error + EPSILON * (largest + error)
    low, high = (scales_of(largest + sign * error, a.dtype, xp) for sign in (-1, 1))
    return Bounded((low + high) / 2, (high - low) / 2)


def _reduced(a: Assignment, x: Bounded, xp: Any) -> Bounded:
    value, axes = reduced(a, x.value, xp), _axes(a.kind, x.value)
    if a.role != "sum":
        return Bounded(value, xp.amax(x.error, axes))
    count = 1
    for axis in axes:
        count *= x.value.shape[axis]
    # For any order of additions: each of the count - 1 additions loses at most half an ulp of a partial sum.
    lost = count * EPSILON / 2 * (abs(x.value) + x.error).sum(axes)
    return Bounded(value, x.error.sum(axes) + lost)

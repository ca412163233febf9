"""What an epilogue computes, in float64, with how far the kernel's float32 may be from it.

Every value travels with a bound of its error: kernels round each operation to float32 (half an ulp), and functions are
as exact as ``ULPS`` says; those whose results are rounded to 16 bits less so, as ``SHORT_ERRORS`` says. Works on arrays
of numpy or PyTorch: ``xp`` is the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.tree import (
    PASSES,
    SHORT_FORMS,
    Call,
    Epilogue,
    Node,
    Number,
    Operand,
    Value,
    roundings,
)

EPSILON = 2.0**-23
"""An ulp of float32, relative."""

ULPS: Mapping[str, float] = MappingProxyType(
    {
        # Half an ulp where the operation is rounded correctly, none where it is exact; else the maximum errors of the
        # CUDA Math API (single precision, `__expf` among the intrinsics), and the roundings around them.
        **dict.fromkeys(("add", "sub", "mul", "sqrt"), 0.5),
        **dict.fromkeys(("neg", "abs", "min", "max", "relu", "clamp", "where", "round", "f32"), 0.0),
        "div": 2.0,
        "exp": 4.0,
        "log": 2.0,
        "rsqrt": 2.0,
        "erf": 2.0,
        "tanh": 2.0,
        "sigmoid": 6.0,
        "silu": 7.0,
        "gelu": 4.0,
        "gelu_tanh": 12.0,
    }
)
"""Error of each function in ulps of its result; of ``gelu``, in ulps of its argument."""

SHORT_ERRORS: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        # Fitted; the fits' errors are 2^-11.62 and 2^-15.73.
        ("gelu", "bf16"): 2.0**-11.5,
        ("gelu", "f16"): 2.0**-15.6,
        ("tanh", "bf16"): 2.0**-11,  # PTX ISA, "tanh.approx.f32"
    }
)
"""Relative error of the shorter form of a function on its way to a type; of ``gelu``, 2^-20 of it more. Less than a
quarter of half an ulp of the type."""

_GELU_END = 6e-9
"""Magnitude of ``gelu`` below -6, where its shorter form for f16 is not fitted and falls to 0 otherwise."""

SMALLEST = 2.0**-126
"""The least normal float32."""

_EXPONENTS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("exp", "sigmoid", "silu"), lambda x: x),
        "gelu_tanh": lambda x: 1.6 * x * (1 + 0.045 * x * x),
    }
)
"""For functions made with exp: what it is taken of, by the magnitude of the argument."""

_LIPSCHITZ = {"silu": 1.1, "gelu": 1.13, "gelu_tanh": 1.13, "neg": 1.0, "abs": 1.0}
"""Steepest slope of the functions that are not monotone, and of the trivial ones."""

_FORMATS = {"bf16": (7, -126, 3.4e38), "f16": (10, -14, 65504.0), "e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}
"""Mantissa bits, least exponent and greatest finite value."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value and the most by which the kernel's may differ from it."""

    value: Any
    error: Any


def evaluate(epilogue: Epilogue, inputs: Mapping[str, Any], xp: Any, d_dtype: DTypeName = "f32") -> dict[str, Bounded]:
    """D and the other outputs by name, before they are rounded to their types; that of D is ``d_dtype``.

    ``inputs`` holds float64 arrays that broadcast to (..., M, columns of D): ``acc``, or ``gate`` and ``up``; ``c``;
    the operands, ``alpha`` and ``beta``; each may be a :class:`Bounded`. Row sums and the like keep batch extents.
    """
    known = {name: x if isinstance(x, Bounded) else Bounded(x, 0.0 * x) for name, x in inputs.items()}
    outputs = {}
    rounded_to = roundings(epilogue, d_dtype)
    for a in epilogue.assignments:
        result = _value(a.value, known, xp, rounded_to[a.name])
        known[a.name] = result
        if a.role == "local":
            continue
        if a.is_reduction:  # over all of D, of whatever there is one value for
            all_of_d = xp.zeros_like(known["acc" if "acc" in known else "gate"].value)
            spread = Bounded(result.value + all_of_d, result.error + all_of_d)
            result = _reduced(a.role, a.kind, spread, xp)
        outputs[a.name] = result
    return outputs


def rounded(value: Any, dtype: str, xp: Any) -> Any:
    """Float64 rounded to a narrow type, ties to even; saturated to 8 bits."""
    if dtype == "f32":
        return value
    if dtype in ("s8", "u8"):
        return xp.clip(xp.round(value), *((-128.0, 127.0) if dtype == "s8" else (0.0, 255.0)))
    bits, least, most = _FORMATS[dtype]
    exponent = xp.frexp(value)[1] - 1
    step = xp.exp2(xp.clip(exponent, least, 128) * 1.0 - bits + 0.0 * value)
    result = xp.round(value / step) * step
    if dtype in ("e4m3", "e5m2"):
        return xp.clip(result, -most, most)
    return xp.where(abs(result) > most, xp.copysign(0.0 * result + float("inf"), result), result)


def _value(node: Node, known: Mapping[str, Bounded], xp: Any, rounded_to: DTypeName = "f32") -> Bounded:
    """A node's value, which is on its way to a type: see :func:`roundings`."""
    match node:
        case Number(value):
            like = 0.0 * next(iter(known.values())).value
            exact = value == int(value) and abs(value) <= 2**24
            return Bounded(like + value, like + EPSILON / 2 * abs(value) * (not exact))
        case Operand(name) | Value(name):
            return known[name]
        case Call("where", (condition, x, y)):
            sure, unsure = _condition(condition, known, xp)
            a, b = _value(x, known, xp, rounded_to), _value(y, known, xp, rounded_to)
            error = xp.where(sure, a.error, b.error)
            jump = abs(a.value - b.value) + a.error + b.error
            return Bounded(xp.where(sure, a.value, b.value), xp.where(unsure, jump, error))
        case Call(name, arguments):
            inside = rounded_to if name in PASSES else "f32"
            values = [_value(argument, known, xp, inside) for argument in arguments]
            return _call(name, values, xp, rounded_to if rounded_to in SHORT_FORMS.get(name, ()) else "f32")


def _condition(node: Node, known: Mapping[str, Bounded], xp: Any) -> tuple[Any, Any]:
    """Whether a condition holds, and whether rounding could decide it otherwise."""
    assert isinstance(node, Call)
    if node.function in ("and", "or", "not"):
        pairs = [_condition(argument, known, xp) for argument in node.arguments]
        if node.function == "not":
            return ~pairs[0][0], pairs[0][1]
        (p, p_unsure), (q, q_unsure) = pairs
        return (p & q if node.function == "and" else p | q), p_unsure | q_unsure
    x, y = (_value(argument, known, xp) for argument in node.arguments)
    compare: dict[str, Callable[[], Any]] = {
        "lt": lambda: x.value < y.value,
        "le": lambda: x.value <= y.value,
        "gt": lambda: x.value > y.value,
        "ge": lambda: x.value >= y.value,
        "eq": lambda: x.value == y.value,
        "ne": lambda: x.value != y.value,
    }
    error = x.error + y.error
    return compare[node.function](), (error > 0) & (abs(x.value - y.value) <= error)


def _call(name: str, x: list[Bounded], xp: Any, form: DTypeName) -> Bounded:
    """A function of bounded values; ``form``: the type for which it is exact enough."""
    values = [each.value for each in x]
    value = _apply(name, values, xp)
    if name in ("add", "sub"):
        error = x[0].error + x[1].error
    elif name == "mul":
        error = abs(values[0]) * x[1].error + abs(values[1]) * x[0].error + x[0].error * x[1].error
    elif name == "div":
        least = abs(values[1]) - x[1].error
        error = (x[0].error + abs(value) * x[1].error) / xp.where(least > 0, least, 0.0 * least)
    elif name in ("min", "max", "clamp"):
        error = x[0].error
        for other in x[1:]:
            error = xp.maximum(error + 0.0 * other.error, other.error + 0.0 * error)
    elif name in _LIPSCHITZ:
        error = _LIPSCHITZ[name] * x[0].error
    else:  # monotone
        ends = (_apply(name, [values[0] + sign * x[0].error], xp) for sign in (-1, 1))
        low, high = (abs(end - value) for end in ends)
        error = xp.maximum(low, high)
    size = abs(value) + error
    if form != "f32":
        error = error + SHORT_ERRORS[name, form] * size
        if name == "gelu":
            end = _GELU_END * (values[0] < -6) if form == "f16" else 0.0
            error = error + SHORT_ERRORS[name, form] * 2.0**-20 + end
    else:
        error = error + ULPS.get(name, 0.0) * EPSILON * (abs(values[0]) if name == "gelu" else size)
    if name in _EXPONENTS:
        # The argument of `__expf` is rounded, and results below the normal range are 0.
        exponent = _EXPONENTS[name](abs(values[0]))
        factor = abs(values[0]) if name in ("silu", "gelu_tanh") else 1.0
        error = error + 2 * EPSILON * exponent * (abs(value) + error) + 2 * SMALLEST * factor
    return Bounded(value, error)


def _apply(name: str, x: list[Any], xp: Any) -> Any:
    match name:
        case "add":
            return x[0] + x[1]
        case "sub":
            return x[0] - x[1]
        case "mul":
            return x[0] * x[1]
        case "div":
            return x[0] / x[1]
        case "neg":
            return -x[0]
        case "min" | "max":
            choose = xp.minimum if name == "min" else xp.maximum
            value = x[0]
            for other in x[1:]:
                value = choose(value + 0.0 * other, other + 0.0 * value)
            return value
        case "clamp":
            return _apply("min", [_apply("max", [x[0], x[1]], xp), x[2]], xp)
        case "relu":
            return _apply("max", [x[0], 0.0 * x[0]], xp)
        case "rsqrt":
            return 1 / xp.sqrt(x[0])
        case "sigmoid":
            return 1 / (1 + xp.exp(-x[0]))
        case "silu":
            return x[0] / (1 + xp.exp(-x[0]))
        case "erf":
            return _erf(x[0], xp)
        case "gelu":
            return 0.5 * x[0] * (1 + _erf(x[0] * 0.5**0.5, xp))
        case "gelu_tanh":
            inner = 0.7978845608028654 * (x[0] + 0.044715 * x[0] * x[0] * x[0])
            return x[0] / (1 + xp.exp(-2 * inner))
        case "abs" | "exp" | "log" | "sqrt" | "tanh" | "round":
            return getattr(xp, name)(x[0])
    return rounded(x[0], name, xp)


def _erf(x: Any, xp: Any) -> Any:
    """PyTorch has it; numpy, which has not, takes it from the standard library element by element."""
    if hasattr(xp, "erf"):
        return xp.erf(x)
    return xp.vectorize(math.erf, otypes=[float])(x)


def _reduced(role: str, kind: str, x: Bounded, xp: Any) -> Bounded:
    axes = {"scalar": tuple(range(x.value.ndim)), "batch": (-2, -1), "row": (-1,), "column": (-2,)}[kind]
    if role != "sum":
        choose = xp.amax if role == "max" else xp.amin
        return Bounded(choose(x.value, axes), xp.amax(x.error, axes))
    count = 1
    for axis in axes:
        count *= x.value.shape[axis]
    # Any order of additions: each of the count - 1 loses half an ulp of a partial sum.
    lost = count * EPSILON / 2 * (abs(x.value) + x.error).sum(axes)
    return Bounded(x.value.sum(axes), x.error.sum(axes) + lost)

"""Epilogues to the bit: expressions of functions that round once, or not at all."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.epilogues.order import ordered
from gemmill.library.epilogues.tree import Call, Epilogue, Node, Number, Operand, Value
from gemmill.library.oracle.elements import ARRAYS, rounded, values
from gemmill.library.oracle.fused import fma32, fma64


def fault_of_epilogue(epilogue: Epilogue) -> str:
    """What the oracle lacks for an epilogue; empty if it has all."""
    if epilogue.outputs:
        return f"outputs other than D, such as {epilogue.outputs[0].name}"
    if missing := sorted(epilogue.functions - _FUNCTIONS.keys()):
        return f"{missing[0]} in an epilogue: kernels approximate it"
    if missing := [operand.dtype for operand in epilogue.operands if operand.dtype not in ARRAYS]:
        return f"operands of the epilogue in {missing[0]}"
    return ""


def applied(epilogue: Epilogue, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """D before it is rounded to its type.

    Args:
        epilogue: an epilogue without a fault.
        inputs: ``acc``, or ``gate`` and ``up``; ``c``, ``alpha``, ``beta`` and the operands: arrays of one type,
            float32, float64 or int32, that broadcast to D.
    """
    variables = dict(inputs)
    compute = next(iter(inputs.values())).dtype

    def value(node: Node) -> Any:
        match node:
            case Number(constant):
                return compute.type(constant)
            case Operand(name) | Value(name):
                return variables[name]
            case Call(name, arguments):
                return _FUNCTIONS[name](*map(value, arguments))

    with np.errstate(all="ignore"):
        for assignment in epilogue.assignments:
            variables[assignment.name] = value(ordered(assignment.value))
    return variables["d"]


def _fma(x: Any, y: Any, z: Any) -> Any:
    if z.dtype == np.int32:
        return x * y + z
    return (fma64 if z.dtype == np.float64 else fma32)(*map(np.asarray, (x, y, z)))


def _max(x: Any, y: Any) -> Any:
    """Of f32, NaN if one is, and +0 is above -0 (PTX ISA, "max.NaN"); otherwise as in epilogue/math.cuh."""
    if x.dtype == np.float32:
        return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))
    return np.where((x != x) | (x > y), x, y)


def _min(x: Any, y: Any) -> Any:
    if x.dtype == np.float32:
        return -_max(-x, -y)
    return np.where((x != x) | (x < y), x, y)


def _converted(x: Any, dtype: str) -> Any:
    """Rounded to a type, and back."""
    row = DTYPES[dtype]
    if row.is_integer:
        return np.clip(np.rint(x), x.dtype.type(row.least), x.dtype.type(row.largest))
    return values(rounded(np.asarray(x), dtype), dtype).astype(x.dtype)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "fma": _fma,
        "fnma": lambda x, y, z: _fma(-x, y, z),
        "fms": lambda x, y, z: _fma(x, y, -z),
        "neg": operator.neg,
        "abs": np.abs,
        "round": np.rint,
        "min": lambda *x: functools.reduce(_min, x),
        "max": lambda *x: functools.reduce(_max, x),
        "relu": lambda x: _max(x, x.dtype.type(0)),
        "clamp": lambda x, low, high: _min(_max(x, low), high),
        "where": np.where,
        "and": np.logical_and,
        "or": np.logical_or,
        "not": np.logical_not,
        **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
        **{dtype: functools.partial(_converted, dtype=dtype) for dtype in ("f32", "bf16", "f16", *FP8, *INT8)},
    }
)
"""The functions that kernels compute without approximation, and those that :func:`ordered` adds."""

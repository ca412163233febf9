"""Numbers that JAX traces. Their values are known only at run time, so they are operands of the epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import numpy as jnp

from gemmill.library.epilogues.tree import with_operands
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue

_FACTORS = ("alpha", "beta")
_LINEAR = "d = alpha * acc", "d = alpha * acc + beta * c"
"""The epilogue of a call without one, without and with C."""


def with_traced_factors(
    keywords: Mapping[str, Any], operands: Mapping[str, Any], a: Any, b: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The keywords of a call, and the operands of its epilogue, with an operand for each traced ``alpha`` or ``beta``.

    Raises:
        OperandError: the factor multiplies nothing, or is not one real number.
    """
    traced = {name: keywords[name] for name in _FACTORS if isinstance(keywords.get(name), jax.core.Tracer)}
    if not traced:
        return keywords, operands
    text, prefix = keywords.get("epilogue"), "traced_"
    epilogue = read_epilogue(_LINEAR[keywords.get("c") is not None] if text is None else text)
    while any(prefix + name in operands for name in traced):
        prefix += prefix
    for name, x in traced.items():
        if name not in epilogue.factors:
            missing = f"the epilogue `{epilogue}` does not read it: use {name} in it"
            reason = "there is no c to scale: pass c=" if text is None else missing
            raise OperandError(f"{name} is passed, but {reason}, or leave {name} out")
        if x.shape or jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise OperandError(f"{name} is {x.dtype} {x.shape}; it must be one real number")
    left = {name: x for name, x in keywords.items() if name not in traced}
    left["epilogue"] = str(with_operands(epilogue, {name: prefix + name for name in traced}))
    return left, {**operands, **{prefix + name: number(x, a, b) for name, x in traced.items()}}


def is_traced_number(x: Any) -> bool:
    """Whether an array is a Python number that JAX traces, which has no dtype of its own."""
    return bool(x.ndim == 0 and jax.typeof(x).weak_type)


def number(x: Any, a: Any, b: Any) -> Any:
    """A number as a scalar in the dtype of the sums of A and B."""
    dtype = "float32"
    if "float64" in (a.dtype, b.dtype):
        dtype = "float64"
    elif all(jnp.issubdtype(y.dtype, jnp.integer) for y in (x, a, b)):
        dtype = "int32"
    return x.astype(dtype)
